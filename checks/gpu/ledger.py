"""The ledger of `make gpu`: a line for each question that was begun, answered, stopped, failed or died.

Lines are only added. `stopped` is an end in order, which counts as no try. A line is on the disk before the next
question begins, so that a call that is killed loses no answer.
"""

import datetime
import functools
import pathlib
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab import git
from scalelab.hardware.versions import installed_versions
from scalelab.record import jsonfiles, jsonlines

BEGUN, ANSWERED, STOPPED, FAILED, DIED = "begun", "answered", "stopped", "failed", "died"
MOST_TRIES = 2  # a question that failed or died so often is left out
VERSIONS = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax", "numpy", "torch")
VERSIONS += ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cublas-cu12")
Row = dict[str, Any]


def append(path: pathlib.Path, event: str, chip: str, part: str, row: str, **values: Any) -> None:
    """Add one line and flush it to the disk. WorkFailed if the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"event": event, "chip": chip, "part": part, "row": row} | values | facts()
    jsonlines.append_json_lines(path, [line])
    jsonfiles.sync_to_disk(path)


def facts() -> Row:
    """When, by which versions, driver and code a line was written."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "time": time.time(), "driver": gpu_driver()[1], "versions": _versions(), "code": code_name()}


@functools.cache
def code_name() -> str:
    """The commit of this code, and a hash of what differs from it; without git, why it is not known."""
    state = git.code_state()["scalelab"]
    changed = f" with changes {str(state['diff_sha256'])[:12]}" if state.get("diff_sha256") else ""
    return f"{str(state['commit'])[:12]}{changed}" if "commit" in state else str(state.get("note", ""))


@functools.cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | installed_versions(VERSIONS)


@functools.cache
def gpu_driver() -> tuple[str, str]:
    """(name of the first GPU, version of its driver) by nvidia-smi, without starting jax; ("", "") without one."""
    if not shutil.which("nvidia-smi"):
        return "", ""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    name, _, driver = lines[0].partition(", ") if lines else ("", "", "")
    return name, driver


def chip_name() -> str:
    """The first GPU's name, or `cpu`."""
    return gpu_driver()[0] or "cpu"


def read(paths: Iterable[pathlib.Path], chip: str) -> list[Row]:
    """All lines of one chip, in the order of the files; without damaged ones, whose questions are asked again."""
    lines: list[Row] = []
    for path in paths:
        lines += jsonlines.read_json_lines(path, damaged=[])
    return [line for line in lines if line.get("chip") == chip]


def answers(lines: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """{part: {row: the line of its last answer}}."""
    by_part: dict[str, dict[str, Row]] = {}
    for line in lines:
        if line["event"] == ANSWERED:
            by_part.setdefault(line["part"], {})[line["row"]] = line
    return by_part


def tries(lines: Iterable[Row], part: str, row: str) -> list[Row]:
    """The lines that say how this question failed or died under the code that is here."""
    ends = [line for line in lines if line["event"] in (FAILED, DIED) and (line["part"], line["row"]) == (part, row)]
    return [line for line in ends if line["code"] == code_name()]


def open_row(lines: Iterable[Row], part: str) -> str | None:
    """The row that this part began last and never ended."""
    last: Mapping[str, Any] = {}
    for line in lines:
        if line["part"] == part:
            last = line
    return last["row"] if last and last["event"] == BEGUN else None
