"""Real disk trouble: full, read-only, permission lost, out of files, slow. An error no later than the next save,
the last good step kept, and once all is well again the run ends with the bits of one that had no trouble."""

import functools
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import pytest

from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.single import train_single
from tests.crash.trainer import (
    Cue,
    check_resumed,
    check_same,
    check_steps,
    end,
    overrides,
    said,
    start,
)
from tests.train.resume.test_compatibility import config
from tests.train.runs import ROOT


def complaint(folder: pathlib.Path) -> str:
    """The one line that a failed command prints; libraries may add lines, but no traceback of ours."""
    assert f'File "{ROOT}' not in said(folder), said(folder)
    (line,) = [line for line in said(folder).splitlines() if line.startswith("scalelab: ")]
    return line


def kept(folder: pathlib.Path) -> dict[str, bytes]:
    """All files of a run but its logbook, which notes the attempt where it can, and the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("events.jsonl", ".lock")]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.slow
def test_permission_lost_between_two_saves(tmp_path, whole):
    folder = tmp_path / "run"
    shut = functools.partial(os.chmod, folder / "checkpoints", 0o555)
    assert end(start(folder, Cue(r"mkdir .*/8\.tmp$", act=shut), mortal=True)) == 1
    assert "step 8 could not be saved (" in complaint(folder) and "Permission denied" in complaint(folder)
    assert complaint(folder).endswith("the last good one is step 4")
    os.chmod(folder / "checkpoints", 0o755)
    assert check_steps(folder) == [4]
    check_resumed(folder, whole)


@pytest.mark.slow
def test_permission_lost_on_the_metrics(tmp_path, whole):
    folder = tmp_path / "run"
    shut = functools.partial(os.chmod, folder / "metrics.jsonl", 0o444)
    assert end(start(folder, Cue(r"mkdir .*/4\.tmp$", act=shut), mortal=True)) == 1
    assert complaint(folder).endswith("metrics.jsonl could not be written (Permission denied)")
    os.chmod(folder / "metrics.jsonl", 0o644)
    assert check_steps(folder) == [4]
    check_resumed(folder, whole)


@pytest.mark.parametrize(
    "there", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["from the start", "since the last run"]
)
@pytest.mark.full
def test_a_read_only_folder(tmp_path, whole, there):
    folder = tmp_path / "run"
    folder.mkdir()
    constant = {"schedule.name": "constant"} if there else {}  # a cosine's past would not be that of more steps
    if there:
        assert end(start(folder, mortal=True, **constant, **{"train.steps": 4})) == 0, said(folder)
    before = kept(folder)
    os.chmod(folder, 0o555)
    assert end(start(folder, mortal=True, **constant)) == 1
    assert "Permission denied" in complaint(folder) and str(folder) in complaint(folder)
    assert before == kept(folder)
    os.chmod(folder, 0o755)
    assert end(start(folder, **constant)) == 0, said(folder)
    if not there:
        check_same(folder, whole)


@pytest.mark.slow
def test_out_of_open_files(tmp_path, whole):
    folder = tmp_path / "run"
    few = functools.partial(
        resource.setrlimit, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    assert end(start(folder, Cue(r"mkdir .*/8\.tmp$", act=few))) == 1
    assert "step 8 could not be saved" in complaint(folder) and "Too many open files" in complaint(folder)
    assert check_steps(folder) == [4]
    check_resumed(folder, whole)


@pytest.mark.slow
def test_a_slow_disk_costs_time_and_nothing_else(tmp_path, whole):
    folder = tmp_path / "run"
    slow = Cue(r"/checkpoints/\d+\.tmp", act=functools.partial(time.sleep, 0.1), always=True)
    assert end(start(folder, slow)) == 0
    check_same(folder, whole)


# A disk of its own, gone with the shell; it is too small for two checkpoints, then grows.
SMALL_DISK = """
mount -t tmpfs -o size={size}k none {place} || exit 77
cd {root}
{command}; first=$?
ls {run}/checkpoints > {out}.steps
{verify} >&2 || exit 78
mount -o remount,size=100m {place}
{command} && cp -r {run} {out} || exit 79
exit $first
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path, whole, store):
    if store:
        pytest.skip("a disk of its own is not below the folders that stand for a store")
    (tmp_path / "disk").mkdir()
    run, out = tmp_path / "disk" / "run", tmp_path / "out"
    scalelab = f"{sys.executable} -m scalelab"
    script = SMALL_DISK.format(
        size=300,
        place=tmp_path / "disk",
        root=ROOT,
        run=run,
        out=out,
        command=f"{scalelab} train --config=configs/tiny.py --workdir={run} --json={out}.json {' '.join(overrides())}",
        verify=f"{scalelab} checkpoint verify {run}",
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], text=True, capture_output=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no disk of one's own here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 1, done.stderr
    line = done.stderr.partition("scalelab: ")[2].partition("\n")[0]  # tensorstore may have begun that line
    assert "No space left on device" in line or "out of disk space" in line, done.stderr
    assert pathlib.Path(f"{out}.steps").read_text().split()[0] == "4"
    assert [event["step"] for event in records.read_events(out) if event["kind"] == "resume"] == [4]
    check_same(out, whole)


def test_the_metrics_of_a_step_are_on_disk_before_the_step_is(tmp_path, monkeypatch):
    """What a power cut would leave: metrics as of their last fsync, and every step that was committed."""
    durable, commits, sync, rename = {}, [], os.fsync, os.rename

    def fsync(descriptor):
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        durable[path] = path.read_text() if path.suffix == ".jsonl" else ""
        sync(descriptor)

    def renamed(old, new, **more):
        if str(new).endswith(("/2", "/4")):
            commits.append((pathlib.Path(new).name, durable.get(tmp_path / "run" / "metrics.jsonl", "")))
            assert tmp_path / "run" in durable  # the folder's entries: the file stands under its name
        rename(old, new, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    train_single(config(), tmp_path / "run")
    steps = {name: {json.loads(line)["step"] for line in text.splitlines()} for name, text in commits}
    # The commit comes later, lines of more steps may be there.
    assert steps["2"] >= {1, 2} and steps["4"] == {1, 2, 3, 4}
    assert manifest.list_steps(tmp_path / "run" / "checkpoints") == [2, 4]
