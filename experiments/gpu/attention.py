"""Attention's kernels with and without document masks: time forward and backward, and how far each is from float32."""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu.settings import Settings
from scalelab.hardware import measured
from scalelab.model.attention import kernels
from scalelab.model.attention.mask import UNLIMITED, Sight

KINDS = ("cudnn", "blockwise", "xla")
DOCUMENT = 0.23  # of a sequence: where documents end, about every so much of it
MEASURED_S = 1.0


def run(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """A row for each kernel that this device has, with documents that see each other and that don't."""
    batch, length, heads, width = settings.attention
    peak, source = measured.peak_flops(jax.local_devices()[0], "bfloat16")
    rows = []
    for kind in kinds():
        for masked in (False, True):
            seconds = timed(kind, masked, (batch, length, heads, width))
            # Causal: half of the pairs, two products forward and five backward; what a mask hides counts as done.
            flops = 3.5 * 4 * batch * heads * width * length * (length + 1) / 2
            rows.append({
                "kind": kind, "documents": "mask" if masked else "cross", "seconds": seconds, "share_of_peak": flops / seconds / peak,
                "off_float32": difference(kind, masked, (1, settings.exact_tokens, heads, width)),
            })  # fmt: skip
    return {"shape": settings.attention, "peak": source, "rows": rows}


def kinds() -> list[str]:
    """The kernels that are computed on this backend."""
    return [kind for kind in KINDS if kind != "cudnn" or jax.default_backend() == "gpu"]


def gradients(kind: str, masked: bool) -> Callable:
    """q, k, v [B, S, N, H] -> their gradients of a sum over what attention gives; documents end every `DOCUMENT` of a sequence."""

    def scalar(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        batch, length, _, width = q.shape
        ends = jnp.arange(length) // max(1, int(DOCUMENT * length))
        sight = Sight(jnp.broadcast_to(ends, (batch, length))) if masked else UNLIMITED
        y = kernels.attend(q, k, v, None, width**-0.5, kind, sight)
        return jnp.sum(jnp.sin(y.astype(jnp.float32)))

    return jax.grad(scalar, argnums=(0, 1, 2))


def arrays(size: tuple[int, ...]) -> list[np.ndarray]:
    """Three of normal numbers, rounded to bf16 so that every kernel is given the same."""
    random = np.random.default_rng(0)
    return [np.asarray(jnp.asarray(random.normal(size=size), jnp.bfloat16), np.float32) for _ in range(3)]


def timed(kind: str, masked: bool, size: tuple[int, ...]) -> float:
    """Median seconds of forward with backward in bf16."""
    given = [jnp.asarray(x, jnp.bfloat16) for x in arrays(size)]
    program, seconds = jax.jit(gradients(kind, masked)), []
    while len(seconds) < 4 or (sum(seconds[1:]) < MEASURED_S and len(seconds) < 200):
        start = time.perf_counter()
        jax.block_until_ready(program(*given))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))


def difference(kind: str, masked: bool, size: tuple[int, ...]) -> float:
    """The largest of the gradients in bf16 from plain attention in float32, over the largest entry of each."""
    given = arrays(size)
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(gradients("plain", masked))(*map(jnp.asarray, given))
    ours = jax.jit(gradients(kind, masked))(*(jnp.asarray(x, jnp.bfloat16) for x in given))
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(exact, ours, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)
