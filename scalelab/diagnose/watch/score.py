"""Keep forecasts on disk, in the run's forecasts.jsonl, and score them once the run is done."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.diagnose.watch.forecast import Forecast
from scalelab.errors import BadInput, quote_path
from scalelab.record import records
from scalelab.record.jsonfiles import NUMBER, PAIR, TEXT, describe_mismatch
from scalelab.record.jsonlines import last_line

FORECASTS_FILE = "forecasts.jsonl"
FORECAST_SCHEMA = {"step": NUMBER, "steps": NUMBER, "val_loss": NUMBER, "interval90": PAIR, "method": TEXT}


def keep_forecast(folder: pathlib.Path, forecast: Forecast) -> dict[str, Any]:
    """Append a forecast to the run's file, once a step and method; return its line."""
    line, path = forecast.as_json(), folder / FORECASTS_FILE
    before = last_line(path, lambda row: True) if path.exists() else None
    if before is None or (before.get("step"), before.get("method")) != (line["step"], line["method"]):
        records.append_json_lines(path, [line])
    return line


def score_run(folder: pathlib.Path) -> dict[str, Any]:
    """Score a finished run's forecasts: {"measured", "forecasts": rows, "inside": share, "mean_abs_error"}.

    A row: step, progress, method, val_loss, interval90, `error` (forecast / measured - 1), `inside`. BadInput for a run
    that is not done, or has no forecasts.
    """
    path, record = folder / FORECASTS_FILE, records.read_sound_record(folder)
    if not path.exists():
        command = f"scalelab watch {quote_path(folder)}"
        raise BadInput(f"{folder} has no {FORECASTS_FILE}: `{command}` makes forecasts while it trains")
    measured = record.get("val_loss")
    if record.get("status") != "done" or not measured or not math.isfinite(measured):
        raise BadInput(f"{folder} is {record.get('status', 'starting')}: forecasts are scored when a run is done")
    lines = read_forecasts(folder)
    rows = [_score(line, measured) for line in lines]
    return {"run": folder.name, "measured": measured, "forecasts": rows} | summarise_scores(rows)


def read_forecasts(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Read the forecasts of a run, in order of writing. BadInput for a damaged line."""
    lines = records.read_json_lines(folder / FORECASTS_FILE)
    for number, line in enumerate(lines, 1):
        if describe_mismatch(line, FORECAST_SCHEMA) or line["steps"] < 1:
            raise BadInput(f"line {number} of {folder / FORECASTS_FILE} is not a forecast: was it edited?")
    return lines


def summarise_scores(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise rows: the share of intervals that held the measured loss, and the mean size of errors."""
    if not rows:
        return {"inside": None, "mean_abs_error": None}
    return {
        "inside": sum(row["inside"] for row in rows) / len(rows),
        "mean_abs_error": sum(abs(row["error"]) for row in rows) / len(rows),
    }


def _score(line: dict[str, Any], measured: float) -> dict[str, Any]:
    low, high = line["interval90"]
    shown = {key: line.get(key) for key in ("step", "method", "val_loss", "interval90")}
    return shown | {
        "progress": line["step"] / line["steps"],
        "error": line["val_loss"] / measured - 1,
        "inside": low <= measured <= high,
    }
