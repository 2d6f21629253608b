"""`scalelab tune`: a whole tuning of a tiny model, again, and mistakes."""

import json
import pathlib

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.record import lock
from tests.sweep.here import killed_once_written, runs_copied_from, train_packs_here

FILE = """from scalelab.configs import tiny


def get_config():
    config = tiny.get_config()
    config.model.d_model = 16
    config.model.seq_len = 32
    config.train.steps = 12
    config.train.global_batch = 4
    config.eval.batches = 2
    config.log.every_steps = 2
    return config


def tune():
    return {}
"""
SPEC = """{"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "log")}, "fixed": ["train.steps"]}"""


def write_config(path, spec=SPEC):
    path.write_text(FILE.replace("return {}", f"return {spec}"))
    return path


def arguments(config, folder, *options):
    return ["tune", f"--config={config}", f"--workdir={folder}", "--trials=30", "--rounds=1", "--seeds=2",
            "--confirm=1", "--config.sweep.workers=1", *options]  # fmt: skip


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    config = write_config(folder / "mine.py")
    with train_packs_here():
        assert main(arguments(config, folder / "study")) == 0
    return config, folder / "study"


@pytest.mark.full
def test_it_ends_in_a_config_that_trains_the_best(tuned):
    _, folder = tuned
    summary = json.loads((folder / "summary.json").read_text())
    best = config_lib.leaves(config_lib.resolve(config_lib.load(folder / "best.py")))
    assert {key: best[key] for key in summary["winner"]["values"]} == summary["winner"]["values"]
    assert best["train.steps"] == 12 and best["model.d_model"] == 16
    first = summary["arms"]["all"]["candidates"][0]
    trained = json.loads((folder / "runs" / first["run"] / "config.json").read_text())
    flat = config_lib.leaves(trained)
    assert [key for key in flat if flat[key] != best.get(key) and not key.startswith(("log.", "eval."))] == []


@pytest.mark.full
def test_every_run_is_counted_and_none_above_the_budget(tuned):
    _, folder = tuned
    summary = json.loads((folder / "summary.json").read_text())
    runs = [path.name for path in (folder / "runs").iterdir()]
    assert summary["spent"]["trials"] == len(runs) <= 30
    assert len([name for name in runs if name.startswith("probe-lr")]) == 8
    assert sum(name.startswith("fresh-") for name in runs) == 4 and len(summary["fresh"]["as_it_is"]) == 2
    seeds = {json.loads((folder / "runs" / name / "config.json").read_text())["train"]["seed"] for name in runs}
    assert len(seeds) == 3  # one for the search, two fresh
    page = (folder / "report.html").read_text()
    assert summary["verdict"].split(":")[0] in page and "isolation-peak_lr" in page


@pytest.mark.slow
def test_again_it_trains_nothing_and_says_the_same(tuned, capsys):
    config, folder = tuned
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}
    old = json.loads((folder / "summary.json").read_text())
    assert main(arguments(config, folder, "--json")) == 0
    new = json.loads(capsys.readouterr().out)
    assert {key: new[key] for key in new if key != "command"} == {key: old[key] for key in old if key != "command"}
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")} == before


@pytest.mark.full
def test_killed_after_each_of_its_files_it_ends_with_the_same_numbers(tuned, tmp_path):
    config, whole = tuned
    folder = tmp_path / "study"
    with runs_copied_from(whole):
        for name in ("tuning.json", "best.py", "summary.json"):
            with killed_once_written(name):
                main(arguments(config, folder))
        assert main(arguments(config, folder)) == 0
    one, other = (json.loads((each / "summary.json").read_text()) for each in (whole, folder))
    changed = {key for key in one if one[key] != other[key]}
    assert changed == {"winner"} and one["winner"]["values"] == other["winner"]["values"]  # its config is elsewhere
    assert (whole / "tuning.json").read_bytes() == (folder / "tuning.json").read_bytes()


@pytest.mark.full
def test_another_tuning_in_the_folder_is_refused(tuned, capsys):
    config, folder = tuned
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file())
    assert main([*arguments(config, folder), "--trials=31"]) == 2
    assert "holds a tuning with trials=30, not 31" in capsys.readouterr().err
    assert main(arguments(config, folder, "--config.optim.eps=1e-6")) == 2
    assert "optim.eps" in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()) == before


