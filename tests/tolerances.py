"""A pytest plugin that records, for every comparison that holds, which share of its tolerance was used.

    SCALELAB_TOLERANCES=FOLDER python -m pytest -p tests.tolerances -o enable_assertion_pass_hook=true

Each process appends a line a test to FOLDER/PID.jsonl, as soon as the test has ended: {"test", "ended" (time),
"outcome", "seconds", "floats" (whether it compared any floating-point numbers, equality included), "comparisons"}. A
comparison is {"line" (file:number), "kind", "printed", "used" = seen / allowed, "allowed", "size" (of the expected
value)}, the largest share of its line. Tests that FOLDER/skip.json lists are not run. checks/platforms reads it.

Seen are numpy.testing's assert_allclose and assert_array_less, numpy.allclose, math.isclose, pytest.approx, and asserts
of the form number < number. Where the assert gives its bound some slack, as in `a <= b * (1 + 1e-9)`, the tolerance is
the slack. An expected value of at most six digits with a tolerance of half a unit of the last one is "printed": not its
rounding is compared, but that of its digits.
"""

import ast
import json
import linecache
import math
import os
import pathlib
import re
import sys
import time

import numpy as np
import pytest

_FOLDER = pathlib.Path(os.environ["SCALELAB_TOLERANCES"])
_used = {}  # (line, kind, printed) -> {"used", "allowed", "size"} of the current test
_test = {"outcome": "passed", "seconds": 0.0, "floats": False}
_ROOT = pathlib.Path(__file__).parents[1]
_TESTS = os.environ.get("SCALELAB_TESTS", str(_ROOT / "tests"))  # whose frames are looked for
_COMPARISON = re.compile(r"^([^\n]+?) (<=?|>=?) ([^\n]+?)$")
_SCALAR = re.compile(r"\b(?:np|numpy|jnp)\.\w+\((-?[\d.e+-]+)\)|\bArray\((-?[\d.e+-]+), dtype=\w+[^)]*\)")
_FLOAT = re.compile(r"\d\.\d|\de[+-]?\d|\b[Aa]rray\(")
_PRINTED_DIGITS = 6  # tables print no more
_SLACK = 1e-3  # a larger term of a bound is a part of it


def _record(kind, printed, used, allowed, size, line):
    if np.isfinite(used) and used <= 1:  # more is a failure, or an inequality that is asserted
        key = ("{}:{}".format(*line), kind, bool(printed))
        if used >= _used.get(key, {"used": 0.0})["used"]:
            _used[key] = {"used": float(used), "allowed": float(allowed), "size": float(size)}


def _caller():
    """(file, line) of the nearest frame in a test or its helpers."""
    frame = sys._getframe(1)
    while frame:
        path = frame.f_code.co_filename
        if path.startswith(_TESTS) and path != __file__:
            return os.path.relpath(path, _ROOT), frame.f_lineno
        frame = frame.f_back
    return "", 0


def parts_used(actual, desired, rtol, atol):
    """(share, allowed) of each element: |actual - desired| / (atol + rtol |desired|); 0 where both are equal."""
    actual, desired = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.complex128)) for x in (actual, desired)))
    with np.errstate(all="ignore"):
        seen, allowed = np.abs(actual - desired), atol + rtol * np.abs(desired)
        return np.where((actual == desired) | ~np.isfinite(seen), 0.0, seen / allowed), allowed


def is_printed(value, allowed):
    """Whether the number has at most six digits and the tolerance is at least half a unit of the last one."""
    value = abs(value)
    digits = f"{value:.{_PRINTED_DIGITS - 1}e}"
    if not np.isfinite(value) or value == 0 or abs(float(digits) - value) > 4 * sys.float_info.epsilon * value:
        return False
    mantissa, exponent = digits.split("e")
    decimals = len(mantissa.rstrip("0").partition(".")[2])
    return allowed >= 0.5 * 10.0 ** (int(exponent) - decimals) * (1 - 1e-9)


def _record_arrays(actual, desired, rtol, atol, line):
    """Record the largest share among elements that were computed, and among printed ones (looked at from 1/3 on)."""
    parts, allowed = parts_used(actual, desired, rtol, atol)
    values = np.broadcast_to(np.abs(np.asarray(desired, np.complex128)), parts.shape)
    size = np.max(values, initial=0.0, where=np.isfinite(values))
    printed = np.zeros(parts.shape, bool)
    for place in zip(*np.nonzero(parts > 1 / 3), strict=True):
        printed[place] = is_printed(float(values[place]), float(np.broadcast_to(allowed, parts.shape)[place]))
    for kind in (False, True):
        shares = np.where(printed == kind, parts, 0.0).ravel()
        if shares.size and (not kind or printed.any()):
            i = int(np.argmax(shares))
            _record("allclose", kind, shares[i], np.broadcast_to(allowed, parts.shape).ravel()[i], size, line)


def _watching(function, defaults):
    """`function(actual, desired, rtol, atol)` of numpy, which tells what it saw."""

    def watched(actual, desired, rtol=defaults[0], atol=defaults[1], **options):
        result = function(actual, desired, rtol=rtol, atol=atol, **options)
        _test["floats"] = True
        if result is not False:
            _record_arrays(actual, desired, rtol, atol, _caller())
        return result

    return watched


