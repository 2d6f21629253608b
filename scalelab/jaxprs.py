"""Walks jaxprs: the equations whose results are used, and the FLOPs of matrix products."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend

RAGGED = "ragged_dot_general"  # rows in groups, each with a matrix of its own
PRODUCTS = ("dot_general", RAGGED)


def matmul_flops(jaxpr: Any) -> float:
    """FLOPs of all matrix products of a jaxpr (`PRODUCTS`); bodies of scans count times their length.

    XLA's own analysis isn't used: it counts a scan's body once. ValueError for a loop of unknown length.
    """
    total = 0.0
    for equation in live_equations(jaxpr):
        if equation.primitive.name in PRODUCTS:
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
    """Equations whose results reach the outputs of a jaxpr; compilers drop the others (a constant's gradient, say)."""
    needed, live = {id(v) for v in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in needed for v in equation.outvars):
            live.append(equation)
            needed |= {id(v) for v in equation.invars}
    return live[::-1]


def dot_flops(equation: Any) -> float:
    """FLOPs of one product: two per multiplication. Of a ragged one each row is multiplied with its group alone.

    That is what a ragged product needs: where a compiler makes a dense product of it, the chip does more.
    """
    contracted, groups = _contracted(equation), 1
    left, out = equation.invars[0].aval, equation.outvars[0].aval
    if equation.primitive.name == RAGGED:
        (ragged,) = equation.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
        groups = equation.invars[2].aval.shape[-1] if ragged in contracted else 1  # the result has one of each group
    return 2.0 * math.prod(out.shape) / groups * math.prod(left.shape[i] for i in contracted)


def _contracted(equation: Any) -> Sequence[int]:
    """The dimensions of a product's left operand that are summed."""
    if equation.primitive.name == RAGGED:
        (contracted, _), _ = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    else:
        (contracted, _), _ = equation.params["dimension_numbers"]
    return contracted


@dataclasses.dataclass(frozen=True)
class Value:
    """The origin of a value in a program.

    `id`: equal for values that differ only in shape and dtype. `input`: the name of the program's input, if the value
    is one up to shape and dtype; None if it is computed. `inputs`: names of all inputs on which it depends. `dots`: ids
    of the products from which it is computed without another product in between.
    """

    id: int
    input: str | None
    inputs: frozenset[str]
    dots: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Dot:
    """One product of a program: `contracted` entries are summed; `result` is the id of its `Value`.

    `repeated`: whether it is in a loop, whose length `flops` includes. `scope`: its modules, as flax names them.
    """

    id: int
    flops: float
    contracted: int
    operands: tuple[Value, Value]
    result: int
    repeated: bool
    scope: str


# Primitives that change only shape, dtype or place of a value.
STRUCTURAL = (
    *("reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "reduce_precision"),
    *("copy", "copy_p", "name", "reshard", "sharding_constraint", "optimization_barrier", "pvary"),
)


def trace_dots(jaxpr: Any, names: Sequence[str]) -> tuple[Dot, ...]:
    """Trace each product of a jaxpr whose result is used, with the origins of its operands; `names`: the inputs'.

    Bodies of loops are walked once, and their products count as often as a scan runs. ValueError for a product in a
    loop of unknown length.
    """
    walk = _Walk()
    walk.run(jaxpr, [Value(walk.fresh(), name, frozenset([name]), frozenset()) for name in names], 1, "")
    return tuple(walk.dots)


class _Walk:
    def __init__(self) -> None:
        self.dots: list[Dot] = []
        self.ids = itertools.count()

    def fresh(self) -> int:
        return next(self.ids)

    def join(self, values: Sequence[Value]) -> Value:
        """Make the value computed from these."""
        inputs = frozenset[str]().union(*(value.inputs for value in values))
        return Value(self.fresh(), None, inputs, frozenset[int]().union(*(value.dots for value in values)))

    def run(self, jaxpr: Any, given: Sequence[Value], times: int, scope: str) -> list[Value]:
        """Walk a jaxpr with these inputs; returns its outputs."""
        known: dict[Any, Value] = dict(zip(jaxpr.invars, given, strict=True))
        known |= {var: self.join([]) for var in jaxpr.constvars}

        def value(atom: Any) -> Value:
            return self.join([]) if isinstance(atom, jax.extend.core.Literal) else known[atom]

        for equation in live_equations(jaxpr):
            stack = str(equation.source_info.name_stack)
            results = self.apply(equation, [value(atom) for atom in equation.invars], times, stack or scope)
            known |= dict(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def apply(self, equation: Any, given: list[Value], times: int, scope: str) -> list[Value]:
        """Walk an equation with these inputs; returns its outputs."""
        name, inner = equation.primitive.name, list(jax.extend.core.jaxprs_in_params(equation.params))
        if name in PRODUCTS:
            return [self.multiply(equation, given, times, scope)]
        if name in STRUCTURAL:
            return [given[0]]
        if len(inner) == 1 and len(inner[0].invars) == len(given):  # a call or a scan: its arguments are its body's
            repeats = equation.params["length"] if name == "scan" else 1
            return self.run(inner[0], given, times * repeats, scope)
        before = len(self.dots)
        for body in inner:  # of a cond or while
            wanted = len(body.invars)
            self.run(body, given[-wanted:] if wanted <= len(given) else [self.join(given)] * wanted, times, scope)
        if name == "while" and len(self.dots) > before:
            raise ValueError(f"a while loop's length is not in the program, so its FLOPs can't be counted (at {scope})")
        joined = self.join(given)
        dots = joined.dots.union(dot.id for dot in self.dots[before:])
        return [dataclasses.replace(joined, id=self.fresh(), dots=dots) for _ in equation.outvars]

    def multiply(self, equation: Any, given: list[Value], times: int, scope: str) -> Value:
        left, right = given[:2]
        size = math.prod(equation.invars[0].aval.shape[i] for i in _contracted(equation))
        result, number = self.fresh(), len(self.dots)
        self.dots.append(Dot(number, times * dot_flops(equation), size, (left, right), result, times > 1, scope))
        return Value(result, None, left.inputs | right.inputs, frozenset([number]))
