"""Metric lines: `metrics.jsonl` is the record; TensorBoard and Weights & Biases are optional mirrors of it."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from scalelab import records
from scalelab.errors import BadInput


class Sink(NamedTuple):
    """A mirror: `write(step, values)`, and `close()` once what was written has to be on disk."""

    write: Callable[[int, dict[str, float]], None]
    close: Callable[[], None]


def sinks(folder: pathlib.Path, log: Any) -> list[Sink]:
    """The mirrors that `config.log` asks for. BadInput where a package is missing."""
    chosen = []
    if log["tensorboard"]:
        chosen.append(_tensorboard(folder))
    if log["wandb"]:
        chosen.append(_wandb(folder, log["wandb"]))
    return chosen


def _tensorboard(folder: pathlib.Path) -> Sink:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def write(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    return Sink(write, writer.close)


def _wandb(folder: pathlib.Path, project: str) -> Sink:
    try:
        import wandb
    except ImportError:
        raise BadInput(f"log.wandb={project!r} needs a package that is not installed: pip install wandb") from None
    # The folder is the run's identity there too, so a resumed run continues its curve.
    run = wandb.init(project=project, name=folder.name, id=folder.name, dir=str(folder), resume="allow")
    return Sink(lambda step, values: run.log(values, step=step), run.finish)


def write_lines(folder: pathlib.Path, lines: list[dict], mirrors: list[Sink]) -> str:
    """Append lines to the run's metrics and mirror their numbers. Returns what to warn of, as `records.append`."""
    warning = records.append(folder / "metrics.jsonl", lines)
    for line in lines:
        for mirror in mirrors:
            mirror.write(line["step"], {k: v for k, v in line.items() if k not in ("step", "time")})
    return warning
