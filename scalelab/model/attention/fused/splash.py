"""Pallas' splash attention for TPUs, which skips completely masked blocks.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

from collections.abc import Callable
from typing import Any

import jax

from scalelab.model.attention.fused.output import PartOutput
from scalelab.model.attention.fused.splash_masks import causal_mask
from scalelab.model.attention.mask import Scoring, by_window

TPU_LANES = 128  # sequences and heads come in multiples of a TPU's lanes


def splash_attention(
    q_BSNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    scoring: Scoring,
    interpret: bool = False,
) -> jax.Array:
    """Causal attention [B, S, N, H] within documents; distances are refused by `kernel_obstacle`."""
    (segment_BS, is_global), window = scoring.mask_info, scoring.window
    length = q_BSNH.shape[1]
    q_BNSH, k_BKTH, v_BKTH = _heads_first(q_BSNH * scoring.scale, k_BSKH, v_BSKH)
    segments = None if segment_BS is None else (segment_BS,) * 2

    def attend_with(mask: Any) -> Callable:
        return lambda: jax.vmap(_make_kernel(mask, interpret))(q_BNSH, k_BKTH, v_BKTH, _documents(segments))

    whole = attend_with(causal_mask((length, length)))
    near = attend_with(causal_mask((length, length), window)) if window else whole
    return by_window(near, whole, is_global).swapaxes(1, 2)


def splash_parts(scale: float, causal: bool, interpret: bool = False) -> tuple[Callable, Callable]:
    """(forward, backward) of a part of attention, as `cudnn.forward` and `cudnn.backward`.

    The kernel's own derivative, called with the sums and outputs over all keys in place of the part's.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    splash: Any = splash_attention_kernel

    def kernel_of(q: jax.Array, k: jax.Array) -> Any:
        size = q.shape[1], k.shape[1]
        return _make_kernel(causal_mask(size) if causal else masks.FullMask(size), interpret)

    def options(kernel: Any) -> Any:
        names = "mask_value is_mqa block_sizes residual_checkpoint_name mask_function attn_logits_soft_cap interpret"
        return False, *(kernel.kwargs[name] for name in names.split())

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, documents: Any) -> tuple[jax.Array, jax.Array]:
        kernel = kernel_of(q, k)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: Any) -> tuple[jax.Array, jax.Array]:
            limits = kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info
            y, residuals = splash._splash_attention_fwd(*limits, q, k, v, segments, None, *options(kernel))
            return y, residuals[6]

        arrays: Any = *_heads_first(q * scale, k, v), _documents(documents)
        y_BNSH, log_z_BNS = jax.vmap(attend)(*arrays)
        return y_BNSH.swapaxes(1, 2), log_z_BNS

    def backward(q: jax.Array, k: jax.Array, v: jax.Array, documents: Any, output: PartOutput) -> tuple[jax.Array, ...]:
        kernel = kernel_of(q, k)

        def pull(q: Any, k: Any, v: Any, segments: Any, output: PartOutput) -> tuple[jax.Array, ...]:
            residuals = (q, k, v, segments, None, output.y, output.log_z, kernel.dq_mask_info, kernel.dkv_mask_info)
            return splash._splash_attention_bwd(*options(kernel), residuals, output.dy)[3:6]

        outputs = PartOutput(output.log_z, *_heads_first(output.y, output.dy))
        arrays = *_heads_first(q * scale, k, v), _documents(documents), outputs
        dq, dk, dv = _heads_first(*jax.vmap(pull)(*arrays))
        return dq * scale, dk, dv

    return forward, backward


def _make_kernel(mask: Any, interpret: bool) -> Any:
    """The kernel of any number of heads: one mask serves all, and jax reads it again for every other number of them."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    of_queries, of_keys = map(_block_tokens, mask.shape)
    sizes = splash.BlockSizes(*(of_queries, of_keys, of_keys), *(of_queries, of_keys, of_keys), of_queries, of_keys)
    return splash.make_splash_mha_single_device(masks.MultiHeadMask([mask]), block_sizes=sizes, interpret=interpret)


def _documents(segments: tuple[jax.Array, jax.Array] | None) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    return None if segments is None else splash.SegmentIds(*segments)


def _heads_first(*arrays: jax.Array) -> list[jax.Array]:
    return [x.swapaxes(1, 2) for x in arrays]


def _block_tokens(length: int) -> int:
    """Queries or keys at once."""
    return next(size for size in (512, 256, TPU_LANES) if length % size == 0)
