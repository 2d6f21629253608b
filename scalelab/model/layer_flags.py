"""How the layers of a scanned stack differ: flags that the scan passes to each layer."""

from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.config import ModelShape


class LayerFlags(NamedTuple):
    """Flags of one layer, or of all layers [L]; None where all layers are alike.

    `is_global`: the layer uses full attention, whatever the window. `has_rope`: RoPE rotates its queries and keys.
    """

    is_global: Any = None
    has_rope: Any = None


UNIFORM_LAYERS = LayerFlags()


def all_layer_flags(shape: ModelShape) -> LayerFlags:
    """The flags of all layers; every n-th is special, counted from 1.

    Gemma 2: every 2nd layer is global. SmolLM3: every 4th has no positions.
    """
    number_L = np.arange(shape.n_layers) + 1
    is_global = number_L % shape.global_every == 0 if shape.window and shape.global_every else None
    has_rope = number_L % shape.nope_every != 0 if shape.nope_every else None
    return LayerFlags(is_global, has_rope)


def select_layers(flags: LayerFlags, index: Any) -> LayerFlags:
    """The flags of the layers at `index`, which may be traced."""
    return jax.tree.map(lambda flag_L: jax.numpy.asarray(flag_L)[index], flags)


def rope_positions(position_BS: jax.Array | None, layer: LayerFlags, length: int) -> jax.Array | None:
    """Positions for RoPE; all zero, which rotates nothing, in a layer without positions."""
    if layer.has_rope is None:
        return position_BS
    return (jax.numpy.arange(length)[None] if position_BS is None else position_BS) * layer.has_rope


def count_local_layers(shape: ModelShape) -> int:
    """Number of layers whose attention is limited to the window."""
    if not shape.window:
        return 0
    flags = all_layer_flags(shape).is_global
    return shape.n_layers if flags is None else int((~flags).sum())
