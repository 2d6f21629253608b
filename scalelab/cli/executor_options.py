"""`--executor`, `--slurm…` and `--max-parallel`: the options that choose where a command's packs train."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import Parser, print_status
from scalelab.sweep.executors import choice


def add_executor_options(parser: Parser) -> None:
    """Add --executor, --slurm and --max-parallel; `parse_args` then makes the choice."""
    parser.add_argument(
        "--executor",
        choices=choice.EXECUTORS,
        default="local",
        help="where packs train: a pool here (default), jobs of Slurm, or commands to run elsewhere",
    )
    parser.add_argument(
        "--slurm",
        metavar="FILE",
        help="options of sbatch, one a line; any is also --slurm.OPTION=VALUE, e.g. --slurm.partition=gpu",
    )
    parser.add_argument("--max-parallel", type=int, default=0, metavar="N", help="with slurm: jobs at a time")
    parser.before, parser.after = split_slurm_options, choose_executor


def split_slurm_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take every --slurm.OPTION[=VALUE] out of `argv`: (settings, other arguments)."""
    ours = [argument for argument in argv if argument.startswith("--slurm.")]
    pairs = [argument.removeprefix("--slurm.").partition("=") for argument in ours]
    return {key.replace("_", "-"): value for key, _, value in pairs}, [each for each in argv if each not in ours]


def choose_executor(options: Any, settings: Mapping[str, str]) -> None:
    """Make the parsed options this process's choice. BadInput for options of Slurm without --executor=slurm.

    `options.slurm` becomes the union of the file and `settings`.
    """
    chosen = choice.make_choice(options.executor, options.slurm or settings, options.max_parallel, print_status, None)
    settings = {**(chosen.slurm if options.slurm else {}), **settings}
    config = getattr(options, "config", None)
    file = config if isinstance(config, str) else None
    options.slurm = settings
    choice.CHOSEN[:] = [choice.make_choice(options.executor, settings, options.max_parallel, print_status, file)]
