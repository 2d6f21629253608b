"""Shared tools of commands: a parser with one-line errors, common options, and the printing of JSON and tables."""

import argparse
import functools
import json
import math
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from scalelab import user_code
from scalelab.cli.help import COLUMNS, fit_columns, split_example
from scalelab.cli.tables import align_columns as align_columns  # commands find all they print with here
from scalelab.cli.tables import print_table as print_table
from scalelab.config import find_config_file
from scalelab.config.keys import default_values
from scalelab.errors import NOT_COUNTED_ALIKE, OTHER_NAMES, BadInput, nearest_hint, nearest_name, plain_option
from scalelab.numbers.written import parse_count, parse_whole
from scalelab.stores.copies import copy_here
from scalelab.stores.urls import is_url, plain_folder, work_folder

WHOLE_HELP = "--help=all"
BARE = ("--config", "--source", "--hardware")  # options whose value is often written without them
LARGEST_VALUE = 1e60  # products of several such numbers, and of their inverses, are still finite floats


class Parser(argparse.ArgumentParser):
    """argparse with `--json[=PATH]`, without abbreviations, and with errors raised as BadInput (exit 2, one line).

    `renamed`: {option of the release before: its present name}. The old name is refused by the new one.
    `stored`: {argument that may name folders in an object store: options of `copy_here`}; they are copied here.
    `sources` opens runs of other programs that arguments name (`cli.foreign.add_sources`).
    `before` removes arguments that argparse can't name; `after` gets them with the parsed options.
    """

    def __init__(
        self,
        command: str,
        doc: str | None,
        renamed: Mapping[str, str] | None = None,
        stored: Mapping[str, Mapping[str, bool]] | None = None,
    ) -> None:
        self.renamed, self.stored = dict(renamed or {}), dict(stored or {})
        self.sources: Callable[[Any], None] = lambda options: None
        self.common, self.details, self.given = frozenset[str](), "", list[str]()
        self.before: Callable[[Sequence[str]], tuple[Any, list[str]]] = lambda argv: (None, list(argv))
        self.after: Callable[[Any, Any], None] = lambda options, taken: None
        text, example = split_example(doc or "")
        width = min(COLUMNS, shutil.get_terminal_size().columns - 2)
        super().__init__(
            prog=f"scalelab {command}",
            description=fit_columns(text, width),
            allow_abbrev=False,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=width),
            epilog=f"example:\n{example}" if example else None,
        )
        self.add_argument(
            "--json", nargs="?", const="-", metavar="PATH", help="print the result as JSON, or write it to PATH"
        )

    def shorten_help(self, common: Collection[str], details: str) -> None:
        """Let --help show only the options whose dest is in `common`; --help=all shows all, and `details`."""
        self.common, self.details = frozenset(common), details

    def format_help(self) -> str:
        """Write the help: all of it, or the common options and a line on how to see the others."""
        if not self.common:
            return super().format_help()
        others = [a for a in self._actions if a.option_strings and a.dest not in {*self.common, "help", "json"}]
        for action in others:
            action.help = argparse.SUPPRESS
        places = " ".join(f"{a.metavar}…" if a.nargs == "+" else str(a.metavar) for a in self._get_positional_actions())
        self.usage = f"%(prog)s {places} [options]"
        more = f"`{self.prog} --help=all` shows {len(others)} more options and {self.details.splitlines()[0]}"
        self.epilog = "\n\n".join(filter(None, [textwrap.fill(more, COLUMNS), self.epilog]))
        return super().format_help()

    def _format_whole_help(self) -> str:
        """Write the help with every option and all details (but for their first line, which announces them)."""
        details = fit_columns(self.details.partition("\n")[2].strip())
        self.description = "\n\n".join(filter(None, [self.description, details]))
        self.common = frozenset()
        return self.format_help()

    def error(self, message: str) -> NoReturn:
        required, _, names = message.partition(": ")
        if required == "the following arguments are required" and (unknown := self._find_unknown()):
            message = f"{self._describe_unknown(unknown)}; required: {names}"
        raise BadInput(f"{message} (`{self.prog} --help` lists the options)")

    def _find_unknown(self) -> str | None:
        """The first argument that the command doesn't know, where others are missing; None if it knows all."""
        missing = [action for action in self._actions if action.required]
        for action in missing:
            action.required = False
        _, unknown = self.parse_known_args(self.given)
        return unknown[0] if unknown else None

    def _describe_unknown(self, word: str) -> str:
        """Say that an argument is unknown, with the nearest known one, or the option that takes what stands alone."""
        if word.startswith("-"):
            return f"unknown argument {word!r}{self._nearest_option(*word.partition('=')[::2])}"
        options = [option for action in self._actions for option in action.option_strings]
        takes = (o for o in BARE if o in options and not any(arg.startswith(o) for arg in self.given))
        hint = next((f"; write {option}={word}" for option in takes), "")
        return f"unknown argument {word!r}{hint}"

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the options; BadInput for an unknown argument, with the nearest known one."""
        if WHOLE_HELP in args:
            print(self._format_whole_help(), end="")
            raise SystemExit(0)
        taken, args = self.before(args)
        self.given = list(args)
        # Optional values need `=`: in `--json DIR` argparse would take the positional DIR as a path.
        bare = {
            o: f"{o}={action.const}" for action in self._actions if action.nargs == "?" for o in action.option_strings
        }
        parsed, unknown = self.parse_known_args([bare.get(arg, arg) for arg in args], namespace)
        for option in (o for o in bare if o in args and unknown and args.index(o) + 1 < len(args)):
            if args[args.index(option) + 1] == unknown[0]:  # value of an option that takes one only after `=`
                raise BadInput(f"unknown argument {unknown[0]!r}; write {option}={unknown[0]}")
        if unknown:
            raise BadInput(self._describe_unknown(unknown[0]))
        user_code.trust_names(*getattr(parsed, "trust", None) or ())
        if parsed.json not in (None, "-"):  # a bad path fails before the work, not after it
            file_path("--json", parsed.json)
        for name, value in vars(parsed).items():
            setattr(parsed, name, self._local(name, value))
        self.sources(parsed)
        self.after(parsed, taken)
        return parsed

    def _local(self, name: str, value: Any) -> Any:
        """Replace the URL of a folder in an object store by its local copy; BadInput if the argument takes no URL."""
        if isinstance(value, list):
            return [self._local(name, each) for each in value]
        if not (isinstance(value, str) and is_url(value)):
            return value
        if name not in self.stored:
            raise BadInput(f"{value}: `{self.prog}` doesn't read object stores here; give a local folder")
        return str(copy_here(value, **self.stored[name], report=print_status))

    def _nearest_option(self, word: str, value: str) -> str:
        """Suggest the present or nearest option, or config key if the command reads a config, for an error's end.

        The field's other name of an option is written with the value.
        """
        if word in self.renamed:
            return f"; it is now called {self.renamed[word]}"
        options = [o for action in self._actions for o in action.option_strings if o.startswith("--")]
        if "--config" in options and (key := nearest_name(word.lstrip("-"), list(default_values()), 0.8)):
            options.append(f"--config.{key}")
        name = plain_option(word.casefold())
        if value and name not in NOT_COUNTED_ALIKE:
            for other in OTHER_NAMES.get(name, ()):
                if (option := f"--{other}".replace("_", "-")) in options:
                    return f"; did you mean '{option}={value}'?"
        return nearest_hint(word, options)


def file_path(option: str, destination: str) -> pathlib.Path:
    """Check the path of a file to write. BadInput if it is a folder, or if its folder doesn't exist."""
    path = pathlib.Path(destination)
    if path.is_dir():
        raise BadInput(f"{option}={destination} is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{option}={destination}: there is no folder {str(path.parent)!r}")
    return path


