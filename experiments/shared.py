"""Tools shared by experiments: the command line, the facts beside a result, its two files, and Markdown tables."""

import datetime
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ml_collections import ConfigDict

from scalelab.cli.executor_options import add_executor_options
from scalelab.cli.parser import Parser, emit_json
from scalelab.cli.progress import PoolProgress
from scalelab.experiments.fingerprint import KEY, make_fingerprint
from scalelab.record import listing, records
from scalelab.signals import stop_on_signals
from scalelab.sweep import status
from scalelab.sweep.trials import group_into_packs

RESULTS = pathlib.Path(__file__).parent / "results"


def command_line(name: str, doc: str | None, renamed: Mapping[str, str] | None = None) -> Parser:
    """The parser of `scalelab study NAME`, which is `python -m experiments.NAME` in a checkout."""
    parser = Parser(f"study {name}", doc, renamed)
    add_executor_options(parser)
    return parser


def result_header(name: str, argv: Sequence[str], package: str = "experiments") -> dict[str, Any]:
    """The first entries of a result: command, date, machine, and the fingerprint of what makes it."""
    module = f"{package}.{name}"
    facts = {"date": str(datetime.date.today()), "machine": describe_machine()}
    return {"command": " ".join([f"python -m {module}", *argv])} | facts | {KEY: make_fingerprint(module)}


def write_result(folder: pathlib.Path, name: str, result: Any, page: str) -> None:
    """Write a result as NAME.json, and its page for people as NAME.md."""
    records.write_json(folder / f"{name}.json", result)
    (folder / f"{name}.md").write_text(page)


def publish_result(folder: pathlib.Path, name: str, result: Any, page: str, json_path: str | None) -> int:
    """Write a result, and print its page, or its JSON where `--json` says so; returns the exit code 0."""
    write_result(folder, name, result, page)
    if json_path != "-":
        print(page)
    emit_json(result, json_path)
    return 0


def train_trials(folder: pathlib.Path, trials: Mapping[str, ConfigDict]) -> None:
    """Train (or resume) the trials under `folder`, with a progress bar, until all have ended.

    Stopped after a signal, or where they train elsewhere (--executor=manifest). WorkFailed if a process ended without a
    verdict.
    """
    from scalelab.sweep.run import run_sweep
    from scalelab.train.single import load_run_dataset
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    load_run_dataset(next(iter(trials.values())))
    steps = {name: trial.train.steps for name, trial in trials.items()}
    with stop_on_signals() as stop, PoolProgress(folder, steps) as board:
        verdicts = run_sweep(folder, trials, watch=board.update, stop=stop)
    status.require_ended(folder, verdicts, stop)


def train_packs(folder: pathlib.Path, trials: Mapping[str, ConfigDict]) -> None:
    """Train one pack after the other in this process, so that its CPU seconds are all; Stopped after a signal.

    Each pack has a folder, named after its first trial. A process of its own for each pack (`train_trials`) would
    compile a program of several packs several times.
    """

    for names in group_into_packs(trials).values():
        train_trials(folder / names[0], {name: trials[name] for name in names})


def find_runs(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """{name: folder} of the runs that `train_packs` trained under `folder`."""
    packs = sorted(place for place in folder.iterdir() if place.is_dir())
    return {place.name: place.resolve() for pack in packs for place in listing.run_folders(pack)}


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [" | ".join(("", *cells, "")).strip() for cells in (columns, ("---",) * len(columns), *rows)]


def describe_machine() -> str:
    """Describe this machine in one line: processor, cores, load, and the versions that decide speed."""
    versions = " ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
    load = os.getloadavg()[0]
    return f"{_processor()}, {_cores()} cores (load {load:.1f}), Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """The processor's name from Linux, else from Python."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
