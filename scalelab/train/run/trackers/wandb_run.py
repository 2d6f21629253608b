"""One W&B run for each run, trials of a pack included, under the id in its record: every step stands there once.

W&B takes no step twice and none below its last, and a killed process loses what its buffers hold. So rows are handed
over whole (training and validation of a step together), a resumed run asks which row is the last that W&B has, and what
is missing before its first step comes from metrics.jsonl.
"""

import collections
import contextlib
import functools
import inspect
import os
import pathlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.train.run.trackers.sinks import MetricSink, SinkReport, TrackedRun, split_names
from scalelab.untrusted.files import read_bytes, replace_file

GROUP_CHARACTERS = 128  # at most, of a group's name at W&B
FINISH_S = 60.0  # longest wait for uploads at the end of a pack; what is left stays on disk, for `wandb sync`
LEAST_FINISH_S = 5.0  # of it for each trial
LOGIN_S = 30.0  # longest wait for an answer to W&B's question for a key, on a terminal
SUMMARY = ("status", "steps", "tokens", "val_loss", "bpb", "params", "flops", "forked_from")  # values of record.json
MOST_WANDB_BYTES = 2**31
BLOCK, HEADER = 32768, 7  # of a .wandb file: LevelDB's log format after a header of 7 bytes
ENDS_RECORD = (1, 4)  # kinds of fragments: whole, last


def check_wandb(project: str) -> None:
    """Raise BadInput if the package is not installed, or cannot hold several runs at once."""
    try:
        import wandb
    except ImportError:
        raise BadInput(
            f"log.wandb={project!r} needs a package that is not installed: pip install wandb (docs/trackers.md)"
        ) from None
    if "create_new" not in str(inspect.signature(wandb.init)):
        raise BadInput(
            f"log.wandb={project!r}: wandb {wandb.__version__} mixes trials that train in one process; "
            "pip install --upgrade wandb"
        )


def open_wandb(run: TrackedRun, report: SinkReport) -> MetricSink:
    """Start the run's W&B run, or go on with it; offline if W&B can't be reached."""
    tracked = _start(run, report)
    last = _last_step(tracked, run)
    row: dict[str, Any] = {}
    at = last

    def send() -> None:
        if row:
            tracked.log(dict(row), step=at, commit=True)
            row.clear()

    def write(step: int, scalars: dict[str, float]) -> None:
        nonlocal at
        if step > last:
            if step != at:
                send()
            at = step
            row.update(scalars)

    def close() -> None:
        send()
        _finish(tracked, run)

    def alert(event: Mapping[str, Any]) -> None:
        title, step = f"{run.folder.name}: {event.get('signal') or event['kind']}", event.get("step")
        tracked.alert(
            title=title, text=f"step {step}: {event['text']}", level="ERROR" if event["kind"] == "diverged" else "WARN"
        )

    return MetricSink(_with_teardown(write), _with_teardown(close), last, _with_teardown(alert))


def _finish(tracked: Any, run: TrackedRun) -> None:
    """Send what the record and the logbook say at the end, and wait for the upload."""
    try:
        _send_outcome(tracked, run)
    finally:
        try:
            tracked.finish(exit_code=1 if run.record.get("status") == "running" else 0)
        except TimeoutError:
            rest = f"wandb sync --include-online {run.folder}/wandb/*run-*"
            raise TimeoutError(f"not all was uploaded in time; the rest: {rest}") from None


def _send_outcome(tracked: Any, run: TrackedRun) -> None:
    """Values of the record and how often each kind of event took place; the logbook as a file (a table needs more)."""
    kinds = collections.Counter(event["kind"] for event in records.read_events(run.folder))
    outcome = {key: run.record[key] for key in SUMMARY if run.record.get(key) is not None}
    tracked.summary.update(outcome | {"events": dict(kinds)})
    if (notes := _notes(run.folder)) != (tracked.notes or ""):
        tracked.notes = notes
    if kinds:
        copy = pathlib.Path(tracked.dir) / "events.jsonl"  # of a file elsewhere it says that it links it
        replace_file(copy, read_bytes(run.folder / "events.jsonl", MOST_WANDB_BYTES))
        tracked.save(str(copy), base_path=tracked.dir, policy="now")


