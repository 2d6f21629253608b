"""The bounded pool: packs in processes of their own, crashes that stay there, signals that reach all."""

import multiprocessing
import os
import pathlib
import signal
import socket

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.sweep import status
from scalelab.sweep.executors import pool
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.single import train_single
from tests.sweep.test_pack import TINY
from tests.train.runs import command, finish, untimed, wait_for

GRID = """
from scalelab.configs import tiny
get_config = tiny.get_config
def sweep(h): return h.sweep("model.d_model", [16, 24])
"""


def widths(**changes):
    return {
        f"d{d}": config_lib.resolve(override(tiny.get_config(), TINY | {"model.d_model": d} | changes))
        for d in (16, 24)
    }


@pytest.mark.full
def test_trials_of_different_shapes_run_in_processes_and_equal_themselves_alone(tmp_path):
    code = {"user": {"folder": "/mine", "commit": "a1", "dirty": True, "diff_sha256": "b2"}}
    assert run_sweep(tmp_path, widths(**{"sweep.workers": 2}), code=code) == {"d16": "done", "d24": "done"}
    assert records.read_record(tmp_path / "runs" / "d24")["git"] == code  # as this process saw it
    train_single(widths()["d24"], tmp_path / "alone")
    packed, single = untimed(tmp_path / "runs" / "d24"), untimed(tmp_path / "alone")
    assert [line.keys() for line in packed] == [line.keys() for line in single]
    # Not bit for bit: a worker has its share of the cores, and sums are cut by thread.
    assert abs(packed[-1]["val_loss"] - single[-1]["val_loss"]) < 1e-4


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.full)])
def test_a_crash_in_one_process_leaves_the_others_alone_and_says_why(tmp_path, workers):
    trials = widths(**{"sweep.workers": workers})
    (tmp_path / "runs" / "d16").mkdir(parents=True)
    (tmp_path / "runs" / "d16" / "config.json").write_text("{ cut short")
    assert run_sweep(tmp_path, trials) == {"d16": "failed", "d24": "done"}
    event = records.read_events(tmp_path / "runs" / "d16")[-1]
    assert event["kind"] == "failed" and "is not JSON" in event["text"]


def deadly(step, h):
    """A schedule that kills the worker that asks for it."""
    if multiprocessing.parent_process():
        os.kill(os.getpid(), signal.SIGKILL)
    return h.optim.peak_lr * (step >= 0)


def test_a_worker_that_is_killed_costs_its_own_trial_and_the_next_ones_leave_no_trace_on_each_other(tmp_path):
    """One worker for all: five packs of two programs, and one that kills it, in the middle."""
    shape = {"model.d_model": 24, "sweep.workers": 1}
    short, deaths = {"train.steps": 20}, {"schedule.name": "tests.sweep.executors.test_pool:deadly", "train.steps": 25}
    points = {"a": {}, "b": short, "deadly": deaths, "c": shape, "d": shape | short}
    trials = {
        name: config_lib.resolve(override(tiny.get_config(), TINY | {"sweep.workers": 1} | p))
        for name, p in points.items()
    }
    notes: list[dict] = []
    verdicts = run_sweep(tmp_path / "all", trials, notes.append)
    assert verdicts == {name: "failed" if name == "deadly" else "done" for name in points}
    events = records.read_events(tmp_path / "all" / "runs" / "deadly")
    assert (events[-1]["kind"], events[-1]["text"]) == ("failed", "killed by SIGKILL 3 times (out of memory?)")
    texts = [note["warning"].partition(" (deadly): ")[2] for note in notes if "warning" in note]
    assert texts == [f"its worker was killed by SIGKILL; started again ({i} of 2)" for i in (1, 2)]
    spent = {f.parent.name: records.read_json_lines(f) for f in (tmp_path / "all" / "packs").glob("*/spent.jsonl")}
    assert sorted(len(lines) for lines in spent.values()) == [1, 1, 1, 1]
    assert sum(line["start_s"] > 0 for lines in spent.values() for line in lines) == 2  # one process before, one after
    run_sweep(tmp_path / "fresh", {name: trials[name] for name in ("d", "a")})  # as a worker's first and last
    for name in ("a", "d"):
        assert untimed(tmp_path / "all" / "runs" / name) == untimed(tmp_path / "fresh" / "runs" / name)


