"""`scalelab compare`: the same bits, what differs and from when on, and a loss gap beside the spread of seeds."""

import json
import shutil

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.single import train_single
from tests.report import synthetic
from tests.train.resume.test_compatibility import config


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Runs of three seeds and of two at another peak LR; in runs/0, runs/1, … All share one program."""
    folder = tmp_path_factory.mktemp("studies")
    for name, seeds, changes in (("a", 3, {}), ("b", 2, {"optim__peak_lr": 0.05})):
        for seed in range(seeds):
            train_single(config(train__seed=seed, **changes), folder / name / "runs" / str(seed))
    return folder


def asked(capsys, *arguments):
    """The JSON and the text of a comparison."""
    assert main(["compare", *map(str, arguments), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(["compare", *map(str, arguments)]) == 0
    return result, capsys.readouterr().out


def last_loss(folder):
    return records.read_json(folder / "record.json")["val_loss"]


@pytest.mark.full
def test_a_run_and_its_repetition_are_the_same_bits(studies, tmp_path, capsys):
    train_single(config(), tmp_path / "again/runs/0")
    result, text = asked(capsys, studies / "a/runs/0", tmp_path / "again/runs/0")
    assert result["same_bits"] and result["gap"]["gap"] == 0 and result["weights"] == {"step": 4, "same": True}
    assert "metrics: the same bits, in all 5 lines and in the weights of step 4" in text
    assert "config: the same\ndata: the same\nenvironment: the same\n" in text


@pytest.mark.full
def test_what_is_told_apart_and_from_which_step_on(studies, capsys):
    result, text = asked(capsys, studies / "a/runs/0", studies / "b/runs/0")
    assert result["config"] == {"optim.peak_lr": {"a": config().optim.peak_lr, "b": 0.05, "computes": True}}
    assert not result["same_bits"] and (result["data"], result["environment"]) == ({}, {})
    first = result["metrics"]["first"]
    lines = [records.read_metrics(studies / name / "runs/0")[0] for name in "ab"]
    assert first["step"] == 1 and "train_loss" not in first["differ"]  # before the first update it is the same
    assert first["differ"]["lr"] == {
        "a": lines[0]["lr"], "b": lines[1]["lr"], "relative": pytest.approx(1 - lines[0]["lr"] / lines[1]["lr"])
    }  # fmt: skip
    assert "config: 1 differ\n  optim.peak_lr: " in text and "metrics: first differ at step 1" in text


def test_one_number_in_one_line_is_found(studies, tmp_path, capsys):
    shutil.copytree(studies / "a", tmp_path / "a")
    path = tmp_path / "a/runs/0/metrics.jsonl"
    lines = records.read_metrics(path.parent)
    lines[2]["grad_norm"] *= 1 + 1e-3
    lines[3]["time"] = lines[1]["tokens_per_s"] = 7.0  # of the clock
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result, text = asked(capsys, studies / "a/runs/0", path.parent)
    first = result["metrics"]["first"]
    assert (first["step"], list(first["differ"])) == (3, ["grad_norm"])
    assert first["differ"]["grad_norm"]["relative"] == pytest.approx(1e-3, rel=2e-3)
    assert result["metrics"]["largest"] == 0 and "metrics: first differ at step 3" in text
    path.write_text("".join(json.dumps(line) + "\n" for line in records.read_metrics(studies / "a/runs/0")[:3]))
    result, text = asked(capsys, studies / "a/runs/0", path.parent)
    assert result["metrics"]["only"] == 2 and not result["same_bits"] and result["gap"] is None
    assert "the 3 lines that both have are the same bits; 2 lines that only one run has" in text
    assert f"{path.parent} is damaged: {path.with_name('record.json')}: val_loss is " in text
    assert list(result["damaged"]) == [str(path.parent)] and "no evaluated line" in result["damaged"][str(path.parent)]


def test_the_gap_stands_beside_the_spread_of_seeds(studies, capsys):
    result, text = asked(capsys, studies / "a/runs/0", studies / "b/runs/1")
    groups = [np.array([last_loss(studies / f"{name}/runs/{s}") for s in range(n)]) for name, n in (("a", 3), ("b", 2))]
    sd = np.sqrt(sum(((g - g.mean()) ** 2).sum() for g in groups) / 3)
    gap = result["gap"]
    assert gap["step"] == 4 and gap["gap"] == pytest.approx(groups[1][1] - groups[0][0])
    floor = gap["floor"]
    assert (floor["freedom"], len(floor["runs"])) == (3, 5) and floor["sd"] == pytest.approx(sd)
    # Tables at 3 degrees of freedom: t 3.1824; chi-squared 0.2158 and 9.3484.
    assert gap["half_width"] == pytest.approx(3.1824 * sd * np.sqrt(2), rel=1e-4)
    assert floor["low"] == pytest.approx(sd * np.sqrt(3 / 9.3484), rel=1e-4)
    assert floor["high"] == pytest.approx(sd * np.sqrt(3 / 0.2158), rel=1e-3)
    verdict = "more than noise" if abs(gap["gap"]) > gap["half_width"] else "not distinguishable from noise"
    assert verdict in text and "5 runs, 3 degrees of freedom" in text


def test_folders_of_seeds_are_compared_by_their_means(studies, capsys):
    result, text = asked(capsys, studies / "a", studies / "b")
    means = [np.mean([last_loss(studies / f"{name}/runs/{s}") for s in range(n)]) for name, n in (("a", 3), ("b", 2))]
    gap = result["gap"]
    assert (gap["a"], gap["b"]) == (pytest.approx(means[0]), pytest.approx(means[1]))
    assert gap["half_width"] == pytest.approx(3.1824 * gap["floor"]["sd"] * np.sqrt(1 / 3 + 1 / 2), rel=1e-4)
    assert "(means of 3 and 2 runs)" in text


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The README's sweep: four peak LRs, two seeds."""
    folder = tmp_path_factory.mktemp("grid")
    losses = {0.003: (2.091, 2.071), 0.01: (2.125, 2.005), 0.03: (2.422, 2.326), 0.1: (2.695, 2.682)}
    for lr, pair in losses.items():
        for seed, loss in enumerate(pair):
            run = folder / "runs" / f"lr{lr}-s{seed}"
            synthetic.write_run(run, seed=seed, peak_lr=lr, lines=8)
            synthetic.end_at(run, loss)
    return folder / "runs", np.array(list(losses.values()))


