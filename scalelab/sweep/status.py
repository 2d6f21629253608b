"""What a sweep's files say while it runs: one row a trial, whoever wrote them."""

import pathlib
from typing import Any

from scalelab import records
from scalelab.errors import BadInput


def rows(folder: pathlib.Path) -> list[dict[str, Any]]:
    """name, status (waiting, running, done, diverged, stopped, failed), step, steps, train_loss, val_loss, tokens_per_s."""
    if not (folder / "sweep.json").exists():
        raise BadInput(f"{str(folder)!r} holds no sweep: `scalelab sweep --workdir={folder}` has not begun there")
    manifest = records.read_json(folder / "sweep.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("trials"), dict):
        raise BadInput(f"{folder / 'sweep.json'} names no trials: was it edited?")
    return [trial_row(folder / "runs" / name, steps) for name, steps in manifest["trials"].items()]


def trial_row(folder: pathlib.Path, steps: int) -> dict[str, Any]:
    """The row of one trial."""
    record = records.read_record(folder)
    row: dict[str, Any] = {"name": folder.name, "status": record.get("status", "waiting"), "step": 0, "steps": steps}
    for line in records.read_metrics(folder):
        row |= {key: line[key] for key in ("step", "train_loss", "val_loss", "tokens_per_s") if key in line}
    events = records.read_events(folder)
    if events and events[-1]["kind"] == "failed":
        row["status"] = "failed"
    return row
