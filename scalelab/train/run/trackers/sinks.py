"""What a sink is: a mirror of metrics.jsonl. One of the user's own is a function named as `log.sinks=my_module:fn`.

metrics.jsonl is the record, so a sink that fails costs one line and no training: it is warned of once, and closed.
"""

import dataclasses
import functools
import inspect
import os
import pathlib
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.stores.urls import is_url, url_of
from scalelab.user_code import describe_user_error, user_function

Write = Callable[[int, dict[str, float]], Any]
SINK_KEYS = ("log.sinks=", "log.tensorboard", "log.wandb")  # a warning about a sink begins with one
EXPECTED = "a function (run) -> a generator, or an object with write(step, scalars)"  # and may have alert(event)


class MetricSink(NamedTuple):
    """A mirror: `write(step, scalars)`, and `close()`, which puts everything on disk.

    `last` is the last step that it holds from former processes: later lines of the past are written to it again. None:
    it needs nothing of the past. `alert(event)` takes an alarm (`alerts.py`); None: it has no use for one.
    `is_outside`: another process does the work, so that nothing of a run that hangs can hold it up.
    """

    write: Write
    close: Callable[[], Any]
    last: int | None = None
    alert: Callable[[Mapping[str, Any]], Any] | None = None
    is_outside: bool = False


class TrackedRun(NamedTuple):
    """The argument of a sink's function: one run, or one trial of a pack."""

    folder: pathlib.Path
    tracker_id: str  # the run's for good, also when it is resumed or moved; a copy has another
    config: Mapping[str, Mapping[str, Any]]
    first_step: int = 0  # the first step that will be written; above zero if the run is resumed
    sweep: pathlib.Path | None = None  # the folder of the sweep that it is a trial of
    record: Mapping[str, Any] = {}  # record.json as it is now: status, val_loss, params, flops, …


@dataclasses.dataclass(frozen=True)
class SinkReport:
    """What sinks tell the user: once on the terminal for all trials of a pack, and in the logbook of each run."""

    progress: Callable[[dict[str, Any]], None] = lambda _: None
    log: Callable[[str], None] = lambda _: None
    seen: set[str] = dataclasses.field(default_factory=set)

    def note(self, source: str, text: str, kind: str = "note") -> None:
        """Show a line to the user, unless `source` had one."""
        if source not in self.seen:
            self.seen.add(source)
            self.progress({kind: text})

    def warn(self, source: str, text: str) -> None:
        """Write a warning into the run's logbook, and show it to the user, unless `source` had one."""
        self.log(text)
        self.note(source, text, "warning")


def guard(sink: MetricSink, source: str, report: SinkReport, describe: Callable[[Exception], str]) -> MetricSink:
    """`sink` whose first error is a warning, with which it ends."""
    works = True

    def attempt(action: Callable[..., Any], *arguments: Any) -> None:
        nonlocal works
        try:
            if works:
                action(*arguments)
        except Exception as error:  # whatever a library or a user's code may raise
            works = False
            report.warn(source, f"{source}: {describe(error)}; nothing more is logged there, and training goes on")
            if action is not sink.close:
                _try_closing(sink)

    alert = functools.partial(attempt, sink.alert) if sink.alert else None
    write: Write = lambda step, scalars: attempt(sink.write, step, scalars)  # noqa: E731
    return MetricSink(write, lambda: attempt(sink.close), sink.last, alert)


def _try_closing(sink: MetricSink) -> None:
    """Close a sink that has failed: it may hold files. That it fails again is no news."""
    try:
        sink.close()
    except Exception:
        return


def bind_tracker(folder: pathlib.Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run's record: `tracker_id`, `tracker_home`, the folder it is bound to, and a copy's `forked_from`.

    The folder is created. A run keeps its id in its place and where it was moved; a copy gets an id of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = {"place": url_of(folder) or os.path.realpath(folder), "inode": os.stat(folder).st_ino}
    tracker_id, former = record.get("tracker_id"), record.get("tracker_home")
    if tracker_id and (former is None or _is_same_folder(former, home)):  # a record of an older version has no home
        return {"tracker_id": tracker_id, "tracker_home": home}
    fork = {"forked_from": tracker_id} if tracker_id else {}
    return {"tracker_id": secrets.token_hex(8), "tracker_home": home, **fork}


def _is_same_folder(former: Mapping[str, Any], home: Mapping[str, Any]) -> bool:
    """Whether a folder is the one that its record was written in, perhaps moved, and not a copy.

    A rename, of a parent too, keeps the inode; a remounted disk may not, but keeps the path. What was moved to another
    disk has left its old place, and the folder that this place is in is still there, unlike on another machine.
    """
    before, now = former["place"], home["place"]
    if before == now or is_url(now) or is_url(before):
        return bool(before == now)
    moved_to_other_disk = not os.path.lexists(before) and os.path.isdir(os.path.dirname(before))
    return former["inode"] == home["inode"] or moved_to_other_disk


def split_names(text: str) -> list[str]:
    """The names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_sinks(text: str) -> None:
    """Raise BadInput if `log.sinks` names what is not a function."""
    for name in split_names(text):
        user_function(name, "log.sinks", EXPECTED)


def open_user_sink(name: str, run: TrackedRun, report: SinkReport) -> MetricSink | None:
    """The sink that the user's function makes for `run`.

    An error is a BadInput line before the first step of a new run: somebody is there to mend it, and nothing is lost.
    A resumed run, which a queue may have started, goes on without the sink (None) after a warning.
    """
    source = f"log.sinks={name!r}"
    try:
        sink = _as_sink(user_function(name, "log.sinks", EXPECTED)(run), source)
    except BadInput as error:
        if not run.first_step:
            raise
        reason = str(error).removesuffix(f" ({source})")
        report.warn(source, f"{source}: {reason}; nothing is logged there, and training goes on")
        return None
    return guard(sink, source, report, _describe)


def _as_sink(opened: Any, source: str) -> MetricSink:
    if inspect.isgenerator(opened):
        generator: Generator[Any, Any, Any] = opened
        try:
            next(generator)  # to its first `yield`, which waits for a line
        except Exception as error:  # whatever a user's code may raise
            raise BadInput(f"{_describe(error)} ({source})") from error
        return MetricSink(lambda step, scalars: generator.send((step, scalars)), generator.close)
    if not callable(getattr(opened, "write", None)):
        raise BadInput(f"{source} returned {type(opened).__name__}: it is to be {EXPECTED}")
    return MetricSink(opened.write, getattr(opened, "close", lambda: None), alert=getattr(opened, "alert", None))


def _describe(error: Exception) -> str:
    return "its generator has ended" if isinstance(error, StopIteration) else describe_user_error(error)
