"""The environment of all tests, set before jax is imported; xdist's workers and started commands inherit it."""

import contextlib
import gc
import importlib.metadata
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest
from _pytest import runner
from hypothesis.internal.conjecture import providers

from scalelab.__main__ import call_in_one_chunk
from tests import bytecode, compiled, contexts, processes
from tests.budget import (  # noqa: F401 (hooks)
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

first_process = "SCALELAB_TEST_FOLDER" not in os.environ  # workers, and sessions that a test starts, find it set
if first_process:
    folder = os.environ["SCALELAB_TEST_FOLDER"] = tempfile.mkdtemp(prefix="scalelab-tests-")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The matrices of laws are small: a second thread spins beside the first (tests/commands/fit: 52 s of CPU instead of
    # 106), and workers share the cores already.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # [B, S] + [S] must say so
    # Round bf16 results where the program says so, not where XLA finds it convenient. The other flags save compilation,
    # which takes most of the time of tests: small models gain nothing from later passes (tests/train/step/test_step.py:
    # 37 s of CPU instead of 58) or from the newer loop generator (tests/train/resume/test_branch.py: 52 s instead of
    # 73). A program stays one LLVM module: cut into parts for idle cores, it is copied for each part
    # (test_loss_scale.py, test_user_numbers.py and test_sources.py together: 32 s instead of 34). Your own XLA_FLAGS
    # come after these and win.
    flags = "--xla_allow_excess_precision=false --xla_backend_optimization_level=0"
    flags += " --xla_cpu_parallel_codegen_split_count=1"
    # An unknown flag ends the process: jaxlib 0.11 has only the newer generator, and no flag for it.
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    # Workers and commands share what was compiled and the token shards. What was compiled is kept for the next session.
    cache = os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(folder, "jax")
    if (programs := compiled.store()) is not None:
        compiled.fetch(programs, pathlib.Path(cache))
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"  # a GPU's, whose folder would be part of each name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.03"
    os.environ["SCALELAB_CACHE"] = os.path.join(folder, "shards")
    # Some hundred commands import the package: all but the first find it compiled (0.25 s of CPU each).
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(specname="pytest_runtest_protocol", tryfirst=True)
def run_in_one_chunk(item, nextitem):
    """A test as pytest runs it, with a command's one chunk of stack."""
    return call_in_one_chunk(runner.pytest_runtest_protocol, item, nextitem)


def check_descriptor(file):
    """Stand in for `os.fsync`: no test cuts the power, and a process that is killed leaves the system what it wrote.

    The rooms of checkpoints and resumption call it 2,000 times, for milliseconds each in which nobody computes.
    """
    os.fstat(file if isinstance(file, int) else file.fileno())


os.fsync = check_descriptor
gc.set_threshold(20_000, 20, 20)  # tracing makes many small objects: the collector's 5 % of the time become 1
hypothesis.settings.load_profile("ci")  # the same examples each time, and none too slow on a busy machine
# It would parse every loaded module for constants to try: a second of CPU in each worker, and examples that depend on
# what else a worker has loaded. It has no setting for this.
providers._get_local_constants = lambda: providers._local_constants
processes.watch_processes()


def pytest_sessionstart(session):
    worker = getattr(session.config, "workerinput", None)  # of xdist
    if worker is not None and worker["workercount"] > 1:
        with contextlib.suppress(AttributeError, TypeError):  # pytest's own functions: another version may have none
            bytecode.write_share(session.config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_finish():
    contexts.share_contexts()  # jax is imported by now, if any test needs it


@pytest.fixture(autouse=True)
def no_process_left():
    with processes.none_left():
        yield


def pytest_unconfigure(config):
    if first_process:  # it outlives the others
        if programs is not None:
            compiled.carry_back(pathlib.Path(cache), programs)
        shutil.rmtree(os.environ["SCALELAB_TEST_FOLDER"], ignore_errors=True)
