"""Rows of tables on a mesh: those of the embedding by token, and those of learned positions.

Shapes: B batch, S sequence, D d_model, V vocab.
"""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.sharding import TENSOR_AXIS, activation_spec, has_explicit_mesh, mesh_axes, per_device, spec_of


def lookup_embeddings(embed_VD: jax.Array, tokens_BS: jax.Array, form: Any) -> jax.Array:
    """Rows of the embedding [B, S, D] in `form`. On a mesh rows travel, not the table, which is the larger.

    A device looks up its part of the vocabulary and of D for the tokens of all devices that hold the other parts.
    """
    if not has_explicit_mesh():
        return embed_VD[tokens_BS].astype(form)
    table = spec_of(embed_VD)
    split = mesh_axes(table.partitions[1:])

    def device_rows(table_vd: jax.Array, tokens_bs: jax.Array) -> jax.Array:
        tokens_bs = jax.lax.all_gather(tokens_bs, split, tiled=True) if split else tokens_bs
        row = tokens_bs - jax.lax.axis_index(TENSOR_AXIS) * table_vd.shape[0]
        is_here = (row >= 0) & (row < table_vd.shape[0])
        rows = table_vd[jnp.where(is_here, row, 0)]
        # All but one of the added rows are zero: nothing is lost by adding in any format.
        rows_bsd = jax.lax.psum(jnp.where(is_here[..., None], rows, 0.0).astype(form), TENSOR_AXIS)
        return jax.lax.all_to_all(rows_bsd, split, 0, 2, tiled=True) if split else rows_bsd

    specs = (table, activation_spec("batch", "context"))
    return per_device(device_rows, specs, activation_spec("batch", "context", None))(embed_VD, tokens_BS)


def gather_rows(table_SD: jax.Array, index_BS: jax.Array) -> jax.Array:
    """Rows [B, S, D] of a table that every device holds whole."""
    split, out = activation_spec("batch", "context"), activation_spec("batch", "context", None)
    return per_device(lambda table, index: table[index], (activation_spec(None, None), split), out)(table_SD, index_BS)
