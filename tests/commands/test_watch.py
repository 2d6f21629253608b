"""`scalelab watch`: what it prints, keeps, scores and refuses."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.diagnose.watch import families


@pytest.fixture
def study(tmp_path):
    """Sixteen finished runs and two that train: (folder, {name: true final loss})."""
    families.write_family(tmp_path)
    truths = {
        name: families.write_member(tmp_path / "runs" / name, 20_000, 2_400, seed, until=share)
        for name, seed, share in (("early", 1, 0.2), ("late", 2, 0.8))
    }
    return tmp_path, truths


def forecasts(folder):
    return records.read_json_lines(folder / "forecasts.jsonl")


def test_a_forecast_is_printed_kept_once_and_scored_when_the_run_is_done(study, capsys):
    folder, truths = study
    run = folder / "runs" / "late"
    assert main(["watch", str(run), "--once", "--price=3.6"]) == 0
    shown = capsys.readouterr().out
    assert "step 1,920 of 2,400 (80%)" in shown and "by 16 finished siblings and their law" in shown
    assert "stop now" in shown and "no price" not in shown
    (kept,) = forecasts(run)
    low, high = kept["interval90"]
    assert low < truths["late"] < high and kept["step"] == 1_920 and kept["choices"][-1]["cost"] > 0
    assert main(["watch", str(run), "--once"]) == 0 and len(forecasts(run)) == 1
    assert "--price=X" in capsys.readouterr().out
    assert main(["watch", str(run), "--score"]) == 2
    assert "late is running: forecasts are scored when a run is done" in capsys.readouterr().err
    measured = families.write_member(run, 20_000, 2_400, 2)
    assert main(["watch", str(run), "--score", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    (row,) = score["runs"][0]["forecasts"]
    assert row["error"] == pytest.approx(kept["val_loss"] / measured - 1)
    assert score["inside"] == 1 and row["progress"] == 0.8
    assert main(["watch", str(run), "--once"]) == 0 and "is done" in capsys.readouterr().out


@pytest.mark.full
def test_a_folder_shows_its_unfinished_runs_side_by_side(study, capsys):
    folder, _ = study
    assert main(["watch", str(folder), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["early", "20%"], ["late", "80%"]]
    assert main(["watch", str(folder), "--once", "--json"]) == 0
    early, late = json.loads(capsys.readouterr().out)["forecasts"]
    width = {row["run"]: row["interval90"][1] - row["interval90"][0] for row in (early, late)}
    assert width["late"] < width["early"]
    assert all(0.5 < row["p_worse_than_best"] < 1 for row in (early, late))  # n28000-s1600 ended lower at 7 % less
    for name, seed in (("early", 1), ("late", 2)):
        families.write_member(folder / "runs" / name, 20_000, 2_400, seed)
    assert main(["watch", str(folder)]) == 0 and "no run to watch" in capsys.readouterr().out
    assert main(["watch", str(folder), "--score"]) == 0
    assert "of 2 intervals held" in capsys.readouterr().out


def test_a_law_file_serves_a_run_without_siblings(tmp_path, capsys):
    families.write_member(tmp_path / "run", 20_000, 2_400, until=0.5)
    law = tmp_path / "law.json"
    law.write_text(json.dumps({"law": "chinchilla", "params": families.LAW, "n_convention": "total"}))
    assert main(["watch", str(tmp_path / "run"), "--once", f"--law={law}"]) == 0
    shown = capsys.readouterr().out
    assert "by its own curve and the law" in shown and "sigmas off its law" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--law=kaplam"], "did you mean 'kaplan'"),
        (["--score"], "has no forecasts.jsonl"),
        (["--onec"], "--once"),
    ],
)
def test_mistakes_end_with_2_and_one_line(tmp_path, capsys, arguments, message):
    families.write_member(tmp_path / "run", 20_000, 2_400, until=0.5)
    assert main(["watch", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error


def test_a_folder_without_runs_and_a_run_without_lines_are_refused(tmp_path, capsys):
    assert main(["watch", str(tmp_path), "--once"]) == 2 and "holds no run" in capsys.readouterr().err
    families.write_member(tmp_path / "run", 20_000, 2_400, until=0.0)
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 2
    assert "a forecast needs 5" in capsys.readouterr().err


def test_a_damaged_forecast_is_named(tmp_path, capsys):
    run = tmp_path / "run"
    families.write_member(run, 20_000, 2_400)
    (run / "forecasts.jsonl").write_text('{"step": 1}\n')
    assert main(["watch", str(run), "--score"]) == 2
    assert "line 1 of" in capsys.readouterr().err
