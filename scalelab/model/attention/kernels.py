"""The kernels of attention and the choice among them for a backend.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape, Static
from scalelab.errors import BadInput
from scalelab.model.attention.blockwise import block_size, blockwise_attention
from scalelab.model.attention.fused import cudnn, packed
from scalelab.model.attention.fused.cudnn import HOPPER
from scalelab.model.attention.fused.ring import PARTS, fused_ring_attention
from scalelab.model.attention.fused.splash import TPU_LANES, splash_attention
from scalelab.model.attention.mask import MaskInfo, Scoring, by_window
from scalelab.model.attention.plain import QUERY_CHUNKS, plain_attention, xla_attention
from scalelab.model.attention.ring import ring_attention
from scalelab.model.stacks import count_local_layers
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import (
    ASSUMED_CAPABILITY,
    CONTEXT_AXIS,
    Capability,
    activation_spec,
    is_in_stage,
    mesh_axis_size,
    per_device,
    target_capability,
    target_platform,
)

# Tokens from which blockwise is faster than plain (1.7 times there) and takes less memory (checks/speed/attention.py).
CPU_LONG_SEQUENCE = 512
LONG_SEQUENCE = 2048  # elsewhere, chosen for memory only: speed was not measured
CHUNKED = "plain in chunks of queries"  # what `plain` is where a CPU's program chooses it
FUSED = ("cudnn", "splash")  # kernels whose logits never leave the chip


class Target(NamedTuple):
    """What a kernel is chosen for. `context`: devices that share a sequence; `staged`: in a pipeline's stage.

    `capability`: the compute capability of a GPU.
    """

    backend: str
    capability: Capability = ASSUMED_CAPABILITY
    context: int = 1
    staged: bool = False


def traced_target() -> Target:
    """The target of the current trace."""
    return Target(target_platform(), target_capability(), mesh_axis_size(CONTEXT_AXIS), is_in_stage())


def choose_kernel(shape: ModelShape, compute: jnp.dtype, masked: bool = False, target: Target | None = None) -> str:
    """Name of the attention kernel for `target` (default: here). BadInput where it cannot run `model.attention`.

    `cudnn`: NVIDIA's flash attention, 16-bit only. `splash`: Pallas' for TPUs. `blockwise`: ours, anywhere, memory
    linear in the sequence. `xla` (jax's) and `plain` (ours) hold all logits at once; on CPU jax's layout costs a tenth
    of the whole step (checks/speed/benchmarks). `masked`: documents are; before Hopper cudnn then holds a mask of
    S x S. Where devices share a sequence the kernel computes the parts of a ring.
    """
    target = target or traced_target()
    why = {kind: kernel_obstacle(kind, shape, compute, target, masked) for kind in (*FUSED, "blockwise", "xla")}
    if shape.attention in CHOOSERS:
        return CHOOSERS[shape.attention](shape, target, masked, why)
    if why.get(shape.attention):
        raise BadInput(f"model.attention={shape.attention!r}: {why[shape.attention]}; nearest: auto")
    return shape.attention


def _fastest_kernel(shape: ModelShape, target: Target, masked: bool, why: Mapping[str, str]) -> str:
    """The kernel for `target`, by chip and length; `why`: obstacles of those that have any."""
    long = shape.seq_len >= (CPU_LONG_SEQUENCE if target.backend == "cpu" else LONG_SEQUENCE)
    masks_pairs = masked and target.capability < HOPPER
    if not why["cudnn"] and not (masks_pairs and long):
        return "cudnn"
    if not why["splash"]:
        return "splash"
    if (long or target.context > 1) and not why["blockwise"]:
        return "blockwise"
    return "plain" if target.backend == "cpu" or why["xla"] else "xla"


CHOOSERS = {"auto": _fastest_kernel}  # values of model.attention that are not a kernel but choose one


def step_target(static: Static, backend: str = "", capability: Capability | None = None) -> Target:
    """The target of a training step."""
    capability = capability or target_capability()
    return Target(backend or target_platform(), capability, static.layout.context, static.layout.stage > 1)


def step_kernel(static: Static, backend: str = "", capability: Capability | None = None) -> str:
    """The kernel of a training step, as `choose_kernel`; `ring of` it where devices share a sequence."""
    compute, masked = array_dtype(POLICIES[static.precision].compute), static.masks_documents or static.seq_warmup
    target = step_target(static, backend, capability)
    kernel = choose_kernel(static.model, compute, masked, target)
    if target.context == 1:
        return kernel
    return f"ring of {kernel if kernel in FUSED else 'blockwise'}"


def unfused_reason(static: Static, backend: str, capability: Capability | None = None) -> str:
    """Why a step on this backend takes none of the fused kernels; "" where it takes one or the backend has none."""
    fused = {"gpu": "cudnn", "tpu": "splash"}.get(backend)
    kernel = step_kernel(static, backend, capability)
    if fused is None or fused in kernel:
        return ""
    compute, masked = array_dtype(POLICIES[static.precision].compute), static.masks_documents or static.seq_warmup
    target = step_target(static, backend, capability)
    if static.model.attention != "auto":
        return f"model.attention={static.model.attention!r} is asked for"
    reason = kernel_obstacle(fused, static.model, compute, target, masked)
    return f"{fused}: {reason or 'masked documents would be a mask of all pairs of tokens before Hopper'}"


def documents_limit(static: Static, backend: str, capability: Capability | None = None) -> str:
    """How many documents cuDNN is told of, in words; "" where it is told of none."""
    masked = static.masks_documents or static.seq_warmup
    if not masked or "cudnn" not in step_kernel(static, backend, capability):
        return ""
    if step_target(static, backend, capability).capability < HOPPER:
        return "documents by a mask of all pairs of tokens"
    most = packed.most_runs(1, static.model.seq_len // static.layout.context)
    return f"documents by their starts and lengths; batches of more than {most} a row, on average, in blocks"


def program_kernel(kernel: str, attention: str, backend: str = "") -> str:
    """What a program runs as `kernel`: plain attention that was chosen on a CPU takes its queries in chunks.

    Asked for by name it stays whole, as plans and counts know its products and curvature its second derivatives.
    """
    chosen_plain = kernel == "plain" and attention == "auto"
    return CHUNKED if chosen_plain and (backend or target_platform()) == "cpu" else kernel


def kernel_obstacle(kind: str, shape: ModelShape, compute: jnp.dtype, target: Target, masked: bool = False) -> str:
    """Why this kernel can't run on `target`; "" where it can."""
    if shape.position == "relative" and kind in FUSED:
        return "it does not support model.position='relative'; 'blockwise', 'plain' and 'xla' do"
    if shape.attention_softcap and kind not in ("blockwise", "plain"):
        return "it does not know model.attention_softcap; 'blockwise' and 'plain' do"
    wanted = {"cudnn": "gpu", "splash": "tpu"}.get(kind, target.backend)
    if target.backend != wanted:
        return f"it runs on a {wanted}, not on this {target.backend}"
    if kind in FUSED and target.context > 1 and count_local_layers(shape) == shape.n_layers:
        return "in a ring it knows no window, and all layers have one"
    if kind == "cudnn":
        if target.context > 1 and masked and target.capability < HOPPER:
            return "in a ring it takes documents from compute capability 9.0 on (Hopper)"
        width, named = max(shape.d_key, shape.d_value), "d_head + d_head_rope" if shape.d_kv_latent else "d_head"
        return cudnn.obstacle(width, compute, target.capability, named)
    tokens = shape.seq_len // (2 * target.context) if target.context > 1 else shape.seq_len
    width = kernel_widths(kind, shape.d_key, shape.d_value)[0]
    if kind == "splash" and (tokens % TPU_LANES or width % TPU_LANES):
        what = "seq_len" if target.context == 1 else "half of a device's tokens"
        return f"it takes {what} and d_head in multiples of {TPU_LANES}, not {tokens} and {width}"
    if kind == "splash" and target.staged:
        return "it does not tell jax that its results differ between stages of a pipeline, which jax requires"
    return ""


def compute_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, scoring: Scoring, kernel: str
) -> jax.Array:
    """Causal attention [B, S, N, values' H]; query head n uses key head n // (N / K).

    On a mesh each device computes the sequences and heads it holds, so kernels need not know about other devices.
    """
    by_head = activation_spec("batch", "context", "heads", None)
    arrays, specs = scoring.split()

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, *parts: jax.Array) -> jax.Array:
        part, width = scoring.join(parts, q), v.shape[-1]
        of_keys, of_values = kernel_widths(kernel, q.shape[-1], width)
        q, k, v = _widen(q, of_keys), _widen(k, of_keys), _widen(v, of_values)
        if mesh_axis_size(CONTEXT_AXIS) > 1:
            y = _ring_of(kernel, q, k, v, part)
        else:
            y = (KERNELS | {CHUNKED: _chunked_kernel})[kernel](q, k, v, part)
        return y if y.shape[-1] == width else y[..., :width]

    checked = kernel != "splash"
    return per_device(attend, (*(by_head,) * 3, *specs), by_head, checked)(q_BSNH, k_BTKH, v_BTKH, *arrays)


