"""Which parameters get what, from their declared axes and never from their names: groups, decay, LR multipliers, matrices."""

import dataclasses
import math

import jax

from scalelab.config import ModelShape, Optim
from scalelab.config.validate import parse_group_multipliers
from scalelab.model import parametrization
from scalelab.model.declare import Declaration
from scalelab.model.parametrization import ParameterScales
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.optimizer import Optimizer, Tree


def parameter_group(declaration: Declaration) -> str:
    """embed (vocab -> …), head (… -> vocab), position (from a `seq` axis), hidden (matrices), vector (no ins: gains, biases).

    AssertionError where none of them claims it: a parameter without a group is a mistake, not a default.
    """
    d = declaration
    claims = {
        "embed": "vocab" in d.ins, "head": bool(d.ins) and "vocab" in d.outs, "position": "seq" in d.ins,
        "hidden": d.is_hidden_matrix, "vector": not d.ins,
    }  # fmt: skip
    found = [name for name, claimed in claims.items() if claimed]
    assert len(found) == 1, f"a parameter with axes {d.ins} -> {d.outs} is claimed by {found or 'no group'}"
    return found[0]


def optimizer_scales(shape: ModelShape, o: Optim, member: Optimizer) -> Tree:
    """A tree of `Scales`: the parametrization's rule for updates like this optimizer's, its LR times that of `optim.groups`."""
    asked = parse_group_multipliers(o.groups)

    def of(d: Declaration, by_width: ParameterScales) -> ParameterScales:
        return dataclasses.replace(by_width, lr=by_width.lr * asked.get(parameter_group(d), 1.0))

    like = member.like(o) if callable(member.like) else member.like
    rules = parametrization.parameter_scales(shape, like), parametrization.parameter_scales(shape, "adam")
    return jax.tree.map(
        lambda d, own, rest: of(d, own if member.claims(d) else rest), parameter_declarations(shape), *rules
    )


def decay_mask(shape: ModelShape, o: Optim) -> Tree:
    """A tree of bools: matrices decay, embedding and positions with `decay_embeddings`, gains and biases with `decay_vectors`."""
    spared = (set() if o.decay_embeddings else {"embed", "position"}) | (set() if o.decay_vectors else {"vector"})
    return jax.tree.map(lambda d: parameter_group(d) not in spared, parameter_declarations(shape))


def as_matrices(declaration: Declaration, x: jax.Array) -> jax.Array:
    """A parameter [stack…, ins…, outs…] as matrices [stack, in, out]: heads are folded, stacked layers are a batch."""
    stack, ins, outs = matrix_shape(declaration)
    return x.reshape(stack, ins, outs)


def matrix_shape(declaration: Declaration) -> tuple[int, int, int]:
    """(how many matrices, rows, columns) of a parameter that has ins and outs."""
    d = declaration
    start, middle = len(d.stack), len(d.stack) + len(d.ins)
    return math.prod(d.shape[:start]), d.fan_in, math.prod(d.shape[middle:])
