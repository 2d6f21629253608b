"""Forty lines of ten rooms drawn at random, and one change of each."""

import ast
import pathlib
import random
from collections import defaultdict
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
ROOMS, LINES, SEED = 10, 4, 20261126
NOT_ROOMS = ("configs", "experiments")  # links to the folders on top

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


def change_expression(node: ast.expr) -> ast.expr | None:
    """The expression with one thing in it that is wrong; None if this kind is not changed."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
        case ast.Constant(float(value)):
            return ast.Constant(2 * value or 1.0)
    return None


def expressions_of(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions that run and may be replaced: no annotation, pattern, formatted text or default of a type."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            continue
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
                continue
            waiting += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]


def replace(line: str, node: ast.expr, text: str) -> str:
    """A line with the source of an expression in it replaced; columns of the parser are bytes."""
    raw = line.encode()
    return (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()


def changes_of(path: pathlib.Path) -> dict[int, list[tuple[ast.expr, str]]]:
    """{line: changes} of a file, each an expression and the source that takes its place."""
    changes = defaultdict(list)
    for node in expressions_of(ast.parse(path.read_text())):
        if (changed := change_expression(node)) is not None:
            changes[node.lineno].append((node, f"({ast.unparse(changed)})"))
    return changes


def pick_mutants() -> list[dict]:
    """Forty changes: rooms, lines of a room and changes of a line are drawn alike."""
    draw = random.Random(SEED)
    top = ROOT / "scalelab"
    rooms = sorted(
        each.name for each in top.iterdir() if (each / "__init__.py").exists() and each.name not in NOT_ROOMS
    )
    mutants = []
    for room in sorted(draw.sample(rooms, ROOMS)):
        sites = [
            (path, number, changes)
            for path in sorted((top / room).rglob("*.py"))
            for number, changes in sorted(changes_of(path).items())
        ]
        for path, number, changes in draw.sample(sites, LINES):
            node, text = draw.choice(changes)
            before = path.read_text().splitlines()[number - 1]
            mutants.append({
                "file": str(path.relative_to(ROOT)), "line": number, "before": before,
                "after": replace(before, node, text), "start": node.col_offset, "end": node.end_col_offset,
            })  # fmt: skip
    return mutants
