"""What tells a layer from the others of a stack whose parameters are one: flags that the scan over layers hands on."""

from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.config import ModelShape


class LayerFlags(NamedTuple):
    """Flags of one layer, or of all, [L]; None where all layers are alike.

    `everywhere`: it disregards the window. `turns`: its queries and keys are turned by their positions.
    """

    everywhere: Any = None
    turns: Any = None


UNIFORM_LAYERS = LayerFlags()


def all_layer_flags(shape: ModelShape) -> LayerFlags:
    """The flags of all layers: of every n-th, counted from one (Gemma 2: n = 2 global; SmolLM3: n = 4 without positions)."""
    number_L = np.arange(shape.n_layers) + 1
    everywhere = number_L % shape.global_every == 0 if shape.window and shape.global_every else None
    turns = number_L % shape.nope_every != 0 if shape.nope_every else None
    return LayerFlags(everywhere, turns)


def select_layers(flags: LayerFlags, index: Any) -> LayerFlags:
    """Those of some layers; a traced index will do."""
    return jax.tree.map(lambda each: jax.numpy.asarray(each)[index], flags)


def rope_positions(position_BS: jax.Array | None, layer: LayerFlags, length: int) -> jax.Array | None:
    """Positions for rope: all zero, which turns nothing, in a layer without positions."""
    if layer.turns is None:
        return position_BS
    return (jax.numpy.arange(length)[None] if position_BS is None else position_BS) * layer.turns


def count_local_layers(shape: ModelShape) -> int:
    """Layers that see a window only."""
    if not shape.window:
        return 0
    flags = all_layer_flags(shape).everywhere
    return shape.n_layers if flags is None else int((~flags).sum())
