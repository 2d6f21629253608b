"""A folder and its copy in a store: equal at the end whatever happened, on this machine or the next."""

import hashlib
import json
import os
import pathlib
import shutil
import time

import pytest

from scalelab.errors import BadInput, WorkFailed
from scalelab.record import lock
from scalelab.stores import client, copies, mirror, upload
from scalelab.stores.copies import copy_here
from scalelab.stores.download import read_index
from scalelab.stores.lease import read_head, take_lease
from scalelab.stores.urls import local_folder
from tests.quick import one_in
from tests.train.runs import PATIENCE_S

pytestmark = pytest.mark.usefixtures("machine")


def save_step(folder: pathlib.Path, step: int, content: bytes) -> None:
    """A checkpoint as the trainer leaves it: its files, and a manifest with their hashes."""
    place = folder / "checkpoints" / str(step)
    (place / "state" / "d").mkdir(parents=True)
    (place / "state" / "d" / "array").write_bytes(content)
    files = {"state/d/array": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    (place / "manifest.json").write_text(json.dumps({"step": step, "files": files}))


def content_of(folder: pathlib.Path) -> dict[str, bytes]:
    """All files but what a copy alone has: whether the owner of the original lives."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != lock.LEASE_FILE]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def append(folder: pathlib.Path, text: str) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(text)


def work(folder: pathlib.Path, steps: range) -> None:
    """Some work in a folder: lines are appended, a record is replaced, a checkpoint is made and an old one deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        append(folder, f"line of step {step}\n")
        (folder / "record.json").write_text(json.dumps({"steps": step}))
        save_step(folder, step, f"weights of step {step}".encode() * 50)
        shutil.rmtree(folder / "checkpoints" / str(step - 2), ignore_errors=True)


def objects(url: str) -> set[str]:
    place = client.open_place(url)
    return {name for part in ("files", "index", "clock") for name in client.list_names(place, part)}


def check_store(url: str, expected: dict[str, bytes]) -> None:
    """The store has these files, and no object that belongs to none of them."""
    assert content_of(copy_here(url, checkpoints=True, fresh=True)) == expected
    head = read_head(client.open_place(url))
    assert head
    files = read_index(client.open_place(url), head[0]["index"])
    assert objects(url) == {name for parts in files.values() for name, _, _ in parts} | {head[0]["index"]}


@pytest.mark.parametrize(
    ("kind", "every"), one_in(2, [("", 0), ("error", 3), ("lie", 3), ("hang", 9)]), ids=["well", "5xx", "lies", "hangs"]
)
@pytest.mark.parametrize("server", one_in(2, ["s3", "gs"]), indirect=True)  # a client's patience is waited for
def test_another_machine_goes_on_from_all_that_was_there(server, url, machine, kind, every):
    server.faults.hang_s = 0.6
    server.strike(kind, every)
    for name, steps in (("first", range(1, 4)), ("second", range(4, 6)), ("second", range(6, 7))):
        machine(name)
        folder = local_folder(url)
        with mirror.attached(folder):
            work(folder, steps)
    assert bool(server.faults.struck) == bool(kind)
    server.heal()
    machine("undisturbed")
    work(local_folder(url), range(1, 7))
    expected = content_of(local_folder(url))
    machine("reader")
    check_store(url, expected)


def test_a_file_that_grows_keeps_its_full_parts_and_no_part_is_larger(server, url, monkeypatch):
    monkeypatch.setattr(upload, "PART_BYTES", 100)
    folder = local_folder(url)
    with mirror.attached(folder):
        folder.mkdir(parents=True)
        append(folder, "a" * 250)
    before = objects(url)
    with mirror.attached(folder):
        append(folder, "b" * 120)
    kept = {name for name in before & objects(url) if "metrics" in name}
    assert len(kept) == 2
    lengths = [len(client.get(client.open_place(url), name)) for name in objects(url) if "metrics" in name]
    assert sorted(lengths) == [70, 100, 100, 100]
    with mirror.attached(folder):
        (folder / "metrics.jsonl").write_text("a" * 150)  # a rewind
    check_store(url, {"metrics.jsonl": b"a" * 150})


def test_a_full_part_is_sent_once_however_often_the_file_grows(server, url, tmp_path, monkeypatch):
    monkeypatch.setattr(upload, "PART_BYTES", 100)
    uploader, files = upload.Uploader(client.open_place(url), tmp_path, tmp_path / "held", "mark", {}), {}
    for grown, sent in ((250, 3), (70, 2), (0, 0)):  # 100, 100, 50; then 100 and 20 from 200 on
        append(tmp_path, "a" * grown)
        before, files = files, uploader.upload()
        assert len(uploader.made) == sent
        uploader.sweep(before, files)


def test_what_a_dead_process_did_not_upload_is_uploaded_by_the_next_on_its_machine(server, url):
    folder = local_folder(url)
    with mirror.attached(folder):
        work(folder, range(1, 3))
    held, _ = take_lease(client.open_place(url))  # dies after an upload that was not published, and after a step
    held.owner = held.owner.replace(f"process {os.getpid()}", f"process {2**22 + 1}")
    held.beat()
    for orphan in ("files/orphan", "clock/orphan"):
        client.put(client.open_place(url), orphan, b"never published")
    work(folder, range(3, 5))
    said = []
    with mirror.attached(folder, report=said.append):
        assert not {name for name in objects(url) if "orphan" in name}
    assert "died without releasing it" in said[0]
    check_store(url, content_of(folder))


def test_a_machine_that_was_overtaken_sets_its_folder_aside(server, url, machine, note_line):
    folder = local_folder(url)
    with mirror.attached(folder):
        work(folder, range(1, 3))
    machine("second")
    with mirror.attached(local_folder(url)):
        work(local_folder(url), range(3, 4))
    expected = content_of(local_folder(url))
    machine("first")
    append(folder, "a line that never reached the store\n")
    said = []
    with mirror.attached(folder, report=said.append):
        assert content_of(folder) == expected
    assert "was written elsewhere since" in said[0]
    note_line(said[0])
    assert (folder.with_name(f"{folder.name}.overtaken") / "metrics.jsonl").read_text().endswith("the store\n")


@pytest.mark.parametrize("kind", one_in(3, ["gone", "expired"]))
@pytest.mark.parametrize("server", one_in(2, ["s3", "gs"]), indirect=True)  # a client's patience is waited for
def test_a_store_that_fails_in_the_middle_costs_no_work_and_one_line(server, url, kind, note_line):
    folder, said = local_folder(url), []
    server.faults.hang_s = 0.0
    with pytest.raises(WorkFailed) as failure, mirror.attached(folder, report=said.append):
        work(folder, range(1, 3))
        server.strike(kind)
    reason = {"gone": "doesn't answer", "expired": "the credentials have expired"}[kind]
    assert reason in str(failure.value) and str(failure.value).endswith("the same command uploads it")
    assert len(said) == 1 and reason in said[0] and str(folder) in said[0]
    note_line(said[0])
    note_line(str(failure.value))
    expected = content_of(folder)
    server.heal()
    with mirror.attached(folder):
        pass
    check_store(url, expected)


def test_a_listing_that_lags_hides_nothing_of_a_run(server, url):
    folder = local_folder(url)
    server.faults.lag = url.partition("bucket/")[2]
    with mirror.attached(folder):
        work(folder, range(1, 4))
    with mirror.attached(folder):
        work(folder, range(4, 5))
    assert not objects(url)
    assert content_of(copy_here(url, checkpoints=True)) == content_of(folder)


def test_a_damaged_object_or_checkpoint_is_never_passed_on(server, url, machine, note_line):
    folder, said = local_folder(url), []
    with mirror.attached(folder, report=said.append):
        work(folder, range(1, 2))
        save_step(folder, 9, b"weights")
        (folder / "checkpoints" / "9" / "state" / "d" / "array").write_bytes(b"WEIGHTS")
    assert said == [f"{folder}/checkpoints/9 differs from its manifest: it is not uploaded"]
    (name,) = [name for name in objects(url) if name.startswith("files/record")]
    client.put(client.open_place(url), name, b"{'steps': 2}")
    machine("second")
    with pytest.raises(WorkFailed, match="is damaged: SHA-256") as failure:
        copy_here(url)
    note_line(said[0])
    note_line(str(failure.value))


def test_a_reader_whose_index_was_replaced_meanwhile_reads_the_next(server, url, monkeypatch):
    folder = local_folder(url)
    with mirror.attached(folder):
        work(folder, range(1, 2))
    stale = [read_head(client.open_place(url))] * 2
    with mirror.attached(folder):
        work(folder, range(2, 4))
    monkeypatch.setattr(copies, "read_head", lambda place: stale.pop() if stale else read_head(place))
    assert content_of(copy_here(url, checkpoints=True)) == content_of(folder)
    assert not stale


def test_readers_get_what_changed_only_and_the_runs_of_a_folder(server, url):
    for run in ("one", "two"):
        with mirror.attached(local_folder(f"{url}/{run}")):
            work(local_folder(f"{url}/{run}"), range(1, 3))
    folder = copy_here(url)
    assert sorted(content_of(folder)) == [
        "one/metrics.jsonl",
        "one/record.json",
        "two/metrics.jsonl",
        "two/record.json",
    ]
    (folder / "one" / "record.json").write_text("edited")
    server.faults.log.clear()
    copy_here(url)
    fetched = [path for method, path, _ in server.faults.log if method == "GET" and "files" in path]
    assert len(fetched) == 1 and "record" in fetched[0]
    with pytest.raises(BadInput, match="holds nothing that scalelab wrote"):
        copy_here(f"{url}/one/nothing")


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_copy_follows_what_another_machine_writes_also_while_the_store_is_down(server, url, machine):
    folder = local_folder(url)
    folder.mkdir(parents=True)
    with mirror.attached(folder):
        append(folder, "one\n")
    with copies.kept_up_to_date(url, 0.05) as copy:
        assert (copy / "metrics.jsonl").read_text() == "one\n"
        server.strike("error", 1)
        time.sleep(0.3)
        server.heal()
        with mirror.attached(folder):
            append(folder, "two\n")
        until = time.monotonic() + PATIENCE_S
        while (copy / "metrics.jsonl").read_text() != "one\ntwo\n":
            assert time.monotonic() < until
            time.sleep(0.05)
