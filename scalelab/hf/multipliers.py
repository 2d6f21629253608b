"""Multipliers of a forward pass as part of the weights: ours when written, a config.json's when read."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from scalelab.config import ModelShape
from scalelab.hf.formats import Format
from scalelab.model.block import forward_multipliers
from scalelab.model.stacks import BLOCKS, is_stack
from scalelab.model.transformer import Params


def multiply_layers(params: Params, factors: Mapping[str, float]) -> tuple[Params, dict[str, float]]:
    """Multiply the parameters of layers, named as in a model of one stack: (parameters, {layer: factor} as applied)."""
    folded = {}

    def scaled(path: Any, leaf: Any) -> Any:
        layer = jax.tree_util.keystr(path[:-1], simple=True, separator=".")
        group, _, rest = layer.partition(".")
        factor = factors.get(f"{BLOCKS}.{rest}" if is_stack(group) else layer)
        if factor is None:
            return leaf
        folded[layer] = factor
        return np.asarray(leaf) * np.float32(factor)

    return jax.tree_util.tree_map_with_path(scaled, params), folded


def join_factors(*parts: Mapping[str, float]) -> dict[str, float]:
    """The products of the factors of each layer, without those of one."""
    products: dict[str, float] = {}
    for layer, factor in (item for part in parts for item in part.items()):
        products[layer] = products.get(layer, 1.0) * factor
    return {layer: factor for layer, factor in products.items() if np.float32(factor) != 1}


def fold_multipliers(shape: ModelShape, params: Params, form: Format | None = None) -> tuple[Params, dict[str, float]]:
    """Fold forward multipliers into weights: (parameters of the same function under `standard`, {parameter: factor}).

    With `form` divided by those of transformers' code, which multiplies by them. Each weight is rounded once, or not at
    all if the factor is a power of two.
    """
    implied = {layer: 1 / factor for layer, factor in form.implied(shape).items()} if form else {}
    return multiply_layers(params, join_factors(forward_multipliers(shape), implied))
