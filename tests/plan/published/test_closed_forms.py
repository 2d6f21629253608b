"""`scalelab reproduce closed_forms`: the door to ZeRO's table, the papers' utilisation and the Scaling Book's
examples.
"""

import json

import pytest

from scalelab.__main__ import main
from scalelab.laws.published.verdict import rounding_tolerance
from scalelab.plan.published import zero
from scalelab.plan.published.closed_forms import judge_unverified

# By hand: name -> (figure, paper). PaLM: 6 N + 12 L H Q T of 540.35e9 parameters over 275e12; GPT-3: 6 N D.
BY_HAND = {
    "7.5B, stage 2, 64 devices": (7.5 * (2 + 14 / 64), "zero"),
    "1000B, stage 3, 1024 devices": (16_000 / 1024, "zero"),
    "PaLM 540B: MFU by palm": (238.3e3 * (6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048) / (6144 * 275e12), "mfu"),
    "GPT-3: FLOPs of 300 G tokens": (6 * 174.6e9 * 3e11, "mfu"),
    "DeepSeek-V3: share of the peak, whole run": (6 * 37 * 14.8e21 / (2.79e6 * 3600 * 1.513e15), "mfu"),
    "v5e: tokens that make a bf16 product bound by FLOPs": (1.97e14 / 8.1e11, "scaling_book"),
    "F = 32,768: least tokens a chip, mixed": (4 * 2550**2 / (32_768 * 2), "scaling_book"),
    "v4 4x4x4: the whole over X and Y, us": (2 * 1024 * 4096 / (4 * 4.5e10) * 1e6, "scaling_book"),
}


@pytest.mark.full
def test_every_figure_agrees_and_what_nobody_looked_up_is_marked(tmp_path, capsys):
    assert main(["reproduce", "closed_forms", f"--json={tmp_path / 'out.json'}"]) == 0
    printed, result = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    rows = {row["name"]: row for row in result["rows"]}
    assert len(rows) == len(result["rows"])
    for name, (figure, paper) in BY_HAND.items():
        assert rows[name]["paper"] == paper and rows[name]["ours"] == pytest.approx(figure, rel=2e-3), name
        assert name in printed
    marked = {name for name, row in rows.items() if "UNVERIFIED" in row["recipe"]}
    assert marked == {name for name, row in rows.items() if row["verdict"] == "unverified"}
    assert {row["verdict"] for name, row in rows.items() if name not in marked} == {"match"}
    assert {name for name, row in rows.items() if row["paper"] == "zero"} < marked
    assert "zero: 54 unverified" in printed and "written down from memory and recomputed" in printed


def test_a_figure_that_does_not_agree_is_a_mismatch(monkeypatch):
    assert judge_unverified(4187.5, 4187, 2 * rounding_tolerance("4187")) == "unverified"
    assert judge_unverified(4189.0, 4187, 2 * rounding_tolerance("4187")) == "mismatch"
    wrong = {7.5e9: {1: ("120", "52.5", "35.6", "31.4", "30.4", "29.1")}}
    monkeypatch.setattr(zero, "TABLE_1", wrong)
    monkeypatch.setattr("scalelab.plan.published.closed_forms._mfu_rows", lambda: ())
    assert main(["reproduce", "closed_forms", "--json"]) == 1
