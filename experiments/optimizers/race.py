"""The runs, one sweep per stage: a scan of LRs, rounds of tuning trials, then each one's best points on fresh seeds."""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.experiments.intervals import FinalsRecord
from scalelab.experiments.optimizers import search
from scalelab.record import records

ROUNDS = 2
FINALISTS = 3
SCHEDULES = {"schedule_free_adamw": "constant"}  # the schedule it is designed for; all others take the base's

TrainStage = Callable[[str, Mapping[str, ConfigDict]], list[dict[str, Any]]]  # (stage, runs) -> results, in their order


def trial_config(base: ConfigDict, name: str, values: Mapping[str, Any], seed: int) -> ConfigDict:
    """One run of optimizer `name`; `optim` values of `base` apply where the optimizer has no default."""
    unset = dict.fromkeys((f"optim.{key}" for defaults in OPTIM_DEFAULTS.values() for key in defaults), "none")
    warmup = dict.fromkeys(("schedule.warmup_steps", "schedule.warmup_tokens"), "none")
    schedule = {"schedule.name": SCHEDULES.get(name, base.schedule.name)}
    changes = unset | warmup | schedule | {"optim.name": name, "train.seed": seed} | dict(values)
    return config_lib.resolve(config_lib.override(base, changes))


def scan_trials(base: ConfigDict, octaves: Mapping[str, Sequence[int]]) -> dict[str, ConfigDict]:
    """{run: config} of the scan: LRs by octaves from each optimizer's own; all other values as in its source."""
    made = {}
    for name, each in octaves.items():
        for octave in each:
            lr = OPTIM_DEFAULTS[name]["peak_lr"][0] * 2.0**octave
            values = {"optim.peak_lr": lr} | search.rest_lr(name, lr)
            made[f"{name}-lr{octave:+03d}"] = trial_config(base, name, values, base.train.seed)
    return made


def tuning_trials(
    base: ConfigDict, points: Mapping[str, Sequence[Mapping[str, float]]], first: int = 0
) -> dict[str, ConfigDict]:
    """{run: config} of a round's trials, all on the base's seed, numbered from `first`."""
    return {
        f"{name}-tune{first + i:03d}": trial_config(
            base, name, search.config_values(name, point, base.train.steps), base.train.seed
        )
        for name, each in points.items()
        for i, point in enumerate(each)
    }


def final_trials(
    base: ConfigDict, best: Mapping[str, Sequence[Mapping[str, Any]]], seeds: int
) -> dict[str, ConfigDict]:
    """{run: config}: each optimizer's best values on `seeds` seeds that tuning didn't see, equal for all."""
    return {
        f"{name}-best{place + 1}-seed{seed:02d}": trial_config(base, name, values, seed)
        for name, points in best.items()
        for place, values in enumerate(points)
        for seed in range(base.train.seed + 1, base.train.seed + 1 + seeds)
    }


