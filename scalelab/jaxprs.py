"""Walk a jaxpr: the equations whose results are used, and the FLOPs of its matrix products."""

import math
from typing import Any

import jax
import jax.extend


def matmul_flops(jaxpr: Any) -> float:
    """FLOPs of all `dot_general`s of a jaxpr, bodies of scans times their length.

    XLA's own analysis counts a scan's body once, so it isn't used. A loop of unknown length raises ValueError.
    """
    total = 0.0
    for equation in live_equations(jaxpr):
        if equation.primitive.name == "dot_general":
            total += dot_flops(equation)
        elif equation.primitive.name == "while":
            raise ValueError("a while loop's length is not in the program, so its FLOPs can't be counted")
        elif equation.primitive.name == "cond":
            total += max(matmul_flops(branch.jaxpr) for branch in equation.params["branches"])
        else:
            repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
            total += repeats * sum(matmul_flops(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params))
    return total


def live_equations(jaxpr: Any) -> list[Any]:
    """The equations of a jaxpr whose results reach the outputs: a compiler drops the others (the gradient of a constant, say)."""
    needed, kept = {id(v) for v in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in needed for v in equation.outvars):
            kept.append(equation)
            needed |= {id(v) for v in equation.invars}
    return kept[::-1]


def dot_flops(equation: Any) -> float:
    """FLOPs of one `dot_general`: two a multiplication."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, out = equation.invars[0].aval, equation.outvars[0].aval
    return 2.0 * math.prod(out.shape) * math.prod(left.shape[i] for i in contracted)
