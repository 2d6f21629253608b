"""Attention's kernels with and without document masks: time forward and backward, and how far each is from float32."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checks.gpu.question import Context, Question
from scalelab.hardware import measured
from scalelab.model.attention import kernels
from scalelab.model.attention.mask import NO_MASK, MaskInfo, Scoring

KERNEL_KINDS = ("cudnn", "blockwise", "xla")
DOCUMENT_SHARE = 0.23  # documents end at about every such share of a sequence
MEASURED_S = 1.0


def ask_attention(cost_s: float) -> list[Question]:
    """Each kernel with and without document masks."""
    return [
        Question(f"{kind}{', documents' * masked}", cost_s, functools.partial(_measured, kind=kind, masked=masked))
        for kind in KERNEL_KINDS
        for masked in (False, True)
    ]


def _measured(context: Context, kind: str, masked: bool) -> dict[str, Any]:
    """Seconds forward and backward, the share of the peak, and the distance from float32."""
    if kind == "cudnn" and jax.default_backend() != "gpu":
        return {"left_out": f"cudnn runs on an NVIDIA GPU, not on this {jax.default_backend()}"}
    batch, length, heads, width = context.settings.attention
    peak, source = measured.peak_flops(jax.local_devices()[0], "bfloat16")
    seconds = median_seconds(kind, masked, (batch, length, heads, width))
    # Causal: half of the pairs, two products forward and five backward; masked pairs count as computed.
    flops = 3.5 * 4 * batch * heads * width * length * (length + 1) / 2
    exact = max_relative_difference(kind, masked, (1, context.settings.exact_tokens, heads, width))
    return {
        "shape": list(context.settings.attention), "peak": source, "seconds": seconds,
        "share_of_peak": flops / seconds / peak, "off_float32": exact,
    }  # fmt: skip


def make_gradients(kind: str, masked: bool) -> Callable:
    """q, k, v [B, S, N, H] -> gradients of a sum over attention's output; documents end every DOCUMENT_SHARE."""

    def scalar(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        batch, length, _, width = q.shape
        ends = jnp.arange(length) // max(1, int(DOCUMENT_SHARE * length))
        sight = MaskInfo(jnp.broadcast_to(ends, (batch, length))) if masked else NO_MASK
        y = kernels.compute_attention(q, k, v, Scoring(width**-0.5, sight), kind)
        return jnp.sum(jnp.sin(y.astype(jnp.float32)))

    return jax.grad(scalar, argnums=(0, 1, 2))


def draw_arrays(size: tuple[int, ...]) -> list[np.ndarray]:
    """Three arrays of normal numbers, rounded to bf16 so that every kernel gets equal inputs."""
    random = np.random.default_rng(0)
    return [np.asarray(jnp.asarray(random.normal(size=size), jnp.bfloat16), np.float32) for _ in range(3)]


def median_seconds(kind: str, masked: bool, size: tuple[int, ...]) -> float:
    """Median seconds of forward with backward in bf16."""
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in draw_arrays(size)]
    program, seconds = jax.jit(make_gradients(kind, masked)), []
    while len(seconds) < 4 or (sum(seconds[1:]) < MEASURED_S and len(seconds) < 200):
        start = time.perf_counter()
        jax.block_until_ready(program(*inputs))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))


def max_relative_difference(kind: str, masked: bool, size: tuple[int, ...]) -> float:
    """The largest difference of bf16 gradients from plain attention in float32, over the largest entry."""
    inputs = draw_arrays(size)
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(make_gradients("plain", masked))(*map(jnp.asarray, inputs))
    ours = jax.jit(make_gradients(kind, masked))(*(jnp.asarray(x, jnp.bfloat16) for x in inputs))
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(exact, ours, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)
