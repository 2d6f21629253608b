"""Power before compute: all runs of an ablation, what they can't tell, and the smallest effect that would be shown.

The noise that this rests on is measured on runs that differ in their seed alone; where there are none, the effect is
given for a range of noises.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from scalelab.errors import BadInput
from scalelab.laws.use.multiplier.baseline_law import fit_laws
from scalelab.laws.use.multiplier.design import smallest_effect
from scalelab.laws.use.multiplier.result import WORTH
from scalelab.sweep.ablate import files, seeds, tuning
from scalelab.sweep.ablate.study import Ablation, final_runs

# A law to plan with where none is known: bytes, two layers, at the best sizes (experiments/results/quickstart.json,
# seed 4, split 4: alpha beta / (alpha + beta), and A from the loss predicted for 3.2e12 FLOPs).
USUAL_LAW = {"E": 1.11, "A": 0.584, "alpha": 0.271, "unit": 4e11}
USUAL = "if the baseline's loss falls as the quickstart's does"
NOISES = (0.002, 0.005, 0.01, 0.02)  # of a run's loss, where none is measured
FREE = ("E", "alpha")  # of the baseline's law, with A: one rung below the largest for each
LEAST_NOISE = 1e-9
LEAST_A = 1e-3  # share of the loss that falls with compute; of a law with less, nothing follows


class Known(NamedTuple):
    """The noise of a run's loss (`low` to `high`, if measured), None if unknown; the correlation of both sides' losses
    at a seed; the `source` of both; the `law` of the baseline that the power rests on, in words `by`."""

    noise: float | None
    interval: tuple[float, float] | None
    correlation: float
    source: str
    law: Mapping[str, float] = USUAL_LAW
    by: str = USUAL


def all_runs(study: Ablation) -> dict[str, ConfigDict]:
    """{name: config} of every run, tuning trials without widening."""
    trials = {
        tuning.name_trial(side, rung, study.tuned, point): tuning.tuning_run(study, side, rung, point)
        for rung in study.tuned_rungs
        for side in study.sides
        for point in tuning.first_points(study.tuned)
    }
    return trials | final_runs(study, study.rungs, {})


def check_fixed(fix: Mapping[str, float]) -> None:
    """BadInput for a value of the baseline's law that can't be given: said before any run, not after the last."""
    for name, value in fix.items():
        if name not in FREE:
            raise BadInput(f"--fix {name}={value:g}: only {' and '.join(FREE)} of E + A C^-alpha can be given")
        if value < 0 or (name == "alpha" and value == 0):
            raise BadInput(f"--fix {name}={value:g}: it is above zero")


def describe_limits(study: Ablation, fix: Mapping[str, float]) -> list[str]:
    """A warning for each thing that these rungs and seeds can't tell whatever their losses."""
    lower, free = len(study.rungs) - 1, [name for name in FREE if name not in fix]
    lines = []
    if lower < (needed := 1 + len(free)):
        first = study.rungs[0].flops
        lines.append(
            f"WARNING: {len(study.rungs)} budgets can't predict the largest: {', '.join(free)} and A of the baseline's "
            f"law need {needed} budgets below it, and there are {lower}; add one, such as {first / 2:.3g}, or give "
            "what is known (--fix=E=…)"
        )
    if study.seeds < 2:
        lines.append("WARNING: one seed has no interval, so the verdict will be undecided; --seeds=2 or more")
    return lines


def known_noise(
    study: Ablation, folder: pathlib.Path | None, noise: float | str | os.PathLike | None, correlation: float | None
) -> Known:
    """The noise that is given, or measured in a folder of runs that is given, or in the study's own; else unknown."""
    if correlation is not None and not -1 <= correlation <= 1:
        raise BadInput(
            f"--correlation={correlation:g}: a correlation lies in -1 to 1; without it, it is measured, or 0"
        )
    if isinstance(noise, int | float):
        return Known(float(noise), None, correlation or 0.0, "as given")
    place = folder if noise is None else pathlib.Path(noise)
    rows = files.read_rows(study, place, study.rungs) if place and (place / "runs").is_dir() else []
    law, by = known_law(study, rows)
    correlation = seeds.correlate_sides(rows, study.baseline.name) if correlation is None else correlation
    readable = place and (noise is not None or (place / "runs").is_dir())
    measured, damaged = seeds.measure_folder(place) if place and readable else (None, 0)
    lost = f" ({damaged} damaged: `scalelab runs` says why)" if damaged else ""
    if measured is None and noise is not None:
        raise BadInput(
            f"--noise={place}: no two runs in it that ended{lost} differ in {seeds.SEED_KEY} alone; nearest: "
            "--noise=0.01"
        )
    if measured is None:
        return Known(None, None, correlation, "no runs that differ in their seed alone", law, by)
    source = f"measured on {measured.runs} runs in {place}{lost}"
    return Known(measured.sd, (measured.low, measured.high), correlation, source, law, by)


