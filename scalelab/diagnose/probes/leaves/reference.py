"""Optimizers' steps by hand, in float64 with numpy, from a leaf's gradient and moments: what the papers say.

No line is shared with the optimizers that are trained. adam, adamw: Kingma & Ba 2015, Alg. 1; Loshchilov & Hutter 2019,
Alg. 2. lion: Chen et al. 2023, Alg. 2.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

State = dict[str, np.ndarray]  # a leaf's moments by the name of their tree in the optimizer's state


class Rates(NamedTuple):
    """The numbers of one leaf's update, `n_updates` before it; `decay` is 0 for leaves that don't decay."""

    lr: float
    decay: float
    beta1: float
    beta2: float
    eps: float
    n_updates: int
    corrected: bool = True
    averaged: bool = False


class LeafStep(NamedTuple):
    """What an optimizer makes of a leaf: its next moments, and the change of the weights (None: not computed)."""

    state: State
    change: np.ndarray | None


def adamw(g: np.ndarray, w: np.ndarray, state: Mapping[str, np.ndarray], r: Rates) -> LeafStep:
    """Adam with decoupled decay."""
    step = adam_moments(g, w, state, r)
    m, v, t = step.state["mu"], step.state["nu"], r.n_updates + 1
    if r.corrected:
        m, v = m / (1 - r.beta1**t), v / (1 - r.beta2**t)
    return step._replace(change=-r.lr * (m / (np.sqrt(v) + r.eps) + r.decay * w))


def adam(g: np.ndarray, w: np.ndarray, state: Mapping[str, np.ndarray], r: Rates) -> LeafStep:
    """Adam whose decay is a part of the gradient."""
    return adamw(g + r.decay * w, w, state, r._replace(decay=0.0))


def adam_moments(g: np.ndarray, w: np.ndarray, state: Mapping[str, np.ndarray], r: Rates) -> LeafStep:
    """The moments alone, of relatives of Adam with another update."""
    del w
    m = r.beta1 * state["mu"] + (1 - r.beta1) * g
    v = r.beta2 * state["nu"] + (1 - r.beta2) * g * g
    return LeafStep({"mu": m, "nu": v}, None)


def lion(g: np.ndarray, w: np.ndarray, state: Mapping[str, np.ndarray], r: Rates) -> LeafStep:
    """The sign of an average, with decoupled decay."""
    direction = np.sign(r.beta1 * state["mu"] + (1 - r.beta1) * g)
    return LeafStep({"mu": r.beta2 * state["mu"] + (1 - r.beta2) * g}, -r.lr * (direction + r.decay * w))


def sgd(g: np.ndarray, w: np.ndarray, state: Mapping[str, np.ndarray], r: Rates) -> LeafStep:
    """Plain gradient descent, whose decay is a part of the gradient."""
    del state
    return LeafStep({}, -r.lr * (g + r.decay * w))


# {optimizer: its step by hand, the trees of its state that the step reads}
STEPS: dict[str, tuple[Callable[[np.ndarray, np.ndarray, Any, Rates], LeafStep], tuple[str, ...]]] = {
    "adamw": (adamw, ("mu", "nu")), "adam": (adam, ("mu", "nu")), "nadamw": (adam_moments, ("mu", "nu")),
    "lion": (lion, ("mu",)), "sgd": (sgd, ()),
}  # fmt: skip
REST = "adamw"  # the optimizer of the parameters that an optimizer for matrices does not claim


def scheduled_decay(values: Mapping[str, Any], step: int, lr: float) -> float:
    """The weight decay of a step, by `schedule.wd_shape`."""
    decay, shape = float(values["optim.weight_decay"] or 0.0), values["schedule.wd_shape"]
    if shape == "cosine":
        height = 0.5 * (1 + np.cos(np.pi * min(step / values["train.steps"], 1.0)))
        final = float(values["schedule.wd_final_share"])
        return decay * (final + (1 - final) * height)
    return (
        decay * lr
        if shape == "lr2"
        else decay / max(values["optim.peak_lr"], 1e-30)
        if shape == "independent"
        else decay
    )


def scheduled_beta1(values: Mapping[str, Any], step: int) -> float:
    """The beta1 of a step: on a line from `schedule.beta1_start`, if `schedule.beta1_steps` is not 0."""
    last, steps = float(values["optim.beta1"] or 0.0), float(values["schedule.beta1_steps"])
    share = step / steps if step < steps else 1.0
    return (1 - share) * float(values["schedule.beta1_start"]) + share * last if share < 1 else last
