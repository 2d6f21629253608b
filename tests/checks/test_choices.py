"""The study of choices: its counts by hand, and that its runs are those that watch is asked about."""

import pytest

from checks.diagnosis import choices


def test_errors_and_orders_are_counted_by_hand():
    rows = [
        {"run": run, "step": 1, "choice": choice, "error": error, "forecast": 1 + error, "measured": measured}
        for run, error, measured in (("a", 0.1, 1.0), ("b", -0.3, 2.0))
        for choice in choices.CHOICES
    ]
    row = choices.summarise(rows)["go on"]
    assert row["mean"] == pytest.approx(-0.1) and row["largest"] == pytest.approx(0.3)
    assert row["rms"] == pytest.approx((0.05) ** 0.5)
    ordered = [row | {"forecast": i, "measured": i} for i, row in enumerate(rows)]
    assert choices.count_orders(ordered) == (2, 2)
    swapped = [row | {"forecast": -i if row["run"] == "a" else i} for i, row in enumerate(ordered)]
    assert choices.count_orders(swapped) == (1, 2)


def test_every_step_asked_has_a_checkpoint_an_evaluation_and_room_to_decay():
    for config in choices.make_trunks().values():
        for step in choices.ASKED:
            assert step % config.checkpoint.every_steps == 0 == step % config.eval.every_steps
            assert step / 0.7 < config.train.steps - config.schedule.decay_steps
