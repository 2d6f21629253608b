"""A study's folder: one owner, one plan, and facts that are written once, so that a killed study ends as a whole one.

`scalelab tune`, `ablate`, `isoflop` and the studies of `experiments/` stand on it. Its contract, which
tests/test_study.py holds by a kill at every write:

- One process owns the folder while a study is open in it; another one is refused. Studies within it share its hold.
- The plan is written before anything else, once. A call with another plan is refused in one line that names what
  differs, and leaves no trace. A folder that holds something else is refused too.
- A fact is computed where its file is missing, brought to disk, and read from there: what one call sees, all see.
- A prediction is a fact that stands before its check: once the check has begun, a lost prediction is not made again.
- Runs resume by themselves (`sweep/run.py`). `errors.Stopped` ends a call after a signal, once they are saved.
"""

import contextlib
import fnmatch
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.record import lock, records
from scalelab.untrusted.documents import dump_json, parse_json

# Folders whose study is open, for the work within it: another thread's calls don't see them.
_OPEN: ContextVar[frozenset[pathlib.Path]] = ContextVar("folders of open studies", default=frozenset())


class Kind(NamedTuple):
    """A kind of study: its `noun` in a refusal, the `file` of its plan, and the keys of a plan that may `grow`.

    `settings`: keys of a plan that hold config values, of which an earlier release may have had fewer. `earlier`: files
    by which a folder without a plan is known as one that an earlier release began.
    """

    noun: str
    file: str
    grow: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


@contextlib.contextmanager
def open_study(
    folder: pathlib.Path,
    kind: Kind,
    plan: Mapping[str, Any],
    take_over: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Own the folder, whose plan this is or becomes, for the work within. BadInput as the contract says.

    `take_over` and what `report` gets as for `lock.hold_folder`. After a BadInput within, the plan is as it was.
    """
    wanted = parse_json(dump_json(plan))  # as the next call reads it
    _is_planned(folder, kind, wanted)  # without a lock: a refusal leaves no trace
    hold = contextlib.nullcontext() if is_open(folder) else lock.hold_folder(folder, take_over=take_over)
    with hold as warning, lock.undo_if_refused(folder, kind.file):
        if warning:
            report(warning)
        if not _is_planned(folder, kind, wanted):
            _write(folder / kind.file, wanted)
        token = _OPEN.set(_OPEN.get() | {folder.absolute()})
        try:
            yield
        finally:
            _OPEN.reset(token)


def is_open(folder: lock.Folder) -> bool:
    """Whether the caller works within a study of this folder, and so needs no lock of its own."""
    return pathlib.Path(folder).absolute() in _OPEN.get()


def write_once(
    path: pathlib.Path, make: Callable[[], Any], schema: Any = None, before: Iterable[pathlib.Path] = ()
) -> Any:
    """The fact in `path`, as JSON; `make()` gives it where there is none yet. BadInput if the file is damaged.

    `before`: the runs that a prediction is about. BadInput if one of them has begun and the prediction is gone.
    """
    if not os.path.lexists(path):
        if begun := [place for place in before if place.exists()]:
            raise BadInput(f"{path} is gone and {begun[0]} has begun: a prediction would come too late")
        _write(path, make())
    return records.read_json(path, schema)


def describe_change(before: Mapping[str, Any], now: Mapping[str, Any], group: str = "") -> str:
    """The first of the values that differs, as `base.train.seed=2, not 3`; "" if none does."""
    for key in {**before, **now} if group else now:
        old, new = before.get(key), now.get(key)
        if old != new and isinstance(old, dict) and isinstance(new, dict):
            return describe_change(old, new, f"{group}{key}.")
        if old != new:
            return f"{group}{key}={old!r}, not {new!r}"
    return ""


def _is_planned(folder: pathlib.Path, kind: Kind, plan: Mapping[str, Any]) -> bool:
    """Whether the plan is written as it is now. BadInput if the folder holds another one, or something else."""
    path, noun = folder / kind.file, kind.noun
    if os.path.lexists(path):
        before = records.read_json(path, {})
        for key in kind.settings:
            if isinstance(before.get(key), dict):
                before[key] = plan[key] | before[key]
        if change := describe_change(before, {key: plan[key] for key in plan if key not in kind.grow}):
            article = "an" if noun[0] in "aeiou" else "a"
            raise BadInput(
                f"{str(folder)!r} holds {article} {noun} with {change}: name another --workdir, or say the same"
            )
        return not describe_change(before, plan)
    names = {place.name for place in folder.iterdir()} - {".lock"} if folder.is_dir() and not is_open(folder) else set()
    drafts = set(fnmatch.filter(names, f".{kind.file}.*.tmp"))  # of a process that was killed while it wrote the plan
    if names - drafts and not names & set(kind.earlier):
        raise BadInput(f"{str(folder)!r} is not empty and holds no {noun}: name another --workdir")
    return False


def _write(path: pathlib.Path, content: Any) -> None:
    """Replace a file atomically, and bring its name to disk too: a power cut takes no fact back."""
    records.write_json(path, content)
    records.sync_to_disk(path)
