"""The noise of a run's loss, from runs that differ in their seed alone."""

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.record.identity import is_identity_key

SEED_KEY = "train.seed"
LEVEL = 0.9


class RunNoise(NamedTuple):
    """Relative standard deviation `sd` of a run's loss over seeds, its interval by chi-squared, `df` and `runs`."""

    sd: float
    low: float
    high: float
    df: int
    runs: int


def pool_noise(groups: Iterable[Sequence[float]]) -> RunNoise | None:
    """Pool the scatter of log losses over groups of runs that differ in their seed alone; None without a pair."""
    logs = [np.log(group) for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in logs)
    if not df:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in logs)
    ends = 2 * special.gammaincinv(df / 2, [(1 + LEVEL) / 2, (1 - LEVEL) / 2])  # of chi-squared
    low, high = (math.sqrt(squares / float(end)) for end in ends)
    return RunNoise(math.sqrt(squares / df), low, high, df, sum(map(len, logs)))


def measure_folder(folder: pathlib.Path) -> tuple[RunNoise | None, int]:
    """(the noise of the runs in a folder, which may be a study's, None if no two differ in their seed alone; how many
    runs can't be read).

    These, and runs that did not end, are left out. BadInput for a folder without runs.
    """
    groups: dict[tuple, dict[Any, float]] = {}
    damaged = 0
    for place in listing.run_folders(folder):
        try:
            record, values = records.read_sound_record(place), config_lib.leaves(records.read_config(place))
        except BadInput:
            damaged += 1
            continue
        loss = record.get("val_loss") if record.get("status") == "done" else None
        if loss is not None and math.isfinite(loss) and loss > 0:
            settings = {key: repr(value) for key, value in values.items() if is_identity_key(key) and key != SEED_KEY}
            groups.setdefault(tuple(sorted(settings.items())), {}).setdefault(values.get(SEED_KEY), float(loss))
    return pool_noise([list(losses.values()) for losses in groups.values()]), damaged


def pool_rows(rows: Sequence[Mapping[str, Any]]) -> RunNoise | None:
    """The noise of a study's rows: runs of a side at a rung differ in their seed alone."""
    return pool_noise(_cells(rows).values())


def correlate_sides(rows: Sequence[Mapping[str, Any]], baseline: str) -> float:
    """The correlation of both sides' losses at a seed, over all pairs with the baseline; 0 where nothing tells it."""
    losses = {(row["side"], row["C"], row["seed"]): math.log(row["loss"]) for row in _ended(rows)}
    pairs: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for (side, flops, seed), loss in losses.items():
        if side != baseline and (other := losses.get((baseline, flops, seed))) is not None:
            pairs.setdefault((side, flops), []).append((other, loss))
    apart = [np.array(pair) - np.mean(pair, axis=0) for pair in pairs.values() if len(pair) > 1]
    ones, others = np.concatenate(apart).T if apart else np.zeros((2, 1))
    scale = math.sqrt(float((ones**2).sum() * (others**2).sum()))
    return float((ones * others).sum()) / scale if scale > 0 else 0.0


def mean_losses(rows: Sequence[Mapping[str, Any]], side: str) -> dict[float, float]:
    """{budget: geometric mean loss of a side's runs that ended}, ascending."""
    cells = {flops: losses for (name, flops), losses in _cells(rows).items() if name == side}
    return {flops: math.exp(float(np.mean(np.log(cells[flops])))) for flops in sorted(cells)}


def _ended(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if math.isfinite(row["loss"]) and row["loss"] > 0]


def _cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float], list[float]]:
    cells: dict[tuple[str, float], list[float]] = {}
    for row in _ended(rows):
        cells.setdefault((row["side"], row["C"]), []).append(row["loss"])
    return cells
