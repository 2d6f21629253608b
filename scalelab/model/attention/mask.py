"""The attention mask: keys up to the query's position, of its document, within its window. How pairs are scored.

Shapes: B batch, S queries, T keys.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.model.attention.positions.relative import RelativeInputs
from scalelab.sharding import activation_spec, vary_like


class MaskInfo(NamedTuple):
    """Limits on a layer's attention besides causality, as arrays; None: no limit.

    `segment_BS`: each token's document number (`documents.document_segments`). `is_global` (a boolean): true where the
    layer ignores the window.
    """

    segment_BS: jax.Array | None = None
    is_global: jax.Array | None = None


NO_MASK = MaskInfo()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scoring:
    """How attention scores a query and a key: what a kernel takes besides queries, keys and values.

    `scale` multiplies their products, `relative` adds scores of distances, and `softcap` bounds the sum (0: does not).
    `mask_info` and `window` (tokens, the query's included; 0: none) limit the keys. A tree of arrays to jax, with
    `scale`, `window` and `softcap` fixed.
    """

    scale: float = dataclasses.field(metadata={"static": True})
    mask_info: MaskInfo = NO_MASK
    window: int = dataclasses.field(default=0, metadata={"static": True})
    relative: RelativeInputs | None = None
    softcap: float = dataclasses.field(default=0.0, metadata={"static": True})

    def split(self) -> tuple[list[jax.Array], list[PartitionSpec]]:
        """(its arrays, how a mesh splits each: by sequences, positions and heads)."""
        by_head: Any = activation_spec("batch", "context", "heads", None)
        by_token: Any = activation_spec("batch", "context")
        by_distance: Any = activation_spec(None, "heads", None)
        whole: Any = PartitionSpec()
        masks, distances = MaskInfo(by_token, whole), RelativeInputs(by_head, by_distance)
        specs = dataclasses.replace(self, mask_info=masks, relative=distances)
        present = jax.tree.map(lambda x, spec: x if x is None else spec, self, specs, is_leaf=lambda x: x is None)
        return jax.tree.leaves(self), jax.tree.leaves(present)

    def join(self, arrays: Sequence[jax.Array], q: jax.Array) -> "Scoring":
        """This scoring with a device's parts of its arrays, for the device's queries."""
        part: Scoring = jax.tree.unflatten(jax.tree.structure(self), arrays)
        if part.relative is None:
            return part
        return dataclasses.replace(part, relative=part.relative._replace(r_TNH=vary_like(part.relative.r_TNH, q)))


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


def cap_logits(logits: jax.Array, softcap: float) -> jax.Array:
    """Bound attention's logits to +-softcap by a tanh (Gemma 2, 2024, section 2); 0 leaves them as they are."""
    return softcap * jnp.tanh(logits / softcap) if softcap else logits


def by_window(near: Callable, whole: Callable, is_global: jax.Array | None) -> jax.Array:
    """Windowed or full attention by the layer's flag, for kernels whose window is fixed when they are traced."""
    return near() if is_global is None else jax.lax.cond(is_global, whole, near)
