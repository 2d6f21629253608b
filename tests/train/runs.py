"""Starting real commands, waiting for what they write, and comparing what two runs left."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.signals import STOP_SIGNALS
from scalelab.train.checkpoints import manifest

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600  # for what takes seconds on a quiet machine: only a hang lasts longer on a busy one
HELD: list[socket.socket] = []  # ports that were given out
TIMED = ("tokens_per_s", "mfu", "time")
SMALL = [
    f"--config.{key}" for key in ("model.d_model=16", "model.seq_len=32", "train.global_batch=4", "eval.batches=2")
]


def command(*arguments: str, name: str = "train", env: dict[str, str] | None = None, **more) -> subprocess.Popen:
    """A `scalelab` command in a process of its own, its output captured; `more` as Popen takes it."""
    with hear_signals():
        return subprocess.Popen(
            [sys.executable, "-m", "scalelab", name, *arguments],
            cwd=ROOT,
            env=os.environ | (env or {}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )


def train(workdir: pathlib.Path, *overrides: str) -> list[str]:
    """Arguments of a small `scalelab train`."""
    return ["--config=configs/tiny.py", f"--workdir={workdir}", *SMALL, *overrides, "--json"]


def ended(process: subprocess.Popen) -> tuple[str, str]:
    """What a process said on stdout and stderr, once it has ended; one that hangs is killed."""
    try:
        return process.communicate(timeout=PATIENCE_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise


def finish(process: subprocess.Popen, code: int = 0) -> dict:
    """Wait for a command, insist on its exit code, return the JSON of its last line (or {})."""
    out, err = ended(process)
    assert process.returncode == code, (process.returncode, err[-2000:])
    return json.loads(out.splitlines()[-1]) if out.strip() else {}


def run_here(*arguments: str, name: str = "train", code: int = 0) -> dict:
    """`finish(command(…))` in this process, which has jax and its programs already: where the process is not tested."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert main([name, *arguments]) == code, err.getvalue()[-2000:]
    return json.loads(out.getvalue().splitlines()[-1]) if out.getvalue().strip() else {}


def wait_for(condition, process: subprocess.Popen) -> None:
    """Poll until `condition()`, which must come true before the process ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # Before the question is asked: it may come true with the end.
        gone = process.poll() is not None or time.monotonic() > deadline
        if condition():
            return
        if gone:
            process.kill()
            raise AssertionError(f"ended early or waited too long: {process.communicate()}")
        time.sleep(0.01)


def free_port() -> int:
    """A port to listen on that nobody else gets during these tests: it stays bound, and can be bound again."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    HELD.append(held)
    return held.getsockname()[1]


def untimed(folder: pathlib.Path) -> list[dict]:
    """Metric lines without what depends on the clock."""
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]


@contextlib.contextmanager
def record_rows() -> Iterator[list[np.ndarray]]:
    """The rows [n, length + 1] of each step that runs in this process take within it, in order."""
    from scalelab.train.run.feed import Feed

    steps: list[np.ndarray] = []
    take = Feed.take

    def take_and_record(feed: Feed, step: int, n: int) -> Any:
        batches: Any = take(feed, step, n)
        steps.extend(batches[0][:n])
        return batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "take", take_and_record)
        yield steps


@contextlib.contextmanager
def hear_signals() -> Iterator[None]:
    """Within it every stop signal acts as by default, and does so in processes that are started.

    Under nohup SIGHUP is ignored, in a shell's background job SIGINT, and children inherit that.
    """
    ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def stopped_at(folder, step):
    """Leave of a run what it was when it was stopped at `step`."""
    for later in manifest.list_steps(folder / "checkpoints"):
        if later > step:
            shutil.rmtree(folder / "checkpoints" / str(later))
    records.write_json(folder / "record.json", records.read_record(folder) | {"status": "stopped", "steps": step})