@pytest.mark.full
def test_a_second_owner_is_refused_and_writes_nothing(tuned, capsys):
    config, folder = tuned
    with lock.hold_folder(folder):
        before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
        assert main(arguments(config, folder)) == 2
        error = capsys.readouterr().err
        assert f"{folder} is held by" in error and "or use another --workdir" in error
        assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_the_plan_trains_nothing(tmp_path, capsys):
    assert main(arguments(write_config(tmp_path / "mine.py"), tmp_path / "new", "--dry-run")) == 0
    text = capsys.readouterr().out
    assert "30 runs: 10 probes of stability, 1 round of 9 points at 4 steps" in text
    assert text.count("optim.peak_lr=") == 9 and not (tmp_path / "new").exists()


def test_the_plan_has_as_many_trials_as_its_own_surface_needs(tmp_path, capsys):
    keys = """{"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "log"), "optim.weight_decay": (0.01, 1.0, "log"),
                            "optim.beta2": (0.9, 0.999, "one_minus"), "eval.batches": (1, 2)}}"""
    config = write_config(tmp_path / "mine.py", keys.replace(', "eval.batches": (1, 2)', ""))
    plan = arguments(config, tmp_path / "new", "--dry-run")
    refused = []
    for trials in (27, 28, 29):  # 6 points of the 7 that three keys' surface has terms, 7 without a noise, 8
        assert main([*plan, f"--trials={trials}"]) == (2 if trials < 29 else 0)
        refused.append(capsys.readouterr().err)
    assert "--trials=27 leaves 6 points for a round, and 3 searched key(s) need 8; nearest: --trials=29" in refused[0]
    assert "a surface needs 8 trials that end" in refused[1] and refused[2] == ""
    assert main([*plan, "--rounds=2", "--trials=40", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["surface"] == {"needs": 8, "planned": 2 * told["counts"]["round"]}
    write_config(config, keys)
    assert main([*plan, "--trials=40"]) == 0
    text = capsys.readouterr().out
    assert "a surface over 4 key(s) needs 10 trials that end, of the 19 planned: 9 may diverge" in text
    assert "WARNING: eval.batches takes 2 values and a surface needs 3" in text and not (tmp_path / "new").exists()


@pytest.mark.full
def test_the_state(tuned, capsys):
    assert main(["tune", "--status", f"--workdir={tuned[1]}"]) == 0
    assert "done" in capsys.readouterr().out


@pytest.mark.parametrize(
    "spec, options, message",
    [
        ("{}", [], 'tune() must return a dict with "nuisance"'),
        ("1 / 0", [], "ZeroDivisionError"),
        (
            SPEC,
            ["--trials=24"],
            "--trials=24 leaves 3 points for a round, and 1 searched key(s) need 4; nearest: --trials=25",
        ),
        (SPEC, ["--short=13"], "--short=13 is longer than train.steps=12; nearest: --short=12"),
        (SPEC, ["--seeds=0"], "--seeds=0: at least 1"),
        (SPEC, ["--trails=20"], "did you mean '--trials'?"),
        ('{"nuisance": {"optim.beta2": (0.5, 1.5)}}', [], "optim.beta2"),
        ('{"nuisance": {"train.steps": (5, 50)}}', [], "tune() can't search train.steps"),
    ],
)
def test_mistakes(tmp_path, capsys, spec, options, message):
    config = write_config(tmp_path / "mine.py", spec)
    assert main([*arguments(config, tmp_path / "study"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1 and not (tmp_path / "study").exists()


def test_a_config_without_tune_and_what_is_needed(capsys):
    assert main(["tune", "--config=quickstart", "--dry-run"]) == 2
    assert "defines no tune()" in capsys.readouterr().err
    assert main(["tune", "--config=tiny"]) == 2
    assert "--workdir is needed" in capsys.readouterr().err
    assert main(["tune", "--status"]) == 2
    assert pathlib.Path("configs/tiny.py").exists()


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_numbers(tuned, tmp_path):
    """Killed by SIGTERM in its rounds and on its fresh seeds, then resumed, against one that was not."""
    import signal
    import subprocess
    import sys
    import time

    config, whole = tuned
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "scalelab", *arguments(config, folder)]
    for sign in ("runs/round1-*/metrics.jsonl", "runs/fresh-*/metrics.jsonl"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(folder.glob(sign)):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, 75)
    assert subprocess.run(command, capture_output=True).returncode == 0
    one, other = (json.loads((each / "summary.json").read_text()) for each in (whole, folder))
    for key in ("stability", "arms", "fresh", "gain", "spent"):
        assert one[key] == other[key], key
