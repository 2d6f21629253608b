"""The study end to end on a grid of toys: prediction before training, resumption, and `scalelab fit` on its runs."""

import json
import os
import shutil
import subprocess
import sys
import time
from typing import ClassVar

import pytest

from scalelab import config as config_lib
from scalelab.errors import WorkFailed
from scalelab.experiments import conduct, grid_check, isoflop, ladder_runs, phases
from scalelab.model.count import count_parameters
from scalelab.record import records
from scalelab.sweep.executors import choice
from scalelab.sweep.scaling import passes
from tests.quick import one_in
from tests.report import synthetic
from tests.sweep.here import TrainHere, killed_once_written
from tests.train.runs import ROOT, run_here

GRID = ["--budgets=5e9,1e10,2e10", "--sizes=16,24,32", "--holdout-flops=8e10", "--checks=lr"]
SMALL = ["--config.eval.batches=8", "--config.model.n_layers=1"]
STANDARD = "--config.parametrization.name=standard"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a finished study, run as a user would."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    arguments = ["--config=configs/quickstart.py", *GRID, f"--workdir={folder}", *SMALL, "--json"]
    start = [sys.executable, "-m", "experiments.isoflop", *arguments]
    done = subprocess.run(start, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr[-2000:]  # runs this short may want another LR, and say so
    assert ("FAILED" in done.stderr) == done.returncode, done.stderr[-2000:]
    return folder, start, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_the_prediction_precedes_the_first_metric_and_is_never_edited(study):
    folder, _, summary, _ = study
    held = summary["held_out"]
    first = records.read_metrics(held["folder"])[0]
    assert held["predicted_at"] < first["time"]
    written = records.read_json(folder / "prediction.json")
    assert {key: held[key] for key in written} == written
    low, high = held["interval90"]
    assert low < held["predicted_loss"] < high
    assert held["inside"] == (low <= held["measured_loss"] <= high)
    assert held["error"] == pytest.approx(held["predicted_loss"] / held["measured_loss"] - 1)
    assert held["C"] == pytest.approx(8e10, rel=0.01) == pytest.approx(held["N"] * held["D"] * 6, rel=0.5)


@pytest.mark.slow
def test_the_summary_lists_every_run_and_the_report_stands_beside_it(study):
    folder, _, summary, _ = study
    roles = [run["role"] for run in summary["runs"]]
    assert (roles.count("fit"), roles.count("check"), roles.count("holdout")) == (9, 4, 1)
    for run in summary["runs"]:
        assert {"N", "D", "C", "loss", "folder"} <= run.keys()
    assert {(check["d_model"], round(check["factor"], 3)) for check in summary["lr_checks"]} == {
        (size, factor) for size in (16, 32) for factor in (0.5, 1.0, 2.0)
    }
    assert records.read_json(folder / "summary.json") == summary
    assert "<html" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_the_seconds_of_every_phase_are_told(study):
    folder, _, summary, output = study
    rows = {row["phase"].strip(): row for row in summary["seconds"]}
    whole = ["data", "grid", "fit", "held-out run and checks", "score", "figures and page"]
    assert [name for name in rows if rows[name]["wall_s"] is not None] == whole
    assert summary["wall_s"] == pytest.approx(sum(rows[name]["wall_s"] for name in whole))
    for name in ("grid, by workers", "held-out run", "lr checks"):
        assert rows[name]["cpu_s"] > 0 and rows[name]["compile_s"] < rows[name]["cpu_s"] + 600
    assert phases.INSTALLATION not in rows and "of it starting, tracing, compiling" in output
    # Workers live as long as the study: as many starts as workers, though it has thirteen packs or more.
    spent = [line for f in (folder / "packs").glob("*/spent.jsonl") for line in records.read_json_lines(f)]
    assert len(spent) >= 12 and sum(line["start_s"] > 0 for line in spent) <= len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_scalelab_fit_gives_the_same_numbers(study):
    folder, _, summary, _ = study
    refit = run_here(str(folder), "--json", name="fit")
    for key in ("params", "objective", "certificate", "intervals", "n_runs"):
        assert (refit.get("fit") or refit)[key] == summary["fit"][key]


@pytest.mark.slow
def test_a_second_call_trains_nothing(study):
    folder, start, summary, _ = study
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("metrics.jsonl")}
    again = subprocess.run(start, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode in (0, 1)
    assert before == {path: path.read_bytes() for path in (folder / "runs").rglob("metrics.jsonl")}
    assert json.loads(again.stdout.splitlines()[-1])["held_out"] == summary["held_out"]


@pytest.mark.slow
def test_batch_checks_asked_for_later_train_only_themselves(study):
    folder, start, summary, _ = study
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("metrics.jsonl")}
    again = subprocess.run([*start, "--checks=batch"], cwd=ROOT, capture_output=True, text=True)
    later = json.loads(again.stdout.splitlines()[-1])
    assert {(row["d_model"], row["factor"]) for row in later["batch_checks"]} == {
        (size, factor) for size in (16, 32) for factor in (0.5, 1.0, 2.0)
    }
    assert all(row["loss"] for row in later["batch_checks"]) and later["held_out"] == summary["held_out"]
    assert all(path.read_bytes() == content for path, content in before.items())
    batches = {run["name"]: records.read_json(f"{run['folder']}/config.json")["train"] for run in later["runs"]}
    assert {batches[row["run"]]["global_batch"] for row in later["batch_checks"]} == {4, 8, 16}


