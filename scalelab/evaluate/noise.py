"""How far two runs' losses are apart, beside what another seed alone does to a loss."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from scalelab import config as config_lib
from scalelab import records, set_by
from scalelab.errors import BadInput
from scalelab.identity import is_identity_key

CONFIDENCE_LEVEL = 0.95
SEED_KEY = "train.seed"


class ComparisonSide(NamedTuple):
    """One side of a comparison: the run it is known by, the runs whose mean loss it has, and those equal but for the seed."""

    folder: pathlib.Path
    meant: list[pathlib.Path]
    seeds: list[pathlib.Path]


class SeedSpread(NamedTuple):
    """Standard deviation over seeds, pooled over the sides that have two or more; its interval at LEVEL from chi-squared."""

    sd: float
    low: float
    high: float
    freedom: int
    runs: list[str]


class LossGap(NamedTuple):
    """Loss of B less that of A at `step`; `half_width` of the interval at LEVEL that seeds alone would give, None if unknown."""

    step: int
    a: float
    b: float
    gap: float
    floor: SeedSpread | None
    half_width: float | None


def load_side(source: str) -> ComparisonSide:
    """A run's folder, or a folder of runs that differ in their seeds only. BadInput where they differ otherwise."""
    found = records.run_folders(source)
    if (pathlib.Path(source) / "config.json").exists():
        (run,) = found
        mine, beside = _but_the_seed(run), sorted(run.absolute().parent.glob("*/config.json"))
        alike = [path.parent for path in beside if _readable(path) and _but_the_seed(path.parent) == mine]
        return ComparisonSide(run, [run], _one_a_seed([run, *alike]))
    for other in found[1:]:
        apart = {k for k, v in _but_the_seed(other).items() if _but_the_seed(found[0]).get(k) != v}
        if apart:
            raise BadInput(
                f"{source} holds runs that differ in {', '.join(sorted(apart)[:4])}: name one of them, e.g. {found[0]}"
            )
    return ComparisonSide(found[0], found, _one_a_seed(found))


def read_settings(folder: pathlib.Path) -> dict[str, Any]:
    """A run's config by dotted keys; one that an older scalelab did not know had what is now its default."""
    defaults = config_lib.leaves(config_lib.default_tree())
    values = defaults | config_lib.leaves(ConfigDict(records.read_config(folder)))
    return {key: value for key, value in values.items() if key != set_by.NOTES_KEY}  # who set a value is not a setting


def _readable(path: pathlib.Path) -> bool:
    """Whether this is a run's config: a broken one beside a run, or a model's, is not that run's affair."""
    try:
        return records.is_config(path)
    except BadInput:
        return False


def _but_the_seed(folder: pathlib.Path) -> dict[str, Any]:
    """What is computed, seed aside."""
    return {k: v for k, v in read_settings(folder).items() if is_identity_key(k) and k != SEED_KEY}


def _one_a_seed(folders: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """The same run twice has no noise of seeds: the first of each seed counts."""
    by_seed: dict[int, pathlib.Path] = {}
    for folder in folders:
        by_seed.setdefault(read_settings(folder)[SEED_KEY], folder)
    return list(by_seed.values())


def read_val_losses(folder: pathlib.Path) -> dict[int, float]:
    """{step: validation loss} of a run's evaluations that are numbers."""
    lines = [line for line in records.read_metrics(folder) if "val_loss" in line]
    return {line["step"]: line["val_loss"] for line in lines if math.isfinite(line["val_loss"])}


def loss_gap(a: ComparisonSide, b: ComparisonSide) -> LossGap | None:
    """At the last step at which all that is meant was evaluated; None where there is none."""
    known = {folder: read_val_losses(folder) for folder in {*a.meant, *b.meant, *a.seeds, *b.seeds}}
    common = set.intersection(*(set(known[folder]) for folder in (*a.meant, *b.meant)))
    if not common:
        return None
    step = max(common)
    one, two = (float(np.mean([known[folder][step] for folder in each.meant])) for each in (a, b))
    found = seed_spread(step, [each.seeds for each in (a, b)], known)
    half = None
    if found:
        scale = math.sqrt(1 / len(a.meant) + 1 / len(b.meant))
        half = float(stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, found.freedom) * found.sd * scale)
    return LossGap(step, one, two, two - one, found, half)


def seed_spread(
    step: int, sides: Sequence[Sequence[pathlib.Path]], known: Mapping[pathlib.Path, Mapping[int, float]]
) -> SeedSpread | None:
    """The spread over seeds at a step; each group has a mean of its own, and one that both sides share counts once."""
    groups = {tuple(sorted(str(f.resolve()) for f in each if step in known[f])): each for each in sides}
    values = [
        np.array([known[f][step] for f in each if step in known[f]]) for names, each in groups.items() if len(names) > 1
    ]
    freedom = sum(len(each) - 1 for each in values)
    if not freedom:
        return None
    variance = sum(float(np.sum((each - each.mean()) ** 2)) for each in values) / freedom
    low, high = (
        math.sqrt(variance * freedom / stats.chi2.ppf(q, freedom))
        for q in ((1 + CONFIDENCE_LEVEL) / 2, (1 - CONFIDENCE_LEVEL) / 2)
    )
    runs = sorted(name for names in groups if len(names) > 1 for name in names)
    return SeedSpread(math.sqrt(variance), low, high, freedom, runs)
