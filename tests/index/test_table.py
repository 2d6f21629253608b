"""The index of many runs: what is read through it is what the run folders hold, whatever happened to either."""

import json
import os
import shutil
import threading

import pytest

from scalelab.index import store, table
from scalelab.record import listing, records
from scalelab.sweep.status import read_trial_row
from tests.report import synthetic

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four runs with an index beside them, as if they had been left alone for long."""
    monkeypatch.setattr(store, "LEAST_RUNS", 2)
    monkeypatch.setattr(store, "CLOCK_TICK_NS", -(10**12))
    for seed, name in enumerate(NAMES):
        synthetic.write_run(tmp_path / "runs" / name, seed=seed, lines=6, status="done" if seed else "running")
    table.read_runs(tmp_path)
    assert (tmp_path / "runs" / store.INDEX_FILE).exists()
    return tmp_path


def assert_read_as_from_the_runs(folder):
    """Rows and progress are those of the folders read one by one, in which the index has no part."""
    for _ in range(2):  # the second time from an index that the first has written
        runs = table.read_indexed_runs(folder)
        failed = {name: {"status": "failed"} for name, run in runs.items() if run.progress["status"] == "failed"}
        expected = [row | failed.get(row["name"], {}) for row in listing.read_runs(folder)]
        assert [run.row for run in runs.values()] == expected
        assert [list(run.row) for run in runs.values()] == [list(row) for row in expected]  # order of columns
        for name, run in runs.items():
            row = read_trial_row(folder / "runs" / name, 0)
            assert {"name": name, "step": 0, "steps": 0} | run.progress == row


def rewrite(path, old, new):
    """Replace text by text of the same length in place, with the time of modification put back."""
    assert len(old) == len(new)
    stat, text = path.stat(), path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def append(folder, name, line):
    with (folder / "runs" / "b" / name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def swap(folder):
    """Two runs whose folders change their names."""
    for old, new in (("b", "x"), ("c", "b"), ("x", "c")):
        (folder / "runs" / old).rename(folder / "runs" / new)


def replace_index(change):
    def apply(folder):
        path = folder / "runs" / store.INDEX_FILE
        path.write_bytes(change(path.read_bytes()))

    return apply


def forge_other_run(text):
    """An index in which one loss is another one, and its digest too: of other code."""
    head, _, body = text.partition(b"\n")
    return b" ".join([*head.split(b" ")[:2], b"0" * 24, head.split(b" ")[3]]) + b"\n" + body.replace(b"1", b"2")


CHANGES = {
    "nothing": lambda folder: None,
    "a metric": lambda folder: append(folder, "metrics.jsonl", {"step": 10**6, "train_loss": 9.0, "tokens_per_s": 5.0}),
    "an evaluation": lambda folder: append(folder, "metrics.jsonl", {"step": 10**6, "val_loss": 9.0}),
    "a failure": lambda folder: records.write_event(folder / "runs" / "a", "failed", 3, "killed"),
    "a record of the same size": lambda folder: rewrite(folder / "runs/b/record.json", '"tokens": 1', '"tokens": 2'),
    "a record replaced": lambda folder: records.write_json(
        folder / "runs/b/record.json", records.read_json(folder / "runs/b/record.json") | {"status": "diverged"}
    ),
    "a loss that its lines don't have": lambda folder: records.write_json(
        folder / "runs/b/record.json", records.read_json(folder / "runs/b/record.json") | {"val_loss": 0.5}
    ),
    "no record": lambda folder: (folder / "runs/b/record.json").unlink(),
    "a damaged record": lambda folder: (folder / "runs/b/record.json").write_text("{"),
    "a damaged line": lambda folder: rewrite(folder / "runs/b/metrics.jsonl", '"step"', '"stop"'),
    "a config of another run": lambda folder: rewrite(folder / "runs/b/config.json", '"seed": 1', '"seed": 7'),
    "a score": lambda folder: append(folder, "evaluations.jsonl", {
        "step": 3906, "weights": "trained", "set": "s", "fingerprint": "f", "kind": "k", "metrics": {"acc": 0.5}}),
    "layers": lambda folder: append(folder, "layers.jsonl", {"step": 5, "attention_logit_max": [1.0, 4.0]}),
    "a run removed": lambda folder: shutil.rmtree(folder / "runs" / "b"),
    "a run added": lambda folder: synthetic.write_run(folder / "runs" / "aa", seed=9, lines=4),
    "a run renamed": lambda folder: (folder / "runs" / "b").rename(folder / "runs" / "bb"),
    "names swapped": swap,
    "a model of others beside": lambda folder: records.write_json(folder / "runs/hf/config.json", {"d_model": 4}),
    "index cut": replace_index(lambda text: text[: len(text) // 2]),
    "index empty": replace_index(lambda text: b""),
    "index of noise": replace_index(lambda text: bytes(range(256)) * 9),
    "index with a digit changed": replace_index(lambda text: text.replace(b"1.", b"2.")),
    "index of other code": replace_index(forge_other_run),
    "index of a list": replace_index(lambda text: store._head(table._version(), b"[1]") + b"\n[1]"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_those_of_the_folders_after(folder, change):
    CHANGES[change](folder)
    assert_read_as_from_the_runs(folder)


def test_unchanged_runs_are_not_read_again(folder, monkeypatch):
    read = []
    make_row = listing.make_row
    monkeypatch.setattr(listing, "make_row", lambda place, *rest: read.append(place.name) or make_row(place, *rest))
    table.read_runs(folder)
    assert read == []
    append(folder, "metrics.jsonl", {"step": 3906, "train_loss": 9.0})
    table.read_runs(folder)
    assert read == ["b"]


def test_a_moved_sweep_has_rows_of_its_new_place(folder, tmp_path):
    folder.joinpath("runs").rename(tmp_path / "elsewhere")
    rows = table.read_runs(tmp_path / "elsewhere")
    assert rows == listing.read_runs(tmp_path / "elsewhere")
    assert {row["folder"] for row in rows} == {str(tmp_path / "elsewhere" / name) for name in NAMES}


def test_a_file_that_was_just_written_is_not_trusted(folder, monkeypatch):
    """It may change again within a tick of the clock that its times are taken from."""
    (folder / "runs" / store.INDEX_FILE).unlink()
    monkeypatch.setattr(store, "CLOCK_TICK_NS", 2 * 10**9)
    synthetic.write_run(folder / "runs" / "e", lines=4)
    table.read_runs(folder)
    states, _ = store.load_index(folder / "runs", table._version())
    assert "e" not in states


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(30, "read-only file system")])
def test_a_folder_to_be_read_only_works_without(folder, monkeypatch, error):
    (folder / "runs" / store.INDEX_FILE).unlink()

    def refuse(**options):
        raise error

    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    assert_read_as_from_the_runs(folder)
    assert not (folder / "runs" / store.INDEX_FILE).exists()


def test_an_index_that_cannot_be_replaced_leaves_nothing(folder):
    (folder / "runs" / store.INDEX_FILE).unlink()
    (folder / "runs" / store.INDEX_FILE).mkdir()
    assert_read_as_from_the_runs(folder)
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [store.INDEX_FILE, *NAMES]


def test_readers_at_once_while_a_run_goes_on(folder):
    failures = []

    def read():
        for _ in range(8):
            rows = {row["name"]: row for row in table.read_runs(folder)}
            if list(rows) != list(NAMES) or rows["c"] != expected["c"]:
                failures.append(rows)

    expected = {row["name"]: row for row in listing.read_runs(folder)}
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(40):
        append(folder, "metrics.jsonl", {"step": 10**6 + step, "train_loss": float(step)})
    for thread in threads:
        thread.join()
    assert not failures
    assert_read_as_from_the_runs(folder)
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [store.INDEX_FILE, *NAMES]


def test_few_runs_get_no_file_beside_them(tmp_path):
    for name in NAMES:
        synthetic.write_run(tmp_path / name, lines=4)
    assert table.read_runs(tmp_path) == listing.read_runs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == list(NAMES)
