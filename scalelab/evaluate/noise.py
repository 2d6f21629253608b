"""The gap between two runs' losses, beside the spread of losses over seeds alone."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from scipy import special

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.errors import BadInput
from scalelab.numbers.gaps import judge_pair
from scalelab.numbers.shared_noise import estimate_noise, select_settings
from scalelab.record import listing, records
from scalelab.record.identity import is_identity_key
from scalelab.untrusted.paths import list_folders

CONFIDENCE_LEVEL = 0.95
SEED_KEY = "train.seed"
MOST_OTHERS = 32  # settings beside a run whose noise counts
LEAST_FREEDOM = 3  # of a table of settings and seeds: with less, the spread of both sides alone tells more


class ComparisonSide(NamedTuple):
    """One side of a comparison.

    `folder`: the run that represents it; `meant`: the runs whose mean loss counts; `seeds`: one run of each seed, equal
    but for the seed; `damage`: why some runs beside it could not be read; `others`: runs beside it with other settings,
    those of a setting together, where it has two seeds or more.
    """

    folder: pathlib.Path
    meant: list[pathlib.Path]
    seeds: list[pathlib.Path]
    damage: tuple[str, ...] = ()
    others: tuple[tuple[pathlib.Path, ...], ...] = ()


class SeedSpread(NamedTuple):
    """Standard deviation over seeds, pooled over sides with two or more; its interval by chi-squared.

    `paired`: both sides have the same seeds, so their effect is set aside, and all `settings` of the table tell the
    noise that is left.
    """

    sd: float
    low: float
    high: float
    freedom: int
    runs: list[str]
    settings: int = 1
    paired: bool = False


class LossGap(NamedTuple):
    """The loss of B minus that of A at `step`.

    `floor`: the spread over seeds; `half_width`: half the interval at CONFIDENCE_LEVEL that seeds alone would give.
    Both are None if unknown.
    """

    step: int
    a: float
    b: float
    gap: float
    floor: SeedSpread | None
    half_width: float | None


def load_side(source: str) -> ComparisonSide:
    """Load a run's folder, or a folder of runs that differ only in their seeds. BadInput if they differ otherwise."""
    runs = listing.run_folders(source)
    if (pathlib.Path(source) / "config.json").exists():
        (run,) = runs
        alike, others, damage = _find_alike(run)
        return ComparisonSide(run, [run], _first_of_each_seed([run, *alike]), damage, others)
    settings = _settings_but_seed(runs[0])
    for other in runs[1:]:
        differing = {k for k, v in _settings_but_seed(other).items() if settings.get(k) != v}
        if differing:
            names = ", ".join(sorted(differing)[:4])
            raise BadInput(f"{source} holds runs that differ in {names}: name one of them, e.g. {runs[0]}")
    return ComparisonSide(runs[0], runs, _first_of_each_seed(runs))


def read_settings(folder: pathlib.Path) -> dict[str, Any]:
    """Read a run's config by dotted keys; a key unknown to the run's older scalelab gets today's default."""
    stored = config_lib.leaves(ConfigDict(records.read_config(folder)))
    if records.is_imported(records.read_record(folder)):  # what its source does not say is not known
        return {SEED_KEY: None} | stored
    values = config_lib.default_values() | stored
    return {key: value for key, value in values.items() if key != set_by.NOTES_KEY}  # not a setting


def _find_alike(
    run: pathlib.Path,
) -> tuple[list[pathlib.Path], tuple[tuple[pathlib.Path, ...], ...], tuple[str, ...]]:
    """Find (runs beside `run`, equal but for the seed; those of other settings with two seeds or more; why others can't
    be read). Exported models don't count.
    """
    alike, damage, settings = [], [], _settings_but_seed(run)
    others: dict[str, list[pathlib.Path]] = {}
    place = run.absolute().parent
    for path in (place / name / "config.json" for name in list_folders(place)[0]):
        if path.parent == run.absolute() or not path.exists():
            continue
        try:
            if not listing.is_config(path):
                continue
            beside = _settings_but_seed(path.parent)
            if beside == settings:
                read_val_losses(path.parent)
                alike.append(path.parent)
            else:
                others.setdefault(repr(sorted(beside.items())), []).append(path.parent)
        except BadInput as why:
            damage.append(str(why))
    seeds = [tuple(_first_of_each_seed(each)) for each in others.values() if len(each) > 1]
    return alike, tuple([each for each in seeds if len(each) > 1][:MOST_OTHERS]), tuple(damage)


def _settings_but_seed(folder: pathlib.Path) -> dict[str, Any]:
    """The run's identity settings without the seed."""
    return {k: v for k, v in read_settings(folder).items() if is_identity_key(k) and k != SEED_KEY}


