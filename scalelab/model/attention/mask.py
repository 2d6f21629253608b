"""The attention mask: keys up to the query's position, of its document, within its window.

Shapes: B batch, S queries, T keys.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax


class MaskInfo(NamedTuple):
    """Limits on a layer's attention besides causality, as arrays; None: no limit.

    `segment_BS`: each token's document number (`documents.document_segments`). `is_global` (a boolean): true where the
    layer ignores the window.
    """

    segment_BS: jax.Array | None = None
    is_global: jax.Array | None = None


NO_MASK = MaskInfo()


def attention_mask(
    query_S: jax.Array,
    key_T: jax.Array,
    window: int = 0,
    is_global: jax.Array | None = None,
    segment_BS: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
) -> jax.Array:
    """Booleans [S, T], or [B, S, T] with segments: true where the query may attend to the key, itself included.

    `query_S`, `key_T`: positions in the sequence. A window of w tokens holds the query's and the w - 1 before; 0: none.
    """
    distance = query_S[:, None] - key_T[None, :]
    mask = distance >= 0
    if window:
        near = distance < window
        mask &= near if is_global is None else near | is_global
    if segment_BS is not None and segment_BT is not None:
        mask = mask[None] & (segment_BS[:, :, None] == segment_BT[:, None, :])
    return mask


def by_window(near: Callable, whole: Callable, is_global: jax.Array | None) -> jax.Array:
    """Windowed or full attention by the layer's flag, for kernels whose window is fixed when they are traced."""
    return near() if is_global is None else jax.lax.cond(is_global, whole, near)
