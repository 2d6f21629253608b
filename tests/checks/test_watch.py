"""The study of forecasts: coverage, regret and saving by hand-made numbers, and a whole grid of known truth."""

import dataclasses
import math

import pytest

from checks.diagnosis import watch
from scalelab.diagnose.watch.curve import read_curve
from scalelab.record import listing
from tests.diagnose.watch import families


def test_coverage_counts_what_lies_inside():
    rows = [{"z": z, "error": 0.01 * z, "width": 0.02} for z in (-2.0, -0.5, 0.9, 1.0)] + [{"z": None}]
    summary = watch.summarise(rows)
    assert (summary["n"], summary["inside"]) == (4, 0.75) and summary["width"] == pytest.approx(0.02)
    assert summary["rms_error"] == pytest.approx(0.01 * math.sqrt((4 + 0.25 + 0.81 + 1) / 4))
    whole = [{"way": "family, val", "z": i / 100} for i in range(101)]
    assert watch.choose_inflation(whole) == pytest.approx(0.9 * watch.INFLATION)


def test_a_grid_is_replayed_in_order_and_its_regret_is_that_of_the_trials_left(tmp_path):
    """Four trials of one budget: the second is far above its law, and nothing but its own curve tells it."""
    for i, (n, steps) in enumerate(((8_000, 4_000), (9_000, 3_550), (10_000, 3_200), (11_000, 2_910))):
        families.write_member(tmp_path / f"fit-{i}", n, steps, off=0.3 if i == 1 else 0.0)
    grid = [read_curve(place) for place in listing.run_folders(tmp_path)]
    result = watch.replay(grid, "grid")
    stopped = result["stopped"]
    assert "fit-1" in stopped and "fit-0" not in stopped  # the first has no rival that is known
    assert stopped["fit-1"] in watch.LOOKS[:10]
    costs = {run.name: run.flops for run in grid}
    saved = sum((1 - share) * costs[name] for name, share in stopped.items()) / sum(costs.values())
    assert result["saved"] == pytest.approx(saved)
    left = min(run.val_loss for run in grid if run.name not in stopped)
    assert result["regret"] == pytest.approx(left / min(run.val_loss for run in grid) - 1)
    best = [dataclasses.replace(run, val_loss=1.0) if run.name == "fit-1" else run for run in grid]
    assert watch._regret(best, stopped) == pytest.approx(left - 1)


def test_rows_hold_every_share_and_way(tmp_path):
    families.write_family(tmp_path, sizes=(5_000, 9_000, 16_000), lengths=(800, 1_600, 3_200))
    curves = [read_curve(place) for place in listing.run_folders(tmp_path)]
    rows = watch.score_run(curves[4], curves)
    assert {row["way"] for row in rows} == {"family, val", "family, train", "own curve, val"}
    assert [row["share"] for row in rows if row["way"] == "family, val"] == list(watch.SHARES)
    assert all(row["z"] is not None and abs(row["z"]) < 3 for row in rows)


def test_quick_has_enough_siblings_for_a_law_and_few_programs():
    runs = watch.plan(["--quick"]).runs
    assert len(runs) == 2 * 12  # 11 finished siblings each: a law needs 10
    shapes = {(run.model.d_model, run.train.steps, run.schedule.decay_steps) for run in runs.values()}
    assert len(shapes) == 9 and all(decay == round(0.3 * steps) for _, steps, decay in shapes)
