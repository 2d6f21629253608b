"""The run folder: what a crash may leave behind, who may write, and reading many runs into one table."""

import errno
import json
import math
import os
import pathlib
import threading

import pytest

from scalelab import config as configs
from scalelab.configs import base
from scalelab.errors import BadInput, WorkFailed
from scalelab.record import jsonfiles, listing, records
from tests.report import synthetic

REPO = pathlib.Path(__file__).resolve().parents[1]
IDENTITY = configs.identity(configs.resolve(base.get_config()))


def metrics_file(folder: pathlib.Path, steps: int, tail: str = "") -> pathlib.Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": s, "train_loss": 1.0 / s}) + "\n" for s in range(1, steps + 1)) + tail)
    return path


def run_folder(folder: pathlib.Path, **record: object) -> pathlib.Path:
    records.write_json(folder / "config.json", configs.resolve(base.get_config()).to_dict())
    if record:
        records.write_json(folder / "record.json", record)
    return folder


# lines


def test_a_torn_last_line_is_ignored(tmp_path):
    metrics_file(tmp_path, 3, tail='{"step": 4, "train_l')
    assert [line["step"] for line in records.read_metrics(tmp_path)] == [1, 2, 3]


def test_a_damaged_middle_line_is_refused_with_its_number(tmp_path):
    path = metrics_file(tmp_path, 3)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]))
    with pytest.raises(BadInput, match=r"metrics.jsonl, line 2: damaged") as caught:
        records.read_metrics(tmp_path)
    assert "\n" not in str(caught.value)


WRONG = {
    "no UTF-8": b"\xff\xfe\0",
    "no object": b"5",
    "too deep": b"[" * 100_000,
    "too long": b"1" * 5000,
    "no keys": b"{}",
}


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "evaluations.jsonl", "record.json", "config.json"])
@pytest.mark.parametrize("what", WRONG)
def test_whatever_stands_in_a_file_of_a_run_is_one_line(tmp_path, name, what):
    folder = run_folder(tmp_path)
    (folder / name).write_bytes(WRONG[what] + b"\n")
    if (name, what) == ("record.json", "no keys"):
        return
    if name == "events.jsonl":  # of the logbook a bad line is a warning
        (event,) = records.read_events(folder)
        assert event["kind"] == "warning" and "line 1" in event["text"] and "damaged" in event["text"]
        return
    with pytest.raises(BadInput, match=name) as caught:
        listing.read_run(folder), records.read_metrics(folder), records.read_events(folder)
    assert "\n" not in str(caught.value)


def test_no_file_is_no_lines(tmp_path):
    assert records.read_metrics(tmp_path) == [] and records.read_events(tmp_path) == []


def test_appended_lines_come_back_in_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records.append_json_lines(path, [{"step": 1}])
    records.append_json_lines(path, [])
    records.append_json_lines(path, [{"step": 2}, {"step": 3}])
    assert records.read_json_lines(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_not_a_number_survives(tmp_path):
    records.append_json_lines(tmp_path / "metrics.jsonl", [{"step": 1, "train_loss": x} for x in (math.nan, math.inf)])
    first, second = records.read_metrics(tmp_path)
    assert first["train_loss"] != first["train_loss"] and second["train_loss"] == float("inf")


@pytest.mark.parametrize("step, left", [(0, []), (2, [1, 2]), (9, [1, 2, 3])])
def test_rewind_drops_later_lines_and_the_torn_one(tmp_path, step, left):
    path = metrics_file(tmp_path, 3, tail='{"step": 2, "tr')
    records.rewind_metrics(tmp_path, step)
    assert [line["step"] for line in records.read_metrics(tmp_path)] == left
    assert path.read_text().count("\n") == len(left) and os.listdir(tmp_path) == ["metrics.jsonl"]
    records.append_json_lines(path, [{"step": step + 1}])  # what follows is not glued to a torn line
    assert [line["step"] for line in records.read_metrics(tmp_path)] == [*left, step + 1]


def test_rewind_keeps_the_bytes_of_good_lines_and_sets_damaged_ones_aside(tmp_path):
    path = metrics_file(tmp_path, 3)
    first, second, third, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, b'{"step": "two"}', second, third, b""]))
    before = path.read_bytes()
    (warning,) = records.rewind_metrics(tmp_path, 2)
    assert path.read_bytes() == first + b"\n" + second + b"\n"
    assert "line 2 was damaged" in warning and (tmp_path / "metrics.jsonl.damaged").read_bytes() == before


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "any.jsonl"])
def test_a_torn_last_line_costs_itself_alone_and_is_told(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'{"time": 1, "step": 1, "kind": "a"}\n{"time": 2, "st')
    warning = records.append_json_lines(path, [{"time": 3, "step": 3, "kind": "c"}])
    assert str(path) in warning and "st" in warning and "\n" not in warning
    assert records.append_json_lines(path, [{"time": 4, "step": 4, "kind": "d"}]) == ""
    damaged: list[str] = []
    assert [row["step"] for row in records.read_json_lines(path, damaged=damaged)] == [1, 3, 4]
    assert len(damaged) == 1 and "line 2" in damaged[0]


