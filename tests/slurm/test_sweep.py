"""Sweeps on a real Slurm of one node (`make test-slurm`): arrays, several tasks, attaching, cancelling, refusals."""

import os
import re
import signal

import pytest

from scalelab.record import records
from tests.slurm.sweep import ONE, PAIR, Sweep, wait_until

pytestmark = pytest.mark.slurm
WIDTHS = 'h.sweep("model.d_model", [16, 24, 32, 40, 48, 56])'


def test_an_array_of_six_packs_trains_what_the_pool_trains(slurm, tmp_path):
    here, there = (Sweep(slurm, tmp_path / name, WIDTHS) for name in ("here", "there"))
    _, err = there.run("--slurm.cpus-per-task=1", "--max-parallel=3")
    assert re.search(r"submitted 6 packs as Slurm job \d+", err)
    here.run("--config.sweep.workers=1", executor="local")
    assert there.digests() == here.digests() and len(there.digests()) == 6
    code, out, err = there.command("--status")
    assert code == 0 and out.count("done") == 6 and "Slurm: no job is left" in err
    _, err = there.run()  # again: nothing to do
    assert "submitted" not in err


def test_a_submitter_that_is_killed_costs_nothing_and_the_next_one_attaches(slurm, tmp_path, undisturbed):
    sweep = Sweep(slurm, tmp_path, PAIR, steps=200)
    first = sweep.start()
    sweep.wait_for_step(10)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    _, err = sweep.run()
    assert "2 packs have a job already: 2 running" in err and "submitted" not in err
    assert sweep.digests() == undisturbed
    assert len({line["submission"] for line in sweep.starts()}) == 1


def test_ctrl_c_leaves_the_jobs_and_a_second_submitter_waits_for_the_first(slurm, tmp_path):
    sweep = Sweep(slurm, tmp_path, PAIR, steps=5000)
    first = sweep.start()
    sweep.wait_for_step(10)
    second = sweep.start()
    assert "is held by host" in next(line for line in iter(second.stderr.readline, "") if "waits" in line)
    second.send_signal(signal.SIGINT)
    sweep.finish(second, 75)
    first.send_signal(signal.SIGINT)
    _, err = sweep.finish(first, 75)
    assert "the jobs go on in Slurm" in err and "--cancel" in err and len(sweep.jobs()) == 2
    code, _, err = sweep.command("--status")
    assert code == 0 and "Slurm: 2 running" in err
    code, _, err = sweep.command("--cancel")
    assert (code, err.strip()) == (0, "cancelled 2 jobs; they save first")
    wait_until(lambda: not sweep.jobs())
    ends = [line for line in sweep.starts() if "code" in line]
    assert [line["code"] for line in ends] == [75, 75] and all("cancelled" in line["why"] for line in ends)
    assert all(list(place.glob("checkpoints/*")) for place in sweep.place.glob("packs/*"))  # saved before


def test_several_tasks_train_one_run_together(slurm, tmp_path):
    sweep = Sweep(slurm, tmp_path, ONE, changes={"parallel.data": -1, "train.deterministic": False})
    sweep.run("--slurm.ntasks=2")
    (run,) = sweep.place.glob("runs/*/")
    assert records.read_record(run)["status"] == "done" and records.read_record(run)["mesh"]["devices"] == 2
    alone = Sweep(slurm, tmp_path / "alone", ONE, changes={"train.deterministic": False})
    alone.run(executor="local")
    pairs = zip(sweep.digests().values(), alone.digests().values(), strict=True)
    assert all(abs(a[-1]["val_loss"] - b[-1]["val_loss"]) < 1e-3 for a, b in pairs)


def test_two_hundred_tiny_trials(slurm, tmp_path):
    grid = 'h.product([h.sweep("train.seed", list(range(50))), h.sweep("model.d_model", [16, 24, 32, 40])])'
    sweep = Sweep(slurm, tmp_path, grid, steps=4)
    out, _ = sweep.run()
    assert out.count("done") >= 200 and len(sweep.digests()) == 200


@pytest.mark.parametrize("option, words", [
    ("--slurm.partition=mian", "--slurm.partition=mian: .*[Ii]nvalid partition.*'main'"),
    ("--slurm.partitoin=main", "--slurm.partitoin is no option of sbatch; did you mean 'partition'"),
    ("--slurm.array=1-3", "--slurm.array is set by scalelab; see --max-parallel"),
    ("--slurm.time=soon", "[Ii]nvalid.*time"),
])  # fmt: skip
def test_what_slurm_refuses_is_one_line(slurm, tmp_path, option, words):
    _, err = Sweep(slurm, tmp_path, PAIR).run(option, code=2)
    last = err.strip().splitlines()[-1]
    assert last.startswith("scalelab: --") and re.search(words, last), err
    assert not list((tmp_path / "sweep" / "slurm").glob("*.json"))
