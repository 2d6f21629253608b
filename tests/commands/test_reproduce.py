"""`scalelab reproduce` end to end: the table, its JSON, its refusals, and downloads from a server that may lie."""

import functools
import hashlib
import http.server
import json
import threading

import pytest

from scalelab.__main__ import main
from scalelab.laws.published import download
from scalelab.laws.published.download import Source
from tests.tables import TABLES, table_path

VERDICTS = {"match", "within_interval", "lower_objective", "published_not_global", "table_error", "mismatch"}
CONTENT = b"N,D,loss\n" + b"1,2,3\n" * 40_000


def test_the_table_and_its_json(tmp_path, capsys):
    table_path("published.json")
    assert main(["reproduce", "kaplan", f"--data={TABLES}", f"--json={tmp_path / 'out.json'}"]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text())
    assert {"name", "ours", "published", "interval", "verdict", "recipe"} <= set(result["rows"][0])
    for row in result["rows"]:
        assert row["verdict"] in VERDICTS and row["recipe"] in printed and row["name"] in printed
    assert result["findings"] and all(f"FOUND: {finding['text']}" in printed for finding in result["findings"])


def test_json_to_standard_output_is_all_there_is(capsys):
    table_path("published.json")
    assert main(["reproduce", "chinchilla", f"--data={TABLES}", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) > 60


def test_a_number_that_does_not_come_out_is_exit_1(tmp_path, capsys):
    """One loss of the table changed: the 240 points no longer give the published law."""
    text = table_path("chinchilla/points.csv").read_text().splitlines()
    text[100] = text[100].rpartition(",")[0] + ",2.0"
    (tmp_path / "chinchilla").mkdir()
    (tmp_path / "chinchilla" / "points.csv").write_text("\n".join(text))
    assert main(["reproduce", "besiroglu", f"--data={tmp_path}"]) == 1
    assert "mismatch [" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kaplin", "--data=."], "did you mean 'kaplan'"),
        (["--data=."], "no paper; known: all, besiroglu"),
        (["kaplan"], "--data=DIR is needed"),
        (["kaplan", "--data=/no/such"], "no such folder"),
        (["all", "--data=EMPTY"], "no table 'EMPTY/chinchilla/points.csv'"),
        (["kaplan", "--data=EMPTY", "--jsn"], "did you mean '--json'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    monkeypatch.setattr("scalelab.commands.reproduce.PRINT_EVERY_S", float("inf"))
    assert main(["reproduce", *arguments]) == 2
    assert message in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_a_damaged_table_is_one_line(tmp_path, capsys):
    (tmp_path / "chinchilla").mkdir()
    (tmp_path / "chinchilla" / "points.csv").write_text("Model Size,Training FLOP,loss\n1e9,many,3\n")
    assert main(["reproduce", "besiroglu", f"--data={tmp_path}"]) == 2
    assert "'many'" in capsys.readouterr().err
    (tmp_path / "chinchilla" / "points.csv").write_text("N,C,loss\n1e9,2,3\n")
    assert main(["reproduce", "besiroglu", f"--data={tmp_path}"]) == 2
    assert "no column 'Model Size'" in capsys.readouterr().err


@pytest.fixture
def server(tmp_path):
    """A local web server of one folder: (its address, the folder)."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "good.csv").write_bytes(CONTENT)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path != "/cut.csv":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000])  # and the connection closes

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


def test_download_keeps_what_is_right_and_nothing_else(server, tmp_path, monkeypatch, capsys):
    right = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setattr(download, "MANUAL_SOURCES", {})
    files = {
        "a/good.csv": Source(f"{server}/good.csv", right),
        "a/wrong.csv": Source(f"{server}/good.csv", "0" * 64),
        "a/cut.csv": Source(f"{server}/cut.csv", right),
        "a/absent.csv": Source(f"{server}/absent.csv", right),
    }
    monkeypatch.setattr(download, "DOWNLOADABLE_FILES", files)
    assert main(["reproduce", f"--download={tmp_path / 'data'}"]) == 1
    output = capsys.readouterr()
    assert (tmp_path / "data" / "a" / "good.csv").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "data" / "a").iterdir()] == ["good.csv"]  # no draft, no wrong file
    assert "a/good.csv: fetched and verified" in output.out
    failures = [line for line in output.err.splitlines() if line.startswith("scalelab: ")]
    assert len(failures) == 3 and "has SHA-256" in failures[0] and "not found" in failures[2]
    monkeypatch.setattr(download, "DOWNLOADABLE_FILES", {"a/good.csv": Source("http://127.0.0.1:9/never", right)})
    assert main(["reproduce", "--download", f"--data={tmp_path / 'data'}"]) == 0
    assert "already there" in capsys.readouterr().out


def test_a_wrong_file_does_not_replace_a_good_one(server, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old\n")
    with pytest.raises(download.DownloadError, match="not kept"):
        download.download_file(Source(f"{server}/good.csv", "0" * 64), path, lambda _: None)
    assert path.read_text() == "old\n"


def test_what_cannot_be_fetched_is_named_with_its_source(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "DOWNLOADABLE_FILES", {})
    assert main(["reproduce", f"--download={tmp_path}"]) == 1
    output = capsys.readouterr().err.splitlines()
    assert len(output) == len(download.MANUAL_SOURCES) and all(line.startswith("scalelab: ") for line in output)
    assert all(any(name in line and "its source" in line for line in output) for name in download.MANUAL_SOURCES)


def test_pinned_hashes_are_those_of_the_shared_tables():
    for name, source in download.DOWNLOADABLE_FILES.items():
        assert download.has_valid_copy(source, table_path(name)), name
        assert len(source.url.split("/")[5]) == 40  # a commit, not a branch
