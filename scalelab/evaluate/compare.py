"""Compare two runs: config, data, environment, the first step that differs, and the loss gap beside the noise."""

import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.evaluate import noise
from scalelab.evaluate.device_floor import find_device_floor
from scalelab.record import listing, records
from scalelab.record.identity import is_identity_key
from scalelab.train.checkpoints import manifest

TIMING_KEYS = ("tokens_per_s", "mfu", "time")  # metrics of time, which are not compared
# Metrics of time in the logs of other programs, by words in their names.
TIMING_NAMES = re.compile(r"runtime|per_sec|elapsed|(^|[_/ ])(time|tps|mfu|tflops)($|[_/ (])", re.IGNORECASE)
ENVIRONMENT_KEYS = ("versions", "device", "mesh", "dtypes", "attention", "determinism")


def compare_runs(a: str, b: str) -> dict[str, Any]:
    """Compare two runs, or folders of runs that differ only in their seeds: `scalelab compare` as plain JSON.

    BadInput as in `noise.load_side`, or for a damaged run.
    """
    sides = [noise.load_side(source) for source in (a, b)]
    one, two = (each.folder for each in sides)
    both_records = [records.read_record(folder) for folder in (one, two)]
    both_metrics = [records.read_metrics(folder) for folder in (one, two)]
    metrics = first_difference(*both_metrics)
    weights = same_weights(one, two) if metrics["lines"] and metrics["first"] is None else None
    gap = noise.loss_gap(*sides)
    devices = find_device_floor(gap.step, one, two) if gap else None
    return {
        "a": str(one),
        "b": str(two),
        "runs": [[str(path) for path in each.meant] for each in sides],
        "passed_over": list(dict.fromkeys(why for each in sides for why in each.damage)),
        "damaged": {str(run): why for each in sides for run in each.meant if (why := listing.describe_damage(run))},
        "config": config_differences(one, two),
        "data": _differences(*(records.flatten_keys(record.get("data", {})) for record in both_records)),
        "environment": _differences(
            *(records.flatten_keys({k: r.get(k) for k in ENVIRONMENT_KEYS}) for r in both_records)
        ),
        "imported": [records.is_imported(record) for record in both_records],
        "rewinds": [len(record.get("rewinds", {})) for record in both_records],
        "metrics": metrics,
        "evaluated_at": [sorted({line["step"] for line in lines if "val_loss" in line}) for lines in both_metrics],
        "weights": weights,
        "same_bits": bool(
            metrics["lines"] and not metrics["only"] and metrics["first"] is None and weights and weights["same"]
        ),
        "devices": devices and devices._asdict() | {"largest": devices.largest},
        "gap": None if gap is None else gap._asdict() | {"floor": gap.floor._asdict() if gap.floor else None},
    }


def config_differences(a: pathlib.Path, b: pathlib.Path) -> dict[str, Any]:
    """Config values that differ, `{key: {"a", "b", "computes"}}`; `computes`: whether the computation depends on it."""
    return {
        key: {"a": x, "b": y, "computes": is_identity_key(key)}
        for key, (x, y) in _differences(noise.read_settings(a), noise.read_settings(b)).items()
    }


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    keys = dict.fromkeys([*a, *b])
    return {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}


def first_difference(a: list[dict], b: list[dict]) -> dict[str, Any]:
    """Compare two runs' metric lines: {"lines", "only", "first", "largest"}.

    `lines` counts steps of both runs, `only` steps of one run. `first` is the first step that differs: {"step",
    "differ": {metric: {"a", "b", "relative"}}}, the largest relative difference first; `TIMING_KEYS` are not compared.
    `largest` is the largest relative difference of the training loss at any step, None where none has that of both.
    """
    lines_a, lines_b = ({(line["step"], "val_loss" in line): line for line in lines} for lines in (a, b))
    shared = sorted(lines_a.keys() & lines_b.keys())
    first = None
    both = [key for key in shared if all(lines[key].get("train_loss") is not None for lines in (lines_a, lines_b))]
    largest = 0.0 if both else None
    for key in shared:
        differ = _metric_differences(lines_a[key], lines_b[key])
        if largest is not None:
            largest = max(largest, differ.get("train_loss", {"relative": 0.0})["relative"])
        if differ and first is None:
            ranked = dict(sorted(differ.items(), key=lambda item: -item[1]["relative"]))
            first = {"step": key[0], "differ": ranked}
    return {"lines": len(shared), "only": len(lines_a.keys() ^ lines_b.keys()), "first": first, "largest": largest}


def _metric_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    differences = {}
    for key in [key for key in a if key in b and key not in TIMING_KEYS and not TIMING_NAMES.search(key)]:
        x, y = a[key], b[key]
        if x != y and not (x != x and y != y):
            finite = all(isinstance(v, int | float) and math.isfinite(v) for v in (x, y))
            relative = abs(y - x) / max(abs(x), abs(y)) if finite else math.inf
            differences[key] = {"a": x, "b": y, "relative": relative}
    return differences


def same_weights(a: pathlib.Path, b: pathlib.Path) -> dict[str, Any] | None:
    """{"step", "same"}: whether both runs' weights at the last step they share are equal bits; None without a step."""
    common = manifest.find_saved_steps(a).keys() & manifest.find_saved_steps(b).keys()
    if not common:
        return None
    step = max(common)
    from scalelab.train.resume.weights import load_run_weights  # here: it loads the model, for runs that may be equal

    try:
        one, two = (load_run_weights(f"{folder}@{step}").origin["digest"] for folder in (a, b))
    except (BadInput, WorkFailed) as error:
        return {"step": step, "same": False, "why": str(error)}
    return {"step": step, "same": one == two}
