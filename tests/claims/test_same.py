"""What a study computes with is told apart from what it draws, names and says; results of two runs are compared."""

import json
import pathlib

import pytest

from docs.gallery import committed_results
from scalelab.experiments import fingerprint
from scalelab.experiments.shared import RESULTS
from tests.claims import same

FILES = {
    "experiments/mine.py": '''
"""A study."""
import pathlib
from scalelab.experiments import curve, runs
from scalelab.experiments.curve import RATE as SPEED

ROOT = pathlib.Path(__file__).parent
SIZES, SEEDS = (1, 2), 3


def measure(n: int, scale: float = 2.0):
    """Measure."""
    total = sum(SIZES) * SPEED if ROOT.exists() else 0
    return [total * scale + runs.losses(size) for size in range(n)]


def unused():
    return 1


def plot_all(result):
    return curve.colour(result)


def main(argv):
    plot_all(measure(len(argv)))


if __name__ == "__main__":
    main([])
''',
    "experiments/runs.py": "from scalelab.experiments.curve import shape\n\n\ndef losses(x):\n    return shape(x)\n",
    "experiments/curve.py": "RATE = 1.5\n\n\ndef shape(x):\n    return x**2\n\n\ndef colour(x):\n    return 'red'\n",
}
NOTHING = {  # (file, text, in its place): changes that move no number
    "a figure": ("curve", "'red'", "'blue'"), "what nothing calls": ("mine", "return 1", "return 2"),
    "a type": ("mine", "n: int", "n: float"), "a place": ("mine", ").parent", ").parents[1]"),
    "a local name": ("mine", "total", "product"), "prose": ("mine", "Measure.", "Compute."),
}  # fmt: skip
SOMETHING = {
    "what another file hands on": ("curve", "x**2", "x**3", "curve.py:shape"),
    "a constant under another name": ("curve", "1.5", "1.25", "curve.py:RATE"),
    "one of two constants": ("mine", "(1, 2), 3", "(1, 2), 4", "mine.py:SIZES"),
    "a default": ("mine", "2.0", "2.5", "mine.py:measure"), "a parameter": ("mine", "scale", "by", "mine.py:measure"),
    "a module's function": ("runs", "shape(x)", "-shape(x)", "runs.py:losses"),
}  # fmt: skip


def checkout(folder, name="", old="", new=""):
    for file, text in FILES.items():
        path = pathlib.Path(folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if path.stem == name else text)
    return same.definitions(pathlib.Path(folder), "experiments.mine")


@pytest.mark.parametrize("change", NOTHING)
def test_what_moves_no_number_is_no_definition_that_changed(change, tmp_path):
    assert checkout(tmp_path / "old") == checkout(tmp_path / "new", *NOTHING[change])


@pytest.mark.parametrize("change", SOMETHING)
def test_another_number_is_found_by_its_definition(change, tmp_path):
    *edit, name = SOMETHING[change]
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new", *edit)
    assert name in {key for key in {*old, *new} if old.get(key) != new.get(key)}


@pytest.mark.parametrize("study", sorted(committed_results()))
def test_what_each_study_measures_with_is_reached(study):
    made = fingerprint.read_fingerprint(RESULTS / f"{study}.json")
    reached = {name.rpartition(":")[2] for name in same.definitions(same.ROOT, made["module"])}
    assert len(reached) > 5 and reached & {"measure", "measure_incident", "make_trials", "list_checks"}


def test_results_of_two_runs_are_compared_number_by_number():
    old = {"command": "a", "cpu_s": 1.0, "losses": [1.0, {"x": 2.0}], "name": "n", "limits": "old"}
    assert not list(same.differing_numbers(old, old | {"command": "b", "cpu_s": 9.0}))
    assert not list(same.differing_numbers(old, old | {"losses": [1.0 + 1e-8, {"x": 2.0}]}))
    for other in (
        {"losses": [1.0, {"x": 2.001}]},
        {"losses": [1.0]},
        {"name": "m"},
        {"losses": [1.0, {}]},
        {"more": 1},
    ):
        assert len(list(same.differing_numbers(old, old | other))) == 1
    assert same.count_numbers(old) == 2


def test_a_mark_keeps_the_result_and_stands_on_its_page(tmp_path):
    made = {"module": "experiments.curves", "commit": "abc", "own": {"curves.py": "old"}, "library": ""}
    made |= fingerprint._made_now() | {"trains": False}
    path = tmp_path / "mine.json"
    path.write_text('{\n "made_by": {"module": 1},\n "x": [1, 2]\n}\n'.replace('{"module": 1}', json.dumps(made)))
    (tmp_path / "mine.md").write_text("# Mine\n\nA table.\n")
    assert fingerprint.stale_reasons(fingerprint.read_fingerprint(path))
    for why in ("a name changed", "two names changed"):
        same.mark_same(path, "reading", why, ["curves.py:f"])
    marked = json.loads(path.read_text())
    assert marked["x"] == [1, 2] and not fingerprint.stale_reasons(marked["made_by"])
    assert [note["why"] for note in marked["made_by"]["same"]] == ["a name changed", "two names changed"]
    page = (tmp_path / "mine.md").read_text()
    assert page.startswith("# Mine\n\nA table.\n\nCode: made at abc; at ")
    assert "compute the same: two names changed. What it calls of the library changed too; the golden step" in page
    assert page.count("Code: ") == 1