def deadly_twice(step, h):
    """A schedule that kills the first two workers that ask for it."""
    deaths = pathlib.Path(os.environ["SCALELAB_TEST_DEATHS"])
    if multiprocessing.parent_process() and len(list(deaths.iterdir())) < 2:
        (deaths / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return h.optim.peak_lr * (step >= 0)


@pytest.mark.full
def test_a_trial_whose_worker_is_killed_twice_is_done_by_the_third_and_the_command_ends_in_0(tmp_path):
    """As under the out-of-memory killer, when its neighbours have ended meanwhile."""
    (tmp_path / "deaths").mkdir()
    more = {"train.steps": 10, "schedule.name": "tests.sweep.executors.test_pool:deadly_twice", "sweep.workers": 1}
    process, _ = started(tmp_path, more, env={"SCALELAB_TEST_DEATHS": str(tmp_path / "deaths")})
    assert {row["status"] for row in finish(process)["trials"]} == {"done"}
    assert len(list((tmp_path / "deaths").iterdir())) == 2


def test_a_fork_server_that_is_dying_refuses_and_the_worker_starts_from_the_next(tmp_path, monkeypatch):
    """As seen: a killed server refuses connections for a while before its parent can know that it has died."""
    refusals = [ConnectionRefusedError(), ConnectionRefusedError(), EOFError(), BrokenPipeError()]

    class Process:
        exitcode = 0

        def __init__(self, **_):
            pass

        def start(self):
            if refusals:
                raise refusals.pop()

        def join(self):
            pass

    monkeypatch.setattr(pool, "START_PAUSE_S", 0.01)
    trial = config_lib.resolve(override(tiny.get_config(), TINY | {"sweep.workers": 1}))
    with pool.WorkerPool(tmp_path, [trial]) as workers:
        monkeypatch.setattr(workers.context, "Process", Process, raising=False)
        workers._start()
        assert len(workers.workers) == 1 and not refusals


def test_a_pack_goes_to_the_worker_that_has_its_program():
    waiting = {"large": "A", "middle": "B", "small": "A"}
    assert pool.choose_pack(waiting, {"A"}, {"B"}) == "large"
    assert pool.choose_pack(waiting, {"B"}, {"A"}) == "middle"
    assert pool.choose_pack(waiting, (), {"A"}) == "middle"
    assert pool.choose_pack(waiting, (), {"A", "B"}) == "large"  # rather compiled twice than waited for


def test_cores_are_shared_out_without_overlap():
    cores = pool._cores()
    shares = pool._split_cores(len(cores))
    assert sorted(core for share in shares for core in share) == cores
    assert pool._split_cores(len(cores) + 1) == [cores] * (len(cores) + 1)


def started(folder, more=None, **process):
    """`scalelab sweep` of both widths, far from its end, as leader of a new process group; and its arguments."""
    file = pathlib.Path(folder / "grid.py")
    file.write_text(GRID)
    values = (
        TINY | {"train.steps": 3000, "eval.every_steps": 3000, "log.every_steps": 5, "sweep.workers": 2} | (more or {})
    )
    overrides = [f"--config.{key}={value}" for key, value in values.items()]
    arguments = [f"--config={file}", f"--workdir={folder / 's'}", *overrides, "--json"]
    return command(*arguments, name="sweep", process_group=0, **process), arguments


@pytest.mark.full
def test_sigterm_to_the_process_group_stops_the_sweep_after_saving(tmp_path):
    """As schedulers, shells and containers send it: to the sweep, its fork server and every worker at once."""
    process, _ = started(tmp_path)
    folders = [tmp_path / "s" / "runs" / name for name in ("d_model=16", "d_model=24")]
    wait_for(lambda: any(records.read_metrics(f) for f in folders), process)
    os.killpg(process.pid, signal.SIGTERM)
    rows = finish(process, code=75)["trials"]
    assert {row["status"] for row in rows} <= {"stopped", "waiting"}, rows
    for folder, row in zip(folders, rows, strict=True):
        kinds = [event["kind"] for event in records.read_events(folder)]
        assert "failed" not in kinds
        if row["step"]:
            assert kinds[-1] == "stopped"
            saved = records.read_json(folder / "record.json")["pack"]["checkpoints"]
            assert manifest.list_steps((folder / saved).resolve())[-1] >= row["step"]


@pytest.mark.slow
def test_sigterm_to_the_parent_alone_reaches_every_worker_and_the_sweep_goes_on_later(tmp_path):
    process, arguments = started(tmp_path, {"train.steps": 400})
    folders = [tmp_path / "s" / "runs" / name for name in ("d_model=16", "d_model=24")]
    wait_for(lambda: all(records.read_metrics(f) for f in folders), process)
    process.send_signal(signal.SIGTERM)
    rows = finish(process, code=75)["trials"]
    assert {row["status"] for row in rows} <= {"stopped", "done"} and "stopped" in {row["status"] for row in rows}
    rows = finish(command(*arguments, name="sweep"))["trials"]
    assert {row["status"] for row in rows} == {"done"} and {row["step"] for row in rows} == {400}


@pytest.mark.slow
def test_a_second_sweep_of_the_same_folder_waits_says_for_whom_and_trains_nothing_again(tmp_path):
    process, arguments = started(tmp_path, {"train.steps": 400})
    folders = [tmp_path / "s" / "runs" / name for name in ("d_model=16", "d_model=24")]
    wait_for(lambda: any(records.read_metrics(f) for f in folders), process)
    process.send_signal(signal.SIGSTOP)  # so that it surely lives when the second comes; its workers go on
    second, stopped = (command(*arguments, name="sweep") for _ in range(2))
    for waiting in (second, stopped):
        lines = iter(waiting.stderr.readline, "")
        line = next(line for line in lines if "waits" in line)
        assert f"is held by host {socket.gethostname()}, process {process.pid}" in line
    stopped.send_signal(signal.SIGTERM)
    finish(stopped, code=75)
    process.send_signal(signal.SIGCONT)
    assert {row["status"] for row in finish(process)["trials"]} == {"done"}
    assert {row["status"] for row in finish(second)["trials"]} == {"done"}
    for folder in folders:
        assert [event["kind"] for event in records.read_events(folder)].count("start") == 1
        steps = [line["step"] for line in records.read_metrics(folder) if "train_loss" in line]
        assert steps == list(range(5, 401, 5))


@pytest.mark.full
def test_trials_that_diverge_are_results_and_crashed_ones_are_not(tmp_path, capsys):
    (tmp_path / "grid.py").write_text(GRID.replace('"model.d_model", [16, 24]', '"optim.peak_lr", [1e-3, 1000.0]'))
    overrides = [f"--config.{key}={value}" for key, value in (TINY | {"train.steps": 25}).items()]
    arguments = ["sweep", f"--config={tmp_path / 'grid.py'}", f"--workdir={tmp_path / 's'}", *overrides]
    assert main(arguments) == 0
    assert "2 trials: 1 done, 1 diverged" in capsys.readouterr().err
    records.write_event(tmp_path / "s" / "runs" / "peak_lr=0.001", "failed", None, "Bus error")
    assert status.exit_code([row["status"] for row in status.read_trial_rows(tmp_path / "s")]) == 1
