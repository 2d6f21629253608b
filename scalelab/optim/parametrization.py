"""What a parametrization changes, from the declarations: the LR, weight decay and eps of each parameter.

`standard` leaves everything as declared. With m_d = d_model / base_width and m_L = n_layers / base_layers:

`mup` (Yang et al. 2022, Table 8: the form that allows a tied head; by their Lemma J.1, Tables 3 and 9 are equivalent).
Hidden matrices have widths on both sides; all else is vector-like. Adam: hidden LR / m_d. SGD: vector-like LR x m_d.
The head's 1/m_d and attention's 1/d_head stand in the forward pass (`model/transformer.py`,
`model/attention/attention.py`).
Initialisation does not change: tables keep their std, hidden matrices have 1/sqrt(fan_in) anyway. All widths are
assumed to grow with d_model.

`completep` (Dey et al. 2025, Table 1 at alpha = 1) adds depth: the forward pass divides a block's branches by m_L.
Hidden LR and the LR of gains and biases in blocks x m_L^(alpha-1) = 1, hidden decay x m_d, eps / (m_d m_L) inside
blocks and / m_d outside. The paper's table is for AdamW; the column for SGD is ours, by the paper's argument
(`parameter_scales`).

At base_width and base_layers the three are equal.
"""

import dataclasses
from typing import Any, Literal

import jax

from scalelab.config import ModelShape
from scalelab.config.choices import PARAMETRIZATIONS
from scalelab.model.declare import Declaration
from scalelab.model.transformer import parameter_declarations

UpdateFamily = Literal["adam", "sgd", "spectral", "relative"]


@dataclasses.dataclass(frozen=True)
class ParameterScales:
    """Factors on one parameter's LR, weight decay and eps. With decoupled decay the parameter's step is

    -peak_lr * lr * (update(eps * the optimizer's eps) + decay * weight_decay * parameter).
    """

    lr: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


def parameter_scales(shape: ModelShape, like: UpdateFamily) -> Any:
    """A tree of `ParameterScales` for optimizers whose update size behaves `like` one of four.

    adam: does not depend on the gradient's size (Adam, Lion, signs; Muon scaled to 0.2 sqrt(max)).
    relative: like adam, times the parameter's RMS (Adafactor). A hidden matrix starts with RMS 1/sqrt(fan_in), so half
    of Adam's exponent is in the update already (Everett et al. 2024, sec. 4, on parameter scaling).
    sgd: proportional to the gradient. A gradient's entries shrink as 1 / m_d, in blocks also as 1 / m_L, as CompleteP's
    eps does; so the LR is Adam's divided by these factors (Table 8 at m_L = 1).
    spectral: a hidden matrix's update has spectral norm sqrt(out / in), or depends only on ratios of widths
    (Muon scaled by sqrt(max(1, out / in)), Shampoo): no factor is left (Yang, Simon & Bernstein 2023, condition 1).

    LR x decay is constant over width and depth, as in Table 1 (hidden decay x m_d, LR / m_d) and mup's package
    (MuAdamW). Clipping by the global norm is not corrected: while it acts, updates like sgd's get a factor that depends
    on width.
    """

    def scales_of(d: Declaration) -> ParameterScales:
        if like == "spectral":
            return ParameterScales()
        adam = 1 / shape.width_ratio if d.is_hidden_matrix else 1.0
        if like == "relative":
            return ParameterScales(adam**0.5, adam**-0.5)
        gradient = 1 / shape.width_ratio / (shape.depth_ratio if "layers" in d.stack else 1.0)
        if like == "sgd":
            return ParameterScales(adam / gradient, gradient / adam)
        return ParameterScales(adam, 1 / adam, gradient if PARAMETRIZATIONS[shape.parametrization].eps else 1.0)

    return jax.tree.map(scales_of, parameter_declarations(shape))
