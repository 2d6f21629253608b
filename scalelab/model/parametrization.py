"""What a parametrization changes, as functions of the declarations: each parameter's LR, decay and eps, and what decays.

`standard` leaves everything as declared. With m_d = d_model / base_width and m_L = n_layers / base_layers:

`mup` (Yang et al. 2022, Table 8: the form that allows a tied head; Tables 3 and 9 are the same by their Lemma J.1).
Hidden matrices have both sides among the widths; all else is vector-like. Adam: hidden LR / m_d. SGD: vector-like LR x m_d.
The head's 1/m_d and attention's 1/d_head stand in the forward pass (`transformer.py`, `attention/attention.py`). Initialisation needs
no change: tables keep their std, hidden matrices have 1/sqrt(fan_in) anyway. All widths are taken to grow with d_model.

`completep` (Dey et al. 2025, Table 1 at alpha = 1) adds depth: a block's branches are divided by m_L in the forward pass,
hidden LR x m_L^(alpha-1) = 1 and the same for gains and biases in blocks, hidden decay x m_d, eps / (m_d m_L) inside blocks
and / m_d outside. The paper's table is AdamW's; the column for SGD is ours, by the same argument (see `parameter_scales`).

At base_width and base_layers all three are the same.
"""

import dataclasses
from typing import Any, Literal

import jax
import numpy as np

from scalelab.config import ModelShape
from scalelab.model.attention.attention import attention_scale
from scalelab.model.declare import Declaration
from scalelab.model.transformer import branch_multiplier, head_multiplier, parameter_declarations

UpdateFamily = Literal["adam", "sgd", "spectral", "relative"]


@dataclasses.dataclass(frozen=True)
class ParameterScales:
    """What one parameter's numbers are multiplied by. With decoupled decay its step is

    -peak_lr * lr * (update(eps * the optimizer's eps) + decay * weight_decay * parameter).
    """

    lr: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


def parameter_scales(shape: ModelShape, like: UpdateFamily) -> Any:
    """A tree of `ParameterScales`, for optimizers whose updates are like one of four.

    adam: of a size that doesn't depend on the gradient's (Adam, Lion, signs; Muon scaled to 0.2 sqrt(max)).
    relative: that, times the parameter's RMS (Adafactor). A hidden matrix's is 1/sqrt(fan_in) at the start, so half of Adam's
    exponent is in the update (Everett et al. 2024, sec. 4, on parameter scaling).
    sgd: proportional to the gradient. An entry of it shrinks as 1 / m_d, and in blocks as 1 / m_L, which is what
    CompleteP's eps follows; so the LR that moves a parameter as Adam's does is Adam's over this (Table 8 at m_L = 1).
    spectral: a hidden matrix's has spectral norm sqrt(out / in), or anything that depends on widths by their ratios
    (Muon scaled by sqrt(max(1, out / in)), Shampoo): no factor is left (Yang, Simon & Bernstein 2023, condition 1).

    Clipping by the global norm is no part of this: where it acts, updates like sgd's take a factor that depends on width.

    LR x decay is the same at every width and depth: Table 1's hidden decay x m_d beside its LR / m_d, and mup's
    package (MuAdamW) the same.
    """

    def of(d: Declaration) -> ParameterScales:
        if like == "spectral":
            return ParameterScales()
        adam = 1 / shape.width_ratio if d.is_hidden_matrix else 1.0
        if like == "relative":
            return ParameterScales(adam**0.5, adam**-0.5)
        gradient = 1 / shape.width_ratio / (shape.depth_ratio if "layers" in d.stack else 1.0)
        if like == "sgd":
            return ParameterScales(adam / gradient, gradient / adam)
        return ParameterScales(adam, 1 / adam, gradient if shape.parametrization == "completep" else 1.0)

    return jax.tree.map(of, parameter_declarations(shape))


def forward_multipliers(shape: ModelShape) -> dict[str, float]:
    """{layer: factor}: multiplied into these layers' parameters, a standard model computes the same function.

    Queries take what attention's scale has beyond 1/sqrt(d_head) (RoPE is linear), the final norm takes the head's 1/m_d,
    whether or not the head is tied, and a block's two last products take 1/m_L. Factors of one are left out.
    """
    factors = {
        "blocks.attention.q": attention_scale(shape) * shape.d_head**0.5,
        "blocks.attention.o": branch_multiplier(shape),
        "blocks.mlp.down": branch_multiplier(shape),
        "final_norm": head_multiplier(shape),
    }
    return {name: factor for name, factor in factors.items() if np.float32(factor) != 1}
