"""Rules on the loads of experts: which experts are dead, and whether a router has collapsed.

    dead    no token for a window of steps, in which an even load would have given LEAST_TOKENS
    few     the load lies with few experts at each step of such a window: `spread` below FEW
    loud    router logits above LOUD at each step of such a window

Thresholds were set on a few runs of seed 100 of `checks.diagnosis.dead_experts`, which scored them on seed 0. LOUD was
50 there, and a router whose LR was 100 times too high was missed at logits of 46. Healthy runs, too, leave experts idle
in their first hundred steps, before the balance has brought them back: what counts is how it stands at the run's end.

Shapes: n steps, L layers, E experts.
"""

import math
from typing import NamedTuple

import numpy as np

WINDOW, LEAST_TOKENS = 100, 1000  # steps
LEAST_EACH = 8  # mean number of tokens of an expert at a step, below which a step's load is uneven by chance
FEW = 0.25
LOUD = 30.0  # a softmax leaves 1e-13 to an expert so far behind; healthy runs here: at most 10


class Streaks(NamedTuple):
    """For how many steps in a row, up to now, an expert was idle [L, E], a load with few, a router loud [L]."""

    idle: np.ndarray
    few: np.ndarray
    loud: np.ndarray


def no_streaks(n_layers: int, n_experts: int) -> Streaks:
    """The streaks before the first step."""
    zeros = np.zeros(n_layers, int)
    return Streaks(np.zeros((n_layers, n_experts), int), zeros, zeros)


def next_streaks(before: Streaks, load_LE: np.ndarray, logit_L: np.ndarray, per_token: int) -> Streaks:
    """The streaks after a step; layers without load (no experts, or an empty batch) keep theirs."""
    tokens_L1 = load_LE.sum(axis=1, keepdims=True)
    idle = np.where(tokens_L1 > 0, np.where(load_LE == 0, before.idle + 1, 0), before.idle)
    used_L = tokens_L1[:, 0] > 0
    is_few = (spread(load_LE, per_token) < FEW) & (load_LE.mean(axis=1) >= LEAST_EACH)
    few = np.where(used_L, np.where(is_few, before.few + 1, 0), before.few)
    return Streaks(idle, few, np.where(used_L, np.where(logit_L > LOUD, before.loud + 1, 0), before.loud))


def window_steps(load_LE: np.ndarray) -> int:
    """The steps of a window at the load of this step."""
    each = float(load_LE.sum(axis=1).max()) / load_LE.shape[1]
    return max(WINDOW, math.ceil(LEAST_TOKENS / each)) if each > 0 else WINDOW


def effective_experts(load_LE: np.ndarray) -> np.ndarray:
    """The number [L] of equally loaded experts with the entropy of this load; NaN of a layer without load."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share_LE = load_LE / load_LE.sum(axis=1, keepdims=True)
        each_LE = np.where(share_LE > 0, share_LE * np.log(np.where(share_LE > 0, share_LE, 1.0)), 0.0 * share_LE)
    return np.exp(-each_LE.sum(axis=1))


def spread(load_LE: np.ndarray, per_token: int) -> np.ndarray:
    """Where the load lies between all on `per_token` experts (0) and even (1) [L]; NaN where there is no choice."""
    free = load_LE.shape[1] - per_token
    return (effective_experts(load_LE) - per_token) / free if free > 0 else np.full(len(load_LE), np.nan)
