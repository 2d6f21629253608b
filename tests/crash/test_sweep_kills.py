"""A sweep whose parent, workers and fork server are killed at random, with the same command at once each time."""

import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.record import owners, records
from scalelab.sweep.run import run_sweep
from scalelab.sweep.trials import load_trials
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.step import state
from tests.crash.trainer import SETTINGS, count
from tests.train.runs import PATIENCE_S, command, ended, untimed, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes of a sweep are found in /proc")
WIDTHS, STEPS = (8, 12), 1500
GRID = f"""
from scalelab.configs import tiny
get_config = tiny.get_config
def sweep(h): return h.sweep("model.d_model", {list(WIDTHS)})
"""
VALUES = SETTINGS | {
    "train.steps": STEPS, "checkpoint.every_steps": 100, "eval.every_steps": 500, "sweep.workers": 2,
}  # fmt: skip
KINDS = ("parent", "worker", "fork server")
MOST_WORKERS = 2  # killed in the life of one command: the third death of one pack is a failure by design


def start(folder: pathlib.Path) -> subprocess.Popen:
    overrides = [f"--config.{key}={value}" for key, value in VALUES.items()]
    return command(f"--config={write_grid(folder.parent)}", f"--workdir={folder}", *overrides, name="sweep")


def write_grid(place: pathlib.Path) -> pathlib.Path:
    (place / "grid.py").write_text(GRID)
    return place / "grid.py"


def result(folder: pathlib.Path) -> dict[str, object]:
    """What every trial left: metrics without times, status, and each bit of its last state."""
    results = {}
    for run in sorted((folder / "runs").iterdir()):
        record = records.read_record(run)
        width = records.read_config(run)["model"]["d_model"]
        config = config_lib.load("configs/tiny.py", VALUES | {"model.d_model": width})
        saved = Checkpoints((run / record["pack"]["checkpoints"]).resolve())
        states = saved.load({run.name: state.state_shapes(config_lib.static(config))}).states
        digest = state.params_digest(jax.device_get(states[run.name]))
        results[run.name] = record["status"], record["val_loss"], digest, untimed(run)
    return results


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed") / "s"
    trials = load_trials(str(write_grid(folder.parent)), {key: str(value) for key, value in VALUES.items()})
    assert set(run_sweep(folder, trials).values()) == {"done"}
    return result(folder)


def children(process: int) -> list[int]:
    path = pathlib.Path(f"/proc/{process}/task/{process}/children")
    try:
        return [int(number) for number in path.read_text().split()]
    except OSError:
        return []


def find(kind: str, folder: pathlib.Path, parent: int) -> list[int]:
    """The living processes of this kind that work for a command: its workers hold the locks of packs."""
    if kind == "parent":
        return [parent]
    if kind == "fork server":
        return [child for child in children(parent) if b"multiprocessing.forkserver" in _arguments(child)]
    holders = [owners.parse_owner(path.read_text()) for path in folder.glob("packs/*/.lock")]
    return [owner.process for owner in holders if owner and b"forkserver" in _arguments(owner.process)]


def _arguments(process: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def steps_logged(folder: pathlib.Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/metrics.jsonl"))


def disturb(folder: pathlib.Path, kinds: list[str], chance: random.Random) -> tuple[list[int], int]:
    """Kill one process of each kind in turn, shortly after the sweep's next step, and start the same command at once.

    Returns the exit codes of the commands that were not killed, and the number of kills.
    """
    commands, codes, workers_lost, kills = [start(folder)], [], 0, 0
    for kind in kinds:
        kind = "parent" if kind == "worker" and workers_lost == MOST_WORKERS else kind
        before, deadline = steps_logged(folder), time.monotonic() + PATIENCE_S
        while commands[0].poll() is None and time.monotonic() < deadline:
            if steps_logged(folder) != before and find(kind, folder, commands[0].pid):
                break
            time.sleep(0.02)
        time.sleep(0.3 * chance.random())
        victims = find(kind, folder, commands[0].pid) if commands[0].poll() is None else []
        if victims:
            os.kill(chance.choice(victims), signal.SIGKILL)
            count("kills")
            kills += 1
        commands.append(start(folder))
        workers_lost = 0 if kind == "parent" else workers_lost + (kind == "worker")
        if kind == "parent" and victims:
            first = commands.pop(0)
            ended(first)
            assert first.returncode == -signal.SIGKILL
        while commands[0].poll() is not None and len(commands) > 1:
            codes.append(_code(commands.pop(0)))
    return [*codes, *map(_code, commands)], kills


def _code(process: subprocess.Popen) -> int:
    _, err = ended(process)
    assert process.returncode in (0, 75), (process.returncode, err[-3000:])
    count("resumes")
    return process.returncode


def check(folder: pathlib.Path, undisturbed: dict[str, object]) -> None:
    assert result(folder) == undisturbed
    for run in (folder / "runs").iterdir():
        assert "failed" not in [event["kind"] for event in records.read_events(run)]


@pytest.mark.full
def test_a_killed_parent_worker_and_fork_server_cost_nothing_and_nobody_is_called_failed(tmp_path, undisturbed):
    chance = random.Random(39)
    kinds = list(KINDS)
    chance.shuffle(kinds)
    codes, kills = disturb(tmp_path / "s", kinds, chance)
    assert codes[-1] == 0 and kills == len(KINDS)
    check(tmp_path / "s", undisturbed)


@pytest.mark.slow
def test_workers_and_fork_server_of_a_killed_parent_save_and_end_by_themselves(tmp_path, capsys):
    folder = tmp_path / "s"
    process = start(folder)
    wait_for(lambda: steps_logged(folder) > 0, process)
    orphans = [*find("worker", folder, process.pid), *find("fork server", folder, process.pid)]
    assert len(orphans) > 1
    process.kill()
    ended(process)
    count("kills")
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_arguments, orphans)):  # of a process that has ended, reaped or not, they are empty
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert main(["sweep", f"--workdir={folder}", "--status", "--json"]) == 0
    statuses = {row["status"] for row in json.loads(capsys.readouterr().out)["trials"]}
    assert "stopped" in statuses and statuses <= {"stopped", "waiting"}


@pytest.mark.crash
def test_thirty_random_kills_of_a_sweep_end_in_0_or_75_and_the_exact_result(tmp_path, undisturbed):
    chance, left = random.Random(30), 30
    for number in itertools.count():
        folder = tmp_path / str(number) / "s"
        folder.parent.mkdir()
        kinds = [chance.choice(KINDS) for _ in range(min(left, chance.randint(3, 6)))]
        codes, kills = disturb(folder, kinds, chance)
        assert codes[-1] == 0
        check(folder, undisturbed)
        left -= kills
        if left <= 0:
            return
