"""The ways to compute attention, which of them a backend takes, and the one written out.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.config import ModelShape, Static
from scalelab.errors import BadInput
from scalelab.model.attention.blockwise import block_size, blockwise_attention
from scalelab.model.attention.mask import NO_MASK, MaskInfo, attention_mask
from scalelab.model.attention.relative import RelativeInputs, relative_scores
from scalelab.model.attention.ring import ring_attention
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.precision.products import fp32_einsum
from scalelab.sharding import (
    CONTEXT_AXIS,
    activation_spec,
    is_in_stage,
    mesh_axis_size,
    per_device,
    target_platform,
    vary_like,
)

# Tokens from which on blockwise is faster than plain, 1.7 times there, and smaller (experiments/attention.py).
CPU_LONG_SEQUENCE = 512
LONG_SEQUENCE = 2048  # elsewhere, for its memory alone: its speed was not measured
TPU_LANES = 128  # of a TPU: the splash kernel wants whole ones


def choose_kernel(
    shape: ModelShape, compute: jnp.dtype, packed: bool = False, backend: str = "", staged: bool | None = None
) -> str:
    """How attention is computed here, or on `backend`; the run's record names it. BadInput where what is asked for can't be.

    `cudnn`: flash attention of NVIDIA's, on 16-bit numbers. `splash`: Pallas' for TPUs. `blockwise`: ours, anywhere, in memory
    linear in the sequence. `xla`: jax's own, and `plain`: ours, with all logits at once; on CPU jax's layout costs a tenth of
    the whole step (experiments/benchmarks). `packed`: documents don't see each other; then cudnn holds a mask of S x S.
    `staged`: in a stage of a pipeline; None: as what is being traced.
    """
    backend = backend or target_platform()
    staged = is_in_stage() if staged is None else staged
    long = shape.seq_len >= (CPU_LONG_SEQUENCE if backend == "cpu" else LONG_SEQUENCE)
    why = {kind: kernel_obstacle(kind, shape, compute, backend, staged) for kind in ("cudnn", "splash", "blockwise")}
    if shape.attention != "auto":
        if why.get(shape.attention):
            raise BadInput(f"model.attention={shape.attention!r}: {why[shape.attention]}; nearest: auto")
        return shape.attention
    if not why["cudnn"] and not (packed and long):
        return "cudnn"
    if not why["splash"]:
        return "splash"
    if long and not why["blockwise"]:
        return "blockwise"
    return "plain" if backend == "cpu" else "xla"


def step_kernel(static: Static, backend: str = "") -> str:
    """`choose_kernel` of a step with a resolved layout; `ring` where devices share a sequence."""
    if static.layout.context > 1:
        return "ring"
    compute, packed = array_dtype(POLICIES[static.precision].compute), static.documents == "mask" or static.seq_warmup
    return choose_kernel(static.model, compute, packed, backend, static.layout.stage > 1)


def kernel_obstacle(kind: str, shape: ModelShape, compute: jnp.dtype, backend: str, staged: bool = False) -> str:
    """Why this kind can't be computed here; "" where it can."""
    if shape.position == "relative" and kind != "blockwise":
        return "it has no term for model.position='relative', which 'blockwise', 'plain' and 'xla' have"
    wanted = {"cudnn": "gpu", "splash": "tpu"}.get(kind, backend)
    if backend != wanted:
        return f"it runs on a {wanted}, and this is a {backend}"
    if kind == "cudnn" and not (compute.itemsize == 2 and shape.d_head % 8 == 0 and shape.d_head <= 128):
        return f"it takes bf16 or fp16 and d_head a multiple of 8 up to 128, not {compute.name} and {shape.d_head}"
    if kind == "splash" and (shape.seq_len % TPU_LANES or shape.d_head % TPU_LANES):
        return f"it takes seq_len and d_head in multiples of {TPU_LANES}, not {shape.seq_len} and {shape.d_head}"
    if kind == "splash" and staged:
        return "it doesn't say that its results differ between the stages of a pipeline, which jax wants to know"
    return ""


