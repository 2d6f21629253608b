"""A pytest plugin that records, for every comparison that holds, which share of its tolerance was used.

    SCALELAB_TOLERANCES=FOLDER python -m pytest -p tests.tolerances -o enable_assertion_pass_hook=true

Each process writes FOLDER/PID.jsonl: {"test", "line" (file:number), "kind", "used"}, used = seen / allowed, the largest
of a line. It sees numpy.testing.assert_allclose, numpy.allclose, pytest.approx, and asserts of the form number <
number. `experiments.machines` reads it.
"""

import ast
import json
import linecache
import os
import pathlib
import re
import sys

import numpy as np
import pytest

_FOLDER = pathlib.Path(os.environ["SCALELAB_TOLERANCES"])
_used = {}  # (test, line, kind) -> the largest part of the tolerance
_test = [""]
_ROOT = pathlib.Path(__file__).parents[1]
_TESTS = os.environ.get("SCALELAB_TESTS", str(_ROOT / "tests"))  # whose frames are looked for
_COMPARISON = re.compile(r"^([^\n]+?) (<=?|>=?) ([^\n]+?)$")
_SCALAR = re.compile(r"\b(?:np|numpy|jnp)\.\w+\((-?[\d.e+-]+)\)|\bArray\((-?[\d.e+-]+), dtype=\w+[^)]*\)")


def _record(kind, used, line):
    if np.isfinite(used) and used <= 1:  # more is a failure, or an inequality that is asserted
        key = (_test[0], "{}:{}".format(*line), kind)
        _used[key] = max(_used.get(key, 0.0), float(used))


def _caller():
    """(file, line) of the nearest frame in a test or its helpers."""
    frame = sys._getframe(1)
    while frame:
        path = frame.f_code.co_filename
        if path.startswith(_TESTS) and path != __file__:
            return os.path.relpath(path, _ROOT), frame.f_lineno
        frame = frame.f_back
    return "", 0


def part_used(actual, desired, rtol, atol):
    """The largest |actual - desired| / (atol + rtol |desired|); 0 where both are equal."""
    actual, desired = np.asarray(actual, np.complex128), np.asarray(desired, np.complex128)
    with np.errstate(all="ignore"):
        seen, allowed = np.abs(actual - desired), atol + rtol * np.abs(desired)
        parts = np.where((actual == desired) | ~np.isfinite(seen), 0.0, seen / allowed)
    return np.max(parts, initial=0.0)


def _watching(function, kind, defaults):
    """`function(actual, desired, rtol, atol)` of numpy, which tells what it saw."""

    def watched(actual, desired, rtol=defaults[0], atol=defaults[1], **options):
        result = function(actual, desired, rtol=rtol, atol=atol, **options)
        try:
            if result is not False:
                _record(kind, part_used(actual, desired, rtol, atol), _caller())
        except (TypeError, ValueError):
            pass  # of what isn't numbers nothing is recorded
        return result

    return watched


def _watch_approx():
    scalar = type(pytest.approx(1.0))  # which pytest.approx of arrays, lists and dicts asks about each element
    compared = scalar.__eq__

    def equals(self, actual):
        equal = compared(self, actual)
        if equal and isinstance(actual, (float, np.floating)) and self.expected != actual:
            _record("approx", abs(actual - self.expected) / self.tolerance, _caller())
        return equal

    scalar.__eq__ = equals


def compared_numbers(explanation):
    """(left, right) of "0.1 < (0.2 * 3)", the smaller one first; None where it isn't a comparison of two floats."""
    first = _SCALAR.sub(lambda m: m[1] or m[2], explanation.split("\n")[0])
    match = _COMPARISON.match(first)
    if not match or " and " in first or " or " in first:
        return None
    try:
        left, right = _number(match[1]), _number(match[3])
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None
    if not (isinstance(left, float) or isinstance(right, float)):
        return None
    return (left, right) if match[2].startswith("<") else (right, left)


_OPERATIONS = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__, ast.Div: float.__truediv__}


def _number(text):
    """Value of arithmetic on literals; ValueError where it is anything else."""

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](float(value(node.left)), float(value(node.right)))
        raise ValueError(text)

    return value(ast.parse(text, mode="eval").body)


def pytest_assertion_pass(item, lineno, orig, expl):
    """Hear of each assert that holds, of plugins' own too: those are left out."""
    del item, orig
    file, _ = _caller()
    numbers = (
        compared_numbers(expl) if linecache.getline(str(_ROOT / file), lineno).lstrip().startswith("assert") else None
    )
    if numbers and 0 <= numbers[0] <= numbers[1] and numbers[1] > 0:
        _record("<", numbers[0] / numbers[1], (file, lineno))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _test[0] = item.nodeid


def pytest_sessionfinish(session):
    del session
    rows = [{"test": test, "line": line, "kind": kind, "used": used} for (test, line, kind), used in _used.items()]
    (_FOLDER / f"{os.getpid()}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


pytest.register_assert_rewrite(
    *(f"tests.{place.name}" for place in (_ROOT / "tests").iterdir())
)  # the helpers' asserts, too
np.testing.assert_allclose = _watching(np.testing.assert_allclose, "allclose", (1e-7, 0.0))
np.allclose = _watching(np.allclose, "allclose", (1e-5, 1e-8))
_watch_approx()
