"""What an optimizer has to say of itself; `chain.py` does the rest. One such record an optimizer, in the file of its transform."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.model.parametrization import UpdateFamily
from scalelab.optim.schedules import Hparams

# Like the parameters: a nested dict, or a flat one {"blocks.mlp.up.w": …} where the optimizer takes only some.
Tree = Any
BuildTransform = Callable[
    [Tree, Optim, Hparams, jax.Array], optax.GradientTransformationExtraArgs | optax.GradientTransformation
]


def claims_everything(declaration: Declaration) -> bool:
    """Claims every parameter."""
    del declaration
    return True


def claims_hidden_matrices(declaration: Declaration) -> bool:
    """Claims matrices between hidden units; tables and vectors get AdamW (`optim.rest_*`)."""
    return declaration.is_hidden_matrix


@dataclass(frozen=True)
class Optimizer:
    """`build(declared, o, h, lr)` makes the transform of gradients into directions: the chain applies multipliers, decay and -LR.

    `declared` is the tree of declarations of what it updates, `o` its static options, `h` the traced numbers.
    `state_bytes(declaration, o)` is what it keeps of one parameter between steps, scalars like a step count aside.
    `claims`: which parameters; the rest gets AdamW. `like`: which of muP's rules fits its updates, that of `adam` (their size
    doesn't depend on the gradient's), `sgd` (proportional to it) or `spectral` (of given spectral norm);
    or a function of `o` that says it.
    `coupled`: weight decay is added to the gradient (L2). `last(h, lr)`: a transform at the chain's end, of whole updates.
    `curvature`: `hutchinson` or `gauss_newton` gets the keyword `curvature` (a tree of estimates of the Hessian's diagonal,
    and whether they are fresh) with every update. `evaluated(params, opt_state, h)`: the point to evaluate and keep, where it
    isn't `params`.
    """

    build: BuildTransform
    state_bytes: Callable[[Declaration, Optim], float]
    claims: Callable[[Declaration], bool] = claims_everything
    like: UpdateFamily | Callable[[Optim], UpdateFamily] = "adam"
    coupled: bool = False
    last: Callable[[Hparams, jax.Array], Any] | None = None
    curvature: str = ""
    evaluated: Callable[[Tree, Any, Hparams], Tree] | None = None


def bytes_per_scalar(n: float) -> Callable[[Declaration, Optim], float]:
    """`state_bytes` of what keeps `n` bytes for every scalar of a parameter."""
    return lambda declaration, _: n * declaration.size
