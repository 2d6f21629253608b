"""The runs of an ablation: a rung is a budget and a width, and by a rule of the ladder LR, batch, steps and warm-up."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.sweep.ablate.sides import Side
from scalelab.sweep.scaling import ladder, rules

LR_KEY = "optim.peak_lr"
REST_LR_KEY = "optim.rest_lr"  # moves with LR_KEY: one factor for both parts of an optimizer for hidden matrices
TOKENS_PER_PARAM = 20.0  # Hoffmann et al. 2022, table A9, about
LEAST_RUNGS = 3
WIDEST = 2**16


@dataclasses.dataclass(frozen=True)
class Rung:
    """A budget in FLOPs, and the d_model that all sides have there."""

    flops: float
    d_model: int


@dataclasses.dataclass(frozen=True, eq=False)
class Ablation:
    """What is compared: `sides` (baseline first), `rungs` (ascending), `seeds` runs of each, by which rule.

    `tuned`: the config keys tuned for each side at all rungs but the largest; () for an untuned comparison.
    """

    sides: tuple[Side, ...]
    rungs: tuple[Rung, ...]
    seeds: int
    rule: str
    tuned: tuple[str, ...]

    @property
    def baseline(self) -> Side:
        """The side that the others are compared with."""
        return self.sides[0]

    @functools.cached_property
    def rule_runs(self) -> dict[tuple[str, Rung, str], ConfigDict]:
        """The rule's own runs by side, rung and role, as `rule_run` made them: tuning asks for each once a trial."""
        return {}

    @property
    def tuned_rungs(self) -> tuple[Rung, ...]:
        """The rungs at which every side is tuned: all but the largest."""
        return self.rungs[:-1] if self.tuned else ()


def make_study(
    sides: Sequence[Side],
    budgets: Sequence[float],
    sizes: Sequence[int],
    seeds: int,
    rule: str,
    tuned: Sequence[str],
    tokens_per_param: float = TOKENS_PER_PARAM,
) -> Ablation:
    """Check what the user asked for, and choose widths where none are given. BadInput, before anything runs."""
    if len(budgets) < LEAST_RUNGS:
        raise BadInput(
            f"--budgets={_commas(budgets)}: a ladder needs {LEAST_RUNGS} rungs or more, better 4 over a factor 30"
        )
    for low, high in itertools.pairwise(budgets):
        if not low < high:
            raise BadInput(
                f"--budgets={_commas(budgets)}: {high:g} comes after {low:g}; nearest: "
                f"--budgets={_commas(sorted(set(budgets)))}"
            )
    if sizes and len(sizes) != len(budgets):
        raise BadInput(f"--sizes names {len(sizes)} widths for {len(budgets)} budgets: one for each, in the same order")
    if seeds < 1:
        raise BadInput(f"--seeds={seeds}: at least 1; 3 or more give an interval worth having")
    for side in sides:
        check_tuned(side, tuned)
    first = config_lib.resolve(sides[0].config)
    widths = sizes or [choose_width(first, budget, tokens_per_param) for budget in budgets]
    rungs = tuple(Rung(float(b), int(width)) for b, width in zip(budgets, widths, strict=True))
    study = Ablation(tuple(sides), rungs, seeds, rule, tuple(tuned))
    for side in sides:
        for rung in rungs:
            make_run(study, side, rung, 0)  # refuses what the rule or the ladder refuses
    return study


def check_tuned(side: Side, tuned: Sequence[str]) -> None:
    """BadInput unless the LR is tuned, and every tuned key is a positive number of this side."""
    if tuned and LR_KEY not in tuned:
        raise BadInput(
            f"--tune={','.join(tuned)}: the learning rate is always tuned; nearest: --tune={','.join([LR_KEY, *tuned])}"
        )
    values = config_lib.leaves(config_lib.resolve(side.config))
    for key in tuned:
        if key not in values:
            raise BadInput(f"--tune={','.join(tuned)}: no config key {key!r} (`scalelab config` lists them)")
        value = values[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value <= 0
            or key not in config_lib.traced_keys()
        ):
            raise BadInput(
                f"--tune: {key}={value!r} of {side.name} can't be tuned by factors; what can: a number above zero "
                "that is not compiled in (optim.weight_decay, optim.eps, …)"
            )


def choose_width(config: ConfigDict, budget: float, tokens_per_param: float) -> int:
    """The d_model whose run of this budget has nearly `tokens_per_param` tokens for each active parameter."""
    step = max(8, 2 * config.model.n_heads)  # rotary heads want an even size

    def miss(width: int) -> float:
        values = ladder.rule_inputs(ladder.resize_width(config, width), budget)
        sized = config_lib.static(ladder.resize_width(config, width)).model
        return math.log(values["D"] / count.count_parameters(sized)["active"] / tokens_per_param)

    width = step
    while miss(width + step) > 0 and width < WIDEST:
        width += step
    return min((width, width + step), key=lambda each: abs(miss(each)))


def make_run(
    study: Ablation, side: Side, rung: Rung, seed: int, values: Mapping[str, float] | None = None, role: str = "fit"
) -> ConfigDict:
    """The run of a side at a rung, with tuned `values` {key: value} in place of the rule's; BadInput if there is none.

    Tokens follow from the budget by this side's own exact FLOPs. A tuned LR moves that of the rest by its factor.
    """
    run = rule_run(study, side, rung, role)
    changes = dict(values or {}) | {"train.seed": run.train.seed + seed}
    if LR_KEY in changes and run.optim.get("rest_lr"):
        changes[REST_LR_KEY] = run.optim.rest_lr * changes[LR_KEY] / run.optim.peak_lr
    return config_lib.resolve(config_lib.override(run, changes, set_by.SWEEP))


def rule_run(study: Ablation, side: Side, rung: Rung, role: str) -> ConfigDict:
    """The run of a side at a rung as the study's rule sets it; not to be changed. BadInput if there is none."""
    if (key := (side.name, rung, role)) not in study.rule_runs:
        base = config_lib.resolve(side.config)
        rule = rules.find_rule(study.rule, base)
        try:
            study.rule_runs[key] = ladder.make_rung(base, rung.d_model, rung.flops, rule, role)
        except BadInput as why:
            raise BadInput(f"{side.name} at {rung.flops:.3g} FLOPs: {why}") from why
    return study.rule_runs[key]


def name_run(side: Side, rung: Rung, seed: int) -> str:
    """The folder name of a run that counts for the verdict."""
    return f"{side.name}-{rung.flops:.3g}-s{seed}"


def role_of(study: Ablation, rung: Rung) -> str:
    """`holdout` for the largest rung, which is predicted, else `fit`."""
    return "holdout" if rung == study.rungs[-1] else "fit"


def final_runs(
    study: Ablation, rungs: Sequence[Rung], settings: Mapping[str, Mapping[float, Mapping[str, float]]]
) -> dict[str, ConfigDict]:
    """The runs that the verdict is made of, each side with its settings {side: {flops: {key: value}}}; largest first.

    Seeds begin after the one that tuning used, so that no run is chosen for its luck.
    """
    return {
        name_run(side, rung, seed): make_run(
            study, side, rung, seed, settings.get(side.name, {}).get(rung.flops), role_of(study, rung)
        )
        for rung in reversed(rungs)
        for side in study.sides
        for seed in range(1, study.seeds + 1)
    }


def _commas(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
