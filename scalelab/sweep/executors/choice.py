"""Which executor trains the packs of this process's sweeps: `--executor`, and how its packs are submitted.

A command adds the options to its parser; sweeps ask for the executor that was chosen. Studies know nothing of it.
"""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from scalelab import git
from scalelab.cli.parser import Parser
from scalelab.errors import BadInput
from scalelab.sweep.executors.pool import PackJobs, WatchTrials, WorkerPool

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
    """The executor's name; for Slurm the options of sbatch, and how many jobs run at a time (0: all)."""

    name: str = "local"
    slurm: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_parallel: int = 0


CHOSEN: list[Choice] = []  # the last one is that of this process


def add_executor_options(parser: Parser) -> None:
    """Add --executor, --slurm and --max-parallel; `parse_args` then makes the choice."""
    parser.add_argument(
        "--executor", choices=EXECUTORS, default="local",
        help="where packs train: a pool here (default), jobs of Slurm, or commands to run elsewhere",
    )  # fmt: skip
    parser.add_argument(
        "--slurm", metavar="FILE",
        help="options of sbatch, one a line; any is also --slurm.OPTION=VALUE, e.g. --slurm.partition=gpu",
    )  # fmt: skip
    parser.add_argument("--max-parallel", type=int, default=0, metavar="N", help="with slurm: jobs at a time")
    parser.before, parser.after = split_slurm_options, choose


def split_slurm_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take every --slurm.OPTION[=VALUE] out of `argv`: (settings, other arguments)."""
    ours = [argument for argument in argv if argument.startswith("--slurm.")]
    pairs = [argument.removeprefix("--slurm.").partition("=") for argument in ours]
    return {key.replace("_", "-"): value for key, _, value in pairs}, [each for each in argv if each not in ours]


def choose(options: Any, settings: Mapping[str, str]) -> None:
    """Make the parsed options this process's choice. BadInput for options of Slurm without --executor=slurm."""
    for option, given in {"--slurm": options.slurm or settings, "--max-parallel": options.max_parallel}.items():
        if given and options.executor != "slurm":
            raise BadInput(f"{option} is for --executor=slurm, not {options.executor}")
    if options.max_parallel < 0:
        raise BadInput(f"--max-parallel={options.max_parallel} is not a number of jobs; 0 for all, else at least 1")
    from_file = read_slurm_file(pathlib.Path(options.slurm)) if options.slurm else {}
    CHOSEN[:] = [Choice(options.executor, from_file | dict(settings), options.max_parallel)]


def read_slurm_file(path: pathlib.Path) -> dict[str, str]:
    """Options of sbatch from a file: lines `option=value`, `--option=value` or `#SBATCH --option=value`."""
    if not path.is_file():
        raise BadInput(f"--slurm={path}: there is no such file")
    settings = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or (line.startswith("#") and not line.startswith("#SBATCH")):
            continue
        match = FILE_LINE.fullmatch(line.strip())
        if not match:
            raise BadInput(f"{path}, line {number}: {line.strip()[:60]!r} is not option=value, e.g. partition=gpu")
        settings[match[1] or match[3]] = match[2] or match[4] or ""
    return settings


def is_local() -> bool:
    """Whether packs train on this machine."""
    return not CHOSEN or CHOSEN[-1].name == "local"


def open_executor(
    folder: pathlib.Path, configs: Collection[Any], allow: Collection[str] = (), take_over: bool = False,
    judge: Any = None,
) -> contextlib.AbstractContextManager[Executor]:  # fmt: skip
    """The chosen executor for a sweep in `folder`; `configs` are of its trials, or of one. BadInput as theirs."""
    choice = CHOSEN[-1] if CHOSEN else Choice()
    stop_if = getattr(judge, "rule", None)
    if choice.name == "slurm":
        from scalelab.sweep.executors.slurm import SlurmArray

        return SlurmArray(folder, choice.slurm, choice.max_parallel, allow, take_over, stop_if)
    if choice.name == "manifest":
        from scalelab.sweep.executors.manifest import Manifest

        return Manifest(folder, allow, take_over, stop_if)
    return WorkerPool(folder, list(configs), allow, take_over, judge)
