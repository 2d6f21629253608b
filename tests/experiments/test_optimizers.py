"""The comparison of optimizers: equal searches that follow the best beyond an edge, and results with known answers."""

import json
import math

import numpy as np
import pytest

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.experiments.optimizers import __main__ as study
from scalelab.experiments.optimizers import limits, race, ranking, search
from scalelab.experiments.optimizers.page import format_page
from scalelab.experiments.shared import RESULTS

BASE = study._options(["--quick"])[1]


def test_every_optimizer_gets_the_same_points_of_the_unit_cube_and_all_its_betas_are_tuned():
    point = search.sample_box(search.first_box(0.01), 8, 0)[3]
    for name, defaults in OPTIM_DEFAULTS.items():
        values = search.config_values(name, point, 100)
        assert values["optim.peak_lr"] * values["optim.weight_decay"] * 100 == pytest.approx(point["decay"])
        tuned = {key.split(".")[1] for key in values if "beta" in key}
        unread = {"adafactor": {"beta1"}, "shampoo": {"beta2"}}.get(name, set())
        assert tuned == {key for key in defaults if key in ("beta1", "beta2", "rest_beta1", "rest_beta2")} - unread
        if "rest_lr" in defaults:
            ratio = defaults["rest_lr"][0] / defaults["peak_lr"][0]
            assert values["optim.rest_lr"] / values["optim.peak_lr"] == pytest.approx(ratio)
        race.trial_config(BASE, name, values, 0)  # nothing that the optimizer has no use for


def test_a_scan_goes_on_at_its_ends_only():
    assert search.next_octaves([-1, 0, 1], [3.0, 2.0, 2.5]) == []
    assert search.next_octaves([-1, 0, 1], [3.0, 2.0, 1.5]) == [2, 3, 4]
    assert search.next_octaves([-1, 0, 1], [1.0, 2.0, math.inf]) == [-4, -3, -2]
    assert search.next_octaves([-1, 0, 1], [math.inf] * 3) == [-4, -3, -2]


def test_the_next_box_is_half_as_wide_and_leaves_the_first_where_the_best_is_near_an_edge():
    box = search.first_box(0.01)
    best = {key: math.sqrt(low * high) for key, (low, high) in box.items()} | {"lr": box["lr"][1] * 0.99}
    after = search.next_box(box, best)
    for key, (low, high) in after.items():
        assert math.log(high / low) == pytest.approx(math.log(box[key][1] / box[key][0]) / 2)
        assert math.sqrt(low * high) == pytest.approx(best[key])
    assert search.widened_sides(box, after) == ["lr up"]
    assert search.at_edge([box], best) == ["lr up"] and search.at_edge([box, after], best) == []
    no_decay = best | {"1-beta1": 1.0}
    assert search.next_box(box, no_decay)["1-beta1"][1] == 1.0 == search.DIMENSION_LIMITS["1-beta1"][1]


class Bowl:
    """Stands for training where the answer is known: a loss quadratic in the logs of LR and momentum; no config is run.

    `lowest`: {optimizer: (LR, 1 - beta1, least loss)}. Seeds move all losses by the same table.
    """

    def __init__(self, lowest):
        self.lowest, self.stages, self.seeds = lowest, {}, np.random.default_rng(0).normal(0, 0.01, 50)

    def __call__(self, stage, made):
        self.stages[stage] = list(made)
        return [{"name": name, "loss": self.loss(config), "curve": [(50, 3.0), (100, 2.0)],
            "tokens_per_s": 1e5} for name, config in made.items()]  # fmt: skip

    def loss(self, config):
        lr, momentum, least = self.lowest[config.optim.name]
        away = math.log2(config.optim.peak_lr / lr)
        if away > 6:
            return math.inf
        apart = 0.0 if momentum is None else math.log2((1 - config.optim.beta1) / momentum)
        return least + 0.02 * away**2 + 0.02 * apart**2 + float(self.seeds[config.train.seed])


LOWEST = {"adamw": (3e-3 * 2**4, 0.1, 2.4), "sgd": (0.1 * 2**9, None, 2.6), "lion": (3e-4 * 2**3, 0.45, 2.45)}


@pytest.fixture(scope="module")
def raced():
    train = Bowl(LOWEST)
    tuned = race.tune_optimizers(BASE, list(LOWEST), 12, train)
    ended = race.run_finals(BASE, tuned, 1, 2, train)
    return train, tuned, ended


def test_the_search_finds_a_known_best_even_beyond_every_edge(raced):
    train, tuned, ended = raced
    assert list(train.stages) == ["scan0", "scan1", "round0", "round1", "finals"]
    assert {name.split("-")[0] for name in train.stages["scan1"]} == {"sgd"}  # 2^9 lies beyond the scan's 2^7
    assert max(tuned["sgd"]["scan"]) == 10 and sorted(tuned["adamw"]["scan"]) == list(search.FIRST_OCTAVES)
    for name, (lr, momentum, _) in LOWEST.items():
        assert len(tuned[name]["runs"]) == 12 == len(tuned[name]["points"])
        assert abs(math.log2(ended[name]["values"]["optim.peak_lr"] / lr)) < 1
        if momentum:
            assert abs(math.log2((1 - ended[name]["values"]["optim.beta1"]) / momentum)) < 1
    assert "1-beta1 up" in tuned["lion"]["widened"]  # its best, .45, lies at the first box's edge of .5


