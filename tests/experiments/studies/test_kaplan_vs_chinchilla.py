"""Kaplan against Chinchilla on curves of a known law: either count's exponent, found by another way; and the runs."""

import json

import numpy as np
import pytest

from scalelab.experiments.studies.kaplan_vs_chinchilla import __main__ as study
from scalelab.experiments.studies.kaplan_vs_chinchilla import runs

E, A, B, POWER = 1.2, 20.0, 88.0, 0.4  # of both N and D: a = 0.5


def law(N, D):
    return E + A * N**-POWER + B * D**-POWER


def count_by_hand(d):
    """(total, kaplan) of two layers with a tied head on bytes: 12 d^2 a layer, 256 d, and five vectors of gains."""
    return 24 * d**2 + 256 * d + 5 * d, 24 * d**2


@pytest.fixture(scope="module")
def trials():
    return runs.make_trials(runs.SEEDS[:1])  # of other seeds they differ in name


def write_curves(folder, trials):
    """Runs whose losses are the law's, apart from a little noise; a learning rate off the best costs a tenth."""
    rng = np.random.default_rng(0)
    named = {name.replace("seed0", f"seed{seed}"): trial for name, trial in trials.items() for seed in runs.SEEDS}
    for name, trial in named.items():
        place = folder / "runs" / name
        place.mkdir(parents=True)
        N, _ = count_by_hand(trial.model.d_model)
        every = trial.eval.every_steps
        factor = np.exp(1e-4 * rng.standard_normal()) * (1.1 if "-x2-" in name or "-x0.5-" in name else 1)
        steps = range(every, trial.train.steps + 1, every)
        lines = [
            {"step": s, "tokens": s * runs.STEP_TOKENS, "val_loss": factor * law(N, s * runs.STEP_TOKENS)}
            for s in steps
        ]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def exponent_by_search(which, budgets):
    """a where each width, whole or not, could be trained: the width of least loss on a fine grid."""
    d = np.geomspace(3, 80, 20_000)
    counts = count_by_hand(d)
    best = [counts[which][np.argmin(law(counts[0], C / (6 * counts[which])))] for C in budgets]
    return np.polyfit(np.log(budgets), np.log(best), 1)[0]


@pytest.mark.full
def test_the_study_finds_the_exponent_of_each_count(tmp_path, monkeypatch, trials):
    monkeypatch.setattr(study, "train_trials", write_curves)
    monkeypatch.setattr(study.runs, "make_trials", lambda seeds: trials)
    assert study.main([f"--workdir={tmp_path}", "--json=-"]) == 0
    result = json.loads((tmp_path / "kaplan_vs_chinchilla.json").read_text())
    for name, (_, convention) in study.STEPS.items():
        step = result["steps"][name]
        used = [each["C"] for each in step["budgets"] if each["interior"]]
        assert len(used) >= 4
        expected = exponent_by_search(convention == "kaplan", used)
        assert step["a"] == pytest.approx(expected, abs=0.04), name
        assert 3e-5 < step["noise"] < 3e-4
    tuned = runs.read_points(tmp_path, "tuned", "total", runs.SEEDS, runs.BUDGETS)
    np.testing.assert_allclose(tuned["loss"], law(tuned["N"], tuned["C"] / (6 * tuned["N"])), rtol=2e-3)
    assert exponent_by_search(0, runs.BUDGETS) == pytest.approx(0.5, abs=1e-3)
    assert (tmp_path / "kaplan_vs_chinchilla.png").exists()


@pytest.mark.full
def test_parameters_are_those_counted_by_hand():
    for d in runs.SIZES:
        counts = runs.count_parameters(d)
        assert (counts["total"], counts["kaplan"]) == count_by_hand(d)


@pytest.mark.full
def test_a_run_shorter_than_its_warm_up_climbs_as_steeply_as_the_others(trials):
    short = trials["long-d48-seed0"]
    assert short.train.steps < runs.LONG_WARMUP == trials["long-d16-seed0"].schedule.warmup_steps
    assert short.optim.peak_lr / short.schedule.warmup_steps == pytest.approx(runs.LR / runs.LONG_WARMUP)


def test_all_long_runs_share_one_cosine_and_matched_ones_end_with_it(trials):
    horizons = {round(t.schedule.fall_share * t.train.steps) for name, t in trials.items() if name[0] in "ls"}
    assert horizons == {max(t.train.steps for t in trials.values())}
    assert {t.schedule.fall_share for name, t in trials.items() if name.startswith("matched")} == {1.0}
    assert {t.schedule.final_share for name, t in trials.items() if name.startswith("tuned")} == {1.0}


def test_losses_are_read_off_in_logs_and_not_beyond_the_curve():
    tokens = np.array([1e4, 4e4, 1.6e5])
    curve = np.stack([tokens, 7 * tokens**-0.1])
    assert runs.loss_at(curve, 2.5e4) == pytest.approx(7 * 2.5e4**-0.1)
    assert np.isnan(runs.loss_at(curve, 9e3)) and np.isnan(runs.loss_at(curve, 1.7e5))


def test_counting_alone_is_near_kaplans_exponent():
    assert study.count_alone() == pytest.approx(0.758, abs=1e-3)  # checks/results/reproduce.md, kaplan