def _with_teardown(action: Callable[..., None]) -> Callable[..., None]:
    """`action`, after whose lost connection W&B's process is given up: later runs start another one."""

    @functools.wraps(action)
    def tried(*arguments: Any) -> None:
        import wandb

        try:
            action(*arguments)
        except ConnectionError:
            with contextlib.suppress(Exception):  # it can't say goodbye either
                wandb.teardown()
            raise

    return tried


def _start(run: TrackedRun, report: SinkReport) -> Any:
    """The W&B run; where none can be had, one that is kept offline, and so are those of the pack's other trials."""
    import wandb

    source, options = f"log.wandb={run.config['log']['wandb']!r}", _options(run)
    upload = f"wandb sync {run.sweep / 'runs' / '*' if run.sweep else run.folder}/wandb/offline-run-*"
    try:
        mode = "offline" if source in report.seen else None  # another trial tried in vain, up to a minute and a half
        tracked = wandb.init(mode=mode, **options)
    except Exception as error:  # W&B's own, and those of what it calls
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        report.warn(source, f"{source}: W&B did not start: {reason}; it logs offline, to upload later: {upload}")
        tracked = wandb.init(mode="offline", **options)
    where = f"offline, to upload later: {upload}" if tracked.offline else tracked.url
    if where and source not in report.seen:
        report.note(f"{source} is at", f"W&B: {where}")
    return tracked


def _options(run: TrackedRun) -> dict[str, Any]:
    """The arguments of `wandb.init`."""
    log = run.config["log"]
    return {
        "project": log["wandb"],
        "id": run.tracker_id,
        "name": run.folder.name,
        "group": str(run.sweep.absolute())[-GROUP_CHARACTERS:] if run.sweep else None,
        "job_type": log.get("role") or None,
        "tags": split_names(log.get("tags", "")) or None,
        "notes": _notes(run.folder) or None,
        "config": dict(run.config),
        "dir": str(run.folder),
        "resume": "allow",
        "reinit": "create_new",
        "settings": _settings(run.record.get("pack", {}).get("trials", 1)),
    }


def _settings(trials: int) -> Any:
    """W&B's settings, those that its version knows. The trials of a pack finish one after the other."""
    import wandb

    settings: dict[str, Any] = {"silent": True, "login_timeout": LOGIN_S, "finish_timeout_raises": True}
    settings |= (
        {} if "WANDB_FINISH_TIMEOUT" in os.environ else {"finish_timeout": max(FINISH_S / trials, LEAST_FINISH_S)}
    )
    settings |= {"console": "off"} if trials > 1 else {}  # they share the terminal
    return wandb.Settings(**{key: value for key, value in settings.items() if key in wandb.Settings.model_fields})


def _notes(folder: pathlib.Path) -> str:
    """The notes that the user wrote into the logbook."""
    notes = [event for event in records.read_events(folder) if event["kind"] == "note"]
    return "\n".join(f"step {event['step']}: {event.get('text', '')}" for event in notes)


def _last_step(tracked: Any, run: TrackedRun) -> int:
    """The last step that W&B has of the run, by its server or, offline, by its files in the run's folder; or -1."""
    if not tracked.offline:
        return int(tracked.starting_step) - 1
    files = run.folder.glob(f"wandb/*run-*-{run.tracker_id}/run-{run.tracker_id}.wandb")
    return max((step for file in files for step in _logged_steps(file)), default=-1)


def _logged_steps(path: pathlib.Path) -> Iterator[int]:
    """The steps of the rows in a .wandb file, whose last record may be torn."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    for fragment in _file_records(path):
        try:
            record = Record.FromString(fragment)
        except DecodeError:
            return
        if record.WhichOneof("record_type") == "history":
            yield int(record.history.step.num)


def _file_records(path: pathlib.Path) -> Iterator[bytes]:
    """The whole records of a .wandb file: fragments of (checksum, length, kind), none across blocks of 32 KiB."""
    data, at, whole = read_bytes(path, MOST_WANDB_BYTES), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + HEADER])
        at += HEADER + length
        if kind == 0 or at > len(data):  # zeros, or a torn record
            return
        whole += data[at - length : at]
        if kind in ENDS_RECORD:
            yield whole
            whole = b""
