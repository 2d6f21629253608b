"""`scalelab demo`: a first result without training, the same as `scalelab fit` gives on the table that comes along."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.laws import examples


def test_the_demo_fits_predicts_and_scores(tmp_path, capsys):
    assert main(["demo", f"--out={tmp_path / 'd'}", f"--json={tmp_path / 'demo.json'}"]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "demo.json").read_text())
    held, (row,) = result["held_out"], [r for r in examples.read_quickstart() if r["role"] == "holdout"]
    assert held["measured_loss"] == row["val_loss"] and held["inside"] and abs(held["error"]) < 0.02
    assert held["error"] == pytest.approx(held["predicted_loss"] / row["val_loss"] - 1)
    low, high = held["interval90"]
    for text in (f"predicted {held['predicted_loss']:.4f} (90 %: {low:.4f} to {high:.4f})", "reached 1.4307", "inside"):
        assert text in printed
    assert (tmp_path / "d" / "prediction.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "d" / "prediction.png").stat().st_size > 10_000
    assert main(["fit", str(examples.QUICKSTART), f"--json={tmp_path / 'fit.json'}", "--bootstrap=50"]) == 0
    refit = json.loads((tmp_path / "fit.json").read_text())
    refit = refit.get("fit") or refit
    assert (
        refit["params"] == pytest.approx(result["fit"]["params"]) and refit["n_runs"] == result["fit"]["n_runs"] == 26
    )


def test_a_file_is_no_folder_for_the_demo(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", f"--out={tmp_path / 'file'}"]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
