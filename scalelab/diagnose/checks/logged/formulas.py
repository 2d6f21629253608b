"""Schedules of the LR by their formulas, in numpy from the config's values: no line is shared with the trained ones.

Sources stand beside the schedules themselves, in `scalelab/optim/schedules.py`. Steps count from 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def compute_rates(values: Mapping[str, Any], steps: np.ndarray) -> np.ndarray | None:
    """The LR at `steps` [n]; None for a schedule without a formula here (`power`, a user's own)."""
    name, warm = values["schedule.name"], float(values["schedule.warmup_steps"] or 0)
    end, final = float(values["train.steps"]), float(values["schedule.final_share"] or 0.0)
    steps = np.asarray(steps, float)
    shapes = {
        "constant": lambda: np.ones(len(steps)),
        "linear": lambda: final + (1 - final) * (1 - _progress(values, steps, warm, end)),
        "cosine": lambda: final + (1 - final) * 0.5 * (1 + np.cos(np.pi * _progress(values, steps, warm, end))),
        "cosine_restarts": lambda: _restarts(values, steps, warm, end, final),
        "wsd": lambda: _decayed(values, steps, end, float(values["schedule.decay_steps"] or 0), final),
        "wsd_s": lambda: _decays(values, steps, end, final),
        "multi_step": lambda: 10 ** -(0.5 * (steps >= np.round(0.8 * end)) + 0.5 * (steps >= np.round(0.9 * end))),
        "inverse_sqrt": lambda: _inverse_root(values, steps, warm),
    }
    if name not in shapes:
        return None
    rates: np.ndarray = float(values["optim.peak_lr"]) * np.minimum(1.0, (steps + 1) / max(warm, 1.0)) * shapes[name]()
    return rates


def _progress(values: Mapping[str, Any], steps: np.ndarray, warm: float, end: float) -> np.ndarray:
    """How far a fall is that begins with the warm-up's end: 0 to 1."""
    last = float(values["schedule.fall_share"]) * end
    return np.clip((steps - warm) / max(last - warm, 1.0), 0.0, 1.0)


def _restarts(values: Mapping[str, Any], steps: np.ndarray, warm: float, end: float, final: float) -> np.ndarray:
    """Cosines one after the other, each longer by a factor, that fill what follows the warm-up."""
    lengths = float(values["schedule.cycle_growth"]) ** np.arange(int(values["schedule.cycles"]))
    lengths = lengths / lengths.sum() * max(end - warm, 1.0)
    ends, place = np.cumsum(lengths), np.maximum(steps - warm, 0.0)
    cycle = np.minimum(np.searchsorted(ends, place, side="right"), len(lengths) - 1)
    done = np.clip((place - (ends - lengths)[cycle]) / lengths[cycle], 0.0, 1.0)
    return final + (1 - final) * 0.5 * (1 + np.cos(np.pi * done))


def _decayed(values: Mapping[str, Any], steps: np.ndarray, end: Any, length: Any, final: float) -> np.ndarray:
    """The share of the peak with a decay of `length` steps before `end`, numbers or one a step."""
    length = np.broadcast_to(np.asarray(length, float), steps.shape)
    done = np.where(length > 0, np.clip(1 - (end - steps) / np.maximum(length, 1.0), 0.0, 1.0), 0.0)
    shape = values["schedule.decay_shape"]
    if shape == "exponential":
        return np.where(done > 0, final**done, 1.0)
    if shape == "inverse":
        return np.where(done > 0, 1 / (1 - done + done / max(final, 1e-300)), 1.0)
    fallen = {"linear": done, "cosine": 0.5 * (1 - np.cos(np.pi * done)), "sqrt": np.sqrt(done)}[shape]
    return 1 - (1 - final) * fallen


def _decays(values: Mapping[str, Any], steps: np.ndarray, end: float, final: float) -> np.ndarray:
    """Decays that end at the run's end over powers of a factor, each of the same share of the steps before its end."""
    powers = float(values["schedule.cycle_growth"]) ** -np.arange(int(values["schedule.cycles"]))[::-1]
    ends, lengths = np.round(end * powers), np.round(float(values["schedule.decay_steps"] or 0) * powers)
    which = np.minimum(np.searchsorted(ends, steps, side="right"), len(ends) - 1)
    return _decayed(values, steps, ends[which], lengths[which], final)


def _inverse_root(values: Mapping[str, Any], steps: np.ndarray, warm: float) -> np.ndarray:
    hold = max(float(values["schedule.hold_steps"] or 0), warm, 1.0)
    return np.sqrt(hold / np.maximum(steps + 1, hold))
