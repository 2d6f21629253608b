"""Functions and files of the room fit their limits, and every way to pose a fit is a `Problem`."""

import pathlib

from scalelab.laws.curves.problem import CurveProblem
from scalelab.laws.fits.groups.joint_problem import SumOfParts
from scalelab.laws.solve.autodiff_problem import AutodiffProblem
from scalelab.laws.solve.farseer_problem import FarseerProblem
from scalelab.laws.solve.power_law_problem import PowerLawProblem
from scalelab.laws.solve.problem import Problem
from tests import house

FILES = house.python_files(pathlib.Path(house.ROOT), ["scalelab/laws"])


def test_functions_fit_a_screen_and_files_three_hundred_lines():
    _, most_of_them, longest = house.spread(house.function_lengths(FILES))
    assert most_of_them < 30 and longest <= 60
    lengths = {path.name: len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 300} == {}


def test_every_problem_is_a_class_that_has_all_that_the_solver_calls():
    for kind in (PowerLawProblem, FarseerProblem, AutodiffProblem, CurveProblem, SumOfParts):
        assert issubclass(kind, Problem) and not kind.__abstractmethods__, kind
