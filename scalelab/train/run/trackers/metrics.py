"""Metric lines: `metrics.jsonl` is the record; sinks mirror it to TensorBoard, W&B and users' functions."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from scalelab.errors import BadInput
from scalelab.record import lock, records
from scalelab.train.run.trackers.alerts import check_alert, open_command
from scalelab.train.run.trackers.sinks import (
    MetricSink,
    SinkReport,
    TrackedRun,
    check_sinks,
    guard,
    open_user_sink,
    split_names,
)
from scalelab.train.run.trackers.tensorboard import check_tensorboard, open_tensorboard
from scalelab.train.run.trackers.wandb_run import check_wandb, open_wandb

NOT_SCALARS = ("step", "time")


def check_trackers(log: Any) -> None:
    """Raise BadInput if a package or program that `log` needs is missing, or `log.sinks` names no function."""
    if log["wandb"]:
        check_wandb(log["wandb"])
    if log["tensorboard"]:
        check_tensorboard()
    check_sinks(log["sinks"])
    check_alert(log["alert"])


def open_sinks(run: TrackedRun, report: SinkReport | None = None) -> list[MetricSink]:
    """The mirrors that `log` in the run's config asks for, filled with what they lack of the run's past.

    BadInput if a function of `log.sinks` fails for a new run.
    """
    report, log = report or SinkReport(), run.config["log"]
    names = split_names(log.get("sinks", ""))
    made = lock.list_missing(run.folder)
    if names or log["wandb"]:
        run.folder.mkdir(parents=True, exist_ok=True)
    try:
        sinks = [open_user_sink(name, run, report) for name in names]
    except BadInput:
        lock.remove_empty(made)
        raise
    sinks += [_guarded(open_tensorboard, "log.tensorboard", run, report)] if log["tensorboard"] else []
    sinks += [_guarded(open_wandb, "log.wandb", run, report, report)] if log["wandb"] else []
    sinks += [open_command(run, report)]
    opened = [sink for sink in sinks if sink]
    _write_past(run, [sink for sink in opened if sink.last is not None])
    return opened


def _guarded(open_sink: Any, source: str, run: TrackedRun, report: SinkReport, *arguments: Any) -> MetricSink | None:
    """The tracker's sink, or None after a warning: no tracker ends a run."""
    try:
        return guard(open_sink(run, *arguments), source, report, _first_line)
    except Exception as error:  # whatever a library may raise
        report.warn(source, f"{source}: {_first_line(error)}; nothing is logged there, and training goes on")
        return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _write_past(run: TrackedRun, sinks: Sequence[MetricSink]) -> None:
    """Write the lines before the run's first step to sinks that lack them: switched on late, or killed."""
    if sinks and run.first_step:
        past = _rows(records.read_metrics(run.folder), records.read_layers(run.folder))
        for sink in sinks:
            for step, scalars in past:
                if (sink.last or 0) < step < run.first_step:
                    sink.write(step, scalars)


def write_metric_lines(
    folder: pathlib.Path, lines: list[dict], sinks: Sequence[MetricSink], layers: Sequence[dict] = ()
) -> str:
    """Append lines to the run's metrics, and lines of layers to layers.jsonl; mirror their numbers.

    Returns a warning or "", as `append_json_lines`.
    """
    warnings = [records.append_json_lines(folder / "metrics.jsonl", lines)]
    warnings += [records.append_json_lines(folder / "layers.jsonl", list(layers))] if layers else []
    for step, scalars in _rows(lines, layers) if sinks else ():
        for sink in sinks:
            sink.write(step, scalars)
    return "; ".join(filter(None, warnings))


def clip_share(folder: pathlib.Path) -> dict[str, float]:
    """`clip_share`: of the logged steps, those whose gradient was clipped; {} without any that was not skipped."""
    ratios = [line.get("clip_ratio") for line in records.read_metrics(folder)]
    known = [ratio for ratio in ratios if ratio is not None and ratio == ratio]  # NaN: skipped
    return {"clip_share": sum(ratio < 1 for ratio in known) / len(known)} if known else {}


def _rows(lines: Sequence[dict], layers: Sequence[dict]) -> list[tuple[int, dict[str, float]]]:
    """The scalars of both kinds of lines, in order of steps."""
    rows = [(line["step"], _scalars(line)) for line in lines] + [(line["step"], layer_scalars(line)) for line in layers]
    return sorted(rows, key=lambda row: row[0])


def _scalars(line: dict) -> dict[str, float]:
    return {key: value for key, value in line.items() if key not in NOT_SCALARS and value is not None}


def layer_scalars(line: dict) -> dict[str, float]:
    """A line of layers.jsonl as `{"layers/NAME/LAYER": value}`; what is of no layer is `layers/NAME`."""
    scalars: dict[str, float] = {}
    for key, value in records.add_update_ratio(line).items():
        if key not in NOT_SCALARS:
            of_layers = enumerate(value) if isinstance(value, Iterable) else ()
            scalars |= {f"layers/{key}/{i}": v for i, v in of_layers} or {f"layers/{key}": value}
    return scalars
