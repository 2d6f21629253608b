"""Metric lines: `metrics.jsonl` is the record; TensorBoard and Weights & Biases are optional mirrors of it, one a
trial.
"""

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
    """A mirror: `write(step, values)`, and `close()` once what was written has to be on disk."""

    write: Callable[[int, dict[str, float]], None]
    close: Callable[[], None]


class TrackedRun(NamedTuple):
    """What trackers are told of a run: its folder, its id there, its config, and the first step whose lines will
    come.
    """

    folder: pathlib.Path
    tracker_id: str
    config: Mapping[str, Mapping[str, Any]]
    first_step: int = 0
    sweep: pathlib.Path | None = None  # the folder of the sweep that it is a trial of


def check_trackers(log: Any) -> None:
    """BadInput where `log.wandb` asks for a package that is not installed, or cannot hold several runs at once."""
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
    """The mirrors that `log` in the run's config asks for. WorkFailed where W&B cannot begin."""
    log = run.config["log"]
    return ([_tensorboard(run)] if log["tensorboard"] else []) + ([_wandb(run)] if log["wandb"] else [])


def _tensorboard(run: TrackedRun) -> MetricSink:
    from tensorboardX import SummaryWriter

    # The file's own name ends in a second: a run resumed within it would overwrite what it wrote before.
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
        raise WorkFailed(f"log.wandb={project!r}: W&B did not begin: {str(error).strip().splitlines()[0]}") from None
    return MetricSink(lambda step, values: tracked.log(values, step=step), tracked.finish)


def write_metric_lines(folder: pathlib.Path, lines: list[dict], mirrors: list[MetricSink]) -> str:
    """Append lines to the run's metrics and mirror their numbers. Returns what to warn of, as `records.append`."""
    warning = records.append_json_lines(folder / "metrics.jsonl", lines)
    for line in lines:
        for mirror in mirrors:
            mirror.write(line["step"], {k: v for k, v in line.items() if k not in ("step", "time")})
    return warning
