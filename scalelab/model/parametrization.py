"""What a parametrization changes, as functions of the declarations: learning-rate multipliers and the decay mask.

sp leaves everything as declared. mup (Yang et al. 2022, Tables 8 and 9, Adam columns) with m = d_model / base_width:
hidden matrices get LR / m; the head's 1/m and attention's 1/d_head stand in the forward pass (`transformer.py`,
`attention.py`); initialisation needs no change, since tables keep their std and hidden matrices use 1/fan_in already.
At d_model = base_width the two coincide.
"""

from typing import Any

import jax

from scalelab.config import ModelShape
from scalelab.model.transformer import declarations


def lr_multipliers(shape: ModelShape) -> Any:
    """A tree of floats: what each parameter's Adam update is multiplied by."""
    hidden = 1.0 if shape.parametrization == "sp" else shape.base_width / shape.d_model
    return jax.tree.map(lambda d: hidden if d.is_hidden_matrix else 1.0, declarations(shape))


def decay_mask(shape: ModelShape) -> Any:
    """A tree of bools: matrices and tables decay; gains, biases and position vectors (no `ins`) don't."""
    return jax.tree.map(lambda d: bool(d.ins), declarations(shape))
