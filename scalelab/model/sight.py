"""What a query sees: the keys up to its own, of its own document.

Shapes: B batch, S queries, T keys.
"""

import jax


def sees(
    of_query_S: jax.Array,
    of_key_T: jax.Array,
    segment_BS: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
) -> jax.Array:
    """Booleans [S, T], with segments [B, S, T], from indices in the sequence and the documents' numbers. A query sees itself."""
    seen = of_query_S[:, None] >= of_key_T[None, :]
    if segment_BS is not None and segment_BT is not None:
        seen = seen[None] & (segment_BS[:, :, None] == segment_BT[:, None, :])
    return seen
