"""Buckets of strangers: names, sizes, hashes and JSON that scalelab never writes, read through each command.

Whatever the index lists, nothing outside the copy is written, overwritten or deleted.
"""

import hashlib
import json
import os
import pathlib
import urllib.request

import pytest

from scalelab.__main__ import main
from scalelab.stores import client, download, lease, mirror
from scalelab.stores.urls import local_folder
from tests.quick import one_in
from tests.report import synthetic
from tests.stores.test_commands import TINY
from tests.stores.test_mirror import save_step
from tests.train.runs import ROOT

pytestmark = [
    pytest.mark.usefixtures("machine"),
    pytest.mark.parametrize("server", one_in(2, ["s3", "gs"]), indirect=True),
]
TEXT = b"written by a stranger"
SHA = hashlib.sha256(TEXT).hexdigest()
PART = ["files/x", len(TEXT), SHA]
CANARIES = ("canary", "first/stores/read/s3/bucket/canary", "first/stores/work/s3/bucket/canary")
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def canaries(tmp_path):
    """Files outside of every copy, which stay as they are."""
    for name in CANARIES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("untouched")
    yield [tmp_path / name for name in CANARIES]
    assert [(tmp_path / name).read_text() for name in CANARIES] == ["untouched"] * len(CANARIES)


def put_head(url: str, **changes: object) -> None:
    head = {"format": 1, "owner": None, "machine": "m", "index": None, "put": "x.1"} | changes
    client.put(client.open_place(url), "head.json", json.dumps(head).encode())


def put_index(url: str, files: object, content: bytes | None = None) -> None:
    """A folder whose index lists `files`; every object that it names is there."""
    content = json.dumps({"format": 1, "files": files}).encode() if content is None else content
    name = f"index/{hashlib.sha256(content).hexdigest()[:32]}-0a1b2c3d"
    place = client.open_place(url)
    client.put(place, name, content)
    client.put(place, "files/x", TEXT)
    put_head(url, index=name)


def put_raw(server, path: str) -> None:
    """Put an object whose name obstore would not write."""
    request = urllib.request.Request(f"{server.url}/{path}", b"{}", method="PUT")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request")
    urllib.request.urlopen(request).read()


def outcomes(url: str, capsys, commands=("runs", "train")) -> list[tuple[int, str]]:
    """(exit code, the last line) of commands on a folder in a store."""
    argv = {
        "runs": ["runs", url], "report": ["report", url], "fit": ["fit", url, "--law=chinchilla"],
        "checkpoint": ["checkpoint", "verify", url], "status": ["sweep", f"--workdir={url}", "--status"],
        "sweep": ["sweep", "--config=lr_seeds", f"--workdir={url}"], "train": ["train", *TINY, f"--workdir={url}"],
        "data": ["train", *TINY, "--config.data.source=prepared", f"--config.data.path={url}", "--workdir=run"],
    }  # fmt: skip
    results = []
    for command in commands:
        code = main(argv[command])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err and len(printed.err) < 2000
        results.append((code, printed.err.strip().splitlines()[-1]))
    return results


