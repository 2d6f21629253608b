"""Faults on a real Slurm of one node (`make test-slurm`): stopped, hanging, killed, out of memory."""

import random
import re
import resource
import time

import pytest

from scalelab.record import records
from tests.slurm.sweep import ONE, PAIR, Sweep, finish_with_releases, kill_node

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("signal_name", ["USR2", "TERM"])  # before a time limit; in the grace time of a preemption
def test_a_job_that_is_stopped_at_a_random_step_is_requeued_and_ends_with_the_same_bits(
    slurm, tmp_path, undisturbed, signal_name
):
    sweep = Sweep(slurm, tmp_path, PAIR, steps=200)
    process = sweep.start()
    sweep.wait_for_step(random.randrange(20, 120))
    job = sweep.jobs()[0].split()[0]
    slurm.run("scancel", f"--signal={signal_name}", job)
    finish_with_releases(sweep, process)
    assert sweep.digests() == undisturbed
    assert [line["why"] for line in sweep.starts() if line.get("code") == 75] == ["stopped by a signal; requeued"]
    resumed = [line["step"] for line in sweep.starts() if "code" not in line and line["step"]]
    assert len(resumed) == 1 and 20 <= resumed[0] < 200


def test_a_node_that_is_killed_loses_no_trial(slurm, tmp_path, undisturbed):
    sweep = Sweep(slurm, tmp_path, PAIR, steps=200)
    process = sweep.start()
    sweep.wait_for_step(20)
    kill_node(slurm)
    time.sleep(12)  # until the controller misses it
    slurm.start_node()
    finish_with_releases(sweep, process)
    assert sweep.digests() == undisturbed
    assert max(line["step"] for line in sweep.starts() if "code" not in line) >= 20  # it went on, not from the start


def test_slurmd_alone_may_die_while_jobs_go_on(slurm, tmp_path, undisturbed):
    sweep = Sweep(slurm, tmp_path, PAIR, steps=200)
    process = sweep.start()
    sweep.wait_for_step(20)
    slurm.daemons["slurmd"].kill()
    slurm.daemons["slurmd"].wait()
    slurm.start_node()
    finish_with_releases(sweep, process)
    assert sweep.digests() == undisturbed


HANGING = """
import os, pathlib, sys, time

MARK, openings = pathlib.Path({mark!r}), []

def hang_once(event, arguments):
    if event == "open" and str(arguments[0]).endswith("metrics.jsonl") and int(arguments[2] or 0) & os.O_APPEND:
        openings.append(arguments[0])
        if len(openings) == 4 and not MARK.exists():
            MARK.touch()
            time.sleep(10_000)

def schedule(step, h):
    return h.optim.peak_lr + 0 * step

sys.addaudithook(hang_once)
"""


def test_a_job_without_a_new_step_leaves_its_stacks_and_is_requeued(slurm, tmp_path):
    changes = {"schedule.name": "hanging:schedule", "train.stall_s": 5}
    alone, hung = (Sweep(slurm, tmp_path / name, ONE, 150, changes) for name in ("alone", "hung"))
    for sweep in (alone, hung):
        (sweep.folder / "hanging.py").write_text(HANGING.format(mark=str(sweep.folder / "mark")))
    (alone.folder / "mark").touch()
    alone.run(executor="local")
    finish_with_releases(hung, hung.start())
    assert hung.digests() == alone.digests()
    (end,) = [line for line in hung.starts() if line.get("code") == 75]
    assert re.search(r"no new step for \d+ s at step \d+.*; requeued", end["why"])
    assert "hang_once" in "".join(path.read_text() for path in hung.place.glob("packs/*/stacks.txt"))


def test_a_pack_larger_than_its_memory_fails_with_the_reason_and_the_others_are_unharmed(slurm, tmp_path):
    sweep = Sweep(slurm, tmp_path, 'h.sweep("model.d_model", [16, 4096])', steps=20)
    _, err = sweep.run("--slurm.mem=1500M", "--force", code=1)
    assert "1 done, 1 failed" in err
    (failed,) = [place for place in sweep.place.glob("runs/*/") if "4096" in place.name]
    assert re.search("memory", records.read_events(failed)[-1]["text"])


def test_a_full_quota_fails_its_trial_with_the_reason_and_the_others_are_unharmed(slurm, tmp_path):
    """A limit on the size of a file, which Slurm carries from the submitter to its jobs, in place of a quota."""
    sweep = Sweep(slurm, tmp_path, 'h.sweep("model.d_model", [16, 512])', steps=20)
    sweep.environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    try:
        process = sweep.start("--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _, err = sweep.finish(process, 1)
    assert "1 done, 1 failed" in err
    (failed,) = [place for place in sweep.place.glob("runs/*/") if "512" in place.name]
    assert "File too large" in records.read_events(failed)[-1]["text"]
