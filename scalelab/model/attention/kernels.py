"""The kernels of attention, the choice among them for a backend, and plain attention.

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

# Tokens from which blockwise is faster than plain (1.7 times there) and takes less memory (experiments/attention.py).
CPU_LONG_SEQUENCE = 512
LONG_SEQUENCE = 2048  # elsewhere, chosen for memory only: speed was not measured
QUERY_CHUNKS, LEAST_QUERIES = 4, 64  # plain attention on a CPU: most chunks of the queries, fewest queries of one
CHUNKED = "plain in chunks of queries"  # what `plain` is where a CPU's program chooses it
TPU_LANES = 128  # the splash kernel takes multiples of a TPU's lanes


def choose_kernel(
    shape: ModelShape, compute: jnp.dtype, packed: bool = False, backend: str = "", staged: bool | None = None
) -> str:
    """Name of the attention kernel on `backend` (default: here). BadInput where it cannot run `model.attention`.

    `cudnn`: NVIDIA's flash attention, 16-bit only. `splash`: Pallas' for TPUs. `blockwise`: ours, anywhere, memory
    linear in the sequence. `xla` (jax's) and `plain` (ours) hold all logits at once; on CPU jax's layout costs a tenth
    of the whole step (experiments/benchmarks). `packed`: documents are masked; then cudnn holds a mask of S x S.
    `staged`: in a pipeline's stage; None: whether the current trace is.
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
    """The kernel of a training step, as `choose_kernel`; `ring` where devices share a sequence."""
    if static.layout.context > 1:
        return "ring"
    compute, packed = array_dtype(POLICIES[static.precision].compute), static.documents == "mask" or static.seq_warmup
    return choose_kernel(static.model, compute, packed, backend, static.layout.stage > 1)


def program_kernel(kernel: str, attention: str, backend: str = "") -> str:
    """What a program runs as `kernel`: plain attention that was chosen on a CPU takes its queries in chunks.

    Asked for by name it stays whole, as plans and counts know its products and curvature its second derivatives.
    """
    chosen_plain = kernel == "plain" and attention == "auto"
    return CHUNKED if chosen_plain and (backend or target_platform()) == "cpu" else kernel


def kernel_obstacle(kind: str, shape: ModelShape, compute: jnp.dtype, backend: str, staged: bool = False) -> str:
    """Why this kernel can't run on `backend`; "" where it can."""
    if shape.position == "relative" and kind != "blockwise":
        return "it does not support model.position='relative'; 'blockwise', 'plain' and 'xla' do"
    wanted = {"cudnn": "gpu", "splash": "tpu"}.get(kind, backend)
    if backend != wanted:
        return f"it runs on a {wanted}, not on this {backend}"
    if kind == "cudnn" and not (compute.itemsize == 2 and shape.d_head % 8 == 0 and shape.d_head <= 128):
        return f"it takes bf16 or fp16 and d_head a multiple of 8 up to 128, not {compute.name} and {shape.d_head}"
    if kind == "splash" and (shape.seq_len % TPU_LANES or shape.d_head % TPU_LANES):
        return f"it takes seq_len and d_head in multiples of {TPU_LANES}, not {shape.seq_len} and {shape.d_head}"
    if kind == "splash" and staged:
        return "it does not tell jax that its results differ between stages of a pipeline, which jax requires"
    return ""


def compute_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, relative: RelativeInputs | None, scale: float, kernel: str,
    mask_info: MaskInfo = NO_MASK, window: int = 0,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, S, N, H]; query head n uses key head n // (N / K); `relative` adds scores of distances.

    `mask_info` and `window` (tokens, the query's included; 0: none) limit the keys. On a mesh each device computes the
    sequences and heads it holds, so kernels need not know about other devices.
    """
    by_head = activation_spec("batch", "context", "heads", None)
    far = (None, None) if relative is None else relative
    others = {
        "q": (far[0], by_head),
        "r": (far[1], activation_spec(None, "heads", None)),
        "segment_BS": (mask_info.segment_BS, activation_spec("batch", "context")),
        "is_global": (mask_info.is_global, PartitionSpec()),
    }
    names = [name for name, (value, _) in others.items() if value is not None]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, *more: jax.Array) -> jax.Array:
        arrays: dict[str, Any] = dict(zip(names, more, strict=True))
        far = RelativeInputs(arrays.pop("q"), vary_like(arrays.pop("r"), q)) if relative is not None else None
        mask_info = MaskInfo(**arrays)
        if mesh_axis_size(CONTEXT_AXIS) > 1:
            return ring_attention(q, k, v, mask_info, scale, window, far)
        if kernel == "blockwise":
            return blockwise_attention(q, k, v, mask_info, scale, window, block_size(), far)
        chunked = functools.partial(plain_attention, chunks=QUERY_CHUNKS)
        kernels: dict[str, Callable] = {"plain": plain_attention, CHUNKED: chunked, "splash": splash_attention}
        bias = None if far is None else relative_scores(far, scale)
        return (kernels.get(kernel) or _jax_kernel(kernel))(q, k, v, bias, scale, mask_info, window)

    specs = (*(by_head,) * 3, *(others[name][1] for name in names))
    checked = kernel != "splash" or mesh_axis_size(CONTEXT_AXIS) > 1
    return per_device(attend, specs, by_head, checked)(q_BSNH, k_BTKH, v_BTKH, *(others[name][0] for name in names))


def plain_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float,
    mask_info: MaskInfo = NO_MASK, window: int = 0, chunks: int = 1,
) -> jax.Array:  # fmt: skip
    """Attention with all logits at once and softmax in fp32; has second derivatives (`train/step/curvature.py`).

    The queries are cut into up to so many `chunks`, each with the keys that causality and the window leave it.
    """
    length, index_S = q_BSNH.shape[1], jnp.arange(q_BSNH.shape[1])
    size = length if chunks == 1 else max(LEAST_QUERIES, -(-length // chunks))
    y_chunks = []
    for start in range(0, length, size):
        first = max(0, start + 1 - window) if chunks > 1 and window and mask_info.is_global is None else 0
        rows, seen = slice(start, start + size), slice(first, start + size)
        segments = [mask_info.segment_BS[:, keys] for keys in (rows, seen)] if mask_info.segment_BS is not None else []
        mask = attention_mask(index_S[rows], index_S[seen], window, mask_info.is_global, *segments)
        bias = None if bias_BNST is None else bias_BNST[:, :, rows, seen]
        qkv = q_BSNH[:, rows], k_BTKH[:, seen], v_BTKH[:, seen]
        y_chunks.append(masked_attention(*qkv, bias, scale, mask, divide_last=chunks > 1))
    return y_chunks[0] if len(y_chunks) == 1 else jnp.concatenate(y_chunks, axis=1)


def masked_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float,
    mask: jax.Array, divide_last: bool = False,
) -> jax.Array:  # fmt: skip
    """Attention where `mask` [S, T] or [B, S, T] is true; one batched product over (sequence, key head).

    `divide_last`: weights are divided by their sum after the product with the values, which saves passes over [S, T].
    """
    batch, length, heads, width = q_BSNH.shape
    keys, stacked = k_BTKH.shape[2], heads // k_BTKH.shape[2] * length  # queries that share a key head are stacked
    q = (q_BSNH * scale).transpose(0, 2, 1, 3).reshape(batch * keys, stacked, width)
    k, v = (x.transpose(0, 2, 1, 3).reshape(batch * keys, -1, width) for x in (k_BTKH, v_BTKH))
    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(mask, 0.0, -1e30)
    if mask.ndim == 2:
        logits = logits + jnp.tile(hidden, (stacked // length, 1))[None]
    else:
        by_query = logits.reshape(batch, keys, -1, length, logits.shape[-1])
        logits = (by_query + hidden[:, None, None]).reshape(logits.shape)
    if bias_BNST is not None:
        logits = logits + bias_BNST.reshape(batch * keys, stacked, -1)
    if divide_last:
        weights = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
        y = fp32_einsum("bst,bth->bsh", weights.astype(v.dtype), v) / jnp.sum(weights, axis=-1, keepdims=True)
        y = y.astype(v.dtype)
    else:
        y = fp32_einsum("bst,bth->bsh", jax.nn.softmax(logits, axis=-1).astype(v.dtype), v).astype(v.dtype)
    return y.reshape(batch, heads, length, width).transpose(0, 2, 1, 3)


def attention_logits(
    q_BSNH: jax.Array,
    k_BTKH: jax.Array,
    relative: RelativeInputs | None,
    scale: float,
    mask_info: MaskInfo,
    window: int,
) -> jax.Array:
    """The softmax's input [B, N, S, T] in fp32, NaN where masked; for inspection on one device."""
    index_S = jnp.arange(q_BSNH.shape[1])
    mask = attention_mask(index_S, index_S, window, mask_info.is_global, mask_info.segment_BS, mask_info.segment_BS)
    k_BTNH = jnp.repeat(k_BTKH, q_BSNH.shape[2] // k_BTKH.shape[2], axis=2)
    logits_BNST = fp32_einsum("bsnh,btnh->bnst", q_BSNH * scale, k_BTNH)
    if relative is not None:
        logits_BNST = logits_BNST + relative_scores(relative, scale)
    return jnp.where(mask if mask.ndim == 2 else mask[:, None], logits_BNST, jnp.nan)


def _jax_kernel(name: str) -> Callable:
    """`jax.nn.dot_product_attention` with the implementation of this name."""

    def attend(
        q: jax.Array, k: jax.Array, v: jax.Array, bias: Any, scale: float, mask_info: MaskInfo, window: int
    ) -> jax.Array:
        index, segment = jnp.arange(q.shape[1]), mask_info.segment_BS
        mask = None if segment is None else attention_mask(index, index, 0, None, segment, segment)[:, None]
        whole = functools.partial(
            jax.nn.dot_product_attention,
            q, k, v, bias=bias, mask=mask, is_causal=True, scale=scale, implementation=name,
        )  # fmt: skip
        near = functools.partial(whole, local_window_size=(window - 1, 0)) if window else whole
        return _by_window(near, whole, mask_info.is_global)

    return attend


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: None,
    scale: float,
    mask_info: MaskInfo,
    window: int,
    interpret: bool = False,
) -> jax.Array:
    """Pallas' attention for TPUs, which skips completely masked blocks. q [B, S, N, H]; k, v [B, T, K, H]."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    assert bias is None
    length, heads = q.shape[1], q.shape[2]
    block = next(size for size in (512, 256, TPU_LANES) if length % size == 0)
    sizes = splash.BlockSizes(*(block,) * 8)
    q_BNSH, k_BKTH, v_BKTH = ((x * scale if x is q else x).swapaxes(1, 2) for x in (q, k, v))
    segments = None if mask_info.segment_BS is None else splash.SegmentIds(mask_info.segment_BS, mask_info.segment_BS)

    def attend_with(mask: Any) -> Callable:
        kernel = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
        )
        return lambda: jax.vmap(kernel)(q_BNSH, k_BKTH, v_BKTH, segments)

    whole = attend_with(masks.CausalMask((length, length)))
    near = attend_with(masks.LocalMask((length, length), (window - 1, 0), 0)) if window else whole
    return _by_window(near, whole, mask_info.is_global).swapaxes(1, 2)


def _by_window(near: Callable, whole: Callable, is_global: jax.Array | None) -> jax.Array:
    """Windowed or full attention by the layer's flag, for kernels whose window is fixed when they are traced."""
    return near() if is_global is None else jax.lax.cond(is_global, whole, near)