def test_the_other_settings_of_a_sweep_tell_the_noise_of_runs_of_one_seed(grid, capsys):
    """Seen: two seeds a side leave ±.26 for a gap of .12, and ±1.5 where one side has them."""
    folder, y = grid
    result, text = asked(capsys, folder / "lr0.003-s1", folder / "lr0.03-s1")
    left = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    floor = result["gap"]["floor"]
    assert (floor["freedom"], floor["settings"], len(floor["runs"]), floor["paired"]) == (3, 4, 8, True)
    assert floor["sd"] == pytest.approx(np.sqrt((left**2).sum() / 3))
    assert result["gap"]["half_width"] == pytest.approx(3.1824 * floor["sd"] * np.sqrt(2), rel=0.25)
    assert "3 degrees of freedom, the effect of each seed set aside" in text and "more than noise" in text


def test_two_runs_cannot_tell_and_what_would(grid, capsys):
    folder, _ = grid
    result, text = asked(capsys, folder / "lr0.01-s0", folder / "lr0.01-s1")
    assert result["gap"]["floor"]["freedom"] == 1 and result["gap"]["half_width"] == pytest.approx(1.525, abs=2e-3)
    assert "so few runs cannot tell a gap of this size. With seeds 0 to 3 of each setting" in text
    assert "the limit would be about ±0.29 between two runs" in text


def test_two_runs_of_one_group_have_its_spread_once(studies, capsys):
    result, _ = asked(capsys, studies / "a/runs/0", studies / "a/runs/2")
    assert result["config"] == {"train.seed": {"a": 0, "b": 2, "computes": True}}
    assert result["gap"]["floor"]["freedom"] == 2


def test_the_same_seed_twice_is_no_noise(studies, tmp_path, capsys, monkeypatch):
    shutil.copytree(studies / "a", tmp_path / "a")
    shutil.copytree(studies / "a/runs/0", tmp_path / "a/runs/0-again")
    monkeypatch.chdir(tmp_path)  # by a relative name, the run is still the one found beside
    assert main(["compare", "a/runs/0", str(studies / "b/runs/0"), "--json"]) == 0
    floor = json.loads(capsys.readouterr().out)["gap"]["floor"]
    assert (floor["freedom"], len(floor["runs"])) == (3, 5)