def tune_optimizers(
    base: ConfigDict, names: Sequence[str], trials: int, train: TrainStage
) -> dict[str, dict[str, Any]]:
    """Scan and rounds of every optimizer: {name: {scan, points, runs, boxes, widened, edge}}.

    `trials`: number of tuning trials of each, without the scan. Only `train` runs anything, and each stage depends on
    the results before it; on a resume, finished stages are read again in order.
    """
    tuned: dict[str, dict[str, Any]] = {name: {"scan": {}, "points": [], "runs": [], "boxes": []} for name in names}
    ahead: dict[str, Sequence[int]] = dict.fromkeys(names, search.FIRST_OCTAVES)
    for number in range(search.MOST_SCANS):
        for name, each in _by_name(train(f"scan{number}", scan_trials(base, ahead)), ahead).items():
            tuned[name]["scan"] |= {octave: run["loss"] for octave, run in zip(ahead[name], each, strict=True)}
        further = {
            name: search.next_octaves(*map(list, zip(*sorted(tuned[name]["scan"].items()), strict=True)))
            for name in ahead
        }
        ahead = {name: octaves for name, octaves in further.items() if octaves}
        if not ahead:
            break
    for name, each in tuned.items():
        octave = min(each["scan"], key=lambda o, losses=each["scan"]: (losses[o], o))
        each["boxes"].append(search.first_box(OPTIM_DEFAULTS[name]["peak_lr"][0] * 2.0**octave))
    for number in range(ROUNDS):
        share = trials * (number + 1) // ROUNDS - trials * number // ROUNDS
        drawn = {
            name: search.sample_box(each["boxes"][-1], share, base.train.seed + number) for name, each in tuned.items()
        }
        made = tuning_trials(base, drawn, first=trials * number // ROUNDS)
        for name, runs in _by_name(train(f"round{number}", made), drawn).items():
            tuned[name]["points"] += drawn[name]
            tuned[name]["runs"] += runs
            best = tuned[name]["points"][order_by_loss(tuned[name]["runs"])[0]]
            if number + 1 < ROUNDS:
                tuned[name]["boxes"].append(search.next_box(tuned[name]["boxes"][-1], best))
    for each in tuned.values():
        best = each["points"][order_by_loss(each["runs"])[0]]
        each["widened"] = [
            side for a, b in zip(each["boxes"], each["boxes"][1:], strict=False) for side in search.widened_sides(a, b)
        ]
        each["edge"] = search.at_edge(each["boxes"], best)
    return tuned


def order_by_loss(runs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Indices of the runs, least loss first, diverged runs last."""
    return sorted(range(len(runs)), key=lambda i: runs[i]["loss"])


def run_finals(
    base: ConfigDict, tuned: Mapping[str, Mapping[str, Any]], choosing: int, seeds: int, train: TrainStage
) -> dict[str, dict[str, Any]]:
    """Each optimizer's best points on fresh seeds: {name: {finals, values, runs}}.

    The first `choosing` seeds select a point, and the `seeds` after them give its loss: a point selected for its low
    loss on some seeds is low there partly by luck. `runs`: the reported runs of the selected point.
    """
    places = {name: order_by_loss(each["runs"])[:FINALISTS] for name, each in tuned.items()}
    best = {
        name: [search.config_values(name, tuned[name]["points"][i], base.train.steps) for i in each]
        for name, each in places.items()
    }
    by_name = _by_name(
        train("finals", final_trials(base, best, choosing + seeds)),
        {n: range(len(best[n]) * (choosing + seeds)) for n in best},
    )
    results = {}
    for name, runs in by_name.items():
        each = [runs[i : i + choosing + seeds] for i in range(0, len(runs), choosing + seeds)]
        losses = [[run["loss"] for run in point] for point in each]
        final = FinalsRecord(
            [run["loss"] for run in tuned[name]["runs"]],
            places[name],
            [point[:choosing] for point in losses],
            [point[choosing:] for point in losses],
        )
        results[name] = {"finals": final, "values": best[name][final.chosen], "runs": each[final.chosen][choosing:]}
    return results


def _by_name(results: Sequence[dict[str, Any]], counts: Mapping[str, Sequence[Any]]) -> dict[str, list[dict[str, Any]]]:
    """Split results, in the order of `counts`, by name."""
    rest = iter(results)
    return {name: [next(rest) for _ in each] for name, each in counts.items()}


def read_result(place: pathlib.Path) -> dict[str, Any]:
    """A run's name, loss (inf: diverged), curve [(step, validation loss)] and median rate in tokens/s."""
    record, lines = records.read_json(place / "record.json"), records.read_metrics(place)
    ended = record["status"] == "done" and record["val_loss"] is not None
    rates = sorted(line["tokens_per_s"] for line in lines if "tokens_per_s" in line)
    return {
        "name": place.name,
        "loss": record["val_loss"] if ended else math.inf,
        "curve": [(line["step"], line["val_loss"]) for line in lines if "val_loss" in line],
        "tokens_per_s": rates[len(rates) // 2] if rates else None,
    }
