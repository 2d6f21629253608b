"""Power before compute: all runs of an ablation, the noise that is known, the smallest effect that would be shown."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.design import smallest_effect
from scalelab.laws.use.multiplier.result import WORTH
from scalelab.sweep.ablate import conduct, files, tuning
from scalelab.sweep.ablate.study import Ablation, final_runs

# A law to plan with where none is known: bytes, two layers, at the best sizes (experiments/results/quickstart.json,
# seed 4, split 4: alpha beta / (alpha + beta), and A from the loss predicted for 3.2e12 FLOPs).
USUAL_LAW = {"E": 1.11, "A": 0.584, "alpha": 0.271, "unit": 4e11}


def all_runs(study: Ablation) -> dict[str, ConfigDict]:
    """{name: config} of every run, tuning trials without widening."""
    trials = {
        tuning.name_trial(side, rung, study.tuned, point): tuning.tuning_run(study, side, rung, point)
        for rung in study.tuned_rungs
        for side in study.sides
        for point in tuning.first_points(study.tuned)
    }
    return trials | final_runs(study, study.rungs, {})


def known_noise(
    study: Ablation, folder: pathlib.Path | None, noise: float | None, correlation: float | None, usual: float
) -> tuple[float, float, str]:
    """(relative noise, correlation, their source): as given, else measured in the folder's runs, else usual."""
    if noise is not None or correlation is not None:
        return noise or usual, correlation or 0.0, "as given"
    rows = files.read_rows(study, folder, study.rungs) if folder and (folder / conduct.KIND.file).exists() else []
    measured = _measure(study, rows)
    if measured is None:
        return usual, 0.0, "an assumption: no runs to measure it on; --noise and --correlation set it"
    return (*measured, f"measured on {len(rows)} runs in {folder}")


def _measure(study: Ablation, rows: list[dict[str, Any]]) -> tuple[float, float] | None:
    names = {row["side"] for row in rows}
    if study.baseline.name not in names or len(names) < 2:
        return None
    full = {row["C"] for row in rows}
    if len(full) < len(study.rungs):
        return None
    noise = next(iter(multiplier(rows, baseline=study.baseline.name, draws=2).values())).noise
    return (noise["baseline"], noise["correlation"] or 0.0) if noise["df"] else None


def smallest_shown(
    study: Ablation, noise: float, correlation: float, target: float, worth: float = WORTH
) -> float | None:
    """The least multiplier at the target that these rungs and seeds would adopt in 80 % of studies."""
    budgets, family = [rung.flops for rung in study.rungs], len(study.sides) - 1
    return smallest_effect(budgets, study.seeds, noise, correlation, USUAL_LAW, target, worth=worth, family=family)


def describe_power(
    study: Ablation, noise: float, correlation: float, source: str, target: float, worth: float = WORTH
) -> tuple[float | None, tuple[str, ...]]:
    """(the smallest effect shown, lines that say it with the noise that it rests on)."""
    smallest = smallest_shown(study, noise, correlation, target, worth)
    stated = f"noise of a run's loss {noise:.2%}, correlation of pairs {correlation:.2f}: {source}"
    return smallest, (stated, describe_smallest(study, smallest, target))


def describe_smallest(study: Ablation, smallest: float | None, target: float) -> str:
    """The smallest effect in a sentence."""
    if smallest is None:
        return "one seed: no interval, and so no verdict but undecided; --seeds=2 or more"
    return (
        f"with {len(study.rungs)} rungs and {study.seeds} seeds, a change worth {smallest - 1:.1%} more compute at "
        f"{target:.3g} FLOPs would be adopted in 80 % of studies, if the baseline's loss falls as the quickstart's does"
    )
