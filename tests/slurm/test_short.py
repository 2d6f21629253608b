"""What `make test-all` has of Slurm: submitted, stopped at a random step, requeued, ended with the same bits."""

import random

import pytest

from tests.slurm.sweep import ONE, Sweep, finish_with_releases


@pytest.mark.full
def test_a_sweep_is_submitted_stopped_requeued_and_ends_with_the_bits_of_a_run_that_nothing_stopped(slurm, tmp_path):
    sweep = Sweep(slurm, tmp_path, ONE, steps=120)
    process = sweep.start("--slurm.time=10")
    sweep.wait_for_step(random.randrange(5, 60))
    slurm.run("scancel", "--signal=USR2", sweep.jobs()[0].split()[0])
    finish_with_releases(sweep, process)
    starts = sweep.starts()
    assert [line["code"] for line in starts if "code" in line] == [75, 0]
    assert starts[1]["why"] == "stopped by a signal; requeued" and starts[2]["step"] == starts[1]["step"] > 0
    alone = Sweep(slurm, tmp_path / "alone", ONE, steps=120)
    alone.run(executor="local")
    assert sweep.digests() == alone.digests() and len(alone.digests()) == 1