PATHS = ["../../../canary", "{root}/canary", "a/../../canary", "checkpoints/5/../../../canary", "..", "", "/", "a//b",
         "./canary", "a\\..\\canary", "\x1b[31mred", "\ud800", "x" * 300, "a\0b", "\u202ered"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_a_path_that_leaves_its_folder_is_refused(server, url, canaries, tmp_path, capsys, path):
    put_index(url, {"record.json": [PART], path.format(root=tmp_path): [PART]})
    for code, line in outcomes(url, capsys):
        assert code == 2 and line.startswith(f"scalelab: {url}/index/") and "was it edited?" in line, line
        assert line.isprintable()


def test_each_command_that_reads_a_store_refuses_it(server, url, canaries, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("configs").symlink_to(ROOT / "configs")
    put_index(url, {"index.json": [PART], "../canary": [PART]})
    commands = ("runs", "report", "fit", "checkpoint", "status", "sweep", "train", "data")
    for code, line in outcomes(url, capsys, commands):
        assert code == 2 and "names a file '../canary', which is not a plain path below its folder" in line, line
    for code, line in outcomes(url.rpartition("/")[0] + f"/x/../{url[-1]}", capsys, ("runs", "train", "data")):
        assert code == 2 and "is not a folder in a bucket" in line, line


def test_a_path_that_an_index_drops_is_deleted_in_the_copy_only(server, url, canaries, machine, capsys):
    put_index(url, {"record.json": [PART], "notes/old.txt": [PART]})
    outcomes(url, capsys, ["runs"])
    copy, state = local_folder(url, "read"), local_folder(url, "state")
    assert (copy / "notes" / "old.txt").exists()
    state = state.with_name(f"{state.name}.read.json")
    known = json.loads(state.read_text())
    names = [os.path.relpath(canaries[0], copy), str(canaries[0]), os.path.relpath(canaries[1], copy)]
    state.write_text(json.dumps(known | dict.fromkeys(names, known["record.json"])))  # as older versions left it
    (copy / "away").symlink_to(canaries[0].parent)
    put_index(url, {"record.json": [PART]})
    outcomes(url, capsys, ["runs"])
    assert not (copy / "notes" / "old.txt").exists() and (copy / "record.json").read_bytes() == TEXT
    for content in ("[1]", "{", DEEP, '{"record.json": 3}'):
        state.write_text(content)
        assert outcomes(url, capsys, ["runs"])[0][0] in (0, 2)


def test_a_link_in_the_copy_is_not_written_through(server, url, canaries, capsys):
    for kind in ("read", "work"):
        local_folder(url, kind).mkdir(parents=True)
        (local_folder(url, kind) / "figures").symlink_to(canaries[0].parent)
    put_index(url, {"figures/canary": [PART]})
    ((code, line),) = outcomes(url, capsys, ["runs"])
    assert code == 2 and "/figures is a link" in line
    (canaries[0].parent / "draft").symlink_to(canaries[0])
    put_index(url, {"metrics.jsonl": [PART]})
    (local_folder(url, "read") / f".metrics.jsonl.{os.getpid()}.tmp").symlink_to(canaries[0])
    (local_folder(url, "read") / "metrics.jsonl").symlink_to(canaries[0])
    ((code, line),) = outcomes(url, capsys, ["runs"])
    assert code == 2 and "metrics.jsonl is a link" in line


PARTS = [
    ["../other/secret", 5, SHA], ["/etc/passwd", 5, SHA], ["index/x", 5, SHA], ["head.json", 5, SHA], ["", 5, SHA],
    ["files/../head.json", 5, SHA], ["files//x", 5, SHA], [5, 5, SHA], ["s3://other/files/x", 5, SHA],
    ["files/x", -1, SHA], ["files/x", 2**60, SHA], ["files/x", True, SHA], ["files/x", 1.5, SHA], ["files/x", "9", SHA],
    ["files/x", 10**400, SHA], ["files/x", None, SHA], ["files/x", 5, "abc"], ["files/x", 5, SHA.upper()],
    ["files/x", 5, "../" * 21 + "x"], ["files/x", 5, None], ["files/x", 5], "files/x", {"name": "files/x"}, None,
]  # fmt: skip


@pytest.mark.full
def test_a_part_that_is_not_an_object_of_the_folder_is_refused(server, url, canaries, capsys):
    for part in PARTS:
        put_index(url, {"metrics.jsonl": [part]})
        for code, line in outcomes(url, capsys):
            assert code == 2 and "was it edited?" in line and line.isprintable() and len(line) < 400, (part, line)


FILES = [None, [], "x", {"a": None}, {"a": {}}, {"a": [PART], "a/b": [PART]}, {"a": 10**400}]
RAW = [b"", b"null", b"[]", b"{", b'{"files": {}}', b'{"format": "1", "files": {}}', b"\xff\xfe", DEEP.encode(),
       b'{"format": 1, "files": {"a": [["files/x", ' + b"9" * 5000 + b', "x"]]}}']  # fmt: skip


@pytest.mark.full
def test_an_index_of_another_shape_is_refused(server, url, canaries, capsys):
    for files, content in [*((files, None) for files in FILES), *((None, content) for content in RAW)]:
        put_index(url, files, content)
        for code, line in outcomes(url, capsys):
            assert code == 2 and f"{url}/index/" in line and len(line) < 400, (files, content and content[:40], line)


HEADS = [
    {"index": "../index/x"}, {"index": "files/x"}, {"index": "/etc/passwd"}, {"index": 5}, {"index": ["index/x"]},
    {"index": "index/../head.json"}, {"index": "index/\x1b[2J"}, {"owner": 5}, {"owner": "nobody"}, {"put": None},
    {"owner": "host \x1b[2J, process 7"}, {"owner": f"host h, process {10**30}, started now"}, {"machine": 5},
    {"owner": f"host h, process {'9' * 5000}, started now"}, {"owner": "host h, process -1, started now"},
]  # fmt: skip


@pytest.mark.full
def test_an_index_as_large_as_a_large_sweep_s_is_read(server, url, canaries, capsys, monkeypatch):
    if server.scheme == "gs":
        pytest.skip("the server that stands for GCS takes no upload in parts")
    monkeypatch.setattr(client, "TIMEOUT_S", 60.0)  # a busy machine takes more than half a second for 32 MB
    content = json.dumps({"format": 1, "files": {"config.json": [PART]}}).encode()
    put_index(url, None, content + b" " * 2**25)
    assert "config.json is not JSON" in outcomes(url, capsys, ["runs"])[0][1]
    monkeypatch.setattr(download, "MOST_INDEX_BYTES", 2**20)  # of 64 MB, which the server here hardly takes
    put_index(url, None, content + b" " * 2**20)
    assert "at most 1,048,576 are read" in outcomes(url, capsys, ["runs"])[0][1]


def test_a_file_of_very_many_lost_parts_costs_few_requests(server, url, canaries, capsys, monkeypatch):
    put_index(url, {"config.json": [[f"files/none{i}", 1, PART[2]] for i in range(3000)]})
    asked, get_piece = [], client.get_piece
    monkeypatch.setattr(client, "get_piece", lambda *args: asked.append(args) or get_piece(*args))
    ((code, line),) = outcomes(url, capsys, ["checkpoint"])
    assert code == 1 and "files/none0 is missing" in line and "and at least 95 more" in line and len(asked) <= 200


def test_an_index_that_no_reader_takes_is_not_published(server, url, canaries, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "MOST_INDEX_BYTES", 1000)
        ((code, line),) = outcomes(url, capsys, ["train"])
    assert code == 1 and f"{url}: the list of its files has" in line and "checkpoint.keep_last" in line
    assert main(["train", *TINY, f"--workdir={url}"]) == 0  # uploads what waited


@pytest.mark.full
def test_a_head_of_another_shape_is_refused(server, url, canaries, capsys):
    for changes in HEADS:
        put_head(url, **changes)
        for code, line in outcomes(url, capsys):
            assert code == 2 and f"{url}/head.json" in line and "was it edited?" in line, (changes, line)
            assert line.isprintable()
    for content in (b"", b"null", DEEP.encode(), b"x" * 10**6):
        client.put(client.open_place(url), "head.json", content)
        for code, line in outcomes(url, capsys):
            assert code == 2 and f"{url}/head.json" in line, (content[:40], line)


def test_an_owners_name_is_printed_without_its_escapes(server, url, capsys):
    put_head(url, owner="host \x1b[2Jhost, process 7, started now, beating")
    ((code, line),) = outcomes(url, capsys, ["train"])
    assert code == 2 and r"is held by host \x1b[2Jhost" in line


def test_a_copy_that_the_disk_has_no_room_for_is_refused(server, url, canaries, capsys):
    put_index(url, {f"{i}.bin": [["files/x", 2**50, SHA]] for i in range(9)})
    for code, line in outcomes(url, capsys):
        assert code == 2 and f"{url} lists 10,133,099.2 GB to copy here, and " in line and "SCALELAB_CACHE" in line


def test_a_large_copy_is_announced_and_an_object_that_is_shorter_is_damaged(server, url, canaries, capsys):
    put_index(url, {"a.bin": [["files/x", 2 * 10**9, SHA]]})
    assert main(["runs", url]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"{url}: copying 2.0 GB to {local_folder(url, 'read')}"
    assert f"{url}/files/x is damaged: it has fewer than the 2,000,000,000 bytes saved" in last


def test_a_run_that_is_not_sound_leaves_the_others_of_its_folder(server, url, canaries, machine, capsys):
    good = local_folder(f"{url}/good")
    with mirror.attached(good):
        synthetic.write_run(good, lines=20)
    put_index(f"{url}/bad", {"../../canary": [PART]})
    for name in ("..%5c..", "%E2%80%AEred"):
        put_raw(server, f"{url.partition('://')[2]}/{name}/head.json")
    machine("second")
    assert main(["runs", url]) == 0
    printed = capsys.readouterr()
    assert "good" in printed.out and "bad" not in printed.out
    assert f"left out: {url}/bad/index/" in printed.err and "not a plain path below its folder" in printed.err
    assert len(printed.err.splitlines()) == 3 and all(line.isprintable() for line in printed.err.splitlines())
    put_raw(server, f"{url.partition('://')[2]}/%1b%5b2J/head.json")
    ((code, line),) = outcomes(url, capsys, ["runs"])
    if server.scheme == "gs":  # whose listing here has U+FFFD in place of the escape: it is not a run
        assert code == 0 and line.isprintable()
    else:
        assert code == 2 and line.endswith("has control characters or `..` in its name; name a run in it")


def test_links_and_pipes_in_a_run_are_not_uploaded(server, url, canaries, machine, capsys):
    folder = local_folder(url)
    synthetic.write_run(folder, lines=20)
    (folder / "secret.txt").symlink_to(canaries[0])
    (folder / "all").symlink_to(canaries[0].parent)
    os.mkfifo(folder / "pipe")
    (folder / "a\nb").write_text("a name that no reader takes")
    for step, name in ((1, "manifest.json"), (2, "state/d/array"), (3, "")):
        save_step(folder, step, b"untouched")
        if name:
            (folder / "checkpoints" / str(step) / name).unlink()
            (folder / "checkpoints" / str(step) / name).symlink_to(canaries[0])
    lines = []
    with mirror.attached(folder, report=lines.append):
        pass
    assert len(lines) == 5 and all(line.endswith("it is not uploaded") and line.isprintable() for line in lines), lines
    machine("reader")
    assert main(["runs", url]) == 0
    copied = {path.name for path in local_folder(url, "read").rglob("*")}
    assert "record.json" in copied and not copied & {"secret.txt", "all", "pipe", "a\nb"}
    main(["checkpoint", "list", url])
    assert [path.name for path in (local_folder(url, "read") / "checkpoints").iterdir()] == ["3"]


def test_train_deletes_nothing_that_a_strangers_index_names_elsewhere(server, url, canaries, capsys):
    other = client.open_place(url.rpartition("/")[0] + "/precious")
    client.put(other, "files/data", b"precious")
    put_index(url, {"metrics.jsonl": [["../precious/files/data", 8, hashlib.sha256(b"precious").hexdigest()]]})
    assert [code for code, _ in outcomes(url, capsys, ["train"])] == [2]
    assert client.get(other, "files/data") == b"precious" and not lease.HELD
    assert not pathlib.Path(local_folder(url)).exists()