def compute_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, relative: RelativeInputs | None, scale: float, how: str,
    sight: MaskInfo = NO_MASK, window: int = 0,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, S, N, H]; query head n uses key head n // (N / K); `relative` scores distances beside keys.

    What a query sees is limited by `sight` and `window` (tokens, its own included; 0: none). On a mesh each device attends
    with the sequences and heads it holds: no kernel needs to know of the others.
    """
    by_head = activation_spec("batch", "context", "heads", None)
    far = (None, None) if relative is None else relative
    others = {
        "q": (far[0], by_head),
        "r": (far[1], activation_spec(None, "heads", None)),
        "segment_BS": (sight.segment_BS, activation_spec("batch", "context")),
        "everywhere": (sight.everywhere, PartitionSpec()),
    }
    names = [name for name, (value, _) in others.items() if value is not None]

    def own(q: jax.Array, k: jax.Array, v: jax.Array, *more: jax.Array) -> jax.Array:
        given: dict[str, Any] = dict(zip(names, more, strict=True))
        far = RelativeInputs(given.pop("q"), vary_like(given.pop("r"), q)) if relative is not None else None
        sight = MaskInfo(**given)
        if mesh_axis_size(CONTEXT_AXIS) > 1:
            return ring_attention(q, k, v, sight, scale, window, far)
        if how == "blockwise":
            return blockwise_attention(q, k, v, sight, scale, window, block_size(), far)
        ours: dict[str, Callable] = {"plain": plain_attention, "splash": splash_attention}
        bias = None if far is None else relative_scores(far, scale)
        return (ours.get(how) or _jax_kernel(how))(q, k, v, bias, scale, sight, window)

    specs = (*(by_head,) * 3, *(others[name][1] for name in names))
    checked = how != "splash" or mesh_axis_size(CONTEXT_AXIS) > 1
    return per_device(own, specs, by_head, checked)(q_BSNH, k_BTKH, v_BTKH, *(others[name][0] for name in names))


def plain_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float,
    sight: MaskInfo = NO_MASK, window: int = 0,
) -> jax.Array:  # fmt: skip
    """Attention written out, softmax in fp32, all logits at once; of it second derivatives are taken (`train/step/curvature.py`)."""
    index_S = jnp.arange(q_BSNH.shape[1])
    seen = attention_mask(index_S, index_S, window, sight.everywhere, sight.segment_BS, sight.segment_BS)
    return masked_attention(q_BSNH, k_BTKH, v_BTKH, bias_BNST, scale, seen)


def masked_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float, seen: jax.Array
) -> jax.Array:
    """Attention of queries to the keys that are `seen`, [S, T] or [B, S, T]: one batch of matrices a (sequence, key head)."""
    batch, length, heads, width = q_BSNH.shape
    keys, stacked = k_BTKH.shape[2], heads // k_BTKH.shape[2] * length  # queries that share a key head are stacked
    q = (q_BSNH * scale).transpose(0, 2, 1, 3).reshape(batch * keys, stacked, width)
    k, v = (x.transpose(0, 2, 1, 3).reshape(batch * keys, -1, width) for x in (k_BTKH, v_BTKH))
    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(seen, 0.0, -1e30)
    if seen.ndim == 2:
        logits = logits + jnp.tile(hidden, (stacked // length, 1))[None]
    else:
        by_query = logits.reshape(batch, keys, -1, length, logits.shape[-1])
        logits = (by_query + hidden[:, None, None]).reshape(logits.shape)
    if bias_BNST is not None:
        logits = logits + bias_BNST.reshape(batch * keys, stacked, -1)
    y = fp32_einsum("bst,bth->bsh", jax.nn.softmax(logits, axis=-1).astype(v.dtype), v).astype(v.dtype)
    return y.reshape(batch, heads, length, width).transpose(0, 2, 1, 3)


def attention_logits(
    q_BSNH: jax.Array, k_BTKH: jax.Array, relative: RelativeInputs | None, scale: float, sight: MaskInfo, window: int
) -> jax.Array:
    """What the softmax takes, [B, N, S, T] in fp32; NaN where the query does not see the key. For looks inside, on one device."""
    index_S = jnp.arange(q_BSNH.shape[1])
    seen = attention_mask(index_S, index_S, window, sight.everywhere, sight.segment_BS, sight.segment_BS)
    k_BTNH = jnp.repeat(k_BTKH, q_BSNH.shape[2] // k_BTKH.shape[2], axis=2)
    logits_BNST = fp32_einsum("bsnh,btnh->bnst", q_BSNH * scale, k_BTNH)
    if relative is not None:
        logits_BNST = logits_BNST + relative_scores(relative, scale)
    return jnp.where(seen if seen.ndim == 2 else seen[:, None], logits_BNST, jnp.nan)


def _jax_kernel(how: str) -> Callable:
    """`jax.nn.dot_product_attention` by its kernel of that name."""

    def kernel(
        q: jax.Array, k: jax.Array, v: jax.Array, bias: Any, scale: float, sight: MaskInfo, window: int
    ) -> jax.Array:
        index, segment = jnp.arange(q.shape[1]), sight.segment_BS
        mask = None if segment is None else attention_mask(index, index, 0, None, segment, segment)[:, None]
        whole = functools.partial(
            jax.nn.dot_product_attention, q, k, v, bias=bias, mask=mask, is_causal=True, scale=scale, implementation=how
        )
        near = functools.partial(whole, local_window_size=(window - 1, 0)) if window else whole
        return _by_window(near, whole, sight.everywhere)

    return kernel


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: None,
    scale: float,
    sight: MaskInfo,
    window: int,
    interpret: bool = False,
) -> jax.Array:
    """Pallas' attention for TPUs: blocks that are hidden whole are left out. q [B, S, N, H]; k, v [B, T, K, H]."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    assert bias is None
    length, heads = q.shape[1], q.shape[2]
    block = next(size for size in (512, 256, TPU_LANES) if length % size == 0)
    sizes = splash.BlockSizes(*(block,) * 8)
    q_BNSH, k_BKTH, v_BKTH = ((x * scale if x is q else x).swapaxes(1, 2) for x in (q, k, v))
    segments = None if sight.segment_BS is None else splash.SegmentIds(sight.segment_BS, sight.segment_BS)

    def by(mask: Any) -> Callable:
        kernel = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
        )
        return lambda: jax.vmap(kernel)(q_BNSH, k_BKTH, v_BKTH, segments)

    whole = by(masks.CausalMask((length, length)))
    near = by(masks.LocalMask((length, length), (window - 1, 0), 0)) if window else whole
    return _by_window(near, whole, sight.everywhere).swapaxes(1, 2)


def _by_window(near: Callable, whole: Callable, everywhere: jax.Array | None) -> jax.Array:
    """Of two kernels that can't be told at run time which they are, the layer's own."""
    return near() if everywhere is None else jax.lax.cond(everywhere, whole, near)
