"""The commands on URLs: what they print, and their exit codes."""

import datetime
import json
import signal
import time
import types

import pytest

from scalelab import lock, records
from scalelab.__main__ import main
from scalelab.index import waiting
from scalelab.stores import client, lease, mirror
from scalelab.stores.urls import local_folder
from tests.crash.trainer import overrides
from tests.report import synthetic

pytestmark = pytest.mark.usefixtures("machine")
S3 = pytest.mark.parametrize("server", ["s3"], indirect=True)
TINY = [
    "--config=configs/tiny.py",
    *overrides(**{"train.steps": 2, "eval.every_steps": 2, "checkpoint.every_steps": 2}),
]


def run(capsys, *argv: str) -> tuple[int, str, list[str]]:
    """(exit code, standard output, lines of standard error) of a command."""
    code = main(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err.strip().splitlines()


def test_a_bucket_that_is_not_there_is_one_line_and_exit_2(server, capsys):
    url = f"{server.scheme}://nobucket/run"
    for argv in (["train", *TINY, f"--workdir={url}"], ["prepare", "--source=x", "--tokenizer=bytes", f"--out={url}"]):
        code, _, lines = run(capsys, *argv)
        assert code == 2 and lines[-1] == f"scalelab: {url}: there is no bucket 'nobucket'"


@S3
def test_a_sweep_in_a_store_is_extended_from_another_machine(server, url, machine, capsys, tmp_path):
    file = tmp_path / "grid.py"

    def sweep(rates):
        file.write_text(
            "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
            f"def sweep(h): return h.sweep('optim.peak_lr', {rates})\n"
        )
        code, out, _ = run(capsys, "sweep", f"--config={file}", f"--workdir={url}", *TINY[1:], "--json")
        result = json.loads(out.splitlines()[-1])
        return code, {row["name"]: row["val_loss"] for row in result["trials"]}, result["answer"]["left_out"]

    code, first, _ = sweep([2e-3, 4e-3])
    assert code == 0 and list(first) == ["peak_lr=0.002", "peak_lr=0.004"]
    machine("second")
    code, grown, left_out = sweep([1e-3, 2e-3])
    assert code == 0 and list(grown) == ["peak_lr=0.001", "peak_lr=0.002"] and left_out == ["peak_lr=0.004"]
    assert grown["peak_lr=0.002"] == first["peak_lr=0.002"]
    kinds = [event["kind"] for event in records.read_events(local_folder(url) / "runs" / "peak_lr=0.002")]
    assert kinds.count("start") == 1 and "resume" not in kinds
    machine("third")
    _, out, _ = run(capsys, "runs", url, "--by=optim.peak_lr")
    assert "1 trial of an earlier grid is left out of the answer: peak_lr=0.004" in out
    _, out, _ = run(capsys, "sweep", f"--workdir={url}", "--status", "--all-grids")
    assert "earlier grid" not in out and "0.004" in out


@S3
def test_a_folder_that_holds_nothing_and_an_option_that_takes_no_url_are_refused(server, url, capsys):
    for argv in (["runs", url], ["report", url], ["checkpoint", "verify", url], ["fit", url, "--law=chinchilla"]):
        code, _, lines = run(capsys, *argv)
        assert code == 2 and lines == [f"scalelab: {url} holds nothing that scalelab wrote, nor do the folders in it"]
    code, _, lines = run(capsys, "eval", url)
    assert (code, lines) == (
        2,
        [f"scalelab: {url}: `scalelab eval` doesn't read object stores here; give a local folder"],
    )
    code, _, lines = run(capsys, "export", "hf", "runs/x", f"--out={url}")
    assert code == 2 and "is in an object store; name a local folder" in lines[-1]
    code, _, lines = run(capsys, "train", *TINY, "--workdir=s3://bucket")
    assert code == 2 and "is not a folder in a bucket, e.g. s3://bucket/runs/mine" in lines[-1]


@S3
def test_a_corpus_is_prepared_in_a_store_and_trained_on_from_there(server, url, machine, capsys, tmp_path):
    for i in range(8):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * 60)
    prepare = ["prepare", f"--source={tmp_path}/*.txt", "--tokenizer=bytes", "--val-fraction=0.3", "--json"]
    code, out, _ = run(capsys, *prepare, f"--out={url}/corpus")
    here = json.loads(out)
    assert code == 0 and here["folder"] == f"{url}/corpus"
    code, out, _ = run(capsys, *prepare, f"--out={tmp_path}/corpus")
    assert code == 0 and json.loads(out)["fingerprint"] == here["fingerprint"]
    machine("second")
    code, out, _ = run(capsys, *prepare, f"--out={url}/corpus")
    assert code == 0 and json.loads(out)["finished_before"]
    digests = []
    for path in (f"{url}/corpus", f"{tmp_path}/corpus", f"{url}/corpus"):
        server.faults.log.clear()
        data = ["--config.data.source=prepared", f"--config.data.path={path}"]
        code, out, _ = run(capsys, "train", *TINY, *data, f"--workdir={tmp_path}/run{len(digests)}", "--json")
        assert code == 0
        digests.append(json.loads(out)["params_digest"])
    assert len(set(digests)) == 1
    assert not [path for _, path, _ in server.faults.log if "/files/" in path]  # the third came from the cache


