"""One call of `make gpu`: parts in the order of their worth, each begun only if its first question can still end."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from checks.gpu import ledger
from checks.gpu.parts import START_S, Call, asked_cost_s, list_parts, missing_questions, read_lines
from checks.gpu.settings import TOY_SETTINGS

END_S = 5.0  # kept for the page
LOG_BYTES = 50_000
MOST_OVERRUN = 3.0  # a question that takes so many times its estimate is stopped


class Missing(NamedTuple):
    """A question without an answer: `why`, and the seconds it is expected to take."""

    part: str
    row: str
    cost_s: float
    why: str


def run_session(call: Call, names: list[str]) -> None:
    """Ask what is missing of these parts until the time is over; what failed in this call waits for the next."""
    for name in names:
        while (cost_s := first_cost_s(call, name)) is not None:
            if time.time() + cost_s + END_S > call.ends_at:
                print(f"{name}: not begun, it takes {cost_s:.0f} s", file=sys.stderr, flush=True)
                break
            before = len(read_lines(call))
            _run_process(call, name)
            if len(read_lines(call)) == before:
                break


def first_cost_s(call: Call, name: str) -> float | None:
    """Seconds until the part's first missing question is answered; None if none is missing."""
    missing = missing_questions(read_lines(call), name, list_parts(call.settings)[name], call.begun_at)
    return START_S + asked_cost_s(call.settings, missing[0]) if missing else None


def _run_process(call: Call, name: str) -> None:
    """Run a part in a process of its own; a question that it dies of, or that takes far too long, is written down."""
    call.folder.mkdir(parents=True, exist_ok=True)
    log, chip = call.folder / f"{name}.log", ledger.chip_name()
    print(f"{name}: {call.ends_at - time.time():.0f} s are left", file=sys.stderr, flush=True)
    argv = [sys.executable, "-m", "checks.gpu", f"--part={name}", f"--workdir={call.folder}"]
    argv += [f"--again={','.join(call.again)}"] * bool(call.again)
    argv += [f"--results={call.ledgers[-1].parent}", f"--between={call.begun_at},{call.ends_at - END_S}"]
    with log.open("a") as output:
        running = subprocess.Popen(
            [*argv, *["--toy"] * (call.settings == TOY_SETTINGS)], stdout=output, stderr=output, start_new_session=True
        )
    why = ""
    try:
        while running.poll() is None and not why:
            why = _overrun(call, name)
            time.sleep(0.2)
    finally:
        kill_part(running)
    row = ledger.open_row(read_lines(call), name)
    if row is not None:
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:300]
        ledger.append(
            call.ledgers[-1], ledger.DIED, chip, name, row, why=f"{why or f'exit {running.returncode}'}: {last}"
        )


def _overrun(call: Call, name: str) -> str:
    """Why the part must be stopped now; "" while it need not."""
    if time.time() > call.ends_at - END_S / 2:
        return "stopped at the end of the call"
    lines = read_lines(call)
    row = ledger.open_row(lines, name)
    if row is None:
        return ""
    begun_at = next(line["time"] for line in reversed(lines) if (line["part"], line["row"]) == (name, row))
    question = next(each for each in list_parts(call.settings)[name] if each.row == row)
    most_s = max(call.settings.least_limit_s, MOST_OVERRUN * asked_cost_s(call.settings, question))
    return f"stopped after {most_s:.0f} s" if time.time() - begun_at > most_s else ""


def kill_part(running: subprocess.Popen) -> None:
    """Kill the part and all processes that it started."""
    try:
        os.killpg(running.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    running.wait()


def collect_logs(folder: pathlib.Path) -> str:
    """The last LOG_BYTES of each part's log, one after the other."""
    texts = []
    for path in sorted(folder.glob("**/*.log")):
        text = path.read_bytes()[-LOG_BYTES:].decode(errors="replace")
        texts.append(f"==== {path.relative_to(folder)}\n{text.rstrip()}\n")
    return "\n".join(texts)


def list_missing(call: Call, names: list[str]) -> Iterator[Missing]:
    """Every question without an answer, in the order of worth."""
    lines, parts = read_lines(call), list_parts(call.settings)
    for name in names:
        answered, asked = ledger.answers(lines).get(name, {}), missing_questions(lines, name, parts[name])
        for question in parts[name]:
            if question.row not in answered:
                ends = ledger.tries(lines, name, question.row)
                why = f"{len(ends)} of {ledger.MOST_TRIES} tries: {ends[-1]['why']}" if ends else "not asked yet"
                left_out = "" if question in asked else "left out after "
                yield Missing(name, question.row, asked_cost_s(call.settings, question), left_out + why)
