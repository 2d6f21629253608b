"""Run all probes over one run, from its last checkpoint and, where needed, from others."""

import dataclasses
from typing import Any

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.again import probe_replay
from scalelab.diagnose.probes.communication import probe_communication
from scalelab.diagnose.probes.leaves.ablation import probe_layers
from scalelab.diagnose.probes.leaves.step import probe_leaves
from scalelab.diagnose.probes.model import probe_mask, probe_norms, probe_targets, probe_term
from scalelab.diagnose.probes.rates import probe_rates
from scalelab.diagnose.probes.recomputed import probe_lines, probe_validation
from scalelab.diagnose.probes.reference.probe import probe_mesh, probe_reference
from scalelab.diagnose.probes.sharpness import probe_sharpness
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.diagnose.probes.training import (
    probe_accumulation,
    probe_decay,
    probe_moments,
    probe_optimizer,
    probe_precision,
)

PROBES = (
    probe_mask, probe_targets, probe_reference, probe_accumulation, probe_precision, probe_norms, probe_optimizer,
    probe_moments, probe_decay, probe_layers, probe_term,
)  # fmt: skip


def run_probes(evidence: Evidence) -> Evidence:
    """Add the measurements of all probes to the evidence. BadInput if the run has no checkpoint or no data here."""
    subject = load_subject(evidence)
    measured: dict[str, Any] = {"step": subject.step}
    for probe in PROBES:
        measured |= probe(subject)
    measured |= probe_mesh(evidence, subject, measured["reference"])
    measured |= probe_communication(evidence, subject)
    steep = _at_the_largest_lr(evidence, subject)
    measured |= probe_sharpness(steep) | {"sharpness_step": steep.step} | probe_leaves(evidence, steep)
    measured |= probe_rates(evidence, steep) | probe_validation(evidence) | probe_lines(evidence)
    return dataclasses.replace(evidence, probes=measured | probe_replay(evidence))


def _at_the_largest_lr(evidence: Evidence, last: Subject) -> Subject:
    """Load the run at the saved step with the largest LR: after a decay nothing is unstable."""
    lr, saved = evidence.series("lr").finite(), sorted(evidence.manifests)
    if not saved or not len(lr.steps):
        return last
    step = max(saved, key=lambda step: (float(np.interp(step, lr.steps, lr.values)), step))
    return last if step == last.step else load_subject(evidence, step)