@pytest.mark.slow
def test_a_sweep_in_a_store_is_read_and_resumed_from_another_machine(server, url, machine, capsys, tmp_path):
    sweep = ["sweep", "--config=lr_seeds", *TINY[1:]]
    losses = {}
    for folder in (str(tmp_path / "sweep"), url):
        assert run(capsys, *sweep, f"--workdir={folder}")[0] == 0
        machine("second")
        _, out, _ = run(capsys, "runs", folder, "--json")
        losses[folder] = {row["name"]: row["val_loss"] for row in json.loads(out)}
        machine("first")
    assert len(losses[url]) > 3 and losses[url] == losses[str(tmp_path / "sweep")]
    machine("third")
    _, out, _ = run(capsys, "sweep", f"--workdir={url}", "--status", "--json")
    assert {row["name"] for row in json.loads(out)["trials"]} == losses[url].keys()
    assert run(capsys, "checkpoint", "verify", url)[0] == 0
    assert run(capsys, *sweep, f"--workdir={url}")[0] == 0
    assert {path.name for path in (local_folder(url) / "runs").iterdir()} == losses[url].keys()


@S3
def test_a_second_sweep_in_a_store_waits_for_the_first_until_it_has_left_or_a_signal_comes(
    server, url, monkeypatch, capsys, tmp_path
):
    (tmp_path / "grid.py").write_text(
        "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
        "def sweep(h): return h.sweep('train.seed', [0])\n"
    )
    sweep = ["sweep", f"--config={tmp_path / 'grid.py'}", f"--workdir={url}", *TINY[1:]]
    first, _ = lease.take_lease(client.open_place(url))
    sleeps = []

    def wait(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 15:
            signal.raise_signal(signal.SIGTERM)
        if len(sleeps) == 35:
            first.release()

    monkeypatch.setattr(waiting, "time", types.SimpleNamespace(sleep=wait))
    code, _, lines = run(capsys, *sweep)
    (line,) = [line for line in lines if "waits until it is free" in line]
    assert code == 75 and line.startswith(f"{url} is held by host") and "its last sign of life was" in line
    assert len(sleeps) == 15 and not local_folder(url).exists()
    code, _, lines = run(capsys, *sweep)
    assert code == 0 and len(sleeps) == 35 and lines[-1] == "1 trials: 1 done"


@S3
def test_a_run_in_a_store_lives_while_its_lease_beats_and_is_dead_since_then(url, machine, capsys, monkeypatch):
    def read_row():
        machine("reader")
        (row,) = json.loads(run(capsys, "runs", url, "--json")[1])
        machine("first")
        return row["status"], row["dead_since"]

    with mirror.attached(local_folder(url)):
        synthetic.write_run(local_folder(url), lines=6, status="running")
    assert read_row()[0] == "dead"  # released by a process that did not end its run
    left, _ = lease.take_lease(client.open_place(url))
    assert read_row() == ("running", None)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + lock.LEASE_S + lease.MOST_SKEW_S + 10)
    status, since = read_row()
    assert status == "dead" and abs(datetime.datetime.fromisoformat(since).timestamp() - clock()) < 60
    monkeypatch.setattr(time, "time", clock)
    left.release()
