"""Which parameters get what, from their declared axes and never from their names: groups, decay, LR multipliers, matrices."""

import math

import jax

from scalelab.config import ModelShape, Optim
from scalelab.errors import BadInput, nearest
from scalelab.model import parametrization
from scalelab.model.declare import Declaration
from scalelab.model.transformer import declarations
from scalelab.optim.member import Member, Tree

GROUPS = ("embed", "head", "position", "hidden", "vector")


def group(declaration: Declaration) -> str:
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


def parse(text: str) -> dict[str, float]:
    """`"embed=0.1,head=0.5"` -> {group: multiplier}. BadInput for what is no group or no number."""
    multipliers = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in GROUPS:
            raise BadInput(f"optim.groups: {name!r} is no group of parameters{nearest(name, GROUPS)}")
        try:
            multipliers[name] = float(value)
        except ValueError:
            raise BadInput(f"optim.groups: {part!r} is not GROUP=NUMBER; e.g. embed=0.1,head=0.5") from None
        if not 0 <= multipliers[name] < math.inf:
            raise BadInput(f"optim.groups: {part!r} is no multiplier; nearest: {name}=1")
    return multipliers


def scales(shape: ModelShape, o: Optim, member: Member) -> Tree:
    """A tree of floats: what each parameter's direction is multiplied by, of muP's rule and of `optim.groups`."""
    del member  # all rules are adam's until parametrization knows others
    asked = parse(o.groups)
    widths = parametrization.lr_multipliers(shape)
    return jax.tree.map(lambda d, width: width * asked.get(group(d), 1.0), declarations(shape), widths)


def decays(shape: ModelShape, o: Optim) -> Tree:
    """A tree of bools: matrices and tables decay, vectors don't; embedding and positions only with `decay_embeddings`."""
    spared = {"vector"} if o.decay_embeddings else {"vector", "embed", "position"}
    return jax.tree.map(lambda d: group(d) not in spared, declarations(shape))


def as_matrices(declaration: Declaration, x: jax.Array) -> jax.Array:
    """A parameter [stack…, ins…, outs…] as matrices [stack, in, out]: heads are folded, stacked layers are a batch."""
    stack, ins, outs = sides(declaration)
    return x.reshape(stack, ins, outs)


def sides(declaration: Declaration) -> tuple[int, int, int]:
    """(how many matrices, rows, columns) of a parameter that has ins and outs."""
    d = declaration
    start, middle = len(d.stack), len(d.stack) + len(d.ins)
    return math.prod(d.shape[:start]), d.fan_in, math.prod(d.shape[middle:])
