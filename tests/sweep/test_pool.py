"""The bounded pool: packs in processes of their own, crashes that stay there, signals that reach all."""

import pathlib
import signal

import pytest

from configs import tiny
from scalelab import records
from scalelab.config import override, resolve
from scalelab.sweep import pool
from scalelab.sweep.run import run_sweep
from scalelab.train.single import train_single
from tests.sweep.test_pack import TINY
from tests.train.runs import command, finish, untimed, wait_for

GRID = """
from configs import tiny
get_config = tiny.get_config
def sweep(h): return h.sweep("model.d_model", [16, 24])
"""


def widths(**changes):
    return {f"d{d}": resolve(override(tiny.get_config(), TINY | {"model.d_model": d} | changes)) for d in (16, 24)}


def test_trials_of_different_shapes_run_in_processes_and_equal_themselves_alone(tmp_path):
    assert run_sweep(tmp_path, widths(**{"sweep.workers": 2})) == {"d16": "done", "d24": "done"}
    train_single(widths()["d24"], tmp_path / "alone")
    packed, single = untimed(tmp_path / "runs" / "d24"), untimed(tmp_path / "alone")
    assert [line.keys() for line in packed] == [line.keys() for line in single]
    # Not bit for bit: a worker has its share of the cores, and sums are cut by thread.
    assert abs(packed[-1]["val_loss"] - single[-1]["val_loss"]) < 1e-4


def test_a_crash_in_one_process_leaves_the_others_alone_and_says_why(tmp_path):
    trials = widths()
    (tmp_path / "runs" / "d16").mkdir(parents=True)
    (tmp_path / "runs" / "d16" / "config.json").write_text("{ cut short")
    assert run_sweep(tmp_path, trials) == {"d16": "failed", "d24": "done"}
    event = records.read_events(tmp_path / "runs" / "d16")[-1]
    assert event["kind"] == "failed" and "is not JSON" in event["text"]


def test_cores_are_shared_out_without_overlap():
    cores = pool._cores()
    shares = pool._shares(len(cores))
    assert sorted(core for share in shares for core in share) == cores
    assert pool._shares(len(cores) + 1) == [cores] * (len(cores) + 1)


@pytest.mark.slow
def test_sigterm_reaches_every_worker_and_the_sweep_goes_on_later(tmp_path):
    file = pathlib.Path(tmp_path / "grid.py")
    file.write_text(GRID)
    overrides = [f"--config.{k}={v}" for k, v in (TINY | {"train.steps": 400, "log.every_steps": 5}).items()]
    arguments = [f"--config={file}", f"--workdir={tmp_path / 's'}", *overrides, "--config.sweep.workers=2", "--json"]
    process = command(*arguments, name="sweep")
    folders = [tmp_path / "s" / "runs" / name for name in ("000-d_model=16", "001-d_model=24")]
    wait_for(lambda: all(records.read_metrics(f) for f in folders), process)
    process.send_signal(signal.SIGTERM)
    rows = finish(process, code=75)["trials"]
    assert {row["status"] for row in rows} <= {"stopped", "done"} and "stopped" in {row["status"] for row in rows}
    rows = finish(command(*arguments, name="sweep"))["trials"]
    assert {row["status"] for row in rows} == {"done"} and {row["step"] for row in rows} == {400}
