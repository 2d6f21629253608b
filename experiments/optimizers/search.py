"""The search space: a scan of the LR places a box; its best trial places the next box, half as wide. Equal for all.

A box is {dimension: (low, high)}, all in logs. Its dimensions have one meaning for all optimizers: the peak LR is
centred by the scan, not by a source; decay is the share of a weight that decays over the run at the peak LR; the others
are absolute.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.sweep import grid

Box = dict[str, tuple[float, float]]

FIRST_OCTAVES = range(-1, 8)  # octaves above the source's LR: tiny models need larger LRs than the sources' models
SCAN_EXTENSION = 3  # octaves added to a scan if its end is the best …
MOST_SCANS = 5  # … at most so many times
HALF_WIDTH = 2.5  # octaves of LR to each side of the scan's best
# decay: peak LR x weight_decay x steps; adamw's 0.1 at 1e-2 over 100 steps is 0.1
DIMENSIONS: Box = {"decay": (1e-3, 3.0), "warmup": (0.02, 0.3), "1-beta1": (0.02, 0.5), "1-beta2": (0.003, 0.3)}
DIMENSION_LIMITS: Box = {"decay": (1e-6, 100.0), "warmup": (0.01, 0.9), "1-beta1": (1e-3, 1.0), "1-beta2": (1e-4, 1.0)}
# What each is of an optimizer; the AdamW beside one for hidden matrices takes the same betas, and its LR moves along.
BETA_KEYS = {"1-beta1": ("optim.beta1", "optim.rest_beta1"), "1-beta2": ("optim.beta2", "optim.rest_beta2")}
IDLE_KEYS = {"adafactor": ("optim.beta1",), "shampoo": ("optim.beta2",)}  # read with averaged=true only


def next_octaves(octaves: Sequence[int], losses: Sequence[float]) -> list[int]:
    """Octaves to scan next: beyond an end if that is the best, none if the best has neighbours on both sides.

    If all runs diverged, the next octaves are lower.
    """
    best = octaves[losses.index(min(losses))] if any(map(math.isfinite, losses)) else min(octaves)
    if best == min(octaves):
        return list(range(best - SCAN_EXTENSION, best))
    if best == max(octaves):
        return list(range(best + 1, best + 1 + SCAN_EXTENSION))
    return []


def first_box(peak_lr: float) -> Box:
    """The box around the scan's best LR, equally wide for all."""
    return {"lr": (peak_lr * 2**-HALF_WIDTH, peak_lr * 2**HALF_WIDTH)} | DIMENSIONS


def next_box(box: Box, best: Mapping[str, float]) -> Box:
    """The next box: half as wide in logs, centred on the best point.

    It leaves the old box where the best point lies within a quarter of the width of an edge.
    """
    after = {}
    for key, (low, high) in box.items():
        half = (high / low) ** 0.25
        least, most = DIMENSION_LIMITS.get(key, (0.0, math.inf))
        after[key] = max(best[key] / half, least), min(best[key] * half, most)
    return after


def widened_sides(before: Box, after: Box) -> list[str]:
    """Sides on which a box leaves the one before it, e.g. `lr up`."""
    ups = [f"{key} up" for key, (_, high) in after.items() if high > before[key][1] * (1 + 1e-9)]
    return ups + [f"{key} down" for key, (low, _) in after.items() if low < before[key][0] * (1 - 1e-9)]


def at_edge(boxes: Sequence[Box], best: Mapping[str, float], share: float = 0.1) -> list[str]:
    """Sides where the best point lies within `share` of the searched width, so that the search may have ended early.

    A limit is not such a side.
    """
    sides = []
    for key in boxes[0]:
        low, high = min(box[key][0] for box in boxes), max(box[key][1] for box in boxes)
        least, most = DIMENSION_LIMITS.get(key, (0.0, math.inf))
        place = math.log(best[key] / low) / math.log(high / low)
        sides += [f"{key} up"] if place > 1 - share and high < most else []
        sides += [f"{key} down"] if place < share and low > least else []
    return sides


def sample_box(box: Box, count: int, seed: int) -> list[dict[str, float]]:
    """`count` points of the box: scrambled Sobol if `count` is a power of two, else Halton; fixed by the seed."""
    method = "halton" if count & (count - 1) else "sobol"
    return grid.sample({key: (*ends, "log") for key, ends in box.items()}, count, method, seed)


def config_values(name: str, point: Mapping[str, float], steps: int) -> dict[str, Any]:
    """A point as config values of optimizer `name`; values that it doesn't have are left out."""
    defaults = OPTIM_DEFAULTS[name]
    config = {
        "optim.peak_lr": point["lr"],
        "optim.weight_decay": point["decay"] / (point["lr"] * steps),
        "schedule.warmup_share": point["warmup"],
    } | rest_lr(name, point["lr"])
    for dimension, keys in BETA_KEYS.items():
        tuned = [key for key in keys if key.split(".")[1] in defaults and key not in IDLE_KEYS.get(name, ())]
        config |= dict.fromkeys(tuned, 1 - point[dimension])
    return config


def rest_lr(name: str, peak_lr: float) -> dict[str, float]:
    """The LR of the AdamW beside an optimizer for hidden matrices, in its source's ratio; {} if there is none."""
    defaults = OPTIM_DEFAULTS[name]
    return {"optim.rest_lr": defaults["rest_lr"][0] * peak_lr / defaults["peak_lr"][0]} if "rest_lr" in defaults else {}
