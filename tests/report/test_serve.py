"""The live pages: those of `write_report`, new when files change, for this machine alone."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.report import serve
from scalelab.report.pages import write_report
from tests.report import synthetic
from tests.train.runs import PATIENCE_S, hear_signals


@pytest.fixture
def restless(monkeypatch):
    monkeypatch.setattr(serve, "LEAST_REST_S", 0.0)
    monkeypatch.setattr(serve, "REST_SHARE", 0.0)


@pytest.fixture
def started():
    """Function that serves a folder and returns its server; all end with the test."""
    servers = []

    def start(folder):
        server = serve.LiveServer(folder, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path, host=None, method="GET"):
    """(status, headers, body) of one request, its path sent as it stands."""
    connection = http.client.HTTPConnection(serve.ADDRESS, server.server_port, timeout=PATIENCE_S)
    connection.request(method, path, headers={"Host": host or f"localhost:{server.server_port}"})
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    return reply.status, reply.headers, content


def without_live_parts(page):
    """The page without what the server adds: an icon, the live line, links between pages, the script."""
    page = page.replace('<link rel="icon" href="data:,">', "").replace(serve.SCRIPT, "")
    return re.sub(r'<p class="soft" id="live".*?</p>(<p class="soft"><a.*?</p>|<details>.*?</details>)?', "", page)


@pytest.fixture
def sweep(tmp_path):
    for name, peak_lr in (("low", 1e-3), ("high & <b>", 2e-3)):
        synthetic.write_run(tmp_path / "runs" / name, status="running", peak_lr=peak_lr, lines=8)
    return tmp_path


def test_the_page_of_a_sweep_is_that_of_the_report_with_links_to_its_trials(sweep, started):
    server = started(sweep)
    status, _, page = ask(server, "/")
    write_report(sweep)
    assert status == 200 and without_live_parts(page) == (sweep / "report.html").read_text()
    assert 'href="runs/high%20%26%20%3Cb%3E/">high &amp; &lt;b&gt;</a>' in page
    status, headers, table = ask(server, "/figures/training_loss.csv")
    assert status == 200 and table.splitlines() == (sweep / "figures/training_loss.csv").read_text().splitlines()
    assert headers["Content-Type"].startswith("text/csv")


@pytest.mark.full
def test_a_trial_that_goes_on_has_a_new_version_and_page(sweep, started, restless):
    run, place = sweep / "runs" / "high & <b>", "/runs/high%20%26%20%3Cb%3E/"
    server = started(sweep)
    before, page = ask(server, f"{place}version")[2], ask(server, place)[2]
    assert f'data-version="{before}"' in page and "status: running" in page
    assert ask(server, f"{place}version")[2] == before and 'href="../../"' in page
    synthetic.finish_run(run)
    after, page = ask(server, f"{place}version")[2], ask(server, place)[2]
    assert after != before and f'data-version="{after}"' in page and "This run is done." in page
    assert without_live_parts(page) == (run / "report.html").read_text()


@pytest.mark.parametrize("change", ["a line", "a trial", "the list of trials"])
def test_the_state_is_that_of_every_file_the_page_is_made_of(sweep, change):
    before = serve.read_state(sweep)
    assert serve.read_state(sweep) == before
    if change == "a line":
        with (sweep / "runs" / "low" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 9000}) + "\n")
    elif change == "a trial":
        synthetic.write_run(sweep / "runs" / "third", lines=2)
    else:
        records.write_json(sweep / "sweep.json", {"trials": {"low": 1}})
    assert serve.read_state(sweep) != before


def test_a_page_rests_after_it_was_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(serve, "write_report", lambda folder: drawn.append(folder) or {"path": tmp_path / "page"})
    (tmp_path / "page").write_text("<head><main></body>")
    page = serve.LivePage(tmp_path)
    version = page.read() and page.version
    synthetic.write_run(tmp_path / "runs" / "a", lines=2)
    assert page.read_version() == version and page.read() and len(drawn) == 1
    page.rests_until = 0.0
    assert page.read_version() != version and page.read() and len(drawn) == 2


def test_what_cannot_be_drawn_yet_says_why(tmp_path, started):
    records.write_json(tmp_path / "sweep.json", {"trials": {"a": 10}})
    status, _, page = ask(started(tmp_path), "/")
    assert status == 200 and "no page yet" in page and "holds no run" in page and "location.reload" in page


def test_nothing_but_pages_and_their_files_is_served_and_only_to_this_machine(sweep, started):
    server = started(sweep)
    assert server.socket.getsockname()[0] == "127.0.0.1"
    (sweep / "secret.csv").write_text("1")
    (sweep / "figures").mkdir()
    for path in ("/sweep.json", "/secret.csv", "/figures/../secret.csv", "/figures/..%2fsecret.csv", "/figures/..",
                 "/figures/", "/runs/low/config.json", "/runs/../", "/runs/..%2f..%2f/", "/runs/none/", "/runs/low",
                 "//secret.csv", "/report.html/../secret.csv"):  # fmt: skip
        assert ask(server, path)[0] == 404, path
    for host in ("example.org", f"example.org:{server.server_port}", "127.0.0.1.example.org", "", "[::1]"):
        assert ask(server, "/version", host or " ")[0] == 403, host
    assert ask(server, "/version", "LOCALHOST:9")[0] == 200, "the port differs behind a tunnel"
    assert ask(server, "/", method="POST")[0] == 501
    assert "default-src 'none'" in ask(server, "/version")[1]["Content-Security-Policy"]


def test_ports_and_options_that_cannot_be_are_refused_in_a_line(sweep, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for arguments, why in (
            ([f"--serve={port}", "--status"], f"--serve={port}: address already in use; --serve=0 takes a port"),
            (["--serve=70000", "--status"], "--serve=70000 is not a port: 1 to 65535"),
            (["--serve=-1", "--status"], "--serve=-1 is not a port"),
            (["--serve=x", "--status"], "invalid int value: 'x'"),
            (["--serve=0"], "--serve trains nothing: write it with --status"),
            (["--serve=0", "--follow", "--status"], "two commands can run side by side"),
        ):
            assert main(["sweep", f"--workdir={sweep}", *arguments]) == 2
            error = capsys.readouterr().err
            assert why in error and error.count("\n") == 1
    for place in (sweep / "none", "s3://bucket"):
        assert main(["sweep", "--status", "--serve=0", f"--workdir={place}"]) == 2
        assert str(place) in capsys.readouterr().err


@pytest.mark.full
def test_interrupting_ends_the_command_without_a_word(sweep):
    command = [sys.executable, "-m", "scalelab", "sweep", "--status", "--serve=0", f"--workdir={sweep}"]
    with hear_signals():
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=unbuffered)
    line = process.stderr.readline()
    port = int(re.search(r"http://127.0.0.1:(\d+)/ shows", line)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/version")
    assert connection.getresponse().status == 200
    connection.close()
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "" and process.wait(timeout=PATIENCE_S) == 0
    process.stderr.close()
