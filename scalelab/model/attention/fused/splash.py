"""Pallas' splash attention for TPUs, which skips completely masked blocks.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

from collections.abc import Callable
from typing import Any

import jax

from scalelab.model.attention.mask import MaskInfo, by_window

TPU_LANES = 128  # sequences and heads come in multiples of a TPU's lanes


def splash_attention(
    q_BSNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    scale: float,
    mask_info: MaskInfo,
    window: int,
    interpret: bool = False,
) -> jax.Array:
    """Causal attention [B, S, N, H] within documents; `window` in tokens, 0: none."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads = q_BSNH.shape[1], q_BSNH.shape[2]
    block = block_tokens(length)
    sizes = splash.BlockSizes(*(block,) * 8)
    q_BNSH, k_BKTH, v_BKTH = (x.swapaxes(1, 2) for x in (q_BSNH * scale, k_BSKH, v_BSKH))
    segments = None if mask_info.segment_BS is None else splash.SegmentIds(mask_info.segment_BS, mask_info.segment_BS)

    def attend_with(mask: Any) -> Callable:
        kernel = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
        )
        return lambda: jax.vmap(kernel)(q_BNSH, k_BKTH, v_BKTH, segments)

    whole = attend_with(masks.CausalMask((length, length)))
    near = attend_with(masks.LocalMask((length, length), (window - 1, 0), 0)) if window else whole
    return by_window(near, whole, mask_info.is_global).swapaxes(1, 2)


def block_tokens(length: int) -> int:
    """Queries or keys at once."""
    return next(size for size in (512, 256, TPU_LANES) if length % size == 0)
