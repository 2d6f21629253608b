"""Tell somebody of an alarm: a line on the terminal, the trackers that take one, and the command of `log.alert`.

The logbook has every event. Told are those that somebody should act on: the first flag of an incident, each shape that
an incident takes without passing, a lasting rise, a climb, a rewind, a divergence, a run without a step for too long.
"""

import io
import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from scalelab import user_code
from scalelab.errors import BadInput
from scalelab.train.run.trackers.sinks import MetricSink, SinkReport, TrackedRun

Alarm = Mapping[str, Any]  # an event of the logbook: step, kind, text, and of the guard signal and action
FLAGS = ("bad", "loss", "grad_norm", "early", "large_updates")  # signals that begin an incident, or belong to one
PASSED = ("benign", "slow")  # shapes with which it ends
EXAMPLE = "log.alert='logger -t scalelab'"
MOST_LINES = 20  # on the terminal, of one run
LONGEST_S = 30.0  # that a run waits for its commands, at its end
MOST_AT_ONCE = 4  # commands of one run


def make_filter() -> Callable[[str, Mapping[str, Any]], bool]:
    """A function that says of each event, by its kind and fields, whether somebody is to be told; it keeps count."""
    in_incident = False

    def is_told(kind: str, fields: Mapping[str, Any]) -> bool:
        nonlocal in_incident
        signal = fields.get("signal", "")
        if kind in ("diverged", "stalled"):
            return True
        if kind not in ("guard", "skip") or signal in PASSED:
            in_incident &= signal not in PASSED
            return False
        told = signal not in FLAGS or not in_incident
        in_incident = signal != "new_level" and (in_incident or signal in FLAGS)
        return told

    return is_told


def check_alert(command: str) -> None:
    """Raise BadInput if `log.alert` is not a command that can be started here."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"log.alert={command!r}: {error}; e.g. {EXAMPLE}") from None
    if command and not words:
        raise BadInput(f"log.alert={command!r} names no program; e.g. {EXAMPLE}, or '' for none")
    if words and shutil.which(words[0]) is None:
        raise BadInput(f"log.alert={command!r}: there is no program {words[0]!r} here; e.g. {EXAMPLE}")


def open_command(run: TrackedRun, report: SinkReport) -> MetricSink | None:
    """The command of `log.alert`, started for each alarm with it as JSON on its input; None without one.

    The alarm has the run's name, folder and tracker_id beside the event's fields. A command that fails is said once,
    and tried again at the next alarm. One that only a stored file names is not run: a warning says so.
    """
    command = run.config["log"].get("alert", "")
    if not command:
        return None
    source = f"log.alert={command!r}"
    if not user_code.is_trusted_command(command):
        way = (
            f"if it is yours: --config.log.alert={shlex.quote(command)}, or {shlex.quote(f'--trust=command:{command}')}"
        )
        report.warn(source, f"{source} is named by a stored file alone and is not run; {way}")
        return None
    running: list[tuple[subprocess.Popen[bytes], Any]] = []
    failed = False

    def complain(what: str) -> None:
        nonlocal failed
        if not failed:
            failed = True
            report.warn(source, f"{source}: {what}; training goes on")

    def alert(alarm: Alarm) -> None:
        settle()
        if len(running) >= MOST_AT_ONCE:
            complain(f"{MOST_AT_ONCE} of its processes still run, and an alarm was not given to it")
            return
        named = {"run": run.folder.name, "folder": str(run.folder), "tracker_id": run.tracker_id}
        try:
            running.append(_start(shlex.split(command), named | dict(alarm)))
        except OSError as error:
            complain(error.strerror or str(error))

    def settle(until: float = 0.0) -> None:
        for process, errors in list(running):
            if _has_ended(process, until):
                running.remove((process, errors))
                if process.returncode:
                    complain(_reason(process, errors))
                errors.close()

    def close() -> None:
        settle(time.monotonic() + LONGEST_S)
        for process, errors in running:
            process.kill()
            process.wait()
            errors.close()
            complain(f"ended, as it still ran {LONGEST_S:.0f} s after the run's last step")
        running.clear()

    return MetricSink(lambda step, scalars: None, close, alert=alert, is_outside=True)


def make_listener(name: str, sinks: list[MetricSink], report: SinkReport) -> Callable[[Alarm], None]:
    """A function that is given every event of a run's logbook, and tells the alarms among them."""
    is_told, lines = make_filter(), 0

    def listen(event: Alarm) -> None:
        nonlocal lines
        if not is_told(event["kind"], event):
            return
        is_stalled = event["kind"] == "stalled"  # which the terminal is told by what ends the process
        lines += not is_stalled
        if lines <= MOST_LINES and not is_stalled:
            where = "" if event["step"] is None else f"step {event['step']}: "
            more = "; further alarms stand in its events.jsonl alone" if lines == MOST_LINES else ""
            report.progress({"warning": f"{name}: {where}{event['text']}{more}"})
        for sink in sinks:
            if sink.alert and (sink.is_outside or not is_stalled):  # a tracker may be what the run waits for
                sink.alert(event)

    return listen


def _start(words: list[str], alarm: Alarm) -> tuple[subprocess.Popen[bytes], Any]:
    """Start the command; (its process, the file of its errors). Files, not pipes: nobody waits for either."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the command has ended
    with tempfile.TemporaryFile() as text:
        text.write(json.dumps(alarm, default=str).encode() + b"\n")
        text.seek(0)
        try:
            process = subprocess.Popen(words, stdin=text, stdout=subprocess.DEVNULL, stderr=errors)
        except OSError:
            errors.close()
            raise
    return process, errors


def _has_ended(process: subprocess.Popen[bytes], until: float) -> bool:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _reason(process: subprocess.Popen[bytes], errors: io.BufferedRandom) -> str:
    """`exit code 3: the last line of its errors`."""
    errors.seek(0)
    lines = errors.read(65536).decode(errors="replace").strip().splitlines()
    return f"exit code {process.returncode}" + (f": {lines[-1][:200]}" if lines else "")
