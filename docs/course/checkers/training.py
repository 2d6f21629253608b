"""Problems of the optimizer and its numbers: AdamW, accumulation, a schedule, loss scaling, clipping."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab.optim import adam, schedules
from scalelab.optim.clip import clip_global_norm
from scalelab.plan.published import claims
from scalelab.precision.exponent_histograms import cast_loss_shares

from .judging import call_answer, entries_of, judge, numbers_of

ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
COSINE = {"train.steps": 10_000, "optim.peak_lr": 3e-4, "schedule.warmup_steps": 500, "schedule.final_share": 0.1}
STEPS_ASKED = (0, 9, 499, 500, 2000, 5000, 9000, 9999)
SMALL, LARGE = 2e-9, 1e-3  # sizes of gradients in problem 6
MOST = 1.0  # norm of problem 11


def adamw_path(gradients: np.ndarray, start: np.ndarray, corrected: bool = True, coupled: bool = False) -> np.ndarray:
    """Parameters after each step, [T, d], by optim/adam.py."""
    numbers = (jnp.float32(ADAMW[name]) for name in ("beta1", "beta2", "eps"))
    decay = optax.add_decayed_weights(ADAMW["weight_decay"])
    adams = adam.scale_by_adam(*numbers, corrected=corrected)
    rule = optax.chain(*((decay, adams) if coupled else (adams, decay)), optax.scale(-ADAMW["lr"]))
    params = jnp.asarray(start, jnp.float32)
    state, path = rule.init(params), []
    for g in jnp.asarray(gradients, jnp.float32):
        updates, state = rule.update(g, state, params)
        params = optax.apply_updates(params, updates)
        path.append(np.asarray(params))
    return np.stack(path)


def check_adamw(answer: Any) -> None:
    """Problem 1: AdamW, written out."""
    rng = np.random.default_rng(1)
    gradients, start = rng.normal(0.5, 1.0, (20, 3)), np.array([1.0, -1.0, 2.0])
    moved = numbers_of(call_answer(answer, gradients, start, **ADAMW), gradients.shape) - start
    paths = {
        "the steps are those without bias correction": adamw_path(gradients, start, corrected=False) - start,
        "the decay goes through the moments; AdamW's does not": adamw_path(gradients, start, coupled=True) - start,
    }
    judge(moved, adamw_path(gradients, start) - start, 1e-3, paths)


def check_forgotten(answer: Any) -> None:
    """Problem 2: how much farther parameters move if the division by K is forgotten."""
    gradients = np.random.default_rng(2).normal(1.0, 1.0, (60, 64))
    rules = {"sgd": optax.identity(), "adamw": adam.scale_by_adam(*map(jnp.float32, (0.9, 0.95, 1e-8)))}
    many, one = claims.MICRO_BATCHES, claims.parameter_movement
    truth = [float(np.median(one(rule, many * gradients) / one(rule, gradients))) for rule in rules.values()]
    hints = {
        "AdamW divides the gradient by its own size: what does a factor do to it?": [truth[0], truth[0]],
        "SGD's step is proportional to the gradient": [truth[1], truth[1]],
    }
    judge(entries_of(answer, tuple(rules)), truth, 0.01, hints)


def cosine_lrs(**changes: Any) -> np.ndarray:
    """LRs at STEPS_ASKED by optim/schedules.py."""
    named = COSINE | {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), named))
    return np.asarray(schedules.schedule_curves(config, STEPS_ASKED)["lr"], float)


def check_cosine(answer: Any) -> None:
    """Problem 3: a cosine with warm-up."""
    steps = np.array(STEPS_ASKED)
    late = cosine_lrs() * np.where(steps < 500, steps / (steps + 1), 1)
    whole = cosine_lrs(schedule__warmup_steps=0) * np.minimum(1, (steps + 1) / 500)
    mistakes = {
        "the last step should be near a tenth of the peak, not near zero": cosine_lrs(schedule__final_share=0.0),
        "step 0 already learns: the warm-up is (step + 1) / 500": late,
        "the cosine begins where the warm-up ends, not at step 0": whole,
    }
    judge([call_answer(answer, step) for step in STEPS_ASKED], cosine_lrs(), 1e-3, mistakes)


def check_loss_scale(answer: Any) -> None:
    """Problem 6: the loss scales with which fp16 keeps all gradients."""
    sizes = np.geomspace(SMALL, LARGE, 1001)
    lost = [cast_loss_shares(sizes * 2.0**k, "float16") for k in range(40)]
    good = [k for k, share in enumerate(lost) if share["zero"] == share["overflow"] == 0]
    mistakes = {
        "numbers below the smallest normal one are not lost yet: fp16 has subnormals": [15, good[-1]],
        "what is above half of the smallest subnormal rounds up to it": [good[0] + 1, good[-1]],
    }
    judge(answer, [good[0], good[-1]], 1e-6, mistakes)


def check_clip(answer: Any) -> None:
    """Problem 11: one factor for all gradients, and none where their norm is below the limit."""
    rng = np.random.default_rng(11)
    for size in (3.0, 0.01):
        gradients = [size * rng.normal(size=shape) for shape in ((4, 3), (5,))]
        clipped = call_answer(answer, gradients, MOST)
        assert isinstance(clipped, list | tuple) and len(clipped) == 2, (
            "a list with an array for each gradient is asked for"
        )
        numbers = np.concatenate(
            [numbers_of(each, g.shape).ravel() for each, g in zip(clipped, gradients, strict=True)]
        )
        truth, _ = clip_global_norm(jnp.float32(MOST)).update([jnp.float32(g) for g in gradients], optax.EmptyState())
        norms = [np.linalg.norm(g) for g in gradients]
        whole = np.concatenate([g.ravel() for g in gradients])
        mistakes = {
            "the norm is that of all gradients together: one factor": np.concatenate(
                [g.ravel() * min(1, MOST / norm) for g, norm in zip(gradients, norms, strict=True)]
            ),
            "a norm below the limit is left as it is": whole * MOST / np.linalg.norm(whole),
            "that bounds each number, which turns the gradient's direction": np.clip(whole, -MOST, MOST),
        }
        judge(numbers, np.concatenate([np.asarray(each).ravel() for each in truth]), 1e-4, mistakes)
