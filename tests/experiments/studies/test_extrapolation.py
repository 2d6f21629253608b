"""The extrapolation for real: its corpus, its straight line in closed form, and a small study whole (slow)."""

import json
import sysconfig

import pytest

from scalelab.experiments.studies import extrapolation
from scalelab.record import records


def test_equal_files_count_once_in_the_order_of_their_paths(tmp_path, monkeypatch):
    for name, text in {"b/one.py": "x = 1", "a.py": "y = 2", "c.py": "x = 1", "d.txt": "no", "e.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    assert list(extrapolation.installed_files("")) == [b"y = 2", b"x = 1", b""]


def test_the_line_goes_through_the_best_loss_of_each_budget():
    flops = [1e11, 1.001e11, 4e11, 3.999e11, 1.6e12]
    losses = [4.0, 5.0, 2.0, 2.5, 1.0]  # the best ones halve where the budget grows fourfold
    assert extrapolation.extrapolate_line(flops, losses, 6.4e12) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.slow
def test_a_small_study_predicts_before_it_trains(tmp_path):
    assert extrapolation.main(["--quick", f"--workdir={tmp_path}"]) == 0
    result = json.loads((tmp_path / "extrapolation.json").read_text())
    assert result["lead_s"] > 0 and all(row["inside"] for row in result["checks"])
    before = records.read_json(tmp_path / "prediction.json")
    assert before["predicted_loss"] == result["held_out"]["predicted_loss"]
    assert result["held_out"]["C"] > 15 * max(run["C"] for run in result["runs"])
