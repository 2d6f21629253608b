"""Repeated epochs: worth and R_D* of losses that follow Muennighoff's law, found again; and the runs."""

import json

import numpy as np
import pytest

from scalelab.experiments.studies import repeated_epochs as study

E, B, POWER = 1.0, 300.0, 0.4


def worth_by_hand(epochs, r_star):
    return (1 + r_star * (1 - np.exp(-(epochs - 1) / r_star))) / epochs


def fresh_loss(tokens):
    return E + B * tokens**-POWER


@pytest.mark.parametrize("r_star", [2.0, 15.387756, 200.0])
def test_the_law_is_muennighoffs_and_its_constant_is_found_again(r_star):
    epochs = [2, 4, 8, 16, 32]
    by_hand = [worth_by_hand(count, r_star) for count in epochs]
    np.testing.assert_allclose(study.lawful_share(epochs, r_star), by_hand, rtol=1e-10)
    assert study.fit_r_star(epochs, by_hand) == pytest.approx(r_star, rel=1e-3)


def test_a_loss_is_worth_the_fresh_tokens_that_give_it():
    shares = [0.125, 0.25, 0.5, 1.0]
    fresh = [3 * share**-0.1 for share in shares]
    for share in (0.05, 0.125, 0.3, 0.9, 1.0, 1.1):
        assert study.worth_share(3 * share**-0.1, shares, fresh) == pytest.approx(share)


def test_runs_of_many_epochs_keep_that_share_of_the_corpus():
    trials = study.make_trials((3,), (1, 4, 32))
    unique = {name: trial.data.unique_tokens for name, trial in trials.items()}
    assert unique["epochs4-seed3"] == str(study.TOKENS // 4) and unique["epochs32-seed3"] == str(study.TOKENS // 32)
    assert unique["epochs1-seed3"] == unique["fresh0.5-seed3"] == ""
    assert {trial.data.split_seed for trial in trials.values()} == {3}
    assert trials["fresh0.25-seed3"].train.steps == study.STEPS // 4
    assert study.STEPS * study.SEQUENCES * study.SEQ_LEN == study.TOKENS and not study.TOKENS % (32 * study.SEQ_LEN)


def test_the_study_finds_a_planted_constant(tmp_path, monkeypatch):
    def write_runs(folder, trials):
        for name, trial in trials.items():
            unique = trial.data.unique_tokens
            tokens = trial.train.steps * study.SEQUENCES * study.SEQ_LEN
            epochs = tokens / int(unique) if unique else 1
            loss = fresh_loss(tokens * worth_by_hand(epochs, 10.0)) * (1 + 1e-3 * trial.train.seed)
            (folder / "runs" / name).mkdir(parents=True)
            (folder / "runs" / name / "config.json").write_text(json.dumps(trial.to_dict()))
            (folder / "runs" / name / "record.json").write_text(json.dumps({"status": "done", "val_loss": loss}))

    monkeypatch.setattr(study, "train_trials", write_runs)
    assert study.main(["--quick", f"--workdir={tmp_path}", "--json=-"]) == 0
    result = json.loads((tmp_path / "repeated_epochs.json").read_text())
    assert result["r_star"] == pytest.approx(10.0, rel=0.1)  # fresh losses are a power law only by pieces
    four = next(row for row in result["rows"] if row["epochs"] == 4)
    expected = fresh_loss(study.TOKENS * worth_by_hand(4, 10.0)) - fresh_loss(study.TOKENS)
    assert four["above"][0] == pytest.approx(expected, rel=1e-2)
    assert all(row["inside"] for row in result["checks"])