class ByLaw(TrainHere):
    """Trials end at once, at the losses of a known law; `before`: whether the prediction stood, for each of them."""

    before: ClassVar[dict[str, bool]] = {}

    def run(self, jobs, watch=None, stop=None, code=None):
        for name, config in ((name, config) for trials in jobs.values() for name, config in trials.items()):
            self.before[name] = (self.folder / "prediction.json").exists()
            params = count_parameters(config_lib.static(config).model)
            n, d = params["non_embedding"], ladder_runs.size_and_tokens(config)[1]
            row = synthetic.write_run(self.folder / "runs" / name, n, d, lines=15)
            record = records.read_json(self.folder / "runs" / name / "record.json") | {
                "params": params, "tokens": d, "val_loss": row["loss"], "identity": config_lib.identity(config),
                "flops": {"6ND": 6 * n * d, "exact": 6 * n * d}, "steps": config.train.steps,
                "flops_per_token": {"exact": 6 * n},
            }  # fmt: skip
            (self.folder / "runs" / name / "metrics.jsonl").unlink()
            last = {"step": config.train.steps, "tokens": d, "time": time.time()}
            lines = [last | {"train_loss": row["loss"]}, last | {"val_loss": row["loss"]}]
            records.append_json_lines(self.folder / "runs" / name / "metrics.jsonl", lines)
            records.write_json(self.folder / "runs" / name / "record.json", record)
            records.write_json(self.folder / "runs" / name / "config.json", config.to_dict())
        return dict.fromkeys(jobs, 0)


def test_a_study_predicts_before_the_held_out_run_and_never_again(tmp_path, monkeypatch, capsys):
    """The whole study is trained in `make test-slow`; here its trials are a law's."""
    monkeypatch.setattr(choice, "WorkerPool", ByLaw)
    monkeypatch.setattr(ByLaw, "before", {})
    data = ["--config.data.source=synthetic", "--config.data.n_tokens=20000"]
    arguments = ["--config=configs/quickstart.py", *GRID, *data]
    assert isoflop.main([*arguments, f"--workdir={tmp_path}", "--json"]) in (0, 1)  # 1: an optimum at the grid's edge
    assert (tmp_path / "report.html").exists()
    output = capsys.readouterr()
    summary = json.loads(output.out.splitlines()[-1])
    held, read = summary["held_out"], summary["passes"]
    assert read["held_out"] == held["D"] / read["train_tokens"] > 1
    assert "WARNING: the held-out run reads its" in output.err
    assert "Warning: the held-out run reads its" in (tmp_path / "report.html").read_text()
    study, _ = isoflop.parse_arguments(arguments)
    assert [name for name, told in ByLaw.before.items() if not told] == list(ladder_runs.fit_runs(study))
    assert "holdout" in ByLaw.before and len(ByLaw.before) == 9 + 1 + 4
    low, high = held["interval90"]
    assert low < held["predicted_loss"] < high and held["inside"] == (low <= held["measured_loss"] <= high)
    assert held["error"] == pytest.approx(held["predicted_loss"] / held["measured_loss"] - 1)
    written = (tmp_path / "prediction.json").read_bytes()
    shutil.rmtree(tmp_path / "runs" / "holdout")
    again = conduct.run_study(study, tmp_path, "", phases.PhaseClock(tmp_path))["held_out"]
    assert (tmp_path / "prediction.json").read_bytes() == written and again["predicted_at"] == held["predicted_at"]


