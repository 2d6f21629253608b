"""Processes wait for each other between compiling a program and running it, as long as `train.stall_s`."""

import json
import os
import subprocess
import sys

import pytest

from scalelab.record import records
from tests.parallel.test_hosts import SETTINGS, devices, finish_pair
from tests.train.runs import ROOT, ended, free_port, train

ALONE = """
import json, pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scalelab.parallel import processes
from scalelab.parallel.peers import ProcessPlace

index, compiled, waited = int(sys.argv[2]), [], []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
)
wait = processes.wait_for_all
processes.wait_for_all = lambda purpose: (waited.append(purpose), wait(purpose))
place, folder = ProcessPlace(sys.argv[1], 2, index), pathlib.Path(sys.argv[3])
with processes.run_together(place, {}, folder, lambda code, why: None):
    mesh = Mesh(np.array(jax.devices()), ("device",))
    split, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["device"], []))
    add = processes.compile_together(jax.jit(jnp.sum, out_shardings=replicated), "adding up")
    shards = [jax.make_array_from_callback((n,), split, lambda at, n=n: np.arange(n, dtype=np.float32)[at])
              for n in (8, 8, 16)]
    del compiled[:]
    sums = [float(add(x)) for x in shards]
    assert len(compiled) == 2, compiled
    values = [processes.broadcast_from_first(lambda: index), *(processes.gather_lists(x) for x in ([index], []))]
print(json.dumps({"sums": sums, "waited": waited, "values": values}), file=sys.stderr)
"""


def started(code, *arguments):
    """A Python program in a process of its own, with four devices."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | devices(4),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.full
def test_a_program_is_compiled_once_and_waited_for_once_and_so_is_the_first_exchange(tmp_path):
    pair = [started(ALONE, address, str(i), str(tmp_path)) for address in [f"localhost:{free_port()}"] for i in (0, 1)]
    errs = [ended(process)[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], errs
    for err in errs:
        answer = json.loads(err.splitlines()[-1])
        assert answer["sums"] == [28.0, 28.0, 120.0] and answer["values"] == [0, [0, 1], []]
        assert answer["waited"] == ["adding up", "adding up", "the first exchange of values"]


# `scalelab train` whose process 1 takes so many seconds longer to compile its step.
SLOW = """
import sys, time
from jax import stages
from scalelab.__main__ import main
compile = stages.Lowered.compile
def compile_slowly(lowered, *arguments):
    if "many_steps" in lowered.as_text()[:200] and "--process-id=1" in sys.argv:
        time.sleep({seconds})
    return compile(lowered, *arguments)
stages.Lowered.compile = compile_slowly
sys.exit(main(sys.argv[1:]))
"""


def slow_pair(folder, seconds, *more):
    """Both processes of a run, started; the second compiles for `seconds` longer."""
    together = (*SETTINGS, *more, f"--coordinator=localhost:{free_port()}", "--processes=2")
    code = SLOW.replace("{seconds}", str(seconds))
    return [started(code, "train", *train(folder, *together, f"--process-id={i}")) for i in range(2)]


@pytest.mark.slow
def test_who_compiles_for_too_long_ends_both_in_one_line_that_names_it(tmp_path):
    pair = slow_pair(tmp_path / "run", 1e6, "--config.train.stall_s=40")
    for i, process in enumerate(pair):
        out, err = ended(process)
        assert (process.returncode, out) == (1, ""), err
        last = err.strip().splitlines()[-1]
        assert last.startswith(f"scalelab: process {i} of 2: ") and "Traceback" not in err, err
        assert "process 1 of 2 is not ready for the first step, 40 s after process 0 (train.stall_s)" in last, err


@pytest.mark.slow
def test_a_compilation_longer_than_gloo_waits_keeps_nobody_from_training(tmp_path):
    folder = tmp_path / "run"
    result = finish_pair(slow_pair(folder, 35, "--config.train.steps=2"))
    assert result["status"] == "done" and records.read_record(folder)["seconds_by_process"]["1"]["compile"] > 35
