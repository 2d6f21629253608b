"""The error of the account of memory is that of the compiled steps' table, and what a chance is of it."""

import dataclasses
import json
import math
import pathlib
import statistics

import numpy as np
import pytest
from scipy import special

from scalelab.plan.memory import account_error
from scalelab.plan.memory.memory import Memory

TABLE = pathlib.Path(__file__).parents[3] / "checks/results/compiled.json"
MEMORY = Memory({}, 1000, 1000, 1000, True, 0, 0, ())


@pytest.mark.parametrize("experts", [False, True])
def test_the_error_is_that_of_the_steps_that_were_compiled(experts):
    """Plans without experts are judged by steps without, plans with experts by all."""
    rows = [row for row in json.loads(TABLE.read_text()) if experts or "experts" not in row["name"]]
    errors = [math.log(peak / planned) for planned, peak in (row["peak_bytes"] for row in rows) if peak]
    stated = account_error.errors_of(dataclasses.replace(MEMORY, has_experts=experts))
    assert len(errors) == stated.steps and stated.steps % 2 == 1  # even degrees of freedom
    assert statistics.mean(errors) == pytest.approx(stated.mean, abs=5e-4)
    assert statistics.stdev(errors) == pytest.approx(stated.deviation, abs=5e-4)
    low, high = (f"{abs(math.expm1(end)):.0%}".replace("%", " %") for end in (min(errors), max(errors)))
    assert stated.span == f"{low} below the plan's to {high} above"


@pytest.mark.parametrize("freedom", [2, 10, 40])
def test_students_t_is_scipys(freedom):
    points = np.linspace(-9, 9, 37)
    areas = [account_error.student_cdf(t, freedom) for t in points]
    np.testing.assert_allclose(areas, special.stdtr(freedom, points), rtol=0, atol=1e-12)


def test_the_chance_falls_with_what_is_left():
    chances = [account_error.out_of_memory(dataclasses.replace(MEMORY, capacity=n)) for n in (900, 1000, 1050, 2000)]
    assert chances == sorted(chances, reverse=True) and 0.25 < chances[1] < 0.4 and chances[3] < 1e-5
    assert chances[0] > 0.9