@pytest.fixture
def run(monkeypatch):
    """Run the study in a folder, of trials by a law, without its page; returns the exit code."""
    monkeypatch.setattr(choice, "WorkerPool", ByLaw)
    monkeypatch.setattr(isoflop, "_report", lambda folder, summary: {"failures": []})
    data = ["--config.data.source=synthetic", "--config.data.n_tokens=20000"]
    return lambda folder, *options: isoflop.main(
        ["--config=configs/quickstart.py", *GRID, *data, f"--workdir={folder}", *options]
    )


@pytest.mark.slow
def test_killed_after_each_of_its_files_it_ends_with_the_same_numbers(tmp_path, run):
    assert run(tmp_path / "whole") == 0
    folder, written = tmp_path / "study", {}
    for name in ("isoflop.json", "prediction.json"):
        with killed_once_written(name):
            run(folder)
        written[name] = records.read_json(folder / name)
        assert not (folder / "runs" / "holdout").exists()
    assert run(folder) == 0
    assert {name: records.read_json(folder / name) for name in written} == written
    one, other = (records.read_json(tmp_path / name / "summary.json") for name in ("whole", "study"))
    assert all(one[key] == other[key] for key in ("frontier", "isoflop", "ladder", "lr_checks"))
    assert one["fit"]["params"] == other["fit"]["params"] and one["held_out"]["error"] == other["held_out"]["error"]


@pytest.mark.full
def test_another_grid_in_its_folder_and_a_lost_prediction_are_refused(tmp_path, run, capsys):
    folder = tmp_path / "study"
    assert run(folder) == 0
    capsys.readouterr()
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    assert run(folder, "--sizes=16,24,40") == 2
    assert "holds a study with grid.5e+09=[16, 24, 32], not [16, 24, 40]" in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before
    shutil.rmtree(folder / "runs" / "fit-2e+10-d32")
    (folder / "isoflop.json").unlink()  # as an earlier release left it
    (folder / "prediction.json").unlink()
    assert run(folder) == 2
    assert "prediction.json is gone and" in capsys.readouterr().err


def test_a_held_out_run_that_diverged_scores_nothing():
    prediction = {"predicted_loss": 1.4, "interval90": [1.3, 1.5]}
    row = {"status": "diverged", "val_loss": None, "folder": "runs/holdout"}
    with pytest.raises(WorkFailed, match="the held-out run diverged: the prediction is unscored"):
        conduct.score_prediction(prediction, row)
    assert conduct.score_prediction(prediction, row | {"status": "done", "val_loss": 1.4})["inside"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    one_in(
        8,
        [
            (["--quick", "--sizes=16,24,32"], "--quick has its own"),
            (["--quick", "--scale=0"], "--scale=0 must be finite and above zero"),
            (["--quick", "--scale=inf"], "--scale=inf must be finite"),
            ([], "--budgets is missing and --sizes is missing"),
            (["--budgets=1e10,2e10", "--sizes=16,24,32"], "at least 3 budgets"),
            ([*GRID[:2], "--holdout-flops=1e10"], "not beyond the largest budget"),
            ([*GRID[:2], "--holdout-flops=nan"], "'nan' is not numbers above zero"),
            ([*GRID[:2], "--holdout-flops=1e11,2e11"], "more than one number"),
            ([GRID[0], "--sizes=16,24.5,32"], "24.5 is not a whole number; nearest: 24"),
            ([*GRID, "--rule=smal-bytes"], "did you mean 'small-bytes'"),
            (
                [*GRID, "--sizes=16,24,96"],
                "measured for d_model 16 to 80, not 96; nearest: 80, or another rule: mup, own, step_law",
            ),
            ([*GRID, "--rule=step_law", STANDARD], "step_law' was measured for N (non-embedding) 2.14e+08 to 1.08e+09"),
            ([*GRID, "--rule=mup", STANDARD], "nearest: --config.parametrization.name=mup"),
            ([*GRID, "--rule=fitted:configs"], "'configs' holds no run"),
            ([*GRID, "--checks=batches"], "did you mean 'batch'"),
            ([*GRID, "--config=configs/quickstrat.py"], "quickstart.py"),
            ([*GRID, "--budget=3"], "did you mean '--budgets'"),
            (["--budgets=10,20,30", "--sizes=16,24,32"], "only 0 steps"),
        ],
    ),
)
def test_mistakes_end_with_one_line_and_exit_2(tmp_path, capsys, arguments, message):
    assert isoflop.main([*arguments, f"--workdir={tmp_path / 'w'}"]) == 2
    output = capsys.readouterr().err
    assert message in output and len(output.strip().splitlines()) == 1
    assert not (tmp_path / "w").exists()