def known_law(study: Ablation, rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, float], str]:
    """(the law of the baseline's rows, in words), if they have a rung for each parameter, else the usual one."""
    means = seeds.mean_losses(rows, study.baseline.name)
    if len(means) > len(FREE):
        losses = np.array([list(means.values())])
        laws = fit_laws(np.array(list(means)), losses, np.ones(len(means)), {})
        if laws.A[0] > LEAST_A * losses.max():
            law = {"E": float(laws.E[0]), "A": float(laws.A[0]), "alpha": float(laws.alpha[0]), "unit": laws.unit}
            return law, f"by the law of the baseline's {len(means)} rungs that ran"
    return USUAL_LAW, USUAL


def smallest_shown(
    study: Ablation,
    noise: float,
    correlation: float,
    target: float,
    law: Mapping[str, float] = USUAL_LAW,
    worth: float = WORTH,
) -> float | None:
    """The least multiplier at the target that these rungs and seeds would adopt in 80 % of studies."""
    if study.seeds > 1 and noise * (1 - correlation) < LEAST_NOISE:  # pairs that differ by nothing show any effect
        return worth
    budgets, family = [rung.flops for rung in study.rungs], len(study.sides) - 1
    return smallest_effect(budgets, study.seeds, noise, correlation, law, target, worth=worth, family=family)


def describe_power(
    study: Ablation, noise: float, correlation: float, source: str, target: float, worth: float = WORTH
) -> tuple[float | None, tuple[str, ...]]:
    """(the smallest effect shown, lines that say it with the noise that it rests on)."""
    smallest, lines = describe_known(study, Known(noise, None, correlation, source), target, worth)
    return smallest[noise], lines


def describe_known(
    study: Ablation, known: Known, target: float, worth: float = WORTH
) -> tuple[dict[float, float | None], tuple[str, ...]]:
    """({noise: the smallest effect shown}, lines that say it): at the known noise and the ends of its interval, or at
    all of NOISES."""
    noises = NOISES if known.noise is None else (known.noise, *(known.interval or ()))
    smallest = {noise: smallest_shown(study, noise, known.correlation, target, known.law, worth) for noise in noises}
    pairs = f"correlation of pairs {known.correlation:.2f}"
    if known.noise is None:
        stated = f"noise of a run's loss not known, {pairs}: {known.source}; --noise=X, or --noise=DIR of such runs"
    else:
        ends = "" if known.interval is None else " (90%: {:.2%} to {:.2%})".format(*known.interval)
        stated = f"noise of a run's loss {known.noise:.2%}{ends}, {pairs}: {known.source}"
    return smallest, (stated, *([describe_smallest(study, smallest, target, known)] if study.seeds > 1 else []))


def describe_smallest(study: Ablation, smallest: Mapping[float, float | None], target: float, known: Known) -> str:
    """The smallest effects in a sentence."""
    worth = {noise: "more than any" if least is None else f"{least - 1:.1%}" for noise, least in smallest.items()}
    at = f"more compute at {target:.3g} FLOPs would be adopted in 80 % of studies"
    head = f"with {len(study.rungs)} rungs and {study.seeds} seeds, a change worth"
    if known.noise is None:
        sizes = ", ".join(f"{size} if the noise is {noise:.1%}" for noise, size in worth.items())
        return f"{head} so much {at}: {sizes}; {known.by}"
    first, *ends = worth.values()
    return f"{head} {first}{f' ({ends[0]} to {ends[1]} by the error of the noise)' if ends else ''} {at}, {known.by}"


def restate_power(
    study: Ablation, rows: Sequence[Mapping[str, Any]], target: float, worth: float = WORTH
) -> tuple[str, ...]:
    """Lines on the noise and the smallest effect by the rungs that ran, for the plan's; () where they show no noise."""
    measured = seeds.pool_rows(rows)
    if measured is None:
        return ()
    law, by = known_law(study, rows)
    correlation = seeds.correlate_sides(rows, study.baseline.name)
    source = f"measured on {measured.runs} runs below the largest rung"
    return describe_known(study, Known(measured.sd, measured[1:3], correlation, source, law, by), target, worth)[1]