def _watching_less(function):
    """`assert_array_less(x, y)` of numpy: the largest share of y that an x takes."""

    def watched(x, y, **options):
        function(x, y, **options)
        _test["floats"] = True
        with np.errstate(all="ignore"):
            shares = np.asarray(x, float) / np.asarray(y, float)
        at = np.unravel_index(np.argmax(shares), shares.shape)
        if shares[at] >= 0:
            _record("<", False, shares[at], np.broadcast_to(np.asarray(y, float), shares.shape)[at], 1.0, _caller())

    return watched


def _watching_isclose(function):
    """`math.isclose`, whose tolerance is of the larger of both."""

    def watched(a, b, *, rel_tol=1e-9, abs_tol=0.0):
        close = function(a, b, rel_tol=rel_tol, abs_tol=abs_tol)
        _test["floats"] = True
        if close and a != b:
            size = max(abs(a), abs(b))
            allowed = max(rel_tol * size, abs_tol)
            _record("isclose", is_printed(float(b), allowed), abs(a - b) / allowed, allowed, size, _caller())
        return close

    return watched


def _noticing(function):
    """`function(actual, desired)` of numpy, which asks for equality."""

    def noticed(actual, desired, *arguments, **options):
        _test["floats"] = True
        return function(actual, desired, *arguments, **options)

    return noticed


def _watch_approx():
    scalar = type(pytest.approx(1.0))  # which pytest.approx of arrays, lists and dicts asks about each element
    compared = scalar.__eq__

    def equals(self, actual):
        equal = compared(self, actual)
        _test["floats"] = True
        if equal and isinstance(actual, (float, np.floating)) and self.expected != actual:
            allowed, seen = self.tolerance, abs(actual - self.expected)
            printed = is_printed(float(self.expected), allowed)
            _record("approx", printed, seen / allowed, allowed, abs(self.expected), _caller())
        return equal

    scalar.__eq__ = equals


def compared_numbers(explanation):
    """(seen, allowed, size) of "0.1 < (0.2 * 3)", of size 1; None where it isn't a comparison of two floats.

    Of "0.1 <= (0.2 * (1 + 1e-09))" what is seen is the excess over 0.2, its size; allowed are 0.2e-9.
    """
    first = _SCALAR.sub(lambda m: m[1] or m[2], explanation.split("\n")[0])
    match = _COMPARISON.match(first)
    if not match or " and " in first or " or " in first:
        return None
    try:
        sides = [_number(match[1]), _number(match[3])]
        bases = [_without_slack(match[1]), _without_slack(match[3])]
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None
    if not any(isinstance(side, float) for side in sides):
        return None
    (left, right), (low, high) = (sides, bases) if match[2].startswith("<") else (sides[::-1], bases[::-1])
    slack = (right - high) + (low - left)
    return (max(0.0, low - high), slack, abs(high)) if slack > 0 else (left, right, 1.0)


_OPERATIONS = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__, ast.Div: float.__truediv__}


def _number(text):
    """Value of arithmetic on literals; ValueError where it is anything else."""
    return _value(ast.parse(text, mode="eval").body)


def _value(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](float(_value(node.left)), float(_value(node.right)))
    raise ValueError(ast.dump(node))


def _without_slack(text):
    """The value of `x + 1e-9`, `x - 1e-9`, `x * (1 + 1e-9)` and `x * (1 - 1e-9)` without the small term."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)) and 0 < abs(right) <= _SLACK * abs(left):
            return left
        if isinstance(node.op, ast.Mult) and 0 < abs(right - 1) <= _SLACK:
            return left
        if isinstance(node.op, ast.Mult) and 0 < abs(left - 1) <= _SLACK:
            return right
    return _value(node)


def pytest_assertion_pass(item, lineno, orig, expl):
    """Hear of each assert that holds, of plugins' own too: those are left out."""
    del item, orig
    file, _ = _caller()
    if not linecache.getline(str(_ROOT / file), lineno).lstrip().startswith("assert"):
        return
    _test["floats"] = _test["floats"] or bool(_FLOAT.search(expl))
    numbers = compared_numbers(expl)
    if numbers and 0 <= numbers[0] <= numbers[1] and numbers[1] > 0:
        _record("<", False, numbers[0] / numbers[1], *numbers[1:], (file, lineno))


def pytest_collection_modifyitems(config, items):
    path = _FOLDER / "skip.json"
    skip = set(json.loads(path.read_text())) if path.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in skip])
    items[:] = [item for item in items if item.nodeid not in skip]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    del item
    _used.clear()
    _test.update(outcome="passed", seconds=0.0, floats=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _test["seconds"] += call.duration
    if report.outcome != "passed" and _test["outcome"] != "failed":
        _test["outcome"] = report.outcome
    if call.when == "teardown":
        rows = [{"line": line, "kind": kind, "printed": printed} | row for (line, kind, printed), row in _used.items()]
        with open(_FOLDER / f"{os.getpid()}.jsonl", "a") as file:
            line = {"test": item.nodeid, "ended": time.time()} | _test | {"comparisons": rows}
            file.write(json.dumps(line) + "\n")
    return report


pytest.register_assert_rewrite(
    *(f"tests.{place.name}" for place in (_ROOT / "tests").iterdir())
)  # the helpers' asserts, too
np.testing.assert_allclose = _watching(np.testing.assert_allclose, (1e-7, 0.0))
np.allclose = _watching(np.allclose, (1e-5, 1e-8))
np.testing.assert_array_less = _watching_less(np.testing.assert_array_less)
math.isclose = _watching_isclose(math.isclose)
np.testing.assert_array_equal = _noticing(np.testing.assert_array_equal)
np.array_equal = _noticing(np.array_equal)
_watch_approx()
