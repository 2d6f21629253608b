"""`scalelab COMMAND …`: find the command, run it, turn mistakes into one line and an exit code.

Nothing heavy is imported here: a command's module (and jax behind it) is loaded only for that command.
Exit codes: 0 done, 1 the work failed, 2 bad input, 75 stopped by a signal after saving, 130 interrupted (ctrl-C) with
nothing to save.
"""

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from scalelab.errors import BadInput, Stopped, WorkFailed, nearest_hint
from scalelab.untrusted.text import PlainStream

T = TypeVar("T")
COMMANDS = {
    "demo": "first result in seconds: fit a scaling law to a table that comes with the package",
    "doctor": "check this machine: versions, devices, one timed matrix product",
    "init": "make a project of your own: config, functions, study, Slurm job, Makefile, test",
    "prepare": "turn documents or ready-made tokens into token shards, with any tokenizer",
    "data": "show what a batch holds, row by row; count a corpus: lengths, copies, epochs of a planned run",
    "plan": "predict memory, time and cost of a run, a budget or a sweep",
    "train": "train one run from a config file; run again to resume",
    "config": "list every config key with its default, unit, range and source; show what a config changes",
    "optim": "show what each group of parameters gets: optimizer, LR, decay, bytes of state",
    "sweep": "train the grid that a config file's sweep(h) returns",
    "schedule": "show LR, momentum, weight decay and batch of a config at any step",
    "checkpoint": "verify, list or show the checkpoints of a run or sweep",
    "export": "write a run's weights as a folder that Hugging Face's transformers loads",
    "import": "read such a folder (Llama, GPT-2) as weights that a run can start from",
    "eval": "score a run on any data, and on tasks, by likelihood",
    "sample": "generate text from a run, after a prompt",
    "runs": "show many runs as one table (N, D, C, losses, status)",
    "compare": "show how two runs differ, and whether their losses differ by more than seeds do",
    "diagnose": "name what is wrong with a run: ranked causes with evidence, and the knob to turn",
    "replay": "train a window of a run again, bit for bit and under what-ifs: which cure of a spike is cheapest",
    "noise": "measure a run's gradient noise scale, the batch beyond which more saves few steps",
    "watch": "forecast the final loss of runs while they train; score the forecasts",
    "coordcheck": "measure which activations grow with width or depth (muP, CompleteP)",
    "proxy": "find the learning rate of a large recipe on a small twin",
    "recipe": "show a published recipe: every choice with its source; write a scaled-down twin",
    "fit": "fit a scaling law to runs or to a table",
    "isoflop": "train small models, fit a law, predict a larger run, train it, score the prediction",
    "ablate": "decide whether a change holds at scale: both sides tuned alike, a verdict with an interval",
    "tune": "find good values for a config: rounds of trials, fresh seeds, a config that trains the best",
    "study": "run any study of scalelab: optimizers, muP transfer, precision, grokking, …",
    "reproduce": "compute published scaling laws again from their authors' own tables",
    "report": "write one HTML page of a run, a sweep or a study",
    "completion": "print a script that completes commands, options and config keys in your shell",
    "note": "write a line into a run's logbook",
}
# New objects after which Python looks for cycles: after its own 700 a trace of DeepSeek-V3 takes 4.1 CPU s, now 3.0.
COLLECT_AFTER = (100_000, 20, 20)
# Stack slots of the call under which a command runs, so that all calls below it share a chunk of memory. Python
# maps chunks of 16 KiB and unmaps each with the first call in it: a loop at the end of one did both 300,000 times in a
# plan, 2 of its 21 s of CPU. A frame of 1.1 MB gets a chunk of 2 MiB; what nobody touches of it takes no memory.
STACK_SLOTS = 140_000


def usage() -> str:
    """Write the text of `scalelab --help`."""
    rows = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    tail = "`scalelab COMMAND --help` lists its options; `scalelab --version` prints the version."
    tail += f"\nPages that a text names, such as docs/faq.md, are in {pages_folder()}."
    return f"usage: scalelab COMMAND [options]\n\n{rows}\n\n{tail}"


def pages_folder() -> str:
    """Find the folder of docs/ and README.md: a checkout, else what an installation put beside its Python."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.exists(os.path.join(above, "docs", "faq.md")):
        return above
    inside = os.path.join("share", "doc", "scalelab")  # below `pip install --target`'s folder, or Python's prefix
    base = above if os.path.exists(os.path.join(above, inside)) else sys.prefix
    return os.path.join(base, inside)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if argv is None:  # a process of its own: tracing makes many small objects that live on, and no garbage
        gc.set_threshold(*COLLECT_AFTER)
    return guarded("scalelab", _run, sys.argv[1:] if argv is None else argv)


def guarded(name: str, work: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run `work(argv)`, a command or a study, and return its exit code; an error becomes one line after `name`."""
    with _plain_streams():
        return _run_guarded(name, work, argv)


def call_in_one_chunk(work: Callable[..., T], *args: Any) -> T:
    """`work(*args)`, and all calls below it, in one chunk of Python's stack."""
    return work(*args)


call_in_one_chunk.__code__ = call_in_one_chunk.__code__.replace(co_stacksize=STACK_SLOTS)


def _run_guarded(name: str, work: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    try:
        code = call_in_one_chunk(work, argv)
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
