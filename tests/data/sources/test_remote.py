"""Sources elsewhere, from a server started here: files over http, and a data set by the protocol of the Hub."""

import hashlib
import http.server
import json
import pathlib
import threading

import pytest

from scalelab.data.prepare import corpus, specs, validation
from scalelab.data.prepare.request import Request
from scalelab.data.read.reading import Reading
from scalelab.data.sources import remote
from scalelab.errors import BadInput, WorkFailed
from tests.data import corpora

DOCUMENTS = corpora.texts(60)
LINES = corpora.json_lines(DOCUMENTS)
COMMIT = "a" * 40
REPO = "/datasets/ann/docs/resolve/" + COMMIT
FILES = {
    "data/a.jsonl": LINES,
    "data/b.jsonl": corpora.json_lines(["x", "y"]),
    "data/deep/c.jsonl": b"",
    "README.md": b"#",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, whole):
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.command, path))
        if path in ("/api/datasets/ann/docs", "/api/datasets/ann/docs/revision/main"):
            siblings = [{"rfilename": name} for name in FILES]
            return self.send(json.dumps({"id": "ann/docs", "sha": COMMIT, "siblings": siblings}).encode(), whole)
        if path.startswith(REPO) and (content := FILES.get(path.removeprefix(REPO + "/"))) is not None:
            return self.send(content, whole, {"X-Repo-Commit": COMMIT})
        if path in server.files:
            return self.send(server.files[path], whole)
        return self.send(b"no", whole, {"X-Error-Code": "RepoNotFound"} if "/api/" in path else {}, 404)

    def send(self, content, whole, headers=None, status=200):
        self.send_response(status)
        etag = hashlib.sha1(content).hexdigest()
        length = len(content) + self.server.lie
        for name, value in {"ETag": f'"{etag}"', "Content-Length": length, **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if whole:
            self.wfile.write(content)


@pytest.fixture
def server(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.lie = {"/d/a.jsonl": LINES}, [], 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def read(spec):
    (part,) = specs.parse_sources([spec])
    units = specs.split_into_units(part, specs.part_bytes(part), Reading())
    return part, [document.decode() for unit in units for document in specs.unit_documents(unit, Reading())]


def test_a_file_of_a_server_is_read_once_and_again_when_it_has_changed(server, tmp_path):
    url = f"{server.url}/d/a.jsonl"
    part, documents = read(f"{url}?download=true#text?id<=20")
    assert documents == DOCUMENTS[:21] and part.name == "a" and part.kinds == ("jsonl",)

    def prepare(out):
        return corpus.prepare_corpus(Request([f"web={url}"], "bytes", tmp_path / out))

    first = prepare("out")
    (kept,) = (path for path in (tmp_path / "cache").rglob("a.jsonl") if f"{part.paths[0]}" != str(path))
    kept.touch()  # a copy's time says nothing
    assert prepare("out")["fingerprint"] == first["fingerprint"]
    server.files["/d/a.jsonl"] = corpora.json_lines(DOCUMENTS[::-1])
    with pytest.raises(BadInput, match=r"was begun before http://.* was changed, added or gone"):
        prepare("out")
    assert read(url)[1] == DOCUMENTS[::-1]


def test_a_data_set_of_the_hub_is_read_at_its_commit(server):
    part, documents = read("hf://datasets/ann/docs/data/*.jsonl")
    assert documents == [*DOCUMENTS, "x", "y"]
    assert part.origins == tuple(f"hf://datasets/ann/docs@{COMMIT}/data/{name}.jsonl" for name in "ab")
    server.asked.clear()
    assert read("hf://datasets/ann/docs@main/data/a.jsonl")[1] == DOCUMENTS
    assert not [path for method, path in server.asked if method == "GET" and "resolve" in path]  # from the cache


def test_files_of_the_hub_whose_names_say_test_are_asked_about(server, monkeypatch):
    monkeypatch.setitem(FILES, "more/test-0.jsonl", LINES)
    monkeypatch.setitem(FILES, "more/train-0.jsonl", LINES)
    with pytest.raises(
        BadInput, match=r"--val-source=hf:.*/docs@a+/more/test-0.jsonl --source=hf:.*/more/train-0.jsonl makes"
    ):
        validation.parse_parts(["hf://datasets/ann/docs/more/*.jsonl"], [], False)
    assert len(validation.parse_parts(["hf://datasets/ann/docs/more/train*.jsonl"], [], False)) == 1


def test_what_is_not_there_is_refused_in_one_line(server):
    for spec, message in {
        f"{server.url}/d/b.jsonl": "the server answers 404",
        f"{server.url}/d/": "ends in no file's name",
        "hf://datasets/ann/docs/data/aa.jsonl": "matches no file; did you mean 'data/a.jsonl'",
        "hf://datasets/ann/docs": r"did you mean hf://datasets/ann/docs/\*\*/\*.jsonl\?",
        "hf://ann/docs/a.jsonl": r"is not hf://datasets/OWNER/NAME",
        "hf://datasets/ann/other/a.jsonl": "HF_TOKEN",
        "https://[h/a.jsonl": "is not an address: Invalid IPv6 URL",
        "s3://bucket/a.jsonl": "s3:// is not read; https:// and hf:// are",
    }.items():
        with pytest.raises(BadInput, match=message) as refusal:
            specs.parse_sources([spec])
        assert "\n" not in str(refusal.value)
    with pytest.raises(BadInput, match=r"2 faults: .*404.*; .*s3://"):
        specs.parse_sources([f"{server.url}/d/b.jsonl", "s3://bucket/a.jsonl"])


def test_a_file_that_breaks_off_is_not_kept(server, tmp_path):
    server.lie = 7
    with pytest.raises(WorkFailed, match=r"can't be fetched|broke off"):
        remote.fetch(f"{server.url}/d/a.jsonl")
    assert not [path for path in pathlib.Path(tmp_path / "cache").rglob("*") if path.is_file()]
    server.lie = 0
    assert read(f"{server.url}/d/a.jsonl")[1] == DOCUMENTS
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    with pytest.raises(WorkFailed, match=r"can't be fetched: .*; the same command goes on"):
        remote.fetch(f"http://127.0.0.1:{port}/a.jsonl")
