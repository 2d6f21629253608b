"""An ablation from its first trial to its score; every file is written when it becomes true, and never edited.

`tuned.json` (the tuned values, before the runs that use them), `prediction.json` (the multiplier at the largest rung
and the criterion, before that rung starts), `throughput.json`, `summary.json`.
"""

import math
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.laws import FitError, multiplier
from scalelab.laws.use.multiplier.design import next_pair
from scalelab.laws.use.multiplier.result import LEVEL, WORTH, format_factor, join_ends
from scalelab.laws.use.multiplier.verdict import describe_criterion
from scalelab.study import Kind, write_once
from scalelab.sweep.ablate import files, power, tuning
from scalelab.sweep.ablate.sides import changed_values
from scalelab.sweep.ablate.study import Ablation, final_runs, make_run, name_run
from scalelab.sweep.ablate.throughput import measure_throughput

Train = Callable[[Mapping[str, ConfigDict]], None]  # trains these runs beside earlier ones; Stopped after a signal
KIND = Kind("ablation", "ablation.json", grow=("seeds",))  # further seeds are added to the ones already there
CURVE_POINTS = 9  # of the trend's band, for the figure


def describe_study(study: Ablation) -> dict[str, Any]:
    """What defines a study, as plain JSON: its rungs, its rule, what is tuned, and what each variant changes."""
    return {
        "baseline": study.baseline.name,
        "variants": {
            side.name: {key: list(pair) for key, pair in changed_values(study.baseline, side).items()}
            for side in study.sides[1:]
        },
        "rungs": [{"C": rung.flops, "d_model": rung.d_model} for rung in study.rungs],
        "rule": study.rule,
        "tuned": list(study.tuned),
        "seeds": study.seeds,
    }


def conduct_study(
    study: Ablation,
    folder: pathlib.Path,
    train: Train,
    note: Callable[[str], None],
    fix: Mapping[str, float] | None = None,
    target_flops: float | None = None,
    worth: float = WORTH,
) -> None:
    """Train (or resume) all of it; Stopped after a signal. `note` is given a line for each step of the study."""
    settings = _tune(study, folder, train, note)
    *lower, last = study.rungs
    train(final_runs(study, lower, settings))
    rows = files.read_rows(study, folder, lower)
    for line in power.restate_power(study, rows, last.flops if target_flops is None else target_flops, worth):
        note(line)
    prediction = predict_once(study, folder, rows, fix, worth, target_flops)
    for name, each in prediction["variants"].items():
        note(f"predicted at {last.flops:.3g} FLOPs, {name}: {describe_prediction(each)}")
    train(final_runs(study, [last], settings))


def _tune(
    study: Ablation, folder: pathlib.Path, train: Train, note: Callable[[str], None]
) -> dict[str, dict[float, dict[str, float]]]:
    """The settings {side: {flops: {key: value}}} of all runs, from tuned.json or the trials."""
    if not study.tuned:
        return {}

    def losses_of(trials: Mapping[str, ConfigDict]) -> dict[str, float]:
        train(trials)
        return {name: files.read_loss(folder, name) for name in trials}

    def tune() -> dict[str, Any]:
        losses = tuning.tune_sides(study, losses_of)
        sides = tuning.carry_up(study, losses).values()
        return {"sides": [files.tuned_json(study, each) for each in sides], "tuned_at": time.time()}

    write_once(folder / files.TUNED_FILE, tune)
    content = files.read_tuned(study, folder)
    train(dict(_known_trials(study, content)))
    for side in content["sides"]:
        note(
            f"{side['name']}, {side['trials']} trials ({side['diverged']} diverged): {'; '.join(side['how'].values())}"
        )
        for problem in side["problems"]:
            note(f"WARNING: {problem}")
    return {
        side["name"]: {each["C"]: {key: ends[0] for key, ends in each["values"].items()} for each in side["settings"]}
        for side in content["sides"]
    }


