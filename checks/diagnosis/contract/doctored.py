"""What a user may have done to the folder of a finished run."""

import json
import pathlib
from collections.abc import Callable

from checks.diagnosis.diagnose.doctored import _edit, _edit_record
from scalelab.record import records


def _lines(folder: pathlib.Path, change: Callable[[list[dict]], list[dict]]) -> None:
    lines = change([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def better_val_loss(folder: pathlib.Path) -> None:
    """The last validation loss, in metrics and record, a tenth of a nat lower."""
    last = max(line["step"] for line in records.read_metrics(folder) if "val_loss" in line)
    better = {line["step"]: line["val_loss"] - 0.1 for line in records.read_metrics(folder) if "val_loss" in line}
    _lines(
        folder,
        lambda lines: [
            line | {"val_loss": better[last]} if "val_loss" in line and line["step"] == last else line for line in lines
        ],
    )
    _edit_record(folder, val_loss=better[last])


def stale_val_loss(folder: pathlib.Path) -> None:
    """Each validation loss is that of the evaluation before, as of a copy of the weights that lags."""
    before: dict[int, float] = {}
    scored = [(line["step"], line["val_loss"]) for line in records.read_metrics(folder) if "val_loss" in line]
    for (_, earlier), (step, _) in zip([scored[0], *scored], scored, strict=False):
        before[step] = earlier
    _lines(
        folder,
        lambda lines: [line | {"val_loss": before[line["step"]]} if "val_loss" in line else line for line in lines],
    )
    _edit_record(folder, val_loss=before[scored[-1][0]])


def lines_gone(folder: pathlib.Path) -> None:
    """Thirty steps are missing from the metrics."""
    _lines(folder, lambda lines: [line for line in lines if not 60 <= line["step"] < 90])


def faster_rate(folder: pathlib.Path) -> None:
    """A logged LR that is 1.5 times the declared one in steps 50 to 79."""
    _edit(folder, lambda line: line | ({"lr": 1.5 * line["lr"]} if 50 <= line["step"] < 80 else {}))
