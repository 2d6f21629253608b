"""Subsets of rows by an expression of columns: `N > 1e8 and D/N < 100`, `dataset == 'c4' or not train.seed == 0`.

`_evaluate_node` knows names of columns, numbers, strings, arithmetic, comparisons, and/or/not. An expression is never
run as Python.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from scalelab.errors import BadInput, nearest_hint

Row = TypeVar("Row", bound=Mapping[str, Any])
LONGEST = 1000  # characters: nobody writes longer expressions by hand
ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type, Callable] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class _Empty(Exception):
    """A cell that the expression needs is empty: the row does not satisfy it."""


def filter_rows(rows: Sequence[Row], expressions: Iterable[str], option: str = "--where") -> list[Row]:
    """Filter the rows that satisfy every expression (a row whose needed cell is empty does not).

    BadInput, with the `option` that gave it, for an expression that can't be parsed or evaluated, or is not true or
    false.
    """
    known = set().union(*rows)
    for expression in expressions:
        tree = _parse_expression(expression, known, option)
        rows = [row for number, row in enumerate(rows, 1) if _row_satisfies(tree, row, expression, number, option)]
    return list(rows)


def _parse_expression(expression: str, known: set[str], option: str) -> ast.expr:
    if len(expression) > LONGEST:
        raise BadInput(f"{option}={_short(expression)}: longer than {LONGEST} characters; give several {option}")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
        raise BadInput(f"{option}={_short(expression)}: {reason}") from None
    tree = _Columns().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            kind = "column" if option == "--where" else "value"
            raise BadInput(f"{option}={_short(expression)}: no {kind} {node.id!r}{nearest_hint(node.id, known)}")
    return tree


class _Columns(ast.NodeTransformer):
    """Turns attributes into names: `train.seed` is the name of a column."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        inner = self.visit(node.value)
        return ast.Name(f"{inner.id}.{node.attr}", ast.Load()) if isinstance(inner, ast.Name) else node


def _row_satisfies(tree: ast.expr, row: Mapping[str, Any], expression: str, number: int, option: str) -> bool:
    try:
        result = _evaluate_node(tree, row)
    except _Empty:
        return False
    except (TypeError, ArithmeticError) as error:
        raise BadInput(f"{option}={_short(expression)}: row {number}: {error}") from None
    except BadInput as mistake:
        raise BadInput(f"{option}={_short(expression)}: {mistake}") from None
    if not isinstance(result, bool):
        raise BadInput(f"{option}={_short(expression)} is not true or false; compare with something, as in N > 1e8")
    return result


def _evaluate_node(node: ast.expr, row: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And()):
            return all(_check_truth(_evaluate_node(value, row)) for value in node.values)
        case ast.BoolOp():
            return any(_check_truth(_evaluate_node(value, row)) for value in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _check_truth(_evaluate_node(node.operand, row))
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate_node(node.operand, row)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](_evaluate_number(node.left, row), _evaluate_number(node.right, row))
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            return _evaluate_comparison(node, row)
        case ast.Name():
            return _cell_value(row.get(node.id))
        case ast.Constant() if isinstance(node.value, str | int | float):
            return _cell_value(node.value)
    raise BadInput(f"{ast.unparse(node)!r} is not arithmetic, a comparison, and, or, not")


def _evaluate_comparison(node: ast.Compare, row: Mapping[str, Any]) -> bool:
    values = [_evaluate_node(each, row) for each in (node.left, *node.comparators)]
    for op, left, right in zip(node.ops, values, values[1:], strict=False):
        if isinstance(left, str) != isinstance(right, str):
            raise TypeError(f"{_short(left)} and {_short(right)} can't be compared: one is text, one a number")
        if not COMPARISONS[type(op)](left, right):
            return False
    return True


def _evaluate_number(node: ast.expr, row: Mapping[str, Any]) -> float:
    value = _evaluate_node(node, row)
    if isinstance(value, str):
        raise TypeError(f"{_short(value)} is text, not a number")
    return value


def _check_truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{_short(value)} is not true or false: compare it with something")
    return value


def _cell_value(value: Any) -> str | bool | float:
    """A cell's value for comparison: text, true or false, or a float (with integers, 9**9**9 would take forever)."""
    if value is None or value == "":
        raise _Empty
    return value if isinstance(value, str | bool) else float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
