"""The options of `scalelab ablate`, and the types of their values."""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.api.laws.side_names import distinct_names
from scalelab.cli import foreign
from scalelab.cli.executor_options import add_executor_options
from scalelab.cli.parser import (
    LARGEST_VALUE,
    Parser,
    add_take_over_option,
    add_trust_option,
    count_above_zero,
    folder_path,
    number_above_zero,
)
from scalelab.errors import BadInput
from scalelab.laws.use.multiplier.result import WORTH

LR_KEY = "optim.peak_lr"


def make_parser(doc: str | None) -> Parser:
    """Make the command's parser, with `doc` as its help."""
    parser = Parser("ablate", doc)
    add = parser.add_argument
    kinds = "a table of runs, a row each; or a folder or log of runs for each side"
    add("sources", nargs="*", type=existing_path, metavar="TABLE|SOURCE", help=kinds)
    add("--baseline", metavar="FILE|NAME", help="the baseline: a config, or a side (of folders: the first)")
    at = "where the verdict is given (default: the largest budget)"
    add("--target-flops", type=count_above_zero, metavar="C", help=at)
    add("--fix", action="append", default=[], metavar="E=1.6", help="give E or alpha of E + A C^-alpha, do not fit it")
    add(
        "--worth",
        type=number_above_zero,
        default=WORTH,
        metavar="M",
        help=f"the smallest multiplier that matters (default: {WORTH:g}); between 1/M and M nothing does",
    )
    add("--next", action="store_true", help="which further pair of runs would settle it most cheaply")
    _table(parser.add_argument_group("a table, or folders of runs").add_argument)
    _study(parser.add_argument_group("a study").add_argument)
    _more(parser.add_argument_group("before and after the study").add_argument)
    add_trust_option(parser)
    add_executor_options(parser)
    add_take_over_option(parser)
    parser.sources = _open_sources
    return parser


def is_table(paths: Sequence[str]) -> bool:
    """Whether the sources are one file that is no run's log, so a table of runs."""
    return len(paths) == 1 and pathlib.Path(paths[0]).is_file() and not foreign.is_logged(paths[0])


def _open_sources(options: Any) -> None:
    """Open runs of other programs, and keep the names of their folders: they are the sides."""
    options.names = distinct_names(options.sources)
    if options.sources and not is_table(options.sources):
        _refuse_study(options.sources)
        foreign.open_all(options, ("sources",), files=True, is_tables=True)


def _refuse_study(paths: Sequence[str]) -> None:
    """BadInput for the folder of a study of `ablate`, which has its verdict already."""
    from scalelab.sweep.ablate.files import PREDICTION_FILE, TUNED_FILE  # here: the help needs no study

    for path in paths:
        if (pathlib.Path(path) / TUNED_FILE).exists() or (pathlib.Path(path) / PREDICTION_FILE).exists():
            raise BadInput(f"{path} is a study's folder: --workdir={path}, with the study's options")


def _table(add: Any) -> None:
    add(
        "--columns",
        metavar="side=A,C=B,…",
        help="which columns hold side, C (FLOPs), loss, and where known seed, tokens, tokens_per_s, N (parameters) "
        "(default: columns of these names); of runs also what they log, and side and seed are settings",
    )
    paired = "runs of a budget are paired by COLUMN, such as a width (default: found; none: they are seeds)"
    add("--block", metavar="COLUMN", help=paired)
    add(
        "--comparable", action="store_true", help="all losses are of one tokenizer and validation set, as they seem not"
    )


def _study(add: Any) -> None:
    add("--variant", action="append", default=[], metavar="FILE", help="a config with the change; repeatable")
    add("--budgets", type=numbers, default=[], metavar="C,C,…", help="FLOPs of the rungs, three or more, ascending")
    add(
        "--sizes",
        type=numbers,
        default=[],
        metavar="D,D,…",
        help="d_model of each rung (default: by tokens a parameter)",
    )
    add(
        "--tokens-per-param",
        type=number_above_zero,
        default=20.0,
        metavar="X",
        help="where --sizes is not given (default: 20)",
    )
    add("--seeds", type=int, default=3, metavar="K", help="pairs of runs at each rung (default: 3)")
    add("--workdir", type=folder_path, metavar="DIR", help="the study's folder; again to resume")
    add(
        "--rule",
        default="own",
        metavar="NAME",
        help="the ladder's rule, which tuning starts from (default: own, the config's own LR and batch at any size)",
    )
    add("--tune", default=LR_KEY, metavar="KEY,…", help=f"keys tuned for each side (default: {LR_KEY})")
    add("--untuned", action="store_true", help="tune nothing; the page says so in red")


def _more(add: Any) -> None:
    add("--plan", action="store_true", help="print runs, FLOPs, hours and the smallest effect shown; train nothing")
    add(
        "--noise",
        type=number_or_runs,
        metavar="X|DIR",
        help="--plan: relative scatter of a run's loss over seeds, or a folder of runs that tells it (default: as "
        "measured in --workdir, else a range)",
    )
    add("--correlation", type=float, metavar="R", help="--plan: of both sides' losses of one seed (default: 0)")
    add("--status", action="store_true", help="print the table of runs and do nothing else")


def number_or_runs(text: str) -> float | pathlib.Path:
    """argparse type: a number above zero, or a folder that exists."""
    if pathlib.Path(text).is_dir():
        return pathlib.Path(text)
    try:
        return number_above_zero(text)
    except argparse.ArgumentTypeError as why:
        what = str(why).partition("; nearest")[0]
        raise argparse.ArgumentTypeError(f"{what}, nor a folder of runs; nearest: --noise=0.01") from None


def numbers(text: str) -> list[float]:
    """argparse type: numbers above zero, separated by commas."""
    return [count_above_zero(part) for part in text.split(",")]


def existing_path(text: str) -> str:
    """argparse type: a file or folder that exists."""
    if not pathlib.Path(text).expanduser().exists():
        raise argparse.ArgumentTypeError(f"{text} does not exist")
    return text


def parse_fixed(texts: list[str]) -> dict[str, float]:
    """Parse all --fix options as {name: value}. BadInput for text that is not NAME=NUMBER."""
    fixed = {}
    for part in (part for text in texts for part in text.split(",")):
        name, equals, value = part.partition("=")
        try:
            fixed[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not abs(fixed[name.strip()]) <= LARGEST_VALUE:
            raise BadInput(f"--fix {part!r} is not NAME=NUMBER, a finite one, such as E=1.6")
    return fixed
