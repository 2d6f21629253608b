"""Which executor trains the packs of this process's sweeps, and how it submits them.

A command's options make the choice (`cli.executor_options`), and sweeps ask for it. Studies know nothing of it.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from scalelab import git
from scalelab.errors import BadInput, nearest_hint
from scalelab.sweep.executors.manifest import Manifest
from scalelab.sweep.executors.pool import PackJobs, WatchTrials, WorkerPool
from scalelab.sweep.executors.slurm import SlurmArray
from scalelab.untrusted.files import read_text

EXECUTORS = ("local", "slurm", "manifest")
FILE_LINE = re.compile(r"(?:#SBATCH\s+)?(?:--([a-z][a-z-]*)(?:(?:\s*=\s*|\s+)(.*))?|([a-z][a-z-]*)(?:\s*=\s*(.*))?)")


class Executor(Protocol):
    """Trains packs, and returns when they have ended or were stopped: {pack: exit code}, see `WorkerPool.run`."""

    def run(
        self, jobs: PackJobs, watch: WatchTrials, stop: Any, code: Mapping[str, git.RepoState] | None
    ) -> dict[str, int]:
        """Train `{pack: {trial: config}}`."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The executor's name; for Slurm the options of sbatch, and how many jobs run at a time (0: all).

    `report` gets lines for the user; `config_file` is the command's config, beside which the user's code may lie.
    """

    name: str = "local"
    slurm: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_parallel: int = 0
    report: Callable[[str], None] = lambda line: None
    config_file: str = ""


CHOSEN: list[Choice] = []  # the last one is that of this process


def read_slurm_file(path: pathlib.Path) -> dict[str, str]:
    """Options of sbatch from a file: lines `option=value`, `--option=value` or `#SBATCH --option=value`."""
    if not path.is_file():
        raise BadInput(f"--slurm={path}: there is no such file")
    settings = {}
    for number, line in enumerate(read_text(path, follow=True).splitlines(), 1):
        if not line.strip() or (line.startswith("#") and not line.startswith("#SBATCH")):
            continue
        match = FILE_LINE.fullmatch(line.strip())
        if not match:
            raise BadInput(f"{path}, line {number}: {line.strip()[:60]!r} is not option=value, e.g. partition=gpu")
        settings[match[1] or match[3]] = match[2] or match[4] or ""
    return settings


def make_choice(
    name: str,
    slurm: str | os.PathLike[str] | Mapping[str, str] | None,
    max_parallel: int,
    report: Callable[[str], None],
    config_file: str | None,
) -> Choice:
    """The choice by the options of a command or a program; `slurm`: options of sbatch, or a file of them.

    BadInput for an unknown executor, and for options of Slurm without it.
    """
    if name not in EXECUTORS:
        raise BadInput(f"--executor={name}: unknown{nearest_hint(name, EXECUTORS)}")
    for option, given in {"--slurm": slurm, "--max-parallel": max_parallel}.items():
        if given and name != "slurm":
            raise BadInput(f"{option} is for --executor=slurm, not {name}")
    if max_parallel < 0:
        raise BadInput(f"--max-parallel={max_parallel} is not a number of jobs; 0 for all, else at least 1")
    settings = slurm if isinstance(slurm, Mapping) else read_slurm_file(pathlib.Path(slurm)) if slurm else {}
    file = str(pathlib.Path(config_file).absolute()) if config_file else ""
    return Choice(name, dict(settings), max_parallel, report, file)


def is_local() -> bool:
    """Whether packs train on this machine."""
    return not CHOSEN or CHOSEN[-1].name == "local"


def open_executor(
    folder: pathlib.Path,
    configs: Collection[Any],
    allow: Collection[str] = (),
    take_over: bool = False,
    judge: Any = None,
    report: Callable[[str], None] = lambda text: None,
) -> contextlib.AbstractContextManager[Executor]:
    """The chosen executor for a sweep in `folder`; `configs` are of its trials, or of one.

    BadInput where that executor refuses its options. `report` gets a line on each worker of this machine that was
    killed and is started again.
    """
    choice = CHOSEN[-1] if CHOSEN else Choice()
    if choice.name == "slurm":
        return SlurmArray(folder, choice.slurm, choice.max_parallel, choice.report, allow, take_over, judge)
    if choice.name == "manifest":
        return Manifest(folder, choice.report, allow, take_over, judge, choice.config_file)
    return WorkerPool(folder, list(configs), allow, take_over, judge, report)