def test_without_seeds_it_says_how_to_have_some(studies, tmp_path, capsys):
    for name in "ab":
        shutil.copytree(studies / name / "runs/0", tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/config.json").write_text('{"model": ')  # broken, and no affair of theirs
    (tmp_path / "d").mkdir()
    (tmp_path / "d/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')  # what `scalelab export` wrote
    result, text = asked(capsys, tmp_path / "a", tmp_path / "b")
    assert result["gap"]["floor"] is None and result["gap"]["half_width"] is None
    assert "noise floor: unknown" in text and f"--config.train.seed=1 --workdir={tmp_path}/a-seed1" in text


def test_mistakes_end_in_one_line_and_2(studies, tmp_path, capsys):
    shutil.copytree(studies / "a", tmp_path / "mixed")
    shutil.copytree(studies / "b/runs/0", tmp_path / "mixed/runs/9")
    for arguments, output in (
        ([tmp_path / "mixed", studies / "a"], "holds runs that differ in optim.peak_lr: name one of them, e.g. "),
        ([studies / "nowhere", studies / "a"], "holds no run: no such folder"),
        ([studies / "a"], "required"),
    ):
        assert main(["compare", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert output in error and error.startswith("scalelab: ") and error.count("\n") == 1


def test_a_comparison_has_a_page(studies, tmp_path, capsys):
    page = tmp_path / "new" / "ab.html"
    result, text = asked(capsys, studies / "a/runs/0", studies / "b/runs/0", f"--html={page}")
    assert result["page"] == str(page) and f"wrote {page}" in text
    html = page.read_text()
    assert "optim.peak_lr" in html and "A: 0" in html and "B: 0" in html and "nats/token" in html
    assert (page.parent / "ab_figures" / "training_loss.csv").read_text().count("A: 0") == 4
    assert main(["compare", str(studies / "a/runs/0"), str(studies / "b/runs/0"), f"--html={tmp_path}"]) == 2


def test_a_value_behind_a_blank_is_told_of_the_sign(capsys):
    assert main(["compare", "a", "b", "--html", "page.html"]) == 2
    assert capsys.readouterr().err == "scalelab: unknown argument 'page.html'; write --html=page.html\n"


def as_on(run, place, devices, shift):
    """A copy of a run as another number of devices would have left it: the losses moved by `shift`."""
    shutil.copytree(run, place)
    record = records.read_json(place / "record.json")
    record["mesh"]["devices"] = devices
    record["val_loss"] += shift
    records.write_json(place / "record.json", record)
    lines = records.read_metrics(place)
    moved = [line | ({"val_loss": line["val_loss"] + shift} if "val_loss" in line else {}) for line in lines]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in moved))
    return place


@pytest.mark.full
def test_another_number_of_devices_has_a_floor_of_its_own(studies, tmp_path, capsys):
    shutil.copytree(studies / "a/runs", tmp_path / "runs")
    one = tmp_path / "runs/0"
    eight = as_on(one, tmp_path / "runs/0-on-8", 8, 3e-4)
    result, text = asked(capsys, one, eight)
    assert result["devices"] == {"devices": [1, 8], "pairs": [], "largest": None}
    assert "A ran on 1, B on 8; no two other runs here differ in their devices alone" in text
    as_on(tmp_path / "runs/1", tmp_path / "runs/1-on-8", 8, -1e-4)
    result, text = asked(capsys, one, eight)
    assert result["devices"]["largest"] == pytest.approx(1e-4, rel=1e-3)
    assert "1 pair of runs that differ in their devices alone are up to 0.0001 apart: more than that" in text
    as_on(tmp_path / "runs/2", tmp_path / "runs/2-on-4", 4, 5e-4)
    result, text = asked(capsys, one, eight)
    assert "2 pairs of runs that differ in their devices alone are up to 0.0005 apart: not more than that" in text
    assert asked(capsys, one, tmp_path / "runs/1")[0]["devices"] is None  # as many devices on both sides


def test_a_published_curve_is_the_other_side(studies, tmp_path, capsys):
    curve = tmp_path / "published.csv"
    curve.write_text("step,val_loss\n2,6.0\n4,5.5\n")
    result, text = asked(capsys, studies / "a/runs/0", curve)
    assert result["gap"]["b"] == 5.5 and result["gap"]["step"] == 4
    assert result["gap"]["gap"] == pytest.approx(5.5 - last_loss(studies / "a/runs/0")) and result["devices"] is None
    assert "loss: at step 4" in text and "noise floor: sd" in text