def test_a_torn_logbook_goes_on_and_says_so(tmp_path):
    records.write_event(tmp_path, "start", 0)
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"time": 17, "step": 3, "ki')  # a disk that was full, a process killed
    records.write_event(tmp_path, "note", 4, "on we go")
    records.write_event(tmp_path, "done", 5)
    kinds = [event["kind"] for event in records.read_events(tmp_path)]
    assert kinds == ["start", "warning", "note", "warning", "done"]


def test_a_line_that_lacks_only_its_newline_is_no_loss(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}')
    assert records.append_json_lines(path, [{"step": 2}]) == "" and [
        r["step"] for r in records.read_metrics(tmp_path)
    ] == [1, 2]


def fail_once(monkeypatch, name: str, number: int, times: int = 1) -> list[int]:
    """Let the function `name` of os fail `times` times, as a network file system does; returns the list of calls."""
    real, calls = getattr(os, name), []

    def flaky(*args, **more):
        calls.append(len(calls))
        if len(calls) <= times:
            raise OSError(number, os.strerror(number))
        return real(*args, **more)

    monkeypatch.setattr(os, name, flaky)
    return calls


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(jsonfiles, "RETRY_WAITS_S", (0, 0, 0))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_passing_error_of_the_file_system_is_tried_again(tmp_path, monkeypatch, impatient, call, number):
    records.write_event(tmp_path, "start", 0)
    calls = fail_once(monkeypatch, call, number, times=3)
    if call == "fsync":
        records.write_json(tmp_path / "record.json", {"a": 1})
    records.write_event(tmp_path, "note", 1)
    monkeypatch.undo()
    assert len(calls) >= (3 if call == "fsync" else 4)
    assert [event["kind"] for event in records.read_events(tmp_path)] == ["start", "note"]


def test_one_that_stays_is_said_with_the_number_of_tries_and_leaves_nothing_torn(tmp_path, monkeypatch, impatient):
    records.write_event(tmp_path, "start", 0)
    before = (tmp_path / "events.jsonl").read_bytes()
    fail_once(monkeypatch, "write", errno.EIO, 99)
    with pytest.raises(WorkFailed, match=r"events.jsonl could not be written \(Input/output error, 4 times\)"):
        records.write_event(tmp_path, "note", 1)
    monkeypatch.undo()
    assert (tmp_path / "events.jsonl").read_bytes() == before


def test_a_disk_that_fills_within_a_line_takes_the_part_back(tmp_path, monkeypatch):
    """Of the bytes that a full disk still took none stay."""
    records.write_event(tmp_path, "start", 0)
    before, real, writes = (tmp_path / "events.jsonl").read_bytes(), os.write, []

    def full(descriptor, data):
        writes.append(len(data))
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:9])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(WorkFailed, match="No space left"):
        records.write_event(tmp_path, "note", 1)
    monkeypatch.undo()
    assert len(writes) == 2 and (tmp_path / "events.jsonl").read_bytes() == before


def test_rewind_without_metrics_leaves_an_empty_file(tmp_path):
    records.rewind_metrics(tmp_path, 5)
    assert records.read_metrics(tmp_path) == []


def test_an_event_carries_its_extra_fields(tmp_path):
    records.write_event(tmp_path, "skip", 7, "loss is nan", loss="nan")
    (event,) = records.read_events(tmp_path)
    assert event.pop("time") > 1.7e9
    assert event == {"step": 7, "kind": "skip", "text": "loss is nan", "loss": "nan"}


