"""What makes a result stale: another code of its study, another golden step, a newer jax; and what does not."""

import json
import pathlib
import textwrap

import pytest

from scalelab import api
from scalelab.experiments import fingerprint
from scalelab.testing.golden import GOLDEN

STUDY = '''
"""A study."""
import numpy as np

from scalelab.laws import fit
from scalelab.sweep.run import run_sweep


def measure(n, seed=0):
    """Measure."""
    return [n * 2.5, f"{n:.2f}", run_sweep]  # what it is


def draw(result):
    return result["x"]
'''
SAME = {  # changes that move no number
    "prose": STUDY.replace("A study.", "Another.").replace("# what it is", "# why"),
    "layout": STUDY.replace(
        '[n * 2.5, f"{n:.2f}", run_sweep]', '[\n        (n * 2.5),\n        f"{n:.2f}", run_sweep,\n    ]'
    ),
    "imports": STUDY.replace("import numpy as np", "import numpy\nimport os"),
    "its figure": STUDY.replace('result["x"]', 'result["y"]'),
}
OTHER = {
    "a number": STUDY.replace("2.5", "2.6"), "a name": STUDY.replace("n * 2.5", "seed * 2.5"),
    "a default": STUDY.replace("seed=0", "seed=1"), "a format": STUDY.replace(".2f", ".3f"),
}  # fmt: skip


def checkout(folder, study=STUDY, library="x = 1\n", golden=None):
    """A small checkout with one study, the room that it calls, and a golden step."""
    for name, text in {
        "experiments/mine.py": study, "scalelab/laws/fit.py": library, "scalelab/sweep/run.py": "def run_sweep(): 1\n",
        "scalelab/testing/golden.py": f"GOLDEN = {{\n    'loss': {golden or 1.5},\n}}\n",
    }.items():  # fmt: skip
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return pathlib.Path(folder)


def made(root, **changes):
    now = {"golden": fingerprint.golden_digest(fingerprint.PACKAGE.parent), "jax": fingerprint._made_now()["jax"]}
    library = {"library": fingerprint.library_digest(root, "experiments.mine")}
    return {"module": "experiments.mine"} | now | fingerprint.code_digests(root, "experiments.mine") | library | changes


@pytest.mark.parametrize("change", SAME)
def test_what_moves_no_number_makes_nothing_stale(change, tmp_path):
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new", SAME[change])
    assert fingerprint.stale_reasons(made(old), new) == []


@pytest.mark.parametrize("change", OTHER)
def test_another_code_of_the_study_makes_its_result_stale(change, tmp_path):
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new", OTHER[change])
    assert fingerprint.stale_reasons(made(old), new) == ["its own code (mine.py)"]


def test_a_file_that_all_results_share_by_now_is_not_the_studys_own(tmp_path):
    root = checkout(tmp_path)
    own = made(root)["own"]
    assert fingerprint.stale_reasons(made(root, own=own | {"limits.py": "0"}), root) == []
    assert fingerprint.stale_reasons(made(root, own=own | {"more.py": "0"}), root) == ["its own code (more.py)"]


def test_the_library_is_told_apart_from_the_study(tmp_path):
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new", library="x = 2\n")
    assert fingerprint.stale_reasons(made(old), new) == [] and fingerprint.library_changed(made(old), new)
    assert not fingerprint.library_changed(made(old), old)


def test_golden_step_and_jax_count_for_what_trains(tmp_path):
    root = checkout(tmp_path)
    assert made(root)["trains"]
    assert fingerprint.stale_reasons(made(root, golden="another"), root) == ["the golden step"]
    (reason,) = fingerprint.stale_reasons(made(root, jax="0.1.5"), root)
    assert reason.startswith("jax 0.1.5 -> ")
    assert fingerprint.stale_reasons(made(root, jax="99.1.0"), root) == []  # asked for by the check
    assert fingerprint.stale_reasons(made(root, golden="another", trains=False), root) == []
    assert fingerprint.golden_digest(root) != fingerprint.golden_digest(checkout(tmp_path / "b", golden=1.25))


def test_a_study_that_is_gone_is_stale(tmp_path):
    old = made(checkout(tmp_path))
    assert fingerprint.stale_reasons(old, tmp_path / "nowhere") == ["experiments.mine is gone"]


def test_the_golden_step_of_the_trainer_is_the_one_that_is_read():
    text = (fingerprint.PACKAGE / "testing" / "golden.py").read_text()
    assert f'"train_loss": {GOLDEN["train_loss"]}' in text and fingerprint.golden_digest(fingerprint.PACKAGE.parent)


def test_a_result_carries_its_fingerprint_or_has_it_beside(tmp_path):
    facts = fingerprint.make_fingerprint("experiments.curves")
    assert facts["own"].keys() == {"curves.py", "curves_best.py"} and facts["trains"] and facts["cpu_s"] > 0
    (tmp_path / "a.json").write_text(json.dumps({"made_by": facts}))
    (tmp_path / "b.json").write_text("[1]")
    beside = {"commit": "x", "content": fingerprint.content_digest(tmp_path / "b.json")}
    (tmp_path / "made_by.json").write_text(json.dumps({"b.json": beside}))
    assert fingerprint.read_fingerprint(tmp_path / "a.md") == fingerprint.read_fingerprint(tmp_path / "a.json") == facts
    assert fingerprint.read_fingerprint(tmp_path / "b.md") == beside
    (tmp_path / "b.json").write_text("[2]")  # another result, of which made_by.json says nothing
    assert fingerprint.read_fingerprint(tmp_path / "b.md") is None
    assert fingerprint.read_fingerprint(tmp_path / "c.md") is None


def test_study_stale_lists_what_changed_and_its_cost(capsys, monkeypatch, tmp_path):
    from scalelab.commands import study

    paths = [tmp_path / f"{name}.json" for name in ("old", "new", "bare")]
    for path in paths:
        path.write_text(json.dumps({"command": f"python -m experiments.{path.stem}", "cpu_s": 90.0}))
    root = checkout(tmp_path / "root")
    facts = [made(root, own={"mine.py": "x"}, commit="abc", date="2026-01-02"), made(root), None]
    monkeypatch.setattr(fingerprint, "list_results", lambda: list(zip(paths, facts, strict=True)))
    reasons = fingerprint.stale_reasons
    monkeypatch.setattr(fingerprint, "stale_reasons", lambda each: reasons(each, root))
    monkeypatch.setattr(fingerprint, "library_changed", lambda each: False)
    rows = api.studies(stale=True)
    assert [(row["name"], row["reasons"]) for row in rows] == [
        ("old", ["its own code (mine.py)"]),
        ("bare", ["nothing says what made it"]),
    ]
    assert study.main(["--stale"]) == 0
    printed = capsys.readouterr().out
    assert textwrap.dedent(printed).startswith("old  (made by abc, 2026-01-02; 90 CPU s)\n")
    assert "2 stale; to run again: 180 CPU s for the 2 whose seconds are known" in printed
