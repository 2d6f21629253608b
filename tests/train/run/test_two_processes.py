"""Checkpoints of two processes that each hold a half: one commit, one verdict, the same answer in both."""

import json
import os
import subprocess
import sys

from tests.train.runs import ROOT, ended, free_port

PROGRAM = """
import json, pathlib, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.distributed.initialize(f"localhost:{port}", 2, rank)
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
mesh = Mesh(np.array(jax.devices()), ("a",))
split, everywhere = NamedSharding(mesh, P("a")), NamedSharding(mesh, P())
def state(step):
    values = np.arange(16.0, dtype=np.float32) + step
    return {"run": {"w": jax.make_array_from_callback((16,), split, lambda i: values[i])}}
c, said = Checkpoints(folder, facts={"run": {"n": 1}}), []
for step in (1, 2, 3):
    c.save(step, state(step))
c.wait()
like = {"run": {"w": jax.ShapeDtypeStruct((16,), np.float32, sharding=everywhere)}}
def first(loaded):
    return float(loaded.states["run"]["w"].addressable_data(0)[0])
said.append(first(c.load(like)))
multihost_utils.sync_global_devices("read")
if rank == 0:
    (folder / "3" / "state" / "_METADATA").unlink()
multihost_utils.sync_global_devices("damaged")
try:
    c.load(like)
except DamagedCheckpoint as error:
    said.append(str(error))
said.append(first(c.load(like, fallback=True)))
c.save(4, state(4))
c.close()
said.append(sorted(p.name for p in folder.iterdir()))
print(json.dumps(said))
"""


def test_both_processes_get_the_same_arrays_the_same_refusal_and_the_same_fallback(tmp_path):
    port = free_port()
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(port), str(tmp_path / "c")],
            env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    output = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert output[0] == output[1]
    assert (output[0][0], output[0][2]) == (3.0, 2.0) and "_METADATA is missing" in output[0][1]
    assert output[0][3] == ["2", "3.damaged", "4"]