def test_finals_are_the_three_best_on_seeds_that_tuning_and_choice_did_not_see(raced):
    train, tuned, ended = raced
    assert len(train.stages["finals"]) == 3 * 3 * 3
    made = race.final_trials(BASE, {"adamw": [ended["adamw"]["values"]]}, 3)
    assert [config.train.seed for config in made.values()] == [1, 2, 3]
    final = ended["adamw"]["finals"]
    assert list(final.finalists) == sorted(range(12), key=lambda i: tuned["adamw"]["runs"][i]["loss"])[:3]
    assert np.shape(final.choosing) == (3, 1) and np.shape(final.reported) == (3, 2)
    assert final.loss == pytest.approx(np.mean([run["loss"] for run in ended["adamw"]["runs"]]))
    assert {run["name"].split("-")[2] for run in ended["adamw"]["runs"]} == {"seed02", "seed03"}


def test_a_second_pass_over_what_has_run_asks_for_the_same_runs(raced):
    """What resuming rests on: a stage's runs follow from the results before it alone."""
    once, again = Bowl(LOWEST), Bowl(LOWEST)
    for train in (once, again):
        race.tune_optimizers(BASE, ["lion"], 12, train)
    assert again.stages == once.stages and again.stages["round1"] == [f"lion-tune{i:03d}" for i in range(6, 12)]
    assert once.stages["round0"] == [run for run in raced[0].stages["round0"] if run.startswith("lion")]


def test_the_table_its_page_and_its_figure(raced, tmp_path):
    _, tuned, ended = raced
    rows = ranking.ranking_rows(tuned, ended, dict.fromkeys(LOWEST, 8.0), 2.5, 10)
    assert [row["name"] for row in rows] == ["adamw", "lion", "sgd"] and [row["rank"] for row in rows] == [1, 2, 3]
    assert all(row["rank_interval"][0] <= row["rank"] <= row["rank_interval"][1] for row in rows)
    assert all(row["interval"][0] <= row["loss"] <= row["interval"][1] for row in rows)
    assert (
        rows[0]["explained"] == "the reference" and "behind; perhaps because embedding, norms" in rows[2]["explained"]
    )
    result = {
        "command": "c", "date": "d", "machine": "m", "what": "w", "sides": 1, "rescanned": 1, "choosing": 2, "seeds": 4,
        "target_loss": 2.5, "reference": "adamw", "rise": ranking.loss_rise(rows), "limits": ["x"], "rows": rows,
    }  # fmt: skip
    study._write(tmp_path, result, tuned, ended)
    assert (tmp_path / "optimizers.png").read_bytes().startswith(b"\x89PNG")
    text = format_page(json.loads((tmp_path / "optimizers.json").read_text()))
    assert text == (tmp_path / "optimizers.md").read_text()
    assert "| 1 [1, " in text and "no difference shown" not in text and "75, 750" in text


def test_words_follow_from_the_interval_not_from_the_seeds_spread():
    close, far = {1: 2.5, 2: 2.6, 3: 2.7}, {1: 2.51, 2: 2.58, 3: 2.72}
    assert "the interval holds 0, so which is better is open" in ranking.describe_difference(
        ranking.intervals.mean_difference(far, close), "lion"
    )
    # Seeds spread by .1, ten times the difference, but each pair says the same.
    paired = {seed: loss + 0.01 + 0.001 * seed for seed, loss in close.items()}
    assert "behind" in ranking.describe_difference(ranking.intervals.mean_difference(paired, close), "lion")
    assert "diverged" in ranking.describe_difference(None, "sgd")


def test_target_is_interpolated_and_median_over_seeds():
    def run(*curve):
        return {"curve": list(curve), "tokens_per_s": 100.0}

    seeds = [run((10, 3.0), (20, 2.0)), run((10, 2.6), (20, 2.0)), run((10, 2.4), (20, 2.0))]
    reached = ranking.cost_to_target(seeds, 2.5, 50)
    steps = np.median([15.0, 10 + 10 * 0.1 / 0.6, 10.0])
    assert reached == pytest.approx({"steps": steps, "tokens": 50 * steps, "seconds": steps / 2})
    assert ranking.cost_to_target([*seeds, run((10, 3.0), (20, 2.6))], 2.5, 50) is None


def test_what_a_hundred_steps_cannot_tell_follows_from_the_optimizers_own_values():
    lines = "\n".join(limits.describe_limits(BASE, list(OPTIM_DEFAULTS)))
    assert "galore, galore8bit, apollo, apollo_mini: a projection is drawn every 200 steps, so once in 100" in lines
    assert "ademamix: the slow moment averages over 10,000 steps" in lines
    assert "sophia_h, sophia_g, soap, shampoo: preconditioners or Hessians" in lines and "10 times in a run" in lines
    assert "galore, galore8bit, apollo: rank 128" in lines and "apollo_mini: rank" not in lines
    long = limits.describe_limits(study._options(["--quick", "--config.train.steps=20000"])[1], ["galore", "ademamix"])
    assert not any(line.startswith(("galore: a projection", "ademamix")) for line in long)


def test_the_printed_ranks_of_the_committed_race_lie_inside_their_intervals():
    result = json.loads((RESULTS / "optimizers.json").read_text())
    if "rank" not in result["rows"][0]:
        pytest.skip(
            "the committed table is by the former method, which has no ranks: run python -m experiments.optimizers"
        )
    for row in result["rows"]:
        assert row["rank_interval"][0] <= row["rank"] <= row["rank_interval"][1], row["name"]
        assert row["interval"][0] <= row["loss"] <= row["interval"][1], row["name"]
    assert (RESULTS / "optimizers.md").read_text() == format_page(result)


@pytest.mark.parametrize(
    ("flag", "why"), [("--trials=5", "at least 6"), ("--seeds=1", "no spread"), ("--choosing=0", "a point is chosen")]
)
def test_too_little_to_compare_is_refused(flag, why, tmp_path, capsys):
    assert study.main([flag, f"--workdir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1
