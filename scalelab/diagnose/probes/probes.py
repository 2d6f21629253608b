"""Run the probes over one run, from its last checkpoint and, where needed, from others.

All of them are asked with `--live`. Without it those are asked that a small program answers in seconds; `--fast` asks
none. What was not asked is measured as `unasked/CAUSE`: (why, what would ask it).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.again import count_replayed, probe_replay
from scalelab.diagnose.probes.communication import probe_communication
from scalelab.diagnose.probes.leaves.ablation import probe_layers
from scalelab.diagnose.probes.leaves.impulse import probe_impulse
from scalelab.diagnose.probes.leaves.step import probe_leaves
from scalelab.diagnose.probes.model import probe_mask, probe_norms, probe_targets, probe_term
from scalelab.diagnose.probes.rates import probe_rates
from scalelab.diagnose.probes.recomputed import probe_lines, probe_validation
from scalelab.diagnose.probes.reference.probe import probe_mesh, probe_reference
from scalelab.diagnose.probes.sharpness import probe_sharpness
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.diagnose.probes.training import (
    probe_accumulation,
    probe_average,
    probe_decay,
    probe_moments,
    probe_optimizer,
    probe_precision,
)
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.record.soundness import size

QUICK = 2e11  # FLOPs of a probe that is asked without --live: some seconds of a CPU core at 3e10 a second
Measured = dict[str, Any]


class Probe(NamedTuple):
    """What a probe asks: the cause it may show, about how many training steps it takes, and how it is asked."""

    cause: str
    steps: float
    ask: Callable[[], Measured]


def ask_program(evidence: Evidence, live: bool) -> tuple[Evidence, str]:
    """Add what the run's program answers, all (`live`) or what costs little; and say what was asked.

    BadInput under `live` if the run has no checkpoint or no data here.
    """
    if live:
        asked = run_probes(evidence)
        return asked, f"asked, from the checkpoint of step {asked.probes['step']}"
    flops = count_step_flops(evidence)
    if flops is None or flops > QUICK:
        size = "is not known" if flops is None else f"takes {flops:.2g} FLOPs, which is not small"
        return evidence, f"not asked: a step of it {size}; --live asks it"
    try:
        asked = run_probes(evidence, QUICK)
    except Exception as error:  # of any kind: what can't be loaded is not asked
        return evidence, f"not asked: {describe_error(error)}"
    return asked, f"asked, from the checkpoint of step {asked.probes['step']}, as it is small (--fast leaves it out)"


def describe_error(error: Exception) -> str:
    """The first line of what went wrong; with its kind where it was not raised for the user."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return text if isinstance(error, BadInput) else f"{type(error).__name__}: {text}"


def count_step_flops(evidence: Evidence) -> float | None:
    """6 FLOPs a parameter and token of a training step; None if neither its config nor its record tells parameters.

    A record may lie about the size of what would be computed here, so that of both the larger counts.
    """
    tokens = float(evidence.values["train.global_batch"]) * float(evidence.values["model.seq_len"])
    counted = size.count_parameters(records.read_config(evidence.folder)) or {"total": 0}
    return 6.0 * max(counted["total"], evidence.n_parameters) * tokens or None


def run_probes(evidence: Evidence, most_flops: float = math.inf) -> Evidence:
    """Add the measurements of the probes that take at most so many FLOPs each.

    BadInput if the run has no checkpoint or no data here. A probe that fails is one that was not asked.
    """
    subject = load_subject(evidence)
    measured: Measured = {"step": subject.step}
    flops = count_step_flops(evidence) or 0.0
    for probe in _list_probes(evidence, subject, measured):
        if probe.steps * flops > most_flops:
            why = f"it takes about {probe.steps:.0f} steps, {probe.steps * flops:.2g} FLOPs"
            measured[f"unasked/{probe.cause}"] = why, "--live"
            continue
        try:
            measured |= probe.ask()
        except Exception as error:  # of any kind: a user's function may raise anything, and the others are asked
            measured[f"unasked/{probe.cause}"] = describe_error(error), "a program that runs on one device here"
    return dataclasses.replace(evidence, probes=measured)


def _list_probes(evidence: Evidence, subject: Subject, measured: Measured) -> Iterator[Probe]:
    of_last: dict[Callable[[Subject], Measured], tuple[str, float]] = {
        probe_mask: ("mask_leak", 3), probe_targets: ("label_shift", 0), probe_reference: ("code_differs", 20),
        probe_accumulation: ("missing_1_over_K", 2), probe_precision: ("underflow", 2),
        probe_norms: ("norm_missing", 1), probe_optimizer: ("no_bias_correction", 10),
        probe_moments: ("moments_poisoned", 1), probe_decay: ("decay_wrong", 1),
        probe_impulse: ("moments_wrong", 10), probe_average: ("average_wrong", 1),
        probe_layers: ("layer_adds_nothing", subject.static.model.n_layers / 4), probe_term: ("code_loss_term", 1),
    }  # fmt: skip
    for probe, (cause, steps) in of_last.items():
        yield Probe(cause, steps, functools.partial(probe, subject))
    if "reference" in measured:
        yield Probe("code_mesh", 1, lambda: probe_mesh(evidence, subject, measured["reference"]))
    yield Probe("communication", 20, lambda: probe_communication(evidence, subject))
    steep = _at_the_largest_lr(evidence, subject)
    step = {"sharpness_step": steep.step}
    yield Probe("edge_of_stability", 100, lambda: probe_sharpness(steep) | step)
    yield Probe("update_wrong", 4, lambda: probe_leaves(evidence, steep))
    yield Probe("lr_too_low", 60, lambda: probe_rates(evidence, steep))
    yield Probe("val_loss_wrong", 4 * float(evidence.values["eval.batches"]), lambda: probe_validation(evidence))
    yield Probe("log_wrong", 20, lambda: probe_lines(evidence))
    yield Probe("bit_flip", count_replayed(evidence), lambda: probe_replay(evidence))


def _at_the_largest_lr(evidence: Evidence, last: Subject) -> Subject:
    """Load the run at the saved step with the largest LR: after a decay nothing is unstable."""
    lr, saved = evidence.series("lr").finite(), evidence.replayable
    if not saved or not len(lr.steps):
        return last
    step = max(saved, key=lambda step: (float(np.interp(step, lr.steps, lr.values)), step))
    return last if step == last.step else load_subject(evidence, step)
