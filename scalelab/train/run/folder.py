"""The files of one run from the trainer's side: logbook, metric lines, config, record, and the trackers beside them."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab.parallel.processes import broadcast_from_first, is_first_process
from scalelab.record import records
from scalelab.train.run.trackers.alerts import make_listener
from scalelab.train.run.trackers.metrics import open_sinks, write_metric_lines
from scalelab.train.run.trackers.sinks import MetricSink, SinkReport, TrackedRun

Event = tuple[str, int | None, str, dict[str, Any]]  # kind, step, text, other fields


@dataclasses.dataclass
class RunFolder:
    """The files of the run in `path`. Of several processes only the first writes, and nothing before `begin`."""

    path: pathlib.Path
    sinks: list[MetricSink] = dataclasses.field(default_factory=list)
    tell: Callable[[Mapping[str, Any]], None] = lambda _: None  # given each event that is written
    waiting: list[Event] | None = dataclasses.field(default_factory=list)  # events before `begin`; None: after it

    def begin(self) -> list[Event]:
        """Write events at once from now on; returns those that have waited."""
        waiting, self.waiting = self.waiting or [], None
        return waiting

    def write_event(self, kind: str, step: int | None, text: str = "", **fields: Any) -> None:
        """Write one line in the logbook; before `begin` it waits."""
        if self.waiting is not None:
            self.waiting.append((kind, step, text, fields))
        elif is_first_process():
            records.write_event(self.path, kind, step, text, **fields)
            self.tell({"step": step, "kind": kind, "text": text} | fields)

    def write_lines(self, lines: list[dict], layers: Sequence[dict] = ()) -> None:
        """Append lines to metrics and layers, and mirror them."""
        if is_first_process() and (torn := write_metric_lines(self.path, lines, self.sinks, layers)):
            records.write_event(self.path, "warning", None, torn)

    def drop_lines_after(self, step: int) -> dict[str, Any]:
        """Drop what was logged after `step`; returns the last line left that has a validation loss, or {}."""

        def drop() -> dict[str, Any]:
            for damaged in records.rewind_metrics(self.path, step):
                records.write_event(self.path, "warning", step, damaged)
            lines = reversed(records.read_metrics(self.path))
            return next((line for line in lines if "val_loss" in line), {})

        return broadcast_from_first(drop)

    def open_sinks(self, run: TrackedRun, report: SinkReport) -> None:
        """Open the trackers that the run's config asks for; their warnings go into the logbook, too."""
        report = dataclasses.replace(report, log=functools.partial(self.write_event, "warning", None))

        def open_in_first() -> None:
            self.sinks = open_sinks(run, report)
            self.tell = make_listener(self.path.name, self.sinks, report)

        broadcast_from_first(open_in_first)

    def close_sinks(self) -> None:
        """Close the trackers; the record then holds the verdict, or "running" where training failed."""
        while self.sinks:
            self.sinks.pop().close()

    def has_config(self) -> bool:
        """Whether the folder is a run's already."""
        return (self.path / "config.json").exists()

    def replace_config(self, config: Mapping[str, Any], identity: str, own_code: Mapping[str, Any]) -> None:
        """Write config.json for a run of this identity.

        Record and config never disagree: until the record is written too, the old one names both identities.
        """
        old = records.read_record(self.path)
        if old.get("identity") not in (None, identity):
            both = {"next_identity": identity, "next_own_code": own_code}
            records.write_json(self.path / "record.json", old | both)
        records.write_json(self.path / "config.json", config)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write record.json."""
        if is_first_process():
            records.write_json(self.path / "record.json", record)
