"""Train some steps from a saved state at several LRs: does a higher one learn faster (`--live`)?"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from scalelab.config import flatten_hparams, replace_hparams
from scalelab.diagnose.evidence import SHORT_PATH, Evidence, path_length, update_ratio
from scalelab.diagnose.probes.recomputed import evaluated_subject, row_losses
from scalelab.diagnose.probes.subject import Subject
from scalelab.train.step.step import jit_train_step

FACTORS = (1.0, 3.0, 10.0)
STEPS = 20  # steps of each arm
WINDOWS = 64  # validation windows that all arms are scored on


def probe_rates(evidence: Evidence, subject: Subject) -> dict[str, float]:
    """`rate_gain/F`: nats by which F times the LR is better after STEPS steps; `rate_se/F`: its standard error over
    windows, which are paired. Only of runs whose updates together are short, from scratch.
    """
    ratio = update_ratio(evidence)
    if evidence.data is None or evidence.values["train.init_from"] or not len(ratio.steps):
        return {}
    if path_length(ratio) >= SHORT_PATH or not len(evidence.data.validation):
        return {}
    windows = evidence.data.validation[:WINDOWS]
    losses = [_loss_after(evidence, subject, factor, windows) for factor in FACTORS]
    values = {"rate_steps": float(STEPS), "rate_from": float(subject.step)}
    for factor, loss in zip(FACTORS[1:], losses[1:], strict=True):
        gain = losses[0] - loss
        values[f"rate_gain/{factor:g}"] = float(gain.mean())
        values[f"rate_se/{factor:g}"] = float(gain.std(ddof=1) / len(gain) ** 0.5) if len(gain) > 1 else np.inf
    return values


def _loss_after(evidence: Evidence, subject: Subject, factor: float, windows: np.ndarray) -> np.ndarray:
    """Nats a token of each window after STEPS steps at `factor` times the LR."""
    known = flatten_hparams(subject.h)
    keys = [key for key in ("optim.peak_lr", "optim.rest_lr") if key in known]
    h = replace_hparams(subject.h, {key: jnp.float32(factor * float(known[key])) for key in keys})
    step, state = jit_train_step(dataclasses.replace(subject.static, layers=False)), subject.state
    for number in range(subject.step, subject.step + STEPS):
        state, _ = step(state, subject.batch(number), h)
    trained = evaluated_subject(evidence, subject._replace(state=state))
    nats, tokens = row_losses(trained, windows, int(subject.h.dataset.separator))
    return nats / np.maximum(tokens, 1.0)
