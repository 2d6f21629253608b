"""`scalelab COMMAND …`: find the command, run it, turn mistakes into one line and an exit code.

Nothing heavy is imported here: a command's module (and jax behind it) is loaded only for that command.
Exit codes: 0 done, 1 the work failed, 2 bad input, 75 stopped by a signal after saving, 130 interrupted (ctrl-C) with
nothing to save.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalelab.cli.command_names import COMMANDS
from scalelab.errors import BadInput, Stopped, WorkFailed, nearest_hint
from scalelab.untrusted.text import PlainStream


def usage() -> str:
    """Write the text of `scalelab --help`."""
    rows = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    tail = "`scalelab COMMAND --help` lists its options; `scalelab --version` prints the version."
    return f"usage: scalelab COMMAND [options]\n\n{rows}\n\n{tail}"


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return guarded("scalelab", _run, sys.argv[1:] if argv is None else argv)


def guarded(name: str, work: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run `work(argv)`, a command or a study, and return its exit code; an error becomes one line after `name`."""
    with _plain_streams():
        return _run_guarded(name, work, argv)


def _run_guarded(name: str, work: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    try:
        code = work(argv)
        sys.stdout.flush()
        return code
    except BadInput as mistake:
        if os.environ.get("SCALELAB_TRACE"):  # the traceback, for errors in the user's own code
            traceback.print_exception(mistake)
        print(f"{name}: {mistake}", file=sys.stderr)
        return 2
    except WorkFailed as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    except Stopped as stop:
        print(stop, file=sys.stderr)
        return 75
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe (head, less) went away: nothing is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's own last flush would complain
        return 0
    except OSError as trouble:  # a full disk, a read-only folder: the message names the file
        print(f"{name}: {trouble}", file=sys.stderr)
        return 2 if trouble.errno == errno.ENAMETOOLONG else 1


@contextlib.contextmanager
def _plain_streams() -> Iterator[None]:
    """Escape what others wrote before it reaches a terminal, and letters that standard output can't write.

    Closed streams are opened on /dev/null. What is written to standard error may begin by a return to the start of its
    line, as progress bars do.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    plain: dict[str, Any] = {"stdout": PlainStream(sys.stdout), "stderr": PlainStream(sys.stderr, "\r")}
    for name, stream in plain.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in plain.items():
            if getattr(sys, name) is stream:  # `train` puts another in its place
                setattr(sys, name, stream.rich_proxied_file)


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        from scalelab.git import VERSION  # imported here: it loads much of Python's library

        print(f"scalelab {VERSION}")
        return 0
    name = argv[0]
    if name not in COMMANDS:
        raise BadInput(f"unknown command {name!r}{nearest_hint(name, COMMANDS)}")
    module = {"import": "import_hf"}.get(name, name)  # a keyword can't name a module that others import
    return importlib.import_module(f"scalelab.commands.{module}").main(list(argv[1:]))


def installed_first() -> None:
    """Search the current folder last: `python -m` puts it first, and a `json.py` in it would hide the library's."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    installed_first()
    sys.exit(main())
