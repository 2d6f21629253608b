"""Metric lines: `metrics.jsonl` is the record; each trial may mirror it to TensorBoard and Weights & Biases."""

import inspect
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scalelab import records
from scalelab.errors import BadInput, WorkFailed

GROUP_CHARACTERS = 128  # at most, of a group's name at W&B


class MetricSink(NamedTuple):
    """A mirror: `write(step, values)`, and `close()`, which puts everything on disk."""

    write: Callable[[int, dict[str, float]], None]
    close: Callable[[], None]


class TrackedRun(NamedTuple):
    """A run as trackers know it: folder, id, config, and the first step that will be logged."""

    folder: pathlib.Path
    tracker_id: str
    config: Mapping[str, Mapping[str, Any]]
    first_step: int = 0
    sweep: pathlib.Path | None = None  # the folder of the sweep that it is a trial of


def check_trackers(log: Any) -> None:
    """Raise BadInput if the package for `log.wandb` is not installed, or cannot hold several runs at once."""
    if not log["wandb"]:
        return
    try:
        import wandb
    except ImportError:
        raise BadInput(f"log.wandb={log['wandb']!r} needs a package that is not installed: pip install wandb") from None
    if "create_new" not in str(inspect.signature(wandb.init)):
        raise BadInput(
            f"log.wandb={log['wandb']!r}: wandb {wandb.__version__} mixes trials that train in one process; "
            "pip install --upgrade wandb"
        )


def open_sinks(run: TrackedRun) -> list[MetricSink]:
    """The mirrors that `log` in the run's config asks for. WorkFailed if W&B cannot start."""
    log = run.config["log"]
    return ([_tensorboard(run)] if log["tensorboard"] else []) + ([_wandb(run)] if log["wandb"] else [])


def _tensorboard(run: TrackedRun) -> MetricSink:
    from tensorboardX import SummaryWriter

    # File names end in seconds: a run resumed within the same second would overwrite its file.
    suffix = f".{run.tracker_id}.{time.time_ns()}"
    folder = str(run.folder / "tensorboard")
    writer = SummaryWriter(folder, purge_step=run.first_step, filename_suffix=suffix)
    text = json.dumps(run.config, indent=1).replace("\n", "\n    ")
    writer.add_text("config", f"    {text}", run.first_step)  # indented: markdown shows it as it is

    def write(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    return MetricSink(write, writer.close)


def _wandb(run: TrackedRun) -> MetricSink:
    import wandb

    project = run.config["log"]["wandb"]
    group = str(run.sweep.absolute())[-GROUP_CHARACTERS:] if run.sweep else None
    try:
        # Resumed under its id, a run continues its curve; steps that it takes again are there already, and W&B drops
        # them.
        tracked = wandb.init(
            project=project, id=run.tracker_id, name=run.folder.name, group=group, config=dict(run.config),
            dir=str(run.folder), resume="allow", reinit="create_new",
        )  # fmt: skip
    except wandb.errors.Error as error:
        raise WorkFailed(f"log.wandb={project!r}: W&B did not start: {str(error).strip().splitlines()[0]}") from None
    return MetricSink(lambda step, values: tracked.log(values, step=step), tracked.finish)


def write_metric_lines(folder: pathlib.Path, lines: list[dict], mirrors: list[MetricSink]) -> str:
    """Append lines to the run's metrics and mirror their numbers. Returns a warning or "", as `append_json_lines`."""
    warning = records.append_json_lines(folder / "metrics.jsonl", lines)
    for line in lines:
        for mirror in mirrors:
            mirror.write(line["step"], {k: v for k, v in line.items() if k not in ("step", "time")})
    return warning
