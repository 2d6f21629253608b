"""A run and what is around it: a strange path, a clock set back, secrets in the environment, network, permissions."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import ROOT, untimed

OVERRIDES = [f"--config.{key}={value}" for key, value in SMALL.items()]
SECRETS = {
    name: f"s3cr3t-{name}"
    for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
}
# Every name and address that is looked up or talked to, through Python, by one command.
NETWORK = """
import json, sys
calls = []
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        calls.append([event, str(arguments[-1])])
sys.addaudithook(hook)
from scalelab.__main__ import main
code = main(json.loads(sys.argv[1]))
import socket
before = len(calls)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9))  # the hook would have heard it
print(json.dumps({"code": code, "calls": calls[:before], "hears": len(calls) - before}))
"""


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A run under a strange path, with secrets in its environment, by a command that says where it connects to."""
    folder = tmp_path_factory.mktemp("strange") / "my runs [1]*" / "ünï 日本 '%s' {x} \\n" / ("x" * 200)
    arguments = ["train", "--config=configs/tiny.py", f"--workdir={folder}", *OVERRIDES]
    done = subprocess.run(
        [sys.executable, "-c", NETWORK, json.dumps(arguments)],
        cwd=ROOT,
        env=os.environ | SECRETS,
        text=True,
        capture_output=True,
        umask=0o022,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.slow
def test_a_strange_path_is_a_path(strange, tmp_path, capsys):
    folder = strange[0]
    whole = untimed(folder)
    shutil.rmtree(folder / "checkpoints" / "4")
    again = train_single(config(), folder)
    assert again["resumed_from"] == 2 and untimed(folder) == whole
    train_single(config(), tmp_path / "plain")
    assert untimed(tmp_path / "plain") == whole
    capsys.readouterr()
    for command in (["runs"], ["checkpoint", "verify"], ["checkpoint", "list"], ["report"]):
        assert main([*command, str(folder)]) == 0, capsys.readouterr().err
    assert main(["runs", str(folder.parent), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["name"] == folder.name and row["status"] == "done"


@pytest.mark.full
def test_no_secret_of_the_environment_is_written_or_printed(strange):
    folder, _, printed = strange
    texts = [printed.encode(), *(path.read_bytes() for path in folder.rglob("*") if path.is_file())]
    assert len(texts) > 10 and not any(b"s3cr3t" in text for text in texts)


@pytest.mark.full
def test_a_run_looks_up_no_name_and_connects_to_nothing(strange):
    assert strange[1] == {"code": 0, "calls": [], "hears": 1}


@pytest.mark.full
def test_nobody_else_may_write_what_a_run_writes_and_no_file_is_a_program(strange):
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [strange[0], *strange[0].rglob("*")]}
    assert [path for path, mode in modes.items() if mode & 0o022] == []
    assert [path for path, mode in modes.items() if path.is_file() and mode & 0o111] == []


@pytest.mark.slow
def test_a_clock_set_back_changes_neither_the_step_resumed_from_nor_the_bits(tmp_path, monkeypatch):
    """The newest checkpoint seems the oldest, and all lines are from tomorrow."""
    longer, dispatches, folder, now = config(train__steps=8), iter(range(2, 9, 2)), tmp_path / "run", time.time
    whole = train_single(longer, tmp_path / "whole")
    train_single(longer, folder, stop=lambda: next(dispatches) == 4)
    for age, step in enumerate(("2", "4")):
        os.utime(folder / "checkpoints" / step, (now() - 1000 * age, now() - 1000 * age))
    monkeypatch.setattr(time, "time", lambda: now() - 86400)
    again = train_single(longer, folder)
    assert (again["resumed_from"], again["params_digest"]) == (4, whole["params_digest"])
    assert untimed(folder) == untimed(tmp_path / "whole") and records.read_record(folder)["status"] == "done"
