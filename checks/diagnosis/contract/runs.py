"""Run a case as a user would: a config file, one's own module, commands in a folder; and what `diagnose` answers."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from checks.diagnosis.contract import doctored
from checks.diagnosis.contract.case import BASE, Case, Edit
from scalelab.errors import WorkFailed
from scalelab.record import records

ROOT = pathlib.Path(__file__).parents[3]
SECONDS = 3600  # most that one command may take, on a machine that does other work too
SOURCES = {"a": "[a-f]*.py", "b": "[g-z]*.py"}  # of a `prepared` case: parts of Python's own modules


def train_case(case: Case, half: str, size: Mapping[str, Any], seed: int, place: pathlib.Path) -> float:
    """Train the case at a size in `place`/run; its last validation loss, as logged before a folder is edited."""
    place.mkdir(parents=True)
    shutil.copy(pathlib.Path(__file__).parent / half / "mine.py", place)
    changes = {**BASE, **size, **case.changes, "train.seed": seed}
    if case.prepared:
        changes |= {"data.source": "prepared", "data.path": "prepared"}
        _prepare(place)
    _write_config(place, changes)
    package = fork(case.edits, place / "fork")
    _train(case, place, package)
    if case.later is not None:
        _write_config(place, {**changes, **case.later})
        package = fork((*case.edits, *case.later_edits), place / "fork-later")
        _train(case, place, package, case.later_options)
    val_loss: float = records.read_json(place / "run" / "record.json")["val_loss"]
    if case.doctor:
        getattr(doctored, case.doctor)(place / "run")
    return val_loss


def diagnose_case(case: Case, place: pathlib.Path) -> dict[str, Any]:
    """The answer of `scalelab diagnose` on a case that was trained in `place`; with its exit code."""
    forks = [] if case.judged_clean else [path for path in (place / "fork-later", place / "fork") if path.exists()]
    own = sorted({value for value in {**case.changes, **(case.later or {})}.values() if _names_code(value)})
    options = [*([case.asked] if case.asked else []), *(f"--trust={name}" for name in own), "--json=answer.json"]
    done = _command(["diagnose", "run", *options], place, forks[0] if forks else ROOT, case)
    if done.returncode not in (0, 1):
        raise WorkFailed(f"diagnose ended with {done.returncode}: {_last_line(done)}")
    answer: dict[str, Any] = json.loads((place / "answer.json").read_text())
    return answer | {"exit": done.returncode}


def fork(edits: Sequence[Edit], place: pathlib.Path) -> pathlib.Path:
    """A folder with the edited package, or the repository itself where nothing is edited.

    If data are read otherwise, the fork has a cache of tokens of its own: it may cut them otherwise.
    """
    if not edits:
        return ROOT
    shutil.copytree(ROOT / "scalelab", place / "scalelab", ignore=shutil.ignore_patterns("__pycache__", "experiments"))
    (place / "scalelab" / "experiments").symlink_to(ROOT / "experiments")
    for edit in edits:
        file = place / "scalelab" / edit.file
        file.write_text(edited(edit, file.read_text()))
    if any(edit.file.startswith("data/") for edit in edits):
        (place / "cache").mkdir()
    return place


def edited(edit: Edit, text: str) -> str:
    """The text after an edit. AssertionError unless `old` stands in it once: the case no longer says what it plants."""
    assert text.count(edit.old) == 1, f"{edit.file}: {text.count(edit.old)} times, not once: {edit.old!r}"
    return text.replace(edit.old, edit.new)


def config_text(changes: Mapping[str, Any]) -> str:
    """A config file as a user writes it: configs/tiny.py with some values changed."""
    lines = [f"    config.{key} = {value!r}" for key, value in changes.items()]
    start = ["from scalelab.configs import tiny", "", "", "def get_config():", "    config = tiny.get_config()"]
    return "\n".join([*start, *lines, "    return config", ""])


def _write_config(place: pathlib.Path, changes: Mapping[str, Any]) -> None:
    (place / "config.py").write_text(config_text(changes))


def _train(case: Case, place: pathlib.Path, package: pathlib.Path, options: Sequence[str] = ()) -> None:
    done = _command(["train", "--config=config.py", "--workdir=run", *options], place, package, case)
    if done.returncode not in (0, 1):  # 1: diverged, which may be what a fault does
        raise WorkFailed(f"train ended with {done.returncode}: {_last_line(done)}")


def _prepare(place: pathlib.Path) -> None:
    library = pathlib.Path(os.__file__).parent
    sources = [f"--source={name}={library}/{pattern}" for name, pattern in SOURCES.items()]
    done = _command(["prepare", *sources, "--tokenizer=bytes", "--out=prepared"], place, ROOT, None)
    if done.returncode:
        raise WorkFailed(f"prepare ended with {done.returncode}: {_last_line(done)}")


def _command(
    arguments: Sequence[str], place: pathlib.Path, package: pathlib.Path, case: Case | None
) -> subprocess.CompletedProcess[str]:
    """Run a command of the package in `place`."""
    environment = os.environ | {"PYTHONPATH": str(package), "JAX_PLATFORMS": "cpu"}
    if (package / "cache").exists():
        environment["SCALELAB_CACHE"] = str(package / "cache")
    if case is not None and case.devices > 1:
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={case.devices}"
    try:
        return subprocess.run(
            [sys.executable, "-m", "scalelab", *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkFailed(f"{arguments[0]} took longer than {SECONDS} s") from error


def _names_code(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("mine:")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or ["no message"])[-1]
