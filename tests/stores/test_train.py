"""Real training on stores with faults: the bits of a run that had no store; kills, other machines, two writers."""

import functools
import os
import pathlib
import re
import signal
import socket
import time

import pytest

from scalelab.stores import client
from scalelab.stores.copies import copy_here
from scalelab.stores.lease import read_head
from scalelab.stores.urls import local_folder
from scalelab.train.checkpoints import manifest
from tests.crash import trainer
from tests.crash.trainer import Cue, end, result, said, start, wait_for
from tests.train.runs import untimed

STEP_4_WAITS = r"rename .*/8\.tmp$"  # before the second save is committed: by then the first was uploaded


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run leaves that had no store."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert end(start(folder)) == 0, said(folder)
    return trainer.left(folder)


@pytest.fixture
def go(server, machine, tmp_path, monkeypatch):
    """Go to a machine by its name: this process and those that it starts."""

    def to(name):
        machine(name)
        monkeypatch.setattr(trainer, "ENVIRONMENT", server.environment | {"SCALELAB_CACHE": str(tmp_path / name)})

    to("first")
    return to


def die_later(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def lines(folder: pathlib.Path) -> list[str]:
    """What a process said about its store."""
    return [line for line in said(folder).splitlines() if "://" in line and ": done at step" not in line]


def check_store_has(url: str, whole: dict) -> None:
    """A reader on an empty machine gets every bit of the undisturbed run, in logs, record and checkpoint."""
    folder = copy_here(url, checkpoints=True, fresh=True)
    assert untimed(folder) == whole["metrics"]
    steps = manifest.list_steps(folder / "checkpoints")
    assert steps == whole["steps"] and not manifest.find_step_problems(folder / "checkpoints" / str(steps[-1]))
    assert trainer.state_digest(folder / "checkpoints") == whole["state"]


def run_on_two_machines(url: str, go, server, fault: tuple[str, int]) -> pathlib.Path:
    """Train with faults, killed before the second save; then to the end on a machine that has nothing."""
    server.faults.hang_s = 1.2
    server.strike(*fault)
    killed = start(local_folder(url), Cue(STEP_4_WAITS, act=functools.partial(die_later, 4.0)))
    assert end(killed) == -signal.SIGKILL
    go("second")
    assert end(start(local_folder(url))) == 0, said(local_folder(url))
    assert server.faults.struck
    server.heal()
    return local_folder(url)


S3 = pytest.mark.parametrize("server", ["s3"], indirect=True)


@S3
def test_killed_amid_faults_a_run_goes_on_bit_for_bit_on_an_empty_machine(server, url, go, whole):
    folder = run_on_two_machines(url, go, server, ("lie", 3))
    assert result(folder)["resumed_from"] == 4 and "died without releasing it" in lines(folder)[0]
    assert trainer.left(folder) == whole
    go("reader")
    check_store_has(url, whole)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [("error", 3), ("lie", 2), ("hang", 12)], ids=["5xx", "lies", "hangs"])
def test_killed_amid_any_fault_a_run_goes_on_bit_for_bit_on_an_empty_machine(server, url, go, whole, fault):
    assert trainer.left(run_on_two_machines(url, go, server, fault)) == whole
    go("reader")
    check_store_has(url, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gone", "expired"])
def test_a_store_that_fails_for_good_costs_no_step_and_the_same_command_uploads_all(server, url, go, whole, kind):
    folder = local_folder(url)
    server.faults.hang_s = 0.0
    process = start(folder, Cue(STEP_4_WAITS, act=functools.partial(time.sleep, 2.0)))
    wait_for(lambda: (folder / "checkpoints" / "4").exists(), process)
    server.strike(kind)
    assert end(process) == 1
    assert len(lines(folder)) == 2 and lines(folder)[-1].endswith("the same command uploads it")
    assert trainer.untimed(folder) == whole["metrics"]
    server.heal()
    assert end(start(folder)) == 0, said(folder)
    check_store_has(url, whole)


@S3
def test_of_two_writers_exactly_one_wins(server, url, go, whole, note_line):
    first = start(local_folder(url))
    wait_for(lambda: read_head(client.open_place(url)) is not None, first)
    os.kill(first.pid, signal.SIGSTOP)  # so that it surely lives when the second comes
    winner = local_folder(url)
    go("second")
    assert end(start(local_folder(url))) == 2
    (line,) = lines(local_folder(url))
    note_line(line)
    owner = f"is held by host {socket.gethostname()}, process {first.pid}"
    assert owner in line and re.search(r"its last sign of life was \d+ s ago", line)
    assert not local_folder(url).exists()
    os.kill(first.pid, signal.SIGCONT)
    assert end(first) == 0
    assert trainer.untimed(winner) == whole["metrics"]
    check_store_has(url, whole)


@pytest.mark.slow
@S3
def test_a_writer_whose_lease_was_taken_over_ends_and_harms_nothing(server, url, go, whole, note_line):
    suspended = start(local_folder(url), Cue(STEP_4_WAITS, act=functools.partial(time.sleep, 60.0)))
    wait_for(lambda: (local_folder(url) / "checkpoints" / "4").exists(), suspended)
    place = client.open_place(url)
    content, version, _ = read_head(place)
    client.put_if(
        place, "head.json", b'{"format": 1, "owner": null, "index": null, "put": ""}', version
    )  # as a person who is sure would
    assert end(suspended) == 1
    assert lines(local_folder(url))[-1].endswith("was taken over by another process; this process ends")
    assert content["owner"]
    note_line(lines(local_folder(url))[-1])
    go("second")
    assert end(start(local_folder(url))) == 0
    check_store_has(url, whole)


@pytest.mark.full
@S3
def test_tensorstore_reads_a_checkpoint_where_it_lies(server, url, go, whole):
    """Orbax's own files: its array library opens them in the store, without scalelab."""
    import tensorstore

    assert end(start(local_folder(url))) == 0, said(local_folder(url))
    (name,) = [n for n in client.list_names(client.open_place(url), "files") if n.endswith("state/manifest.ocdbt")]
    path = f"{url.removeprefix('s3://bucket/')}/{name.removesuffix('manifest.ocdbt')}"
    base = {"driver": "s3", "bucket": "bucket", "path": path, "endpoint": server.url, "aws_region": "us-east-1"}
    in_store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    local = {"driver": "file", "path": f"{local_folder(url)}/checkpoints/8/state/"}
    here = tensorstore.KvStore.open({"driver": "ocdbt", "base": local}).result()
    keys = here.list().result()
    assert len(keys) > 10 and sorted(in_store.list().result()) == sorted(keys)
    assert all(in_store.read(key).result().value == here.read(key).result().value for key in keys)