def _first_of_each_seed(folders: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Keep the first run of each seed: two runs of one seed show no noise of seeds."""
    by_seed: dict[int, pathlib.Path] = {}
    for folder in folders:
        by_seed.setdefault(read_settings(folder)[SEED_KEY], folder)
    return list(by_seed.values())


def read_val_losses(folder: pathlib.Path) -> dict[int, float]:
    """Read {step: validation loss} of a run's evaluations, finite ones only."""
    lines = [line for line in records.read_evaluated(folder) if "val_loss" in line]
    return {line["step"]: line["val_loss"] for line in lines if math.isfinite(line["val_loss"])}


def loss_gap(a: ComparisonSide, b: ComparisonSide) -> LossGap | None:
    """Compute the gap at the last step at which all compared runs were evaluated; None without such a step."""
    losses = {folder: read_val_losses(folder) for folder in {*a.meant, *b.meant, *a.seeds, *b.seeds}}
    common = set.intersection(*(set(losses[folder]) for folder in (*a.meant, *b.meant)))
    if not common:
        return None
    step = max(common)
    one, two = (float(np.mean([losses[folder][step] for folder in each.meant])) for each in (a, b))
    floor, half_width = _judge_table(step, a, b) or _judge_sides(step, a, b, losses)
    return LossGap(step, one, two, two - one, floor, half_width)


def _judge_sides(
    step: int, a: ComparisonSide, b: ComparisonSide, losses: Mapping[pathlib.Path, Mapping[int, float]]
) -> tuple[SeedSpread | None, float | None]:
    """(spread over seeds of both sides, half width of the gap's interval)."""
    floor = seed_spread(step, [each.seeds for each in (a, b)], losses)
    if floor is None:
        return None, None
    scale = math.sqrt(1 / len(a.meant) + 1 / len(b.meant))
    return floor, float(special.stdtrit(floor.freedom, (1 + CONFIDENCE_LEVEL) / 2) * floor.sd * scale)


def _judge_table(step: int, a: ComparisonSide, b: ComparisonSide) -> tuple[SeedSpread, float] | None:
    """Judge sides of the same seeds by all settings beside them, as sweeps do; None where that can't be done."""
    groups = _by_runs(a.seeds, b.seeds)
    seeds = [[read_settings(run)[SEED_KEY] for run in side.meant] for side in (a, b)]
    if None in seeds[0] + seeds[1]:  # runs of other programs may not say theirs
        return None
    if len(groups) < 2 or sorted(seeds[0]) != sorted(seeds[1]):
        return None
    groups |= _by_runs(*a.others, *b.others)
    rows: list[dict[int, float]] = []
    runs: list[str] = []
    for group in groups.values():
        row = {read_settings(run)[SEED_KEY]: loss for run in group if (loss := _loss_at(run, step)) is not None}
        if len(row) > 1 or len(rows) < 2:
            rows.append(row)
            runs += [str(run) for run in group]
    names = sorted({seed for row in rows for seed in row})
    noise = estimate_noise(np.array([[row.get(seed, math.nan) for seed in names] for row in rows]))
    if noise is None or not noise.blocks or noise.freedom < LEAST_FREEDOM:
        return None
    sides = select_settings(noise, (0, 1))._replace(counts=np.full(2, len(a.meant)), shares=np.zeros((2, 0)))
    pair = judge_pair(sides, 1, 0, CONFIDENCE_LEVEL)
    low, high = _spread_interval(noise.sd, noise.freedom)
    return SeedSpread(noise.sd, low, high, noise.freedom, sorted(runs), len(rows), True), (pair.high - pair.low) / 2


def _by_runs(*groups: Sequence[pathlib.Path]) -> dict[tuple[str, ...], Sequence[pathlib.Path]]:
    """Each group of runs once, whatever it is called."""
    return {tuple(sorted(str(run.resolve()) for run in each)): each for each in groups}


def _loss_at(run: pathlib.Path, step: int) -> float | None:
    try:
        return read_val_losses(run).get(step)
    except BadInput:
        return None


def _spread_interval(sd: float, freedom: int) -> tuple[float, float]:
    """The interval of a standard deviation, by chi-squared."""
    high, low = (2 * special.gammaincinv(freedom / 2, (1 + sign * CONFIDENCE_LEVEL) / 2) for sign in (1, -1))
    return sd * math.sqrt(freedom / high), sd * math.sqrt(freedom / low)


def seed_spread(
    step: int, sides: Sequence[Sequence[pathlib.Path]], losses: Mapping[pathlib.Path, Mapping[int, float]]
) -> SeedSpread | None:
    """Estimate the spread over seeds at a step: each side has its own mean; runs of both sides count once."""
    groups = {tuple(sorted(str(f.resolve()) for f in side if step in losses[f])): side for side in sides}
    values = [
        np.array([losses[f][step] for f in side if step in losses[f]])
        for names, side in groups.items()
        if len(names) > 1
    ]
    freedom = sum(len(each) - 1 for each in values)
    if not freedom:
        return None
    variance = sum(float(np.sum((each - each.mean()) ** 2)) for each in values) / freedom
    low, high = _spread_interval(math.sqrt(variance), freedom)
    runs = sorted(name for names in groups if len(names) > 1 for name in names)
    return SeedSpread(math.sqrt(variance), low, high, freedom, runs, len(values))