# json


def test_a_reader_never_sees_a_half_written_file(tmp_path):
    """A writer replaces a large file over and over; every read in between parses and is whole."""
    path, whole = tmp_path / "record.json", {"values": list(range(20_000))}
    records.write_json(path, whole)
    done = threading.Event()

    def write() -> None:
        for _ in range(20):
            records.write_json(path, whole)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set() or reads == 0:
        assert records.read_json(path) == whole
        reads += 1
    writer.join()
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "record.json"
    records.write_json(path, {"good": 1})
    with pytest.raises((TypeError, ValueError)):
        records.write_json(path, {"bad": object()})
    assert records.read_json(path) == {"good": 1}


@pytest.mark.parametrize("text, message", [(None, "no file"), ('{"a": 1', "not JSON")])
def test_unreadable_json_is_one_line(tmp_path, text, message):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        records.read_json(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


# reading runs


def test_a_run_folder_is_one_row_with_results_and_config(tmp_path):
    run = run_folder(
        tmp_path / "r",
        status="done",
        tokens=2_000_000,
        val_loss=1.5,
        bpb=2.16,
        identity=IDENTITY,
        params={"total": 10, "non_embedding": 8, "kaplan": 7, "chinchilla": 9},
        flops={"6ND": 1e9, "chinchilla": 1.1e9, "exact": 1.2e9},
    )
    (row,) = listing.read_runs(run)
    assert (row["N"], row["N_non_embedding"], row["N_kaplan"], row["N_chinchilla"]) == (10, 8, 7, 9)
    assert (row["C"], row["C_6ND"], row["C_chinchilla"], row["D"]) == (1.2e9, 1e9, 1.1e9, 2_000_000)
    assert (row["name"], row["status"], row["val_loss"], row["bpb"]) == ("r", "done", 1.5, 2.16)
    assert (row["optim.peak_lr"], row["train.seed"], row["model.d_model"], row["optim.name"]) == (3e-3, 0, 64, "adamw")


def test_a_run_without_a_record_is_starting(tmp_path):
    (row,) = listing.read_runs(run_folder(tmp_path / "r"))
    assert row["status"] == "starting" and row["N"] is None and row["val_loss"] is None


def test_a_sweep_folder_is_every_run_in_it(tmp_path):
    for name in ("b", "a"):
        run_folder(tmp_path / "runs" / name, status="done")
    (tmp_path / "runs" / "not-a-run").mkdir()
    assert [row["name"] for row in listing.read_runs(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize("there, message", [(False, "no such folder"), (True, "no config.json")])
def test_a_folder_without_runs_is_one_line(tmp_path, there, message):
    folder = tmp_path / "empty"
    if there:
        folder.mkdir()
    with pytest.raises(BadInput, match=message) as caught:
        listing.read_runs(folder)
    assert "\n" not in str(caught.value)


def test_an_exported_model_beside_runs_is_none_of_them(tmp_path):
    synthetic.write_run(tmp_path / "mine", lines=2)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert [row["name"] for row in listing.read_runs(tmp_path)] == ["mine"]
    with pytest.raises(BadInput, match="is not a run's"):
        listing.read_runs(tmp_path / "hf")


@pytest.mark.parametrize(("status", "seen"), [("running", True), ("stopped", False)])
def test_a_running_run_has_the_size_of_its_last_logged_step(tmp_path, status, seen):
    """Its record was written when it began; one that ended wrote its record then."""
    per_token = {"6N": 6.0, "exact": 7.0}
    facts = {"flops_per_token": per_token, "flops": {"6ND": 0.0, "exact": 0.0}, "steps": 0, "tokens": 0}
    run_folder(tmp_path, status=status, **facts)
    lines = [{"step": 1, "tokens": 512, "train_loss": 2.0}, {"step": 9, "tokens": 4608, "train_loss": 1.0}]
    evaluated = {"step": 9, "tokens": 4608, "val_loss": 1.1}
    text = "".join(json.dumps(line | {"time": 0.0}) + "\n" for line in (*lines, evaluated))
    (tmp_path / "metrics.jsonl").write_text(text)
    row = listing.read_run(tmp_path)
    assert (row["D"], row["C"], row["C_6ND"]) == ((4608, 7 * 4608, 6 * 4608) if seen else (0, 0, 0))