def kernel_widths(kernel: str, keys: int, values: int) -> tuple[int, int]:
    """Numbers of a head's keys and of its values as the kernel takes them; where it takes more the rest is zeros.

    Keys and values of unequal widths are latent attention's: cuDNN's by its primitives' backward, and jax's own, have
    one width; splash has both in multiples of a TPU's lanes.
    """
    if keys == values:
        return keys, values
    if kernel == "splash":
        return -(-keys // TPU_LANES) * TPU_LANES, -(-values // TPU_LANES) * TPU_LANES
    return (max(keys, values),) * 2 if kernel in ("cudnn", "xla") else (keys, values)


def _widen(x: jax.Array, width: int) -> jax.Array:
    """`x` [..., H] with zeros up to `width`."""
    return x if x.shape[-1] == width else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _blockwise_kernel(q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring) -> jax.Array:
    return blockwise_attention(q, k, v, scoring, block_size())


def _ring_of(kernel: str, q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring) -> jax.Array:
    """Ring attention by a fused kernel where it is one and the layer has no window, else in blocks."""
    if kernel not in PARTS:
        return ring_attention(q, k, v, scoring)
    segment_BS, is_global = scoring.mask_info
    whole = functools.partial(fused_ring_attention, q, k, v, segment_BS, scoring.scale, kernel)
    if not scoring.window:
        return whole()
    windowed = dataclasses.replace(scoring, mask_info=MaskInfo(segment_BS))
    return by_window(lambda: ring_attention(q, k, v, windowed), whole, is_global)


def _cudnn_kernel(q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring) -> jax.Array:
    """By cuDNN; distances are refused by `kernel_obstacle`."""
    offsets, (segment_BS, is_global) = target_capability() >= HOPPER, scoring.mask_info

    def attend(window: int) -> Callable:
        options = cudnn.Options(scoring.scale, True, window, offsets)
        return lambda: cudnn.cudnn_attention(q, k, v, segment_BS, options)

    return by_window(attend(scoring.window), attend(0), is_global)


_chunked_kernel = functools.partial(plain_attention, chunks=QUERY_CHUNKS)
KERNELS: dict[str, Callable[[jax.Array, jax.Array, jax.Array, Scoring], jax.Array]] = {
    "plain": plain_attention,
    "blockwise": _blockwise_kernel,
    "cudnn": _cudnn_kernel,
    "splash": splash_attention,
    "xla": xla_attention,
}
