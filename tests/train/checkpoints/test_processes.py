"""Checkpoints of three processes that each hold a third: one commit, one verdict, the same answer in all of them."""

import hashlib
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from scalelab.train.checkpoints import hashes, manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from tests.train.runs import ROOT, ended, free_port

PROCESSES = 3
PROGRAM = """
import json, pathlib, sys, time
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.distributed.initialize(f"localhost:{port}", 3, rank)
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scalelab.train.checkpoints import hashes
from scalelab.train.checkpoints.checkpoint import Checkpoints, SaveFailed
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
mesh = Mesh(np.array(jax.devices()), ("a",))
split, everywhere = NamedSharding(mesh, P("a")), NamedSharding(mesh, P())
def state(step):
    values = np.arange(12.0, dtype=np.float32) + step
    return {"run": {"w": jax.make_array_from_callback((12,), split, lambda i: values[i])}}
real, mine = hashes.hash_files, []
def counted(step_folder, names, sync=False):
    mine.append(list(names))
    return real(step_folder, names, sync)
hashes.hash_files = counted
c, said = Checkpoints(folder, facts={"run": {"n": 1}}), []
for step in (1, 2, 3):
    c.save(step, state(step))
c.wait()
saved_by_me = mine[-1]
like = {"run": {"w": jax.ShapeDtypeStruct((12,), np.float32, sharding=everywhere)}}
def first(loaded):
    return float(loaded.states["run"]["w"].addressable_data(0)[0])
def at_once(action):
    multihost_utils.sync_global_devices("before")
    if rank == 0:
        action()
    multihost_utils.sync_global_devices("after")
def refused():
    try:
        c.load(like)
    except DamagedCheckpoint as error:
        return str(error)
said.append(first(c.load(like)))
def flip():
    path = next((folder / "3" / "state" / "ocdbt.process_2" / "d").iterdir())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
at_once(flip)
said.append(refused())
at_once(lambda: (folder / "3" / "state" / "_METADATA").unlink())
said.append(refused())
said.append(first(c.load(like, fallback=True)))
def broken(step_folder, names, sync=False):
    raise PermissionError(13, "no permission")
hashes.hash_files = broken if rank == 2 else real
c.save(4, state(4))
try:
    c.wait()
except SaveFailed as error:
    said.append(str(error))
def slow(step_folder, names, sync=False):
    time.sleep(3)
    return real(step_folder, names, sync)
hashes.hash_files, hashes.LIMIT_S = slow if rank == 1 else real, 1.0
c.save(5, state(5))
try:
    c.wait()
except SaveFailed as error:
    said.append(str(error))
hashes.hash_files, hashes.LIMIT_S = real, 600.0
c.save(6, state(6))
c.close()
said.append(sorted(p.name for p in folder.iterdir()))
print(json.dumps([said, saved_by_me]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """(what each process said, the files it hashed for step 3), and the folder."""
    folder, port = tmp_path_factory.mktemp("processes") / "c", free_port()
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(port), str(folder)],
            env=env,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(PROCESSES)
    ]
    outputs = [ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs], folder


@pytest.mark.full
def test_all_processes_get_the_same_arrays_the_same_refusal_and_the_same_fallback(answers):
    said, *others = [each[0] for each in answers[0]]
    assert all(other == said for other in others)
    whole, flipped, missing, fallback, *_, left = said
    assert (whole, fallback) == (3.0, 2.0)
    assert "ocdbt.process_2/d/" in flipped and "is damaged: SHA-256" in flipped
    assert "_METADATA is missing" in missing
    assert left == ["2", "3.damaged", "6"]


@pytest.mark.full
def test_a_process_that_fails_or_stands_still_is_named_and_the_next_save_is_whole(answers):
    *_, failed, late, _ = answers[0][0][0]
    assert "step 4 could not be saved" in failed and "process 2: no permission" in failed
    assert "step 5 could not be saved" in late and "process 1 has not hashed its files in 1 s" in late


@pytest.mark.full
def test_each_process_hashes_what_it_wrote_and_every_file_is_hashed_once(answers):
    answered, folder = answers
    shares = [share for _, share in answered]
    names = [name for share in shares for name in share]
    assert len(names) == len(set(names)) > PROCESSES
    for process, share in enumerate(shares):
        own = [name for name in names if f"ocdbt.process_{process}/" in name]
        assert own and set(own) <= set(share)
    content = manifest.read_manifest(folder / "6")  # by hashlib alone, in this one process
    for path in (path for path in (folder / "6").rglob("*") if path.is_file() and path.name != "manifest.json"):
        recorded = content["files"].pop(path.relative_to(folder / "6").as_posix())
        assert recorded == {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert content["files"] == {}


@pytest.mark.full
def test_one_process_verifies_and_restores_what_three_saved(answers):
    _, folder = answers
    like = {"run": {"w": jax.ShapeDtypeStruct((12,), np.float32)}}
    with Checkpoints(folder) as checkpoints:
        np.testing.assert_array_equal(checkpoints.load(like).states["run"]["w"], np.arange(12.0) + 6)


def test_shares_are_balanced_wherever_no_writer_is_known():
    random = np.random.default_rng(0)
    sizes = {f"state/d/{i}": int(size) for i, size in enumerate(random.integers(1, 1000, 200))}
    shares = hashes.split_files(sizes, 7)
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    totals = [sum(sizes[name] for name in share) for share in shares]
    assert max(totals) - min(totals) <= 1000 < sum(totals) / 7  # a difference of one file at most
    # Restored by fewer processes than wrote: what the others wrote is given to those that are there.
    written = {f"state/ocdbt.process_{i}/d/x": 100 for i in range(8)}
    assert [len(share) for share in hashes.split_files(written, 2)] == [4, 4]
