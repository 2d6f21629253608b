"""One cluster for all tests of this folder; they are skipped, with the reason, where Slurm is not installed."""

import contextlib

import pytest

from tests.slurm import cluster
from tests.slurm.sweep import PAIR, Sweep


@pytest.fixture(scope="session")
def slurm(request, tmp_path_factory):
    if missing := cluster.missing_program():
        pytest.skip(f"{missing} is not installed: apt-get install slurmctld slurmd slurm-client munge")
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.start(tmp_path_factory.mktemp("cluster") / "slurm"))
        except AssertionError as failure:
            if request.config.option.markexpr == "slurm":  # `make test-slurm`, not `make test-all`
                raise
            pytest.skip(f"Slurm is installed but does not start here: {failure}")
        yield running


@pytest.fixture(scope="session")
def undisturbed(slurm, tmp_path_factory):
    """The metric lines of a pair of trials that nothing stopped."""
    sweep = Sweep(slurm, tmp_path_factory.mktemp("undisturbed"), PAIR, steps=200)
    sweep.run("--config.sweep.workers=1", executor="local")
    return sweep.digests()
