"""What a query sees: the keys up to its own, of its own document, within its window.

Shapes: B batch, S queries, T keys.
"""

from typing import NamedTuple

import jax


class MaskInfo(NamedTuple):
    """What limits a layer's sight besides causality, as arrays; None: nothing.

    `segment_BS` tells documents apart (`documents.document_segments`); where `everywhere` (a boolean) is true, this layer has no window.
    """

    segment_BS: jax.Array | None = None
    everywhere: jax.Array | None = None


NO_MASK = MaskInfo()


def attention_mask(
    of_query_S: jax.Array,
    of_key_T: jax.Array,
    window: int = 0,
    everywhere: jax.Array | None = None,
    segment_BS: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
) -> jax.Array:
    """Booleans [S, T], with segments [B, S, T], from indices in the sequence and the documents' numbers. A query sees itself.

    A window of w tokens holds the query's own and the w - 1 before it; 0: no window.
    """
    distance = of_query_S[:, None] - of_key_T[None, :]
    seen = distance >= 0
    if window:
        near = distance < window
        seen &= near if everywhere is None else near | everywhere
    if segment_BS is not None and segment_BT is not None:
        seen = seen[None] & (segment_BS[:, :, None] == segment_BT[:, None, :])
    return seen
