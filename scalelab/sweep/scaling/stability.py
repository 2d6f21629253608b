"""The runs behind a forecast of divergence: a ladder of narrow widths, each tried at rates up to those that diverge.

A run has diverged if it was given up, or if it ends above the loss of a uniform guess.
"""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput, WorkFailed
from scalelab.record import records
from scalelab.study import Kind
from scalelab.sweep.scaling.divergence import Bracket, find_bracket
from scalelab.sweep.scaling.ladder import check_fixed_schedule, flops_per_step
from scalelab.sweep.scaling.proxy import shorten_twin
from scalelab.sweep.scaling.resize import resize_config, width_unit
from scalelab.sweep.scaling.shrink import shrink_recipe

KIND = Kind("stability forecast", "stability.json", settings=("base",))
STEPS = 100  # of a run, at most
WIDEST, WIDTHS, LEAST_WIDTHS = 128, 4, 3
PROXY_WIDTHS = (32, 64, 96, 128)  # of a recipe whose own heads or cost allow no ladder
MOST_FLOPS = 5e13  # of a ladder of the config itself: half an hour of two CPU cores
RATES, FACTOR = 6, 8.0  # rates of a round; of the first one, each so many times the one before
LARGEST_LR = 1000.0  # that a config may hold
ROUNDS = 2  # of wide grids after the first, before a width counts as one that has no such LR
SEEDS = 3
LAST_SHARE = 0.1  # of a run's logged losses: their median is its end

Train = Callable[[Mapping[str, ConfigDict]], None]
Brackets = Mapping[int, Sequence[Bracket]]  # of each width, by seed


@dataclasses.dataclass(frozen=True, eq=False)
class Ladder:
    """`twins`: {width: config} of short runs; `base`: the config that they forecast; `is_proxy`: sizes were shrunk."""

    base: ConfigDict
    twins: Mapping[int, ConfigDict]
    is_proxy: bool
    seeds: Sequence[int]

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return next(iter(self.twins.values())).train.steps

    @property
    def n_runs(self) -> int:
        """Runs, where the first round holds what diverges and what does not."""
        return 2 * RATES * len(self.seeds) * len(self.twins)

    @property
    def flops(self) -> float:
        """FLOPs of these runs."""
        return 2 * RATES * len(self.seeds) * sum(self.steps * flops_per_step(twin) for twin in self.twins.values())