@pytest.mark.full
def test_all_faults_stand_in_one_line_with_a_grid_that_works(tmp_path, capsys):
    given = ["--budgets=1e8,2e8,4e8", "--sizes=16,64,256", f"--workdir={tmp_path / 'w'}"]
    assert isoflop.main(given) == 2
    line = capsys.readouterr().err
    assert "steps at d_model=16" in line and "d_model 16 to 80, not 256" in line and line.count("\n") == 1
    works = line.partition("a grid that works here: ")[2].split()
    study, _ = isoflop.parse_arguments([*works, given[-1]], trains=True)
    grid, checks = grid_check.make_runs(study)
    assert len(grid) >= 9 and len(checks) == 8
    assert isoflop.main(["--budgets=1e10", "--sizes=16,24.5"]) == 2
    line = capsys.readouterr().err
    assert "--budgets has 1 and --sizes has 2" in line and "24.5 is not" in line and "--workdir=DIR is needed" in line


@pytest.mark.full
def test_faults_of_options_and_of_runs_stand_in_one_line_and_the_grid_that_works_is_no_dearer(tmp_path, capsys):
    """A stranger's first line had both kinds; the second came after the first was mended, with 5e15 FLOPs proposed."""
    given = ["--budgets=1e8,1e9,5e12", "--sizes=4,16,24,200", "--holdout-flops=1e12", f"--workdir={tmp_path / 'w'}"]
    assert isoflop.main(given) == 2
    line = capsys.readouterr().err
    assert "not beyond the largest budget" in line and "model.d_head=1 must be even" in line
    assert line.count("steps at d_model") == 1 and "d_model 16 to 80, not 200" in line and line.count("\n") == 1
    works = line.partition("a grid that works here: ")[2].split()
    study, _ = isoflop.parse_arguments([*works, given[-1]], trains=True)
    assert max(study.grid) <= 5e12 and len(grid_check.make_runs(study)[0]) >= 9


@pytest.mark.full
def test_a_dry_run_plans_the_study_and_leaves_no_file(tmp_path, capsys):
    assert (
        isoflop.main(
            [
                "--config=configs/quickstart.py",
                *GRID,
                "--rule=own",
                "--dry-run",
                f"--workdir={tmp_path / 'w'}",
                "--json",
            ]
        )
        == 0
    )
    plan = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "w").exists() and {run["role"] for run in plan["runs"]} == {"fit", "check"}
    (note,) = [each for each in plan["notes"] if "held-out run" in each]
    assert "is not counted" in note


def test_a_held_out_run_that_repeats_its_data_is_said():
    facts = passes.count_passes(1000, [200, 900], 8500)._asdict()
    assert facts == {"train_tokens": 1000, "fitted": 0.9, "held_out": 8.5}
    assert "reads its 1,000 training tokens 8.5 times, the fitted runs at most 0.9 times" in passes.describe_passes(
        facts
    )
    assert not passes.describe_passes(passes.count_passes(1000, [200], 990)._asdict())
    assert not passes.describe_passes(passes.count_passes(1000, [4000], 3500)._asdict())
    assert not passes.describe_passes(None)
