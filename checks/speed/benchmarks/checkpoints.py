"""Saving and restoring a state of 100 M fp32 numbers, hashing included, as a share of what the disk does by itself.

Raw write: the same bytes, random, in pieces of 4 MiB, then fsync. Raw read: the file again, after the kernel was told
to forget it; so is the checkpoint before each restore. Within a round raw disk and checkpoint alternate, and the ratio
is the round's. A synchronous save ends when the checkpoint is committed; what an asynchronous one holds up the step for
is what `save` takes to return. A restore hashes while Orbax reads, so its shares, each measured alone, may add up to
more than one.
"""

import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints

ARRAYS, SHAPE = 10, (2500, 4000)  # 100 M numbers, 400 MB
PIECE_BYTES = 1 << 22


def measure_checkpoints(rounds: int, folder: str | None = None) -> dict[str, Any]:
    """Medians over `rounds`, in a new folder below `folder` (default: the current one, on a disk you use)."""
    place = pathlib.Path(tempfile.mkdtemp(dir=folder or ".", prefix=".checkpoints-"))
    try:
        state = {f"w{i}": jax.random.normal(jax.random.key(i), SHAPE) for i in range(ARRAYS)}
        jax.block_until_ready(state)
        _round(place, state, 0)  # untimed, for one-time work: imports, thread pools, the folder itself
        results = [_round(place, state, i) for i in range(1, rounds + 1)]
    finally:
        shutil.rmtree(place)
    medians = {key: statistics.median(row[key] for row in results) for key in results[0]}
    ranges = {
        f"{key}_range": [min(row[key] for row in results), max(row[key] for row in results)]
        for key in ("save_ratio", "restore_ratio")
    }
    return {"bytes": ARRAYS * SHAPE[0] * SHAPE[1] * 4, "rounds": rounds} | medians | ranges


def _round(place: pathlib.Path, state: dict[str, jax.Array], step: int) -> dict[str, float]:
    raw_write_s = _timed(lambda: _write(place / "raw", state))
    checkpoints = Checkpoints(place / "checkpoints", keep_last=1)
    start = time.perf_counter()
    checkpoints.save(step, {"run": state})
    blocked_s = time.perf_counter() - start
    checkpoints.wait()
    save_s = time.perf_counter() - start
    committed = place / "checkpoints" / str(step)
    shares = checkpoints.shares
    _forget(place / "raw")
    raw_read_s = _timed(lambda: _read(place / "raw"))
    for path in committed.rglob("*"):
        _forget(path)
    like = {"run": jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), state)}
    restore_s = _timed(lambda: jax.block_until_ready(checkpoints.load(like).states))
    hash_s = _timed(lambda: checkpoints.load(None))  # each of the two alone, the file by now in memory
    orbax_s = _timed(lambda: jax.block_until_ready(checkpoints.restore(step, like)))
    assert manifest.list_steps(place / "checkpoints") == [step]
    checkpoints.close()
    return {
        "raw_write_s": raw_write_s, "raw_read_s": raw_read_s, "save_s": save_s, "restore_s": restore_s,
        "save_ratio": raw_write_s / save_s, "restore_ratio": raw_read_s / restore_s,
        "save_orbax_share": (blocked_s + shares["orbax"]) / save_s, "save_hash_share": shares["hash"] / save_s,
        "restore_orbax_share": orbax_s / restore_s, "restore_hash_share": hash_s / restore_s,
        "blocked_s": blocked_s, "blocked_share": blocked_s / save_s,
    }  # fmt: skip


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _write(path: pathlib.Path, state: dict[str, jax.Array]) -> None:
    with open(path, "wb", 0) as file:
        for leaf in state.values():
            data = memoryview(jax.device_get(leaf)).cast("B")
            for start in range(0, len(data), PIECE_BYTES):
                file.write(data[start : start + PIECE_BYTES])
        os.fsync(file.fileno())


def _read(path: pathlib.Path) -> None:
    buffer = bytearray(PIECE_BYTES)
    with open(path, "rb", 0) as file:
        while file.readinto(buffer):
            pass


def _forget(path: pathlib.Path) -> None:
    """Drop a file from the page cache (it is on disk)."""
    if path.is_file():
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
