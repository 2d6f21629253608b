"""Compute logged values again from saved states: validation losses, and a step's training loss, by eval's own path.

Eval's path (`evaluate.subject.token_losses`) shares neither the step nor its sums with what wrote the log.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import flatten_hparams, replace_hparams
from scalelab.data.batches.batches import val_batches
from scalelab.data.dataset import Dataset
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.again import REPLAYED
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.errors import BadInput, WorkFailed
from scalelab.evaluate.subject import EvaluatedModel, load_evaluated_model, token_losses
from scalelab.train.step.step import jit_train_step

MOST_SAVED = 2  # saved steps whose values are computed again: the first and the last
DECAYS = (0.0, 2.0)  # times the declared decay, of steps that are taken beside
METRICS = ("train_loss", "grad_norm", "clip_ratio", "lr", "update_norm", "param_norm")


def probe_validation(evidence: Evidence) -> dict[str, float]:
    """`val/STEP`: the validation loss of a saved step that has a logged one; `val_ema/STEP`: that of the EMA, if any.

    `val_asked` is 1, also where there is no such step. `val_train/STEP`: the loss of the same weights on windows of the
    training split, sampled evenly.
    """
    if evidence.data is None:
        return {}
    logged, values = {int(row["step"]) for row in evidence.evaluations}, {"val_asked": 1.0}
    for step in _ends(sorted(logged & evidence.manifests.keys())):
        for name, ema in (("val", False), ("val_ema", True)):
            if ema and not evidence.values["train.ema"]:
                continue
            try:
                model = load_evaluated_model(f"{evidence.folder}@{step}", ema)
            except (BadInput, WorkFailed):  # a step that was deleted or damaged meanwhile
                continue
            values[f"{name}/{step}"] = _validation_loss(evidence, model, evidence.data.dataset)
            if not ema:
                separator = int(evidence.data.dataset.separator)
                values[f"val_train/{step}"] = _mean_loss(model, evidence.data.windows, separator)
    return values


def _ends(steps: list[int]) -> list[int]:
    return steps if len(steps) <= MOST_SAVED else [steps[0], steps[-1]]


def _validation_loss(evidence: Evidence, model: EvaluatedModel, dataset: Dataset) -> float:
    """The mean over the parts' fixed validation sets, by the tokens of their splits, as a run scores itself."""
    v = evidence.values
    size = v["model.seq_len"], v["train.global_batch"], v["eval.batches"]
    sets = [val_batches(part, *size) for part in dataset.val_parts]
    losses = [_mean_loss(model, part.reshape(-1, part.shape[-1]), int(dataset.separator)) for part in sets]
    return float(np.average(losses, weights=[part.val.n_targets for part in dataset.val_parts]))


def _mean_loss(model: EvaluatedModel, windows: np.ndarray, separator: int) -> float:
    """Nats a token over windows [n, S+1], in parts of one shape."""
    rows = row_losses(model, windows, separator)
    return float(rows[0].sum() / max(rows[1].sum(), 1.0))


def row_losses(model: EvaluatedModel, windows: np.ndarray, separator: int, size: int = 32) -> np.ndarray:
    """(nats, counted tokens) of each window, [2, n]."""
    size, sums = min(size, len(windows)), np.zeros((2, len(windows)))
    for first in range(0, len(windows), size):
        part = windows[first : first + size]
        padded = np.concatenate([part, np.full((size - len(part), part.shape[1]), -1, part.dtype)])
        scores = token_losses(model, padded, separator)
        for i, values in enumerate((scores.nats * scores.counts, scores.counts)):
            sums[i, first : first + size] = np.asarray(values, np.float64).sum(axis=1)[: len(part)]
    return sums


def evaluated_subject(evidence: Evidence, subject: Subject) -> EvaluatedModel:
    """The subject's parameters and variables as eval takes them."""
    return EvaluatedModel(evidence.config, dataclasses.replace(subject.static, layers=False), subject.weights, {})


def probe_lines(evidence: Evidence) -> dict[str, Any]:
    """Take the steps after a saved one again, up to a logged one: `line/STEP` are its metrics {name: value}.

    `train_again/STEP` is the loss of that step's batch on the weights before it by eval's path, where the step reads
    whole batches of whole sequences. `line_before/STEP`, `line_after/STEP`: losses of the steps beside it.
    """
    values: dict[str, Any] = {}
    logged, saved = sorted(int(row["step"]) for row in evidence.rows), evidence.replayable
    bounds = dict(zip(saved, [*saved[1:], evidence.steps], strict=True))
    usable = [step for step in saved if any(step < line <= min(step + REPLAYED, bounds[step]) for line in logged)]
    for step in _ends(usable):
        target = min(line for line in logged if line > step)
        values |= _line(evidence, load_subject(evidence, step), target)
    return values


def _line(evidence: Evidence, subject: Subject, target: int) -> dict[str, Any]:
    step, current = jit_train_step(dataclasses.replace(subject.static, layers=False)), subject.state
    values, before = dict[str, Any](), None
    for number in range(subject.step, target):
        subject = subject._replace(state=current)
        after, metrics = step(current, subject.batch(number), subject.h)
        if number == target - 1:
            values[f"line/{target}"] = {name: float(metrics[name]) for name in METRICS if name in metrics}
            values |= _by_eval(evidence, subject, number, target) | _by_decay(step, subject, number, target)
            if before is not None:
                values[f"line_before/{target}"] = before
        before, current = float(metrics["train_loss"]), after
    _, following = step(current, subject.batch(target), subject.h)
    values[f"line_after/{target}"] = float(following["train_loss"])
    jax.block_until_ready(current)
    return values


def _by_decay(step: Callable, subject: Subject, number: int, target: int) -> dict[str, Any]:
    """`line_decay/STEP`: (update norm, weight norm) of the step with 0 and 2 times its decay; {} without decay."""
    decay = flatten_hparams(subject.h).get("optim.weight_decay")
    if decay is None or not float(decay):
        return {}
    norms = []
    for factor in DECAYS:
        h = replace_hparams(subject.h, {"optim.weight_decay": jnp.float32(factor * float(decay))})
        _, metrics = step(subject.state, subject.batch(number), h)
        norms.append(tuple(float(metrics[name]) for name in ("update_norm", "param_norm")))
    return {f"line_decay/{target}": norms}


def _by_eval(evidence: Evidence, subject: Subject, number: int, target: int) -> dict[str, float]:
    static = subject.static
    if static.batch_ramp or static.past or static.seq_warmup:
        return {}
    windows, separator = np.asarray(subject.batch(number)), int(subject.h.dataset.separator)
    return {f"train_again/{target}": _mean_loss(evaluated_subject(evidence, subject), windows, separator)}