def _known_trials(study: Ablation, tuned: Mapping[str, Any]) -> list[tuple[str, ConfigDict]]:
    """The tuning trials that tuned.json lists, which have ended: they stay in the sweep's table."""
    sides, rungs = {side.name: side for side in study.sides}, {rung.flops: rung for rung in study.rungs}
    rows = [
        (sides[side["name"]], rungs[row["C"]], tuple(row["point"])) for side in tuned["sides"] for row in side["rows"]
    ]
    return [
        (tuning.name_trial(side, rung, study.tuned, point), tuning.tuning_run(study, side, rung, point))
        for side, rung, point in rows
    ]


def predict_once(
    study: Ablation,
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    fix: Mapping[str, float] | None,
    worth: float = WORTH,
    target_flops: float | None = None,
) -> dict[str, Any]:
    """The multiplier of every variant at the largest rung from the others, written before that rung starts.

    And the criterion of the verdicts at the target, which needs no multiplier.
    """
    last = study.rungs[-1]

    def predict() -> dict[str, Any]:
        criterion = describe_criterion(target_flops or last.flops, LEVEL, worth, len(study.sides) - 1)
        predictions = {
            name: each | {"criterion": criterion}
            for name, each in _predict(study, rows, last.flops, fix, worth).items()
        }
        return {"C": last.flops, "seeds": study.seeds, "variants": predictions, "predicted_at": time.time()}

    runs = [folder / "runs" / name_run(side, last, 1) for side in study.sides]
    write_once(folder / files.PREDICTION_FILE, predict, before=runs)
    return files.read_prediction(study, folder)


def _predict(
    study: Ablation, rows: Sequence[Mapping[str, Any]], flops: float, fix: Mapping[str, float] | None, worth: float
) -> dict[str, dict[str, Any]]:
    try:
        results = multiplier(rows, baseline=study.baseline.name, target_flops=flops, fix=fix, worth=worth)
    except (BadInput, FitError) as why:
        return {side.name: {"m": None, "interval90": None, "why": str(why)} for side in study.sides[1:]}
    return {
        name: {key: result.to_json()["target"][key] for key in ("m", "interval90")} | {"why": ""}
        for name, result in results.items()
    }


def describe_prediction(each: Mapping[str, Any]) -> str:
    """A variant's prediction in a few words."""
    if each["m"] is None:
        return f"none: {each['why']}"
    if each["interval90"] is None:
        return f"{format_factor(each['m'])} times the compute, no interval: one seed"
    return f"{format_factor(each['m'])} times the compute, 90 % in {join_ends(each['interval90'])}"


def throughput_once(study: Ablation, folder: pathlib.Path) -> dict[str, dict[str, list[float]]]:
    """{budget: {side: tokens/s of each turn}} of every rung, measured in this process once the runs have ended."""

    def measure() -> dict[str, dict[str, list[float]]]:
        measured: dict[tuple[Static, ...], dict[str, list[float]]] = {}  # rungs of one width share their programs
        speeds = {}
        for rung in study.rungs:
            runs = {side.name: make_run(study, side, rung, 0) for side in study.sides}
            programs = tuple(config_lib.static(run) for run in runs.values())
            if programs not in measured:
                measured[programs] = measure_throughput(runs)
            speeds[f"{rung.flops:g}"] = measured[programs]
        return speeds

    path = folder / "throughput.json"
    content: dict[str, dict[str, list[float]]] = write_once(path, measure, files.THROUGHPUT_SCHEMA)
    for budget, side in ((f"{rung.flops:g}", side.name) for rung in study.rungs for side in study.sides):
        if not content.get(budget, {}).get(side):
            raise BadInput(f"{path} has no speeds of {side} at {budget} FLOPs; was it edited?")
    return content


