"""A rehearsal: calls at toy sizes, some killed at random moments with all their processes; no answer may be lost."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from checks.gpu import ledger, session
from checks.gpu.parts import Call
from scalelab.cli.parser import print_status
from scalelab.errors import WorkFailed

EARLIEST_S, LATEST_S = 1.0, 20.0  # after a call's begin; most kills then fall into a question
MOST_CALLS = 40


def rehearse(argv: Sequence[str], call: Call, names: list[str], kills: int) -> None:
    """Call the command until every question of `names` is answered or left out, killing the first `kills` calls.

    WorkFailed if a line of the ledger is lost by a kill.
    """
    call.folder.mkdir(parents=True, exist_ok=True)
    options = [word for word in argv if not word.startswith(("--rehearse", "--kills", "--json"))]
    command = [sys.executable, "-m", "checks.gpu", "--toy", *options]
    random_waits = random.Random(kills)
    for count in range(MOST_CALLS):
        before = ledger.read(call.ledgers, ledger.chip_name())
        wait_s = random_waits.uniform(EARLIEST_S, LATEST_S) if count < kills else None
        code = _run_call(command, call, wait_s)
        after = ledger.read(call.ledgers, ledger.chip_name())
        if after[: len(before)] != before:
            raise WorkFailed(f"call {count + 1} lost lines of {call.ledgers[-1]}")
        answers = sum(line["event"] == ledger.ANSWERED for line in after)
        end = f"exit {code}" if wait_s is None else f"killed after {wait_s:.1f} s"
        print_status(f"call {count + 1}: {end}; {answers} answers, {len(after) - len(before)} new lines")
        if count >= kills and not _open(call, names):
            return


def _open(call: Call, names: list[str]) -> bool:
    return any(not each.why.startswith("left out") for each in session.list_missing(call, names))


def _run_call(command: list[str], call: Call, wait_s: float | None) -> int:
    """Run one call; after `wait_s` it and every process below it are killed."""
    with (call.folder / "calls.log").open("a") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            return running.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for pid in (*_descendants(running.pid), running.pid):
                _kill(pid)
            running.wait()
    time.sleep(0.1)
    return -signal.SIGKILL


def _descendants(pid: int) -> list[int]:
    """The process's children and theirs, by /proc."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return []
    return [each for child in children for each in (*_descendants(child), child)]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
