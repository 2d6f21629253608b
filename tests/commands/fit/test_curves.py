"""`scalelab fit --law=annealing` end to end: on run folders, on a table, its figures, its refusals."""

import csv
import json
import shutil

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.api.laws import curves as curves_lib
from scalelab.api.laws.curves import read_curve
from scalelab.laws.curves.curve import make_curve, schedule_columns
from scalelab.laws.law import curve_forms as forms
from scalelab.optim import schedules
from scalelab.record import records
from tests.laws.curves_examples import ANNEALING, measure_curve

STEPS = 400
OVERRIDES = {
    "constant": {"schedule.name": "constant"},
    "cosine": {"schedule.name": "cosine"},
    "wsd": {"schedule.name": "wsd", "schedule.decay_steps": 100},
    "two_step": {"schedule.name": "multi_step"},
}


def write_run(folder, name, lr_factor=1.0, params=1000):
    """A run's folder whose losses are those of the annealing law at its schedule."""
    config = config_lib.load("configs/tiny.py", {"train.steps": STEPS, "train.global_batch": 8} | OVERRIDES[name])
    lr = schedules.schedule_curves(config, np.arange(STEPS))["lr"].astype(float)
    at = np.arange(10, STEPS + 1, 10)
    curve = make_curve(name, lr)
    noise = 1 + 0.001 * np.random.default_rng(len(name)).standard_normal(len(at))
    loss = forms.CURVE_LAWS["annealing"](schedule_columns(curve, at, False), ANNEALING) * noise
    records.write_json(folder / "config.json", config.to_dict())
    record = {"status": "done", "params": {"total": params}, "tokens": STEPS * 8 * 128, "val_loss": float(loss[-1])}
    records.write_json(folder / "record.json", record)
    for step, value in zip(at.tolist(), loss.tolist(), strict=True):
        line = {"step": step, "train_loss": value + 0.1, "lr": lr_factor * lr[step - 1]}
        records.append_json_lines(folder / "metrics.jsonl", [line, {"step": step, "val_loss": value}])
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    return {name: str(write_run(folder / name, name)) for name in OVERRIDES}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path, random = tmp_path_factory.mktemp("table") / "curves.csv", np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", "lr", "nll"])
        for name in ("constant", "cosine", "wsd", "two_step"):
            curve = measure_curve(name, STEPS, random, row_sd=0.001, every=8)
            writer.writerows(
                (name, int(s), curve.lr[int(s) - 1], y) for s, y in zip(curve.steps, curve.loss, strict=True)
            )
    return str(path)