def score_study(
    study: Ablation,
    folder: pathlib.Path,
    target_flops: float,
    fix: Mapping[str, float] | None,
    with_next: bool = False,
    worth: float = WORTH,
) -> dict[str, Any]:
    """The content of summary.json from the runs of all rungs: each variant's multiplier, verdict and score."""
    rows = files.read_rows(study, folder, study.rungs)
    speeds = throughput_once(study, folder)
    rows = [row | {"tokens_per_s": _speed_of(study, row, speeds)} for row in rows]
    tuned = files.read_tuned(study, folder)["sides"] if study.tuned else []
    prediction = files.read_prediction(study, folder)
    problems = {side["name"]: side["problems"] for side in tuned}
    estimates = multiplier(
        rows,
        baseline=study.baseline.name,
        target_flops=target_flops,
        fix=fix,
        curve_points=CURVE_POINTS,
        worth=worth,
        family=len(study.sides) - 1,
    )
    variants = []
    for side in study.sides[1:]:
        estimate = estimates[side.name]
        result = estimate.to_json() | ({"next": next_pair(estimate)} if with_next else {})
        mistuned = [*problems.get(study.baseline.name, []), *problems.get(side.name, [])]
        variants.append(
            {"variant": side.name}
            | result
            | judge_tuning(study, result["verdict"], mistuned)
            | {"notes": [*result["notes"], *_other_criterion(prediction["variants"][side.name], estimate.criterion)]}
            | {"scored": score_prediction(prediction["variants"][side.name], result["rungs"][-1])}
        )
    return {
        "study": describe_study(study),
        "variants": variants,
        "prediction": prediction,
        "predicted_at": prediction["predicted_at"],
        "tuning": tuned,
        "rows": [row | {"loss": row["loss"] if math.isfinite(row["loss"]) else None} for row in rows],
        "target_flops": target_flops,
    }


def _other_criterion(predicted: Mapping[str, Any], criterion: str) -> list[str]:
    """A line where the criterion that was written before the largest rung is not the one that is applied."""
    before = predicted["criterion"]
    if before in (None, criterion):
        return []
    return [f"another criterion was written before the largest rung: {before}"]


def _speed_of(study: Ablation, row: Mapping[str, Any], speeds: Mapping[str, Mapping[str, Sequence[float]]]) -> float:
    """Tokens/s of a run: the median of its seed's own turns, so that rows of several seeds show a ratio's error."""
    turns = speeds[f"{row['C']:g}"][row["side"]]
    return statistics.median(turns[(row["seed"] - 1) % len(turns) :: min(study.seeds, len(turns))])


def judge_tuning(study: Ablation, verdict: str, mistuned: Sequence[str]) -> dict[str, Any]:
    """The verdict with what tuning does to it: equal tuning or no verdict."""
    if mistuned:
        return {
            "verdict": f"undecided: not tuned well enough: {'; '.join(mistuned)}", "before_tuning": verdict,
            "problems": list(mistuned),
        }  # fmt: skip
    if not study.tuned:
        return {"verdict": f"{verdict} (untuned: each side ran at its own config's values)", "problems": []}
    return {"problems": []}


def score_prediction(predicted: Mapping[str, Any], rung: Mapping[str, Any]) -> dict[str, Any]:
    """The multiplier measured at the largest rung beside the one that was written before it ran.

    `agrees`: whether their difference in logs is within both errors; None where one of them has no interval.
    """
    measured, ends = rung["m"]["flops"], rung["interval90"]
    ends = ends["flops"] if isinstance(ends, Mapping) else ends
    score: dict[str, Any] = {"predicted": predicted["m"], "predicted90": predicted["interval90"]}
    score |= {"measured": measured, "measured90": ends, "agrees": None}
    if None not in (predicted["m"], predicted["interval90"], measured, ends) and min(predicted["m"], measured) > 0:
        halves = [math.log(high / low) / 2 for low, high in (predicted["interval90"], ends)]
        score["agrees"] = abs(math.log(measured / predicted["m"])) <= math.hypot(*halves)
    return score