def folder_path(text: str) -> pathlib.Path:
    """argparse type for a folder to make or to resume (`stores.urls.plain_folder`)."""
    return _folder(plain_folder, text)


def work_path(text: str) -> pathlib.Path:
    """argparse type for a folder to work in; for one in an object store, its local folder."""
    return _folder(work_folder, text)


def _folder(find: Callable[[str], pathlib.Path], text: str) -> pathlib.Path:
    try:
        return find(text)
    except BadInput as mistake:
        raise argparse.ArgumentTypeError(str(mistake)) from mistake


def config_path(text: str) -> str:
    """argparse type for a config: a file, or the name of a config or recipe that comes with scalelab."""
    try:
        path = find_config_file(text)
    except BadInput as mistake:
        raise argparse.ArgumentTypeError(str(mistake)) from mistake
    if path != text:
        print_status(f"--config={text}: {path}")
    return path


def whole_number(text: str) -> int:
    """argparse type for a whole number, also as people write it: 20k."""
    try:
        return parse_whole(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 20000 or 20k") from None


def number_above_zero(text: str, parse: Callable[[str], float] = float, example: str = "") -> float:
    """argparse type for a finite number above zero, as `parse` reads it. `example`: good values, for the error."""
    try:
        value = parse(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        nearest = f"; nearest: {text.strip()[1:]}" if -math.inf < value < 0 else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number above zero{example and f', such as {example}'}{nearest}"
        )
    return value


def bounded_above_zero(text: str, parse: Callable[[str], float] = float, example: str = "") -> float:
    """argparse type: a `number_above_zero` that, like its inverse, is at most LARGEST_VALUE."""
    value = number_above_zero(text, parse, example)
    if not 1 / LARGEST_VALUE <= value <= LARGEST_VALUE:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {1 / LARGEST_VALUE:g} and {LARGEST_VALUE:g}")
    return value


def count_above_zero(text: str) -> float:
    """argparse type for parameters, tokens or FLOPs: a number above zero, also as people write it: 7B, 1.4T."""
    return bounded_above_zero(text, parse_count, "7e9 or 7B")


def emit_json(result: Any, destination: str | None) -> None:
    """Write `result` as one line of JSON to stdout (`-`) or to a file; do nothing without `--json`.

    Non-finite numbers become null: JSON (RFC 8259) has no NaN, and most readers other than Python's refuse it.
    """
    if destination is None:
        return
    text = json.dumps(json.loads(json.dumps(result, default=float), parse_constant=lambda _: None))
    if destination == "-":
        print(text, flush=True)
    else:
        pathlib.Path(destination).write_text(text + "\n")


def print_status(text: str) -> None:
    """Print a line on standard error; standard output is for the result only."""
    print(text, file=sys.stderr, flush=True)


def add_trust_option(parser: Parser) -> None:
    """Add --trust, for commands that read code names from the file of a run, a checkpoint or a law."""
    parser.add_argument(
        "--trust",
        action="append",
        type=_code,
        metavar="PKG.MOD:FN",
        help="run this user code although only a stored file names it",
    )


def _code(text: str) -> str:
    if not all(text.partition(":")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form pkg.mod:fn")
    return text


def add_take_over_option(parser: Parser) -> None:
    """Add --take-over, for commands that hold a folder's lock."""
    parser.add_argument(
        "--take-over", action="store_true", help="the process on another host that locked the folder is gone: go on"
    )


def add_weights_options(parser: Parser) -> None:
    """Add the choice of weights: RUN[@STEP], --ema, --average; and --trust."""
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN[@STEP]", help="a run's folder; STEP if not its last step")
    parser.add_argument("--ema", action="store_true", help="use the run's moving average of its weights (train.ema)")
    average = "use the mean of the run's last K saved checkpoints"
    parser.add_argument("--average", type=int, default=1, metavar="K", help=average)


def describe_weights(origin: dict) -> str:
    """Name weights by their origin: run, step, and the kind of average, if any."""
    average = {"trained": "", "ema": ", the average of its weights"}.get(
        origin["weights"], f", the mean of steps {', '.join(map(str, origin.get('steps', [])))}"
    )
    return f"{origin['run']} at step {origin['step']}{average}"
