"""A recipe at another width or depth, for coordinate checks and proxies."""

import fractions
import math

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import mixture_text
from scalelab.errors import BadInput

SCALED_WIDTHS = ("d_ff", "d_expert", "d_kv_latent", "d_q_latent")  # of a model, in proportion to its d_model


def scale_width(size: int, width: int, before: int) -> int:
    """`size` at d_model=`width`, in its ratio to the d_model `before`, up to a multiple of 8; 0 stays 0."""
    return -(-size * width // (8 * before)) * 8


def width_unit(config: ConfigDict) -> int:
    """The smallest width whose multiples hold whole groups of heads at the config's d_head."""
    return fractions.Fraction(config.model.d_model, config.model.n_kv_heads).numerator


def depth_unit(config: ConfigDict) -> int:
    """The smallest depth whose multiples keep the shares of the config's stacks; 1 of a model of equal layers."""
    depths = [stack.depth for stack in mixture_text.parse_stacks(config.model.block, config.model.n_layers)]
    return sum(depths) // math.gcd(*depths)


def resize_config(config: ConfigDict, d_model: int | None = None, n_layers: int | None = None) -> ConfigDict:
    """The resolved config at `d_model` and `n_layers` (default: the config's).

    d_head and the queries of each key head stay, the number of heads scales. d_ff, d_expert and latents keep their
    ratio to d_model, rounded up to a multiple of 8; the bases of mup and completep stay, and so do the shares of
    stacks. BadInput for a width that heads or their groups don't divide, and for a depth that the stacks don't.
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
    depth, stacks = n_layers or model.n_layers, mixture_text.parse_stacks(model.block, model.n_layers)
    if depth % (deep := depth_unit(config)):
        low = max(depth // deep, 1) * deep
        raise BadInput(
            f"n_layers={depth} does not keep the shares of model.block={model.block!r}; nearest: {low}, {low + deep}"
        )
    with config.model.ignore_type():
        config.model.block = mixture_text.format_stacks(mixture_text.scale_stacks(stacks, depth))
        heads = model.n_heads * width // model.d_model
        config.model.update(d_model=width, n_layers=depth, n_heads=heads, n_kv_heads=heads // group)
        if width != model.d_model:
            sizes = {key: scale_width(model[key], width, model.d_model) for key in SCALED_WIDTHS}
            config.model.update(sizes)
    return config_lib.resolve(config)
