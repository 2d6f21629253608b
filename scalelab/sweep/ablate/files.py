"""What the folder of an ablation holds: its tuned values, its prediction, and its runs as rows."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.record.jsonfiles import NUMBER, PAIR, TEXT, WHOLE
from scalelab.sweep.ablate import carry
from scalelab.sweep.ablate.study import Ablation, Rung, name_run
from scalelab.sweep.ablate.tuning import TunedSide

TUNED_FILE, PREDICTION_FILE = "tuned.json", "prediction.json"
TUNED_SIDE = {
    "name": TEXT, "trials": WHOLE, "diverged": WHOLE, "how": {"*": TEXT}, "problems": [TEXT],
    "settings": [{"C": NUMBER, "values": {"*": [NUMBER]}}],
    "rows": [{"C": NUMBER, "loss": (NUMBER, None), "point": [NUMBER], "*": NUMBER}],
}  # fmt: skip
TUNED_SCHEMA = {"sides": [TUNED_SIDE], "tuned_at": NUMBER}
PREDICTION_SCHEMA = {
    "C": NUMBER, "predicted_at": NUMBER,
    "variants": {"*": {"m": (NUMBER, None), "interval90": (PAIR, None), "criterion": (TEXT, None), "why": TEXT}},
}  # fmt: skip
THROUGHPUT_SCHEMA = {"*": {"*": [NUMBER]}}


def read_tuned(study: Ablation, folder: pathlib.Path) -> dict[str, Any]:
    """The content of tuned.json. BadInput if it is damaged, or not of this study's sides, rungs and keys."""
    path = folder / TUNED_FILE
    content: dict[str, Any] = records.read_json(path, TUNED_SCHEMA)
    names, budgets = [side.name for side in study.sides], {rung.flops for rung in study.rungs}
    sides = content["sides"]
    parts = [part for side in sides for part in (*side["settings"], *side["rows"])]
    fits = [side["name"] for side in sides] == names and {part["C"] for part in parts} <= budgets
    fits = fits and all({part["C"] for part in side["settings"]} == budgets for side in sides)
    ends = [ends for side in sides for part in side["settings"] for ends in part["values"].values()]
    if not fits or not all(ends) or any(len(row["point"]) != len(study.tuned) for s in sides for row in s["rows"]):
        raise BadInput(f"{path} is not of this study's sides, rungs and tuned keys; was it edited?")
    return content


def tuned_json(study: Ablation, side: TunedSide) -> dict[str, Any]:
    """What tuning found for a side, as plain JSON."""
    return {
        "name": side.name,
        "trials": len(side.rows),
        "diverged": sum(not math.isfinite(row["loss"]) for row in side.rows),
        "how": side.how,
        "problems": side.problems,
        "settings": [
            {"C": flops, "values": {key: list(ends) for key, ends in values.items()}}
            for flops, values in side.settings.items()
        ],
        "optima": [_optimum_json(side, i, study.tuned) for i in range(len(side.best.groups))] if side.best else [],
        "rows": [
            {"C": row["C"], "loss": row["loss"] if math.isfinite(row["loss"]) else None, "point": list(row["point"])}
            | {key: row[key] for key in study.tuned}
            for row in side.rows
        ],
    }


def _optimum_json(side: TunedSide, i: int, keys: Sequence[str]) -> dict[str, Any]:
    assert side.best
    group = side.best.groups[i]
    intervals = {key: side.best.interval(group, key) for key in keys}
    return {
        "C": group.values["C"],
        "status": group.optimum.status,
        "why": group.optimum.why,
        "best": {key: math.exp(carry.group_optimum(group, k)) for k, key in enumerate(keys)},
        "interval90": {key: None if ends is None else list(ends) for key, ends in intervals.items()},
        "cost_of_twice": {key: side.best.cost_of_factor(group, key) for key in keys},
        "chosen": {key: _chosen_json(side, group.values["C"], key) for key in keys},
    }


def _chosen_json(side: TunedSide, flops: float, key: str) -> dict[str, float]:
    """The chosen value of a key at a rung, and how far its trials' losses there lie above the best trial's."""
    assert side.best
    value, noise = side.settings[flops][key][0], side.best.noise.sd
    there = [row for row in side.rows if row["C"] == flops]
    miss = carry.measure_miss(there, key, value, noise if math.isfinite(noise) else 0.0)
    return {"value": value, "above_best": miss.above, "error": miss.error, "best_trial": miss.best}


def read_loss(folder: pathlib.Path, name: str) -> float:
    """The final validation loss of a run that has ended; inf if it diverged."""
    record = records.read_sound_record(folder / "runs" / name)
    loss = record.get("val_loss") if record.get("status") == "done" else None
    return math.inf if loss is None else float(loss)


def read_rows(study: Ablation, folder: pathlib.Path, rungs: Sequence[Rung]) -> list[dict[str, Any]]:
    """The runs that have ended, one row each: side, C (the rung's budget), seed, loss, N, tokens, flops (exact)."""
    rows = []
    for side in study.sides:
        for rung in rungs:
            for seed in range(1, study.seeds + 1):
                place = folder / "runs" / name_run(side, rung, seed)
                if records.read_record(place).get("status") in ("done", "diverged"):
                    loss = read_loss(folder, place.name)
                    row = {"side": side.name, "C": rung.flops, "seed": seed, "loss": loss}
                    rows.append(row | records.read_size(place))
    return rows


def read_prediction(study: Ablation, folder: pathlib.Path) -> dict[str, Any]:
    """The content of prediction.json. BadInput if it is damaged, or lacks a variant of this study."""
    path = folder / PREDICTION_FILE
    content: dict[str, Any] = records.read_json(path, PREDICTION_SCHEMA)
    if missing := [side.name for side in study.sides[1:] if side.name not in content["variants"]]:
        raise BadInput(f"{path} has no prediction of {missing[0]}; was it edited?")
    return content
