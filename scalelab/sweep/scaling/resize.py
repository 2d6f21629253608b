"""A recipe at another width or depth, for coordinate checks and proxies."""

import fractions

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput


def width_unit(config: ConfigDict) -> int:
    """The smallest width whose multiples hold whole groups of heads at the config's d_head."""
    return fractions.Fraction(config.model.d_model, config.model.n_kv_heads).numerator


def resize_config(config: ConfigDict, d_model: int | None = None, n_layers: int | None = None) -> ConfigDict:
    """The resolved config at `d_model` and `n_layers` (default: the config's).

    d_head and the queries of each key head stay, the number of heads scales. d_ff keeps its ratio to d_model, rounded
    up to a multiple of 8; the bases of mup and completep stay. BadInput for a width that heads or their groups don't
    divide.
    """
    model, config = config.model, config.copy_and_resolve_references()
    width, group = d_model or model.d_model, model.n_heads // model.n_kv_heads
    unit = width_unit(config)
    if width % unit:
        low = max(width // unit, 1) * unit
        raise BadInput(
            f"d_model={width} does not hold whole groups of {group} heads of {model.d_head}; "
            f"nearest: {low}, {low + unit}"
        )
    with config.model.ignore_type():
        heads = model.n_heads * width // model.d_model
        config.model.update(
            d_model=width, n_layers=n_layers or model.n_layers, n_heads=heads, n_kv_heads=heads // group
        )
        if width != model.d_model:
            config.model.d_ff = -(-model.d_ff * width // (8 * model.d_model)) * 8
    return config_lib.resolve(config)
