"""Starting real commands, waiting for what they write, and comparing what two runs left."""

import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
TIMED = ("tokens_per_s", "mfu", "time")
SMALL = [
    f"--config.{key}" for key in ("model.d_model=16", "model.seq_len=32", "train.global_batch=4", "eval.batches=2")
]


def command(*arguments: str, name: str = "train", env: dict[str, str] | None = None) -> subprocess.Popen:
    """A `scalelab` command in a process of its own, its output captured."""
    return subprocess.Popen(
        [sys.executable, "-m", "scalelab", name, *arguments],
        cwd=ROOT, env=os.environ | (env or {}), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def train(workdir: pathlib.Path, *overrides: str) -> list[str]:
    """Arguments of a small `scalelab train`."""
    return ["--config=configs/tiny.py", f"--workdir={workdir}", *SMALL, *overrides, "--json"]


def finish(process: subprocess.Popen, code: int = 0) -> dict:
    """Wait for a command, insist on its exit code, return the JSON of its last line (or {})."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, (process.returncode, err[-2000:])
    return json.loads(out.splitlines()[-1]) if out.strip() else {}


def wait_for(condition, process: subprocess.Popen, timeout_s: float = 120) -> None:
    """Poll until `condition()`; the process must still be running."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"ended early: {process.communicate()}"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def untimed(folder: pathlib.Path) -> list[dict]:
    """Metric lines without what depends on the clock."""
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]
