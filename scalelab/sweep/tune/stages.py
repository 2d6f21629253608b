"""The trials of every stage of a tuning, as configs: probes, rounds at a short horizon, long runs, fresh seeds."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import files
from scalelab.errors import BadInput
from scalelab.sweep.trials import trial_name
from scalelab.sweep.tune import stability
from scalelab.sweep.tune.search import least_points, surface_points
from scalelab.sweep.tune.space import Dimension, Point, Spec, read_spec
from scalelab.sweep.tune.stability import LR_KEY, WARMUP_KEY

OTHER_WARMUPS = ("schedule.warmup_tokens", "schedule.warmup_share")
SHORTER = 3  # a short run has so many times fewer steps
MOST_RATES = 4  # learning rates of the best long run that are tried again, in full
EVALUATIONS = 10  # of a long run, at least: the best one of them is told


@dataclasses.dataclass(frozen=True, eq=False)
class Tuning:
    """What is tuned and how: the `base` config (not resolved) of the file `path`, the `spec`, and the budget.

    `trials`: runs in all; `rounds` of search with `short` steps; `confirm` best trials of each arm trained in full;
    `seeds` fresh seeds.
    """

    path: pathlib.Path
    base: ConfigDict
    spec: Spec
    trials: int
    rounds: int
    short: int
    confirm: int
    seeds: int

    @property
    def steps(self) -> int:
        """The steps of a full run."""
        return config_lib.resolve(self.base).train.steps

    @property
    def rate(self) -> Dimension | None:
        """The learning rate's dimension; None if it is not searched."""
        return next((each for each in self.spec.space if each.key == LR_KEY), None)

    @property
    def tunes_warmup(self) -> bool:
        """Whether warm-up is among the named keys, so that no probe chooses it."""
        named = {each.key for each in self.spec.space} | set(next(iter(self.spec.arms.values())))
        return WARMUP_KEY in named

    @property
    def warmups(self) -> list[int]:
        """Warm-ups that the second probe would try at the short horizon."""
        own = config_lib.resolve(config_lib.override(self.base, {"train.steps": self.short})).schedule.warmup_steps
        return [] if self.tunes_warmup else stability.warmup_ladder(self.short, own)

    def counts(self) -> dict[str, int]:
        """{stage: runs at most}: probes, long, fresh; and those of a round of one arm."""
        arms = len(self.spec.arms)
        probes = stability.PROBES + len(self.warmups) if self.rate else 0
        long, fresh = arms * (self.confirm + 2 + (MOST_RATES if self.rate else 0)), (arms + 1) * self.seeds
        rest = self.trials - probes - long - fresh
        return {"probes": probes, "long": long, "fresh": fresh, "round": max(0, rest) // (self.rounds * arms)}


def load_tuning(
    path: str, overrides: Mapping[str, Any], trials: int, rounds: int, short: int | None, confirm: int, seeds: int
) -> Tuning:
    """Read the config file with its tune(), and check all of it: BadInput before anything runs."""
    module = config_lib.load_config_module(path)
    if not hasattr(module, "tune"):
        raise BadInput(f"{path} defines no tune(): it says which keys are searched, and where (see configs/tiny.py)")
    base = config_lib.override(files.config_from_module(path, module), overrides, set_by.COMMAND_LINE)
    resolved = config_lib.resolve(base)
    spec = read_spec(files.call_user_function(path, module.tune), resolved, path)
    steps = resolved.train.steps
    tuning = Tuning(
        pathlib.Path(path), base, spec, trials, rounds, short or max(1, round(steps / SHORTER)), confirm, seeds
    )
    if tuning.short > steps:
        raise BadInput(f"--short={tuning.short} is longer than train.steps={steps}; nearest: --short={steps}")
    if any(each.key == "train.steps" for each in spec.space):
        raise BadInput(f"{path}: tune() can't search train.steps: longer is better; what is compared is scientific")
    _refuse_small_budget(tuning)
    for arm in spec.arms:
        for ends in zip(*((each.low, each.high) for each in spec.space), strict=True):
            make_trial(tuning, arm, ends)  # refuses what the config refuses
    return tuning


def _refuse_small_budget(tuning: Tuning) -> None:
    """BadInput if the trials that are left for the rounds are too few for the keys."""
    counts, least = tuning.counts(), least_points(tuning.spec.space, tuning.rounds)
    if counts["round"] < least:
        needed = counts["probes"] + counts["long"] + counts["fresh"] + tuning.rounds * len(tuning.spec.arms) * least
        raise BadInput(
            f"--trials={tuning.trials} leaves {counts['round']} points for a round, and "
            f"{len(tuning.spec.space)} searched key(s) need {least}; nearest: --trials={needed} (a surface needs "
            f"{surface_points(tuning.spec.space)} trials that end)"
        )


def make_trial(
    tuning: Tuning, arm: str, point: Point, more: Mapping[str, Any] | None = None, steps: int | None = None
) -> ConfigDict:
    """The config of a point of an arm, with `more` values, at `steps` (default: the full run's)."""
    values = {each.key: value for each, value in zip(tuning.spec.space, point, strict=True)}
    return change_base(tuning, tuning.spec.arms[arm] | values | dict(more or {}), steps)


def change_base(tuning: Tuning, values: Mapping[str, Any], steps: int | None = None) -> ConfigDict:
    """The base config with these values, at `steps`. A warm-up in steps takes the place of one in tokens or shares."""
    changes = dict(values)
    if steps is not None and steps != tuning.steps:
        changes["train.steps"] = steps
    if WARMUP_KEY in changes:
        changes |= dict.fromkeys(OTHER_WARMUPS)
    return config_lib.resolve(config_lib.override(tuning.base, changes, set_by.SWEEP))


def name_search(number: int, arm: str, index: int, tuning: Tuning, point: Point) -> str:
    """The folder name of a trial of a round."""
    values = {each.key: value for each, value in zip(tuning.spec.space, point, strict=True)}
    which = "" if len(tuning.spec.arms) == 1 else f"{arm}-"
    return f"round{number + 1}-{which}{trial_name(index, values)}"


def search_trials(
    tuning: Tuning, number: int, points: Mapping[str, Sequence[Point]], more: Mapping[str, Any]
) -> dict[str, dict[str, ConfigDict]]:
    """{arm: {name: config}} of a round, in the order of its points."""
    return {
        arm: {
            name_search(number, arm, i, tuning, point): make_trial(tuning, arm, point, more, tuning.short)
            for i, point in enumerate(each)
        }
        for arm, each in points.items()
    }


def probe_trials(tuning: Tuning) -> dict[str, tuple[float, ConfigDict]]:
    """{name: (LR, config)} without warm-up, over the tuned range; {} if the LR is not searched."""
    if tuning.rate is None:
        return {}
    rates = stability.probe_rates(tuning.rate.low, tuning.rate.high)
    return {
        f"probe-lr={rate:.4g}": (rate, change_base(tuning, {LR_KEY: rate, WARMUP_KEY: 0}, tuning.short))
        for rate in rates
    }


def warmup_trials(tuning: Tuning, rate: float) -> dict[str, tuple[int, ConfigDict]]:
    """{name: (warm-up steps, config)} at an LR that warm-up should bear."""
    return {
        f"probe-warmup={steps}": (steps, change_base(tuning, {LR_KEY: rate, WARMUP_KEY: steps}, tuning.short))
        for steps in tuning.warmups
    }


def long_run(tuning: Tuning, values: Mapping[str, Any]) -> ConfigDict:
    """These values trained in full, evaluated often enough to tell the best checkpoint."""
    every = config_lib.resolve(tuning.base).eval.every_steps or tuning.steps
    often = min(every, max(1, tuning.steps // EVALUATIONS))
    return change_base(tuning, {**values, "eval.every_steps": often})


def fresh_trials(tuning: Tuning, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, ConfigDict]]:
    """{name: {run: config}} of the config as it is (`as_it_is`) and of each arm's `settings`, on fresh seeds.

    No search has used these seeds, so no run is chosen for its luck.
    """
    first = config_lib.resolve(tuning.base).train.seed
    sides: dict[str, Mapping[str, Any]] = {"as_it_is": {}, **settings}
    return {
        name: {
            f"fresh-{name}-s{i}": change_base(tuning, {**values, "train.seed": first + i})
            for i in range(1, tuning.seeds + 1)
        }
        for name, values in sides.items()
    }
