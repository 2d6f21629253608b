"""Number formats that a traced program really has, read from its jaxpr: no policy can claim what it doesn't do."""

import collections
from collections.abc import Sequence
from typing import Any

import jax.extend
import jax.numpy as jnp

from scalelab.jaxprs import PRODUCTS, dot_flops, live_equations
from scalelab.precision.policy import TF32

SUM_PRIMITIVES = ("reduce_sum", "cumsum", "psum", "psum_invariant", "scatter-add", "reduce_scatter")
# Primitives that leave the values of their first operand unchanged.
MOVE_PRIMITIVES = {
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "squeeze",
    "slice",
    "dynamic_slice",
    "expand_dims",
    "rev",
    "copy",
}
MOVE_PRIMITIVES |= {"name", "reshard", "sharding_constraint", "mesh_cast", "pvary", "optimization_barrier"}


class JaxprFormats:
    """Formats by role: FLOPs of products by operand formats; dtypes of their results, of sums, and of named values."""

    def __init__(self) -> None:
        self.flops: dict[str, float] = collections.defaultdict(float)
        self.products: set[str] = set()
        self.sums: set[str] = set()
        self.marked: dict[str, set[str]] = collections.defaultdict(set)


def collect_formats(
    jaxpr: Any, formats: Sequence[str] | None = None, by_role: JaxprFormats | None = None, times: int = 1
) -> tuple[JaxprFormats, list]:
    """Collect the formats in a jaxpr: (the formats by role, the formats of its outputs).

    `formats` are those of its inputs, by default their dtypes; `times` multiplies FLOPs. A loop of unknown length (a
    `while`) is left out: in a training step that is part of the optimizer's update.
    """
    by_role = JaxprFormats() if by_role is None else by_role
    known = dict(zip(jaxpr.invars, formats or [_dtype(v) for v in jaxpr.invars], strict=True))

    def form(v: Any) -> str:
        return known.get(v, _dtype(v)) if not hasattr(v, "val") else _dtype(v)

    for equation in live_equations(jaxpr):
        name, ins = equation.primitive.name, [form(v) for v in equation.invars]
        outs = [_dtype(v) for v in equation.outvars]
        if name in PRODUCTS:
            _note_product(by_role, equation, ins, times)
        elif name in SUM_PRIMITIVES and _is_float(equation.outvars[0]):
            by_role.sums.add(outs[0])
        elif name == "reduce_precision" and _bits(equation) == (8, 10):
            outs = [TF32]
        elif name in MOVE_PRIMITIVES and outs and ins:
            outs = [ins[i] if i < len(ins) and ins[i] == TF32 else out for i, out in enumerate(outs)]
            if name == "name":
                by_role.marked[equation.params["name"]].add(ins[0])
        elif name != "while":
            outs = _walk_called(equation, ins, outs, by_role, times)
        known |= dict(zip(equation.outvars, outs, strict=True))
    return by_role, [form(v) for v in jaxpr.outvars]


def _walk_called(equation: Any, ins: list[str], outs: list[str], by_role: JaxprFormats, times: int) -> list[str]:
    """Collect the formats in the jaxprs that an equation calls; returns the formats of its outputs."""
    ins = ins[1:] if equation.primitive.name == "cond" else ins
    times *= equation.params["length"] if equation.primitive.name == "scan" else 1
    for inner in _called(equation):
        matched = len(inner.invars) == len(ins)
        _, inner_outs = collect_formats(inner, ins if matched else None, by_role, times)
        outs = inner_outs if len(inner_outs) == len(outs) else outs
    return outs


def _called(equation: Any) -> list[Any]:
    if equation.primitive.name == "cond":
        return [branch.jaxpr for branch in equation.params["branches"]]
    return list(jax.extend.core.jaxprs_in_params(equation.params))


def _bits(equation: Any) -> tuple[int, int]:
    return equation.params["exponent_bits"], equation.params["mantissa_bits"]


def _note_product(by_role: JaxprFormats, equation: Any, ins: list[str], times: int) -> None:
    tf32 = "TF32" in str(equation.params["precision"])
    operands = [TF32 if tf32 and form == "float32" else form for form in ins[:2]]
    by_role.flops[" x ".join(sorted(set(operands)))] += times * dot_flops(equation)
    by_role.products.add(_dtype(equation.outvars[0]))


def _dtype(v: Any) -> str:
    return str(getattr(v.aval, "dtype", v.aval))


def _is_float(v: Any) -> bool:
    return jnp.issubdtype(v.aval.dtype, jnp.floating)
