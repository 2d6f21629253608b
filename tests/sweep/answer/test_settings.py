"""Settings of a sweep: the mean over seeds decides, a lost seed costs the setting its place, luck doesn't."""

import math

import pytest

from scalelab.sweep.answer.settings import SEED_KEY, find_best, group_by_setting, setting_keys

LR = "optim.peak_lr"


def rows(**losses):
    """Trials `lr1=[losses of seeds 0, 1, …]`; a string is a status without a loss."""
    return [
        {LR: lr, SEED_KEY: seed, "status": loss if isinstance(loss, str) else "done",
            "val_loss": None if isinstance(loss, str) else loss}
        for lr, each in losses.items()
        for seed, loss in enumerate(each)
    ]  # fmt: skip


def best(**losses):
    return find_best(group_by_setting(rows(**losses), [LR, SEED_KEY]))


def test_the_luckiest_seed_does_not_win():
    """Seen: the report's `Best:` was the least loss of all trials, here the first setting's seed 2."""
    winner = best(lucky=[2.50, 2.48, 2.20], steady=[2.30, 2.31, 2.29])
    assert winner.values == {LR: "steady"} and winner.seeds == (0, 1, 2)
    assert winner.mean == pytest.approx(2.30)
    assert winner.error == pytest.approx(math.sqrt((0 + 0.01**2 + 0.01**2) / 2 / 3))


def test_a_setting_that_lost_a_seed_is_not_the_best():
    assert best(fragile=[2.0, "diverged"], sound=[2.4, 2.5]).values == {LR: "sound"}
    assert best(fragile=[2.0, math.nan], sound=[2.4, 2.5]).values == {LR: "sound"}
    assert best(fragile=[2.0, "diverged"]) is None


def test_unfinished_settings_wait_for_their_seeds():
    assert best(early=[2.0, "running"], whole=[2.4, 2.5]).values == {LR: "whole"}
    early = best(early=[2.0, "running"], later=["waiting", "waiting"])
    assert (early.values, early.pending, early.error) == ({LR: "early"}, 1, None)
    assert best(later=["waiting"]) is None


def test_values_of_any_kind_make_settings():
    table = [
        {"data.sources": value, SEED_KEY: i, "status": "done", "val_loss": 1.0}
        for i, value in enumerate(([1], [1], {}, True, 1))
    ]
    assert [setting.seeds for setting in group_by_setting(table, ["data.sources", SEED_KEY])] == [
        (0, 1),
        (2,),
        (3,),
        (4,),
    ]


def test_what_was_chosen_names_a_setting_and_not_what_follows_from_it():
    """Seen: a sweep of d_model was a table of d_ff, which comes before it in the alphabet."""
    rows = [
        {"model.d_ff": 3 * d, "model.d_model": d, LR: lr, "schedule.warmup_steps": int(1e4 * lr), SEED_KEY: seed}
        for d in (16, 32)
        for lr in (1e-3, 1e-2)
        for seed in (0, 1)
    ]
    assert setting_keys(rows) == ["model.d_model", LR]
    assert setting_keys(rows[:2]) == [] and setting_keys(rows[:4]) == [LR]
    rungs = [{"eval.every_steps": n, "train.steps": n} for n in (58, 175)]  # seen: the first, of an ablation
    assert setting_keys(rungs) == ["train.steps"]
