"""Shards on disk: crashes leave nothing that looks finished, races end in one folder, damage is named."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from scalelab.data import shards
from scalelab.data.dataset import open_dataset
from scalelab.errors import BadInput

ROOT = pathlib.Path(__file__).parents[3]

# Stops for good at the n-th sync, having said so: the parent kills it there.
STOPS = """
import os, sys, time
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
calls, fsync = [], os.fsync
def stop(handle):
    calls.append(fsync(handle))
    if len(calls) == int(sys.argv[3]):
        print("here", flush=True)
        time.sleep(3600)
os.fsync = stop
open_dataset(DataConfig(source="text", path=sys.argv[1], cache_dir=sys.argv[2]))
"""

# Waits for the starting signal, so that all writers run at once.
RACES = """
import os, sys, time
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
print("ready", flush=True)
sys.stdin.readline()
print(open_dataset(DataConfig(source="text", path=sys.argv[1], cache_dir=sys.argv[2])).fingerprint)
"""


def start(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finished(cache):
    return [p for p in pathlib.Path(cache).iterdir() if ".tmp-" not in p.name]


@pytest.mark.parametrize("sync", [1, 3, 5, 6])
def test_a_killed_preparation_leaves_nothing_that_looks_finished(corpus, tmp_path, sync):
    # Syncs: train tokens, train offsets, val tokens, val offsets, index, folder; the rename comes after the sixth.
    process = start(STOPS, corpus.path, corpus.cache_dir, sync)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert list(pathlib.Path(corpus.cache_dir).iterdir()) and not finished(corpus.cache_dir)
    clean = open_dataset(dataclasses.replace(corpus, cache_dir=str(tmp_path / "clean")))
    assert open_dataset(corpus).fingerprint == clean.fingerprint
    assert len(finished(corpus.cache_dir)) == 1


def test_processes_that_prepare_at_once_agree(corpus):
    writers = [start(RACES, corpus.path, corpus.cache_dir) for _ in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    seen = {writer.communicate()[0] for writer in writers}
    assert all(writer.returncode == 0 for writer in writers)
    assert seen == {open_dataset(corpus).fingerprint + "\n"}  # the same data in every process, and in this one
    assert len(list(pathlib.Path(corpus.cache_dir).iterdir())) == 1


def test_the_second_of_two_writers_keeps_the_first_ones_folder(corpus, monkeypatch):
    first = open_dataset(corpus)
    folder = finished(corpus.cache_dir)[0]
    inode = folder.stat().st_ino
    there = pathlib.Path.exists  # both looked before either had finished
    monkeypatch.setattr(pathlib.Path, "exists", lambda self: self != folder and there(self))
    assert open_dataset(corpus).fingerprint == first.fingerprint
    monkeypatch.undo()
    assert folder.stat().st_ino == inode and len(list(folder.parent.iterdir())) == 1


def test_a_finished_folder_is_used_and_not_written_again(corpus):
    open_dataset(corpus)
    folder = finished(corpus.cache_dir)[0]
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    open_dataset(corpus)
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["train-00000.tokens", "val-00000.tokens", "train-00000.offsets", "val-00000.offsets"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "append", "delete"])
def test_damage_is_refused_by_name(corpus, name, damage):
    open_dataset(corpus)
    path = finished(corpus.cache_dir)[0] / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    changed = {"flip": data, "truncate": data[:-1], "append": data + b"\0", "delete": data}[damage]
    path.write_bytes(changed)
    if damage == "delete":
        path.unlink()
    what = {"flip": "SHA-256", "delete": "is missing"}.get(damage, f"has {len(changed)} bytes, .* {len(data)}")
    with pytest.raises(BadInput, match=rf"{name} {what if damage != 'flip' else 'has SHA-256'}.*delete the folder"):
        open_dataset(corpus)


@pytest.mark.parametrize("content", ["", "{", json.dumps({"format": 99})])
def test_a_wrong_index_is_refused(corpus, content):
    open_dataset(corpus)
    (finished(corpus.cache_dir)[0] / "index.json").write_text(content)
    with pytest.raises(BadInput, match=r"index\.json .*delete the folder"):
        open_dataset(corpus)


def test_only_old_leftovers_are_swept(corpus):
    cache = pathlib.Path(corpus.cache_dir)
    old, new = cache / "text-0.tmp-old", cache / "text-0.tmp-new"
    for left in (old, new):
        left.mkdir(parents=True)
    long_ago = time.time() - 2 * shards.STALE_S
    os.utime(old, (long_ago, long_ago))
    open_dataset(corpus)
    assert new.exists() and not old.exists()