def answer(capsys, *argv):
    assert main(["fit", *argv, "--bootstrap=20", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_runs_predict_the_whole_curve_of_another_schedule(capsys, runs):
    others = [runs[name] for name in ("constant", "cosine", "wsd")]
    schedule = "configs/tiny.py"
    result = answer(
        capsys, *others, "--law=annealing", f"--predict-run={runs['two_step']}", f"--schedule-of={schedule}"
    )
    assert result["params"]["memory"] == pytest.approx(ANNEALING["memory"], rel=0.25)
    assert [run["name"] for run in result["runs"]] == others and result["notes"][0].startswith("val_loss of 3 runs")
    measured, planned = result["predictions"]
    assert measured["scores"]["mae"] < 0.006 < measured["scores"]["baseline_mae"]
    assert measured["scores"]["inside"] <= measured["scores"]["rows"] == len(measured["curve"]["steps"])
    assert planned["scores"] == {} and planned["curve"]["steps"][-1] == 300 and "measured" not in planned["curve"]
    fitted = curves_lib.fit_curves(others, bootstrap=20)
    assert fitted.best.params == pytest.approx(result["params"])
    assert fitted.predict(curves_lib.read_curve(runs["two_step"])).final[0] == pytest.approx(measured["final"][0])
    train = answer(capsys, *others, "--law=annealing", "--columns=loss=train_loss")
    assert train["params"]["E"] == pytest.approx(result["params"]["E"] + 0.1, abs=0.1)


@pytest.mark.full
def test_a_table_holds_out_the_run_that_it_predicts_and_says_all(capsys, table, tmp_path):
    options = ["--law=annealing", "--columns=loss=nll", "--predict-run=two_step", "--bootstrap=20"]
    assert main(["fit", table, *options, f"--figures={tmp_path}"]) == 0
    text = capsys.readouterr().out
    assert "of 3 runs after the warm-up" in text and "two_step: loss" in text and "rows inside" in text
    assert "left out cosine: missed by" in text and "lambda = 1 - 1/memory" in text
    rows = csv.DictReader((tmp_path / "curves.csv").read_text().splitlines())
    assert {row["run"] for row in rows} == {"constant", "cosine", "wsd", "two_step"}
    assert (tmp_path / "curves.png").stat().st_size > 10_000 and (tmp_path / "curves.pdf").exists()
    assert main(["fit", table, "--law=annealing", "--columns=loss=nll", "--where=run == 1"]) == 2


MISTAKES = [
    (["--law=annealing", "--predict-run=two_stp"], "did you mean 'two_step'"),
    (["--law=annealing", "--target-flops=1e20"], "--target-flops has no effect with --law=annealing"),
    (["--law=annealing", "--schedule-of=configs/nowhere.py"], "--schedule-of=configs/nowhere.py: "),
    (["--law=annealing", "--best-schedule=README.md"], "--best-schedule=README.md must be a new Python file"),
    (["--law=annealing", "--columns=loss=nl"], "did you mean 'nll'"),
    (["--law=annealing", "--columns=loss=nll", "--objective=mse"], "in logs"),
    (["--law=annealing", "--columns=loss=nll", "--bootstrap=0"], "20 to 10000"),
    (["--law=anealing"], "did you mean 'annealing'"),
    (["--law=chinchilla", "--predict-run=two_step"], "--predict-run has no effect with --law=chinchilla"),
    (["--schedule-of=configs/tiny.py"], "--schedule-of has no effect with --law=chinchilla"),
]


@pytest.mark.parametrize(("options", "line"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_one_line(capsys, table, options, line):
    columns = [] if any(option.startswith("--columns") for option in options) else ["--columns=loss=nll"]
    assert main(["fit", table, *options, *columns]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.full
def test_the_best_schedule_is_code_that_the_trainer_takes(capsys, table, tmp_path):
    """Its LR of every step is that of the search; only its length is the run's own."""
    file = tmp_path / "falls.py"
    result = answer(capsys, table, "--law=annealing", "--columns=loss=nll", f"--best-schedule={file}")
    best = result["best_schedule"]
    assert {name: gain["nats"] > 0 for name, gain in best["gains"].items()} == dict.fromkeys(OVERRIDES, True)
    assert result["predictions"][-1]["name"] == "best schedule"
    (tmp_path / "mine.py").write_text(
        "from scalelab.configs.tiny import get_config as base\n"
        "def get_config():\n    c = base()\n    c.schedule.name = 'falls:lr'\n    return c\n"
    )
    config = config_lib.load(str(tmp_path / "mine.py"), {"train.steps": 1001, "schedule.warmup_steps": 1})
    lr = schedules.schedule_curves(config, np.arange(1001))["lr"] / config.optim.peak_lr
    np.testing.assert_allclose(np.interp(best["places"], np.arange(1001) / 1000, lr), best["shares"], atol=0.02)
    assert main(["fit", table, "--law=annealing", "--columns=loss=nll", f"--best-schedule={file}"]) == 2
    assert "must be a new Python file" in capsys.readouterr().err


@pytest.mark.full
def test_runs_that_are_not_one_schedule_or_one_model_are_refused(capsys, runs, tmp_path):
    changed = write_run(tmp_path / "changed", "wsd", lr_factor=0.5)
    assert main(["fit", runs["cosine"], str(changed), "--law=annealing"]) == 2
    assert "its schedule changed on the way" in capsys.readouterr().err
    larger = write_run(tmp_path / "larger", "wsd", params=2000)
    assert main(["fit", runs["cosine"], str(larger), "--law=annealing"]) == 2
    assert "one model and batch" in capsys.readouterr().err
    assert main(["fit", runs["constant"], "--law=annealing"]) == 2
    assert "LR decays" in capsys.readouterr().err
    assert main(["fit", runs["cosine"], "--law=annealing", f"--predict-run={runs['cosine']}"]) == 2
    assert "none is left to fit" in capsys.readouterr().err


@pytest.mark.full
def test_a_run_of_a_version_without_a_key_is_read_like_one_with_it(runs, tmp_path):
    shutil.copytree(runs["cosine"], tmp_path / "older")
    config = json.loads((tmp_path / "older" / "config.json").read_text())
    del config["eval"]["patience"]
    records.write_json(tmp_path / "older" / "config.json", config)
    older, newer = read_curve(str(tmp_path / "older")), read_curve(runs["cosine"])
    np.testing.assert_array_equal(older.lr, newer.lr)
    np.testing.assert_array_equal(older.loss, newer.loss)
