"""A bit that flips in one device's copy of a parameter is seen by the next save, which names the device."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.runs import ROOT

# Eight devices as data=2, fsdp=2, tensor=2. `b` lies on all, `w` is split by fsdp and copied over the others, `whole`
# has no copies at all. Then one bit of one device's copy of `w` is turned over: the lowest of a float, the sign.
PROGRAM = """
import json, pathlib, sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints

mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
def place(x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))
def flip(x, device, bit):
    parts = [np.array(s.data) for s in x.addressable_shards]
    content = bytearray(parts[device].tobytes())
    content[bit // 8] ^= 1 << bit % 8
    parts[device] = np.frombuffer(bytes(content), x.dtype).reshape(parts[device].shape)
    placed = [jax.device_put(p, s.device) for p, s in zip(parts, x.addressable_shards)]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, placed)
w = np.arange(32, dtype=np.float32).reshape(8, 4) / 3
params = {"b": place(np.ones(3, np.float32)), "w": place(w, "fsdp"), "h": place(w.astype(jax.numpy.bfloat16)),
          "whole": place(w, ("data", "fsdp", "tensor")), "count": place(np.int32(7)), "flag": place(np.bool_(True))}
warned, found = [], {}
with jax.set_mesh(mesh), Checkpoints(pathlib.Path(sys.argv[1]), keep_last=9, warn=warned.append) as checkpoints:
    flips = [("", 0, 0), ("w", 3, 0), ("w", 6, 31), ("h", 5, 8), ("count", 1, 2)]
    for step, (name, device, bit) in enumerate(flips, 1):
        state = params | ({name: flip(params[name], device, bit)} if name else {})
        checkpoints.save(step, {"run": {"params": state}})
        checkpoints.wait()
        found[step] = manifest.read_manifest(pathlib.Path(sys.argv[1]) / str(step))["health"]["run"], warned[:]
        warned.clear()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """Step -> (health in the manifest, warnings)."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("saves"))],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.full
def test_equal_copies_are_healthy(saves):
    assert saves["1"] == ["healthy", []]


@pytest.mark.parametrize(("step", "name", "device"), [("2", "w", 3), ("3", "w", 6), ("4", "h", 5), ("5", "count", 1)])
def test_one_flipped_bit_is_seen_and_its_device_is_named(saves, step, name, device):
    health, (warning,) = saves[step]
    assert health.startswith(f"suspect: the copy of run.params.{name} on cpu:{device} of process 0 differs")
    assert "a bit flipped there" in warning
