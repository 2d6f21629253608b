"""What a stage's blocks give, chunk by chunk on one replica, as that of its layers on all replicas.

Shapes: v rounds, k slots of a chunk.
"""

from typing import Any

import jax

from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import MAXIMA, Sums


def measures_by_layer(measured: Any, replicas: tuple[str, ...]) -> dict[str, jax.Array]:
    """Measures of the chunks [v, k, …] on one replica -> of the stage's layers [v k, …] on all."""
    fields = {name: getattr(measured, name) for name in measures.BLOCK_FIELDS}
    if replicas:
        fields = {
            name: (jax.lax.pmax if name in measures.MAXIMA else jax.lax.psum)(x, replicas) for name, x in fields.items()
        }
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in fields.items()}


def sums_by_layer(block: Sums, replicas: tuple[str, ...]) -> Sums:
    """Sums of the chunks [v, k, …] on one replica -> of the stage's layers [v k, …] on all."""
    if replicas:
        over = {True: jax.lax.pmax, False: jax.lax.psum}
        block = {kind: jax.tree.map(lambda x: over[kind == MAXIMA](x, replicas), each) for kind, each in block.items()}  # noqa: B023
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)
