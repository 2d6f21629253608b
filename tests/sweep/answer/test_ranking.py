"""The answer of a sweep: settings told apart as scipy's tests say, the truly best one hardly ever called worse."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.sweep.answer import wording
from scalelab.sweep.answer.ranking import answer_sweep
from scalelab.sweep.answer.settings import SEED_KEY

LR = "optim.peak_lr"


def rows(losses, seeds=None):
    """Trials of {lr: [loss of each seed]}; a string is a status without a loss; `seeds`: {lr: their numbers}."""
    return [
        {LR: lr, SEED_KEY: seed, "status": loss if isinstance(loss, str) else "done",
            "val_loss": None if isinstance(loss, str) else loss}
        for lr, each in losses.items()
        for seed, loss in zip((seeds or {}).get(lr, range(len(each))), each, strict=True)
    ]  # fmt: skip


def answered(losses, seeds=None):
    return answer_sweep(rows(losses, seeds), [LR])


def verdicts(answer):
    return {ranked.setting.values[LR]: ranked.verdict for ranked in answer.settings}


def noisy(random, means, seeds, noise=0.01):
    """Losses by setting: a seed shifts all settings together, and each run a little by itself."""
    shared = random.normal(0, 0.1, seeds)
    return {i: (mean + shared + random.normal(0, noise, seeds)).tolist() for i, mean in enumerate(means, 1)}


def test_told_apart_is_scipys_one_sided_paired_test_at_the_shared_level():
    seen = set()
    for trial in range(40):
        random = np.random.default_rng(trial)
        losses = noisy(random, [2.0, 2.0, 2.02, 2.05], 4)
        answer = answered(losses)
        best = min(losses, key=lambda i: np.mean(losses[i]))
        assert answer.best.values == {LR: best} and answer.each_level == pytest.approx(1 - 0.05 / 3)
        for i, verdict in verdicts(answer).items():
            p = stats.ttest_rel(losses[i], losses[best], alternative="greater").pvalue if i != best else None
            assert verdict == ("best" if i == best else "worse" if p < 0.05 / 3 else "not told apart")
            seen.add(verdict)
    assert seen == {"best", "worse", "not told apart"}


def test_other_seeds_are_compared_by_welchs_test():
    losses = {1: [2.0, 2.01, 2.02, 1.99], 2: [2.03, 2.05, 2.04, 2.06]}
    (_, other) = answered(losses, {1: range(4), 2: range(4, 8)}).settings
    p = stats.ttest_ind(losses[2], losses[1], equal_var=False, alternative="greater").pvalue
    assert not other.gap.paired and p < 0.05 and other.verdict == "worse"
    bound = stats.ttest_ind(losses[2], losses[1], equal_var=False, alternative="greater").confidence_interval(0.95).low
    assert other.gap.low == pytest.approx(bound)


def test_seeds_that_only_one_side_has_do_not_unpair_the_others():
    answer = answered({1: [2.0, 2.2, 1.9, 2.1], 2: [2.01, 2.22]})  # unpaired, the seeds' own spread would hide it all
    (_, other) = answer.settings
    assert other.gap.paired and other.gap.mean == pytest.approx(0.015) and other.gap.freedom == 1
    assert any(line.startswith("Settings have different seeds") for line in wording.describe_answer(answer))


@pytest.mark.slow
@pytest.mark.parametrize("k, seeds", [(2, 3), (4, 2), (8, 3), (8, 6)])
def test_the_truly_best_setting_is_called_worse_in_at_most_a_twentieth_of_sweeps(k, seeds):
    """Of k settings all but equal, where picking by luck is easiest; unequal noise, as large LRs have."""
    random, wrong, repeats = np.random.default_rng(k + seeds), 0, 1200
    scale = np.linspace(0.5, 2.0, k)
    for _ in range(repeats):
        shared = random.normal(0, 0.1, seeds)
        losses = {i: (2 + shared + random.normal(0, 0.01 * scale[i], seeds)).tolist() for i in range(k)}
        wrong += verdicts(answered(losses))[0] == "worse"  # setting 0 is as good as any
    assert wrong / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_one_seed_ranks_but_tells_nothing_apart():
    answer = answered({1e-3: [2.5], 1e-2: [2.1], 1e-1: [2.9]})
    assert verdicts(answer) == {1e-3: "not compared", 1e-2: "best", 1e-1: "not compared"}
    text = " ".join(wording.describe_answer(answer))
    assert "One seed: no interval" in text and "One seed tells no settings apart" in text
    assert "The best learning rate by a parabola in log LR: 0.00" in text and "no interval: one seed" in text
    assert [cells["verdict"] for cells in wording.answer_cells(answer)].count("one seed: no interval") == 2


def test_a_lost_seed_is_counted_and_ranks_its_setting_last():
    answer = answered({1e-3: [2.5, 2.6, 2.5], 1e-2: [1.5, "diverged", 1.4], 1e-1: [math.nan, "failed", "diverged"]})
    assert verdicts(answer) == {1e-3: "best", 1e-2: "not ranked", 1e-1: "not ranked"}
    cells = wording.answer_cells(answer)
    assert [row["seeds"] for row in cells] == ["3 of 3", "2 of 3", "0 of 3"]
    assert [row["mean"] for row in cells[1:]] == ["-", "-"], "the survivors' mean would be luck"
    assert cells[1]["verdict"] == "ranked last: 1 diverged"
    assert cells[2]["verdict"] == "ranked last: 1 not finite, 1 failed, 1 diverged"
    text = " ".join(wording.describe_answer(answer))
    assert "4 trials have no result (2 diverged, 1 not finite, 1 failed)" in text and "is ranked last" in text
    assert wording.answer_json(answer)["settings"][1]["lost"] == {"1": "diverged"}


def test_unfinished_seeds_wait():
    answer = answered({1e-3: [2.5, 2.6], 1e-2: [1.5, "running"], 1e-1: ["waiting", "stopped"]})
    assert verdicts(answer) == {1e-3: "best", 1e-2: "not ranked", 1e-1: "not ranked"}
    assert [cells["verdict"] for cells in wording.answer_cells(answer)[1:]] == [
        "not ranked yet: 1 not finished", "not ranked yet: 2 not finished"]  # fmt: skip
    assert "Not finished: 3 trials." in wording.describe_answer(answer)


def test_a_run_repeated_with_its_seed_is_no_replication():
    answer = answered({1e-3: [2.5, 2.5, 2.7]}, {1e-3: [0, 0, 1]})
    assert answer.best.losses == (2.5, 2.7) and answer.best.repeated == 1
    assert "Left out: 1 run of a setting and seed that was here already." in wording.describe_answer(answer)


def test_a_run_whose_config_changed_midway_is_of_no_setting():
    table = [
        *rows({1e-3: [2.5, 2.6]}),
        {LR: 1e-3, SEED_KEY: 2, "status": "done", "val_loss": 1.0, "mixed": "lr 1 -> 2"},
    ]
    (ranked,) = answer_sweep(table, [LR]).settings
    assert ranked.setting.lost == {2: "changed midway"} and ranked.verdict == "not ranked"


def test_an_optimum_for_each_value_of_the_other_keys():
    lrs, vertices = 2.0 ** np.arange(-9, -4), {64: -7.2, 256: -8.4}
    table = [
        {LR: float(lr), "model.d_model": d, SEED_KEY: seed, "status": "done",
            "val_loss": 2 + 0.1 * (np.log2(lr) - vertex - 0.05 * seed) ** 2}
        for d, vertex in vertices.items() for lr in lrs for seed in (-1, 0, 1)
    ]  # fmt: skip
    optima = answer_sweep(table, [LR, "model.d_model"]).optima
    for optimum, (d, vertex) in zip(optima, vertices.items(), strict=True):
        half = stats.t.ppf(0.95, 2) * 0.05 / 3**0.5
        assert optimum.values == {"model.d_model": d} and optimum.best.log2_lr == pytest.approx(vertex)
        assert optimum.best.interval == pytest.approx((vertex - half, vertex + half))
    sentences = wording.describe_answer(answer_sweep(table, [LR, "model.d_model"]))
    assert sentences[-2].startswith("With model.d_model = 64: the best learning rate by a parabola in log LR: 0.0068")


def test_at_the_edge_the_interval_is_refused_by_name():
    answer = answered({1e-3: [2.1, 2.2], 1e-2: [2.3, 2.4], 1e-1: [2.8, 2.7]})
    (optimum,) = wording.answer_json(answer)["optima"]
    assert optimum["interval90"] is None and not optimum["interior"]
    assert optimum["no_interval"] == "the optimum is at the grid's edge: 0.001 is the smallest LR"
    assert any("has no interval: the optimum is at the grid's edge" in line for line in wording.list_warnings(answer))


@pytest.mark.parametrize("value, error, text", [
    (2.06401, 0.0012, "2.0640 ± 0.0012"), (2.0, 0.0, "2.0000 ± 0.0000"), (0.15, 1e-17, "0.1500 ± 0.0000"),
    (2.06401, 3.4e-6, "2.0640100 ± 0.0000034"),
    (2.06401, 0.25, "2.0640 ± 0.2500"),
])  # fmt: skip
def test_digits_follow_the_error(value, error, text):
    assert wording.with_error(value, error) == text
