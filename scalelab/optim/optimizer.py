"""The record that declares an optimizer, one in each optimizer's file; `chain.py` does the rest."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim, group_hparams, traced_names
from scalelab.model.declare import Declaration
from scalelab.optim.parametrization import UpdateFamily
from scalelab.optim.schedules import Hparams
from scalelab.optim.user_numbers import readable_hparams

# Like the parameters: a nested dict, or a flat one {"blocks.mlp.up.w": …} where the optimizer claims only some.
Tree = Any
BuildTransform = Callable[
    [Tree, Optim, Hparams, jax.Array], optax.GradientTransformationExtraArgs | optax.GradientTransformation
]


class SecondMoment(NamedTuple):
    """An optimizer's running mean of squared gradients, `v`, one number for each of the parameters it claims.

    The optimizer divides v by `correction` before it takes the root: 1 - beta2^t, or 1.
    """

    v: Tree
    correction: jax.Array | float = 1.0


def claims_everything(declaration: Declaration) -> bool:
    """Claim every parameter."""
    del declaration
    return True


def claims_hidden_matrices(declaration: Declaration) -> bool:
    """Claim matrices between hidden units; tables and vectors get AdamW (`optim.rest_*`)."""
    return declaration.is_hidden_matrix


@dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    `build(declared, o, h, lr)` makes the transform from gradients to directions; the chain applies multipliers, decay,
    -LR. `declared`: declarations of the claimed parameters; `o`: static options; `h`: traced numbers by key.
    `state_bytes(declaration, o)`: state of one parameter between steps, without scalars like a step count; by default
    what `build` keeps.
    `claims`: whether it takes a parameter; AdamW takes the rest. `like`: the muP rule for its updates, `adam` (size
    independent of the gradient's), `sgd` (proportional to it), `spectral` (fixed spectral norm), `relative`, or a
    function of `o`. `coupled`: weight decay is added to the gradient (L2). `last(h, lr)`: a transform of whole updates
    at the chain's end. `curvature`: with `hutchinson` or `gauss_newton` every update gets the keyword `curvature` (a
    tree of estimates of the Hessian's diagonal, and whether they are fresh). `evaluated(params, opt_state, h)`: the
    parameters to evaluate and save, if they aren't `params`. `second_moment(state, o, h)`: that of its transform's
    state, if it keeps one for every number; `optim.clip=spam` and the share of numbers under eps read it.
    """

    build: BuildTransform
    state_bytes: Callable[[Declaration, Optim], float] = None  # type: ignore[assignment]
    claims: Callable[[Declaration], bool] = claims_everything
    like: UpdateFamily | Callable[[Optim], UpdateFamily] = "adam"
    coupled: bool = False
    last: Callable[[Hparams, jax.Array], Any] | None = None
    curvature: str = ""
    evaluated: Callable[[Tree, Any, Hparams], Tree] | None = None
    second_moment: Callable[[Any, Optim, Hparams], SecondMoment] | None = None

    def __post_init__(self) -> None:
        if self.state_bytes is None:
            object.__setattr__(self, "state_bytes", functools.partial(_count_state_bytes, self.build))


def _count_state_bytes(build: BuildTransform, declaration: Declaration, o: Optim) -> float:
    """Bytes that `build` keeps of one parameter, without scalars; only shapes are evaluated."""
    scalar, param = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), declaration.shape))
    h = group_hparams(dict.fromkeys(traced_names(o), scalar))
    state = jax.eval_shape(
        lambda h, lr, p: build({"p": declaration}, o, readable_hparams(o, h), lr).init({"p": p}), h, scalar, param
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim)


def bytes_per_scalar(n: float) -> Callable[[Declaration, Optim], float]:
    """A `state_bytes` function: `n` bytes for every scalar of a parameter."""
    return lambda declaration, _: n * declaration.size
