"""`scalelab sweep --stop-if`: a hopeless trial ends, its neighbours keep their bits, and no answer takes it."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.diagnose.watch.stop import NAMES, StopJudge, check_rule
from scalelab.errors import BadInput
from scalelab.laws.fits.study import fit_study
from scalelab.record import listing, records
from scalelab.report import pages
from scalelab.sweep.run import run_sweep
from scalelab.sweep.trials import load_trials
from tests.sweep.test_pack import trials
from tests.train.runs import untimed

LONGER = {"train.steps": 60, "eval.every_steps": 60, "log.every_steps": 1, "train.steps_per_dispatch": 3}
RULE = "p_worse_than_best > 0.95 and progress > 0.2"
CONFIG = """
from scalelab.configs import tiny
def get_config():
    h = tiny.get_config()
    h.model.d_model, h.model.seq_len, h.train.global_batch, h.train.steps = 16, 32, 4, 60
    h.eval.batches, h.eval.every_steps, h.log.every_steps, h.train.steps_per_dispatch = 2, 60, 1, 3
    return h
def sweep(h):
    return h.sweep("optim.peak_lr", [3e-6, 2e-2])
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of the command with one learning rate far too low: (folder, its config file, its JSON)."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "grid.py").write_text(CONFIG)
    out = folder / "out.json"
    arguments = [f"--config={folder / 'grid.py'}", f"--workdir={folder / 'sweep'}", f"--stop-if={RULE}"]
    assert main(["sweep", *arguments, f"--json={out}"]) == 0
    return folder / "sweep", arguments, json.loads(out.read_text())


@pytest.mark.full
def test_a_hopeless_trial_is_stopped_early_and_is_not_a_result(swept, capsys):
    folder, _, content = swept
    poor, good = content["trials"]
    assert (poor["status"], good["status"]) == ("stopped early", "done") and 12 < poor["step"] < 60
    record = records.read_record(folder / "runs" / poor["name"])
    assert record["steps"] == poor["step"] == records.read_metrics(folder / "runs" / poor["name"])[-1]["step"]
    event = records.read_events(folder / "runs" / poor["name"])[-1]
    assert event["kind"] == "stopped_early" and "p_worse_than_best > 0.95" in event["text"]
    settings = {each["values"]["optim.peak_lr"]: each for each in content["answer"]["settings"]}
    assert settings[3e-6]["lost"] and not settings[3e-6]["losses"] and settings[2e-2]["verdict"] == "best"
    with pytest.raises(BadInput, match="stopped early"):
        fit_study([row for row in listing.read_runs(folder) if row["name"] == poor["name"]])
    capsys.readouterr()
    assert main(["sweep", f"--workdir={folder}", "--status"]) == 0
    shown = capsys.readouterr()
    assert "stopped early" in shown.out and "1 stopped early, 1 done" in shown.err


@pytest.mark.full
def test_an_ended_trial_is_not_run_again_and_its_page_says_why(swept):
    folder, arguments, content = swept
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.json*")}
    assert main(["sweep", *arguments]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.json*")}
    row = listing.read_run(folder / "runs" / content["trials"][0]["name"])
    assert "This run ended early" in pages._state(row) and "p_worse_than_best" in pages._state(row)


@pytest.mark.full
def test_a_neighbour_of_a_stopped_trial_keeps_its_bits(swept, tmp_path):
    folder, arguments, content = swept
    good = content["trials"][1]["name"]
    configs = load_trials(arguments[0].removeprefix("--config="), {})
    run_sweep(tmp_path, {good: configs[good]})
    assert untimed(folder / "runs" / good) == untimed(tmp_path / "runs" / good)


@pytest.mark.slow
def test_workers_judge_too(tmp_path):
    """Two packs, so that workers judge; the trial that goes on is compared with itself under no rule."""
    configs = trials(**LONGER)
    pair = {"other": configs["other"], "low": configs["low"]}
    pair["low"].optim.peak_lr = 3e-6
    pair["low"].log.role = "check"  # a pack of its own
    pair["low"].sweep.workers = pair["other"].sweep.workers = 1
    assert run_sweep(tmp_path / "ruled", pair, judge=StopJudge(RULE)) == {"other": "done", "low": "stopped early"}
    assert set(run_sweep(tmp_path / "free", {"other": configs["other"]}).values()) == {"done"}
    assert untimed(tmp_path / "ruled" / "runs" / "other") == untimed(tmp_path / "free" / "runs" / "other")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("p_worse_than_bset > 0.95", "did you mean 'p_worse_than_best'"),
        ("p_worse_than_best", "not true or false"),
        ("progress > ", "invalid syntax"),
        ("__import__('os').system('true') > 0", "no value '__import__'"),
        ("val_loss > 'a'", "one is text"),
    ],
)
def test_a_rule_that_is_none_is_refused_before_anything_is_written(tmp_path, capsys, rule, message):
    (tmp_path / "grid.py").write_text(CONFIG)
    arguments = [f"--config={tmp_path / 'grid.py'}", f"--workdir={tmp_path / 'sweep'}", f"--stop-if={rule}"]
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "--stop-if" in error and "\n" not in error and not (tmp_path / "sweep").exists()


def test_every_name_of_a_rule_may_be_used():
    for name in NAMES:
        assert check_rule(f"{name} > 0 and not {name} / 2 < -1")


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_resumed_leaves_the_ended_trial_alone(swept, tmp_path):
    folder, arguments, content = swept
    poor, good = (row["name"] for row in content["trials"])
    configs = load_trials(arguments[0].removeprefix("--config="), {"checkpoint.every_steps": "9"})
    looks = iter(range(60))
    verdicts = run_sweep(tmp_path, configs, stop=lambda: next(looks) > 9, judge=StopJudge(RULE))
    assert verdicts == {poor: "stopped early", good: "stopped"}
    before = [path.read_bytes() for path in sorted((tmp_path / "runs" / poor).glob("*.json*"))]
    assert run_sweep(tmp_path, configs, judge=StopJudge(RULE)) == {poor: "stopped early", good: "done"}
    assert before == [path.read_bytes() for path in sorted((tmp_path / "runs" / poor).glob("*.json*"))]
    assert untimed(tmp_path / "runs" / good) == untimed(folder / "runs" / good)
