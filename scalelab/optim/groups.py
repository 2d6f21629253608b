"""Groups, weight decay, LR multipliers and matrix shapes of parameters, from their declared axes, never their names."""

import dataclasses
import math

import jax

from scalelab.config import ModelShape, Optim
from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.model.declare import Declaration
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import parametrization
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.parametrization import ParameterScales


def parameter_group(declaration: Declaration) -> str:
    """A parameter's group by its axes.

    embed (vocab -> …), head (… -> vocab), position (from a `seq` axis), hidden (matrices), vector (no ins: gains,
    biases). AssertionError where not exactly one fits: a parameter without a group is a mistake, not a default.
    """
    d = declaration
    fits_group = {
        "embed": "vocab" in d.ins, "head": bool(d.ins) and "vocab" in d.outs, "position": "seq" in d.ins,
        "hidden": d.is_hidden_matrix, "vector": not d.ins,
    }  # fmt: skip
    fitting = [name for name, fits in fits_group.items() if fits]
    assert len(fitting) == 1, f"a parameter with axes {d.ins} -> {d.outs} is claimed by {fitting or 'no group'}"
    return fitting[0]


def optimizer_scales(shape: ModelShape, o: Optim, optimizer: Optimizer) -> Tree:
    """A tree of `ParameterScales`: the parametrization's rule for this optimizer, LR times `optim.groups`."""
    multipliers = parse_group_multipliers(o.groups)

    def scales_of(d: Declaration, claimed: ParameterScales, rest: ParameterScales) -> ParameterScales:
        scales = claimed if optimizer.claims(d) else rest
        return dataclasses.replace(scales, lr=scales.lr * multipliers.get(parameter_group(d), 1.0))

    like = optimizer.like(o) if callable(optimizer.like) else optimizer.like
    rules = parametrization.parameter_scales(shape, like), parametrization.parameter_scales(shape, "adam")
    return jax.tree.map(scales_of, parameter_declarations(shape), *rules)


def decay_mask(shape: ModelShape, o: Optim) -> Tree:
    """A tree of bools, true where weight decay applies.

    Matrices decay; embedding and positions with `decay_embeddings`; gains and biases with `decay_vectors`.
    """
    exempt = (set() if o.decay_embeddings else {"embed", "position"}) | (set() if o.decay_vectors else {"vector"})
    return jax.tree.map(lambda d: parameter_group(d) not in exempt, parameter_declarations(shape))


def as_matrices(declaration: Declaration, x: jax.Array) -> jax.Array:
    """Reshape a parameter [stack…, ins…, outs…] to matrices [stack, in, out]: heads are folded, layers are a batch."""
    stack, ins, outs = matrix_shape(declaration)
    return x.reshape(stack, ins, outs)


def matrix_shape(declaration: Declaration) -> tuple[int, int, int]:
    """(number of matrices, rows, columns) of a parameter with ins and outs."""
    d = declaration
    start, middle = len(d.stack), len(d.stack) + len(d.ins)
    return math.prod(d.shape[:start]), d.fan_in, math.prod(d.shape[middle:])