def plan_ladder(base: ConfigDict, seeds: int = SEEDS) -> Ladder:
    """The ladder of a resolved config: its own choices at widths up to its own, or a shrunk proxy's. BadInput."""
    check_fixed_schedule(base, "a stability forecast")
    numbers = range(base.train.seed, base.train.seed + seeds)
    unit, top = width_unit(base), min(base.model.d_model, WIDEST)
    if top >= unit:
        ideal = np.geomspace(unit * max(1, round(top / unit / 8)), top // unit * unit, WIDTHS)
        widths = sorted({unit * max(1, round(width / unit)) for width in ideal})
        if len(widths) >= LEAST_WIDTHS:
            ladder = Ladder(base, {width: make_twin(base, width) for width in widths}, False, numbers)
            if ladder.flops <= MOST_FLOPS:
                return ladder
    proxies = [width for width in PROXY_WIDTHS if width < base.model.d_model]
    if len(proxies) < LEAST_WIDTHS:
        raise BadInput(
            f"model.d_model={base.model.d_model} with heads of {base.model.d_head} leaves fewer than {LEAST_WIDTHS} "
            f"widths to measure; nearest: more and narrower heads, such as model.n_kv_heads={LEAST_WIDTHS + 1}"
        )
    steps = min(STEPS, base.train.steps)
    return Ladder(base, {width: _trim(shrink_recipe(base, width, steps)) for width in proxies}, True, numbers)


def make_twin(base: ConfigDict, width: int) -> ConfigDict:
    """The config at another width, in at most STEPS steps; warm-up and decay keep their shares."""
    twin = resize_config(base, width)
    shorten_twin(twin, base, min(STEPS, base.train.steps))
    return _trim(twin)


def _trim(twin: ConfigDict) -> ConfigDict:
    """Leave out what the forecast does not read."""
    twin.log.every_steps, twin.eval.batches, twin.log.layers_every = 1, 1, 0
    return config_lib.resolve(twin)


def describe_ladder(ladder: Ladder) -> dict[str, Any]:
    """What defines a forecast's runs, as plain JSON."""
    leaves = config_lib.leaves(ladder.base)
    return {
        "widths": list(ladder.twins), "seeds": list(ladder.seeds), "steps": ladder.steps, "proxy": ladder.is_proxy,
        "base": {key: value for key, value in leaves.items() if not key.startswith("log.")},
    }  # fmt: skip


def make_trials(twin: ConfigDict, rates: Sequence[float], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of a width at these rates and seeds: one program."""
    trials = {}
    for rate in rates:
        for seed in seeds:
            config = twin.copy_and_resolve_references()
            config.optim.peak_lr, config.train.seed = rate, seed
            trials[name_trial(twin.model.d_model, rate, seed)] = config_lib.resolve(config)
    return trials


def name_trial(width: int, rate: float, seed: int) -> str:
    """The folder name of a run."""
    return f"d{width}-lr={rate:.4g}-s{seed}"


def has_diverged(place: pathlib.Path, vocab_size: int) -> bool:
    """Whether a run that ended was given up, or ended above the loss of a uniform guess."""
    if records.read_sound_record(place).get("status") != "done":
        return True
    return not read_end(place) < math.log(vocab_size)


def read_end(place: pathlib.Path) -> float:
    """The median of a run's last logged training losses; inf where one is not finite."""
    losses = [line["train_loss"] for line in records.read_metrics(place) if line.get("train_loss") is not None]
    last = losses[-max(1, round(LAST_SHARE * len(losses))) :]
    return statistics.median(last) if last and all(math.isfinite(loss) for loss in last) else math.inf


def first_rates(peak_lr: float, number: int = 0) -> list[float]:
    """Rates of a wide round, rounded as in names: number 0 from `peak_lr` up, 1 those above, -1 those below.

    Those above what a config may hold are left out.
    """
    rates = [float(f"{peak_lr * FACTOR ** (number * RATES + i):.4g}") for i in range(RATES)]
    return [rate for rate in rates if rate <= LARGEST_LR]


def inner_rates(brackets: Sequence[Bracket]) -> list[float]:
    """Rates within all seeds' brackets, evenly in logs."""
    low, high = min(each.stable for each in brackets), max(each.diverged for each in brackets)
    return [float(f"{rate:.4g}") for rate in np.geomspace(low, high, RATES + 2)[1:-1]]


def measure_widths(
    folder: pathlib.Path,
    twins: Mapping[int, ConfigDict],
    seeds: Sequence[int],
    train: Train,
    note: Callable[[str], None] = lambda line: None,
) -> dict[int, list[Bracket]]:
    """{width: brackets of its seeds}: wide rounds until each seed diverges and does not, then one within.

    WorkFailed where a width diverges at no rate, or at all of them. Runs that ended are not run again.
    """
    due = {width: first_rates(twin.optim.peak_lr) for width, twin in twins.items()}
    rates, ends = {width: list(each) for width, each in due.items()}, {width: (0, 0) for width in twins}
    for _ in range(ROUNDS + 1):
        train(_all_trials(twins, due, seeds))
        for width in list(due):
            tried = read_outcomes(folder, twins[width], rates[width], seeds)
            if all(find_bracket(each) for each in tried):
                del due[width]
                continue
            (down, up), is_short = ends[width], not all(any(each.values()) for each in tried)
            ends[width] = (down, up + 1) if is_short else (down - 1, up)
            due[width] = first_rates(twins[width].optim.peak_lr, up + 1 if is_short else down - 1)
            rates[width] += due[width]
        if not any(due.values()):
            break
    for width in due:
        lrs = sorted(set(rates[width]) - set(due[width]))
        raise WorkFailed(
            f"width {width}: LRs from {lrs[0]:g} to {lrs[-1]:g} do not hold both runs that diverge and runs that "
            "do not, so there is nothing to forecast from: give another optim.peak_lr to start from"
        )
    wide = {width: _brackets(folder, twin, rates[width], seeds) for width, twin in twins.items()}
    inner = {width: inner_rates(each) for width, each in wide.items()}
    train(_all_trials(twins, inner, seeds))
    measured = {w: _brackets(folder, twin, rates[w] + inner[w], seeds) for w, twin in twins.items()}
    for width, each in measured.items():
        note(f"width {width} diverges from LR {', '.join(f'{one.middle:.3g}' for one in each)} on (by seed)")
    return measured


def _all_trials(
    twins: Mapping[int, ConfigDict], rates: Mapping[int, Sequence[float]], seeds: Sequence[int]
) -> dict[str, ConfigDict]:
    trials: dict[str, ConfigDict] = {}
    for width, each in rates.items():
        trials |= make_trials(twins[width], each, seeds)
    return trials


def read_outcomes(
    folder: pathlib.Path, twin: ConfigDict, rates: Sequence[float], seeds: Sequence[int]
) -> list[dict[float, bool]]:
    """{LR: whether it diverged} of each seed."""
    width, vocab = twin.model.d_model, twin.model.vocab_size
    runs = folder / "runs"
    return [
        {rate: has_diverged(runs / name_trial(width, rate, seed), vocab) for rate in sorted(set(rates))}
        for seed in seeds
    ]


def _brackets(folder: pathlib.Path, twin: ConfigDict, rates: Sequence[float], seeds: Sequence[int]) -> list[Bracket]:
    each = [find_bracket(outcomes) for outcomes in read_outcomes(folder, twin, rates, seeds)]
    return [bracket for bracket in each if bracket is not None]
