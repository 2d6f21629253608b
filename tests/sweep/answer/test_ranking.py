"""The answer of a sweep: settings told apart as scipy's tests say, the truly best one hardly ever called worse."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.numbers import gaps, shared_noise
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


def test_two_settings_are_scipys_paired_test_of_both_sides():
    seen = set()
    for trial in range(40):
        random = np.random.default_rng(trial)
        losses = noisy(random, [2.0, 2.02], 4)
        best, other = sorted(losses, key=lambda i: np.mean(losses[i]))
        test = stats.ttest_rel(losses[other], losses[best])
        answer = answered(losses)
        (shown,) = [ranked for ranked in answer.settings if ranked.gap]
        assert answer.best.values == {LR: best} and shown.p == pytest.approx(test.pvalue)
        assert shown.gap.low == pytest.approx(test.confidence_interval(0.95).low) and shown.gap.paired
        assert shown.verdict == ("worse" if test.pvalue < 0.05 else "not told apart")
        seen.add(shown.verdict)
    assert seen == {"worse", "not told apart"}


def test_many_settings_stand_between_dunnetts_and_tukeys_tests(monkeypatch):
    """Where variances are known to be equal: p of the worst is Tukey's, that of the others at least Dunnett's."""
    monkeypatch.setattr(shared_noise, "ALIKENESS", np.array([1e6]))
    for trial in range(12):
        random = np.random.default_rng(trial)
        y = np.array([0.0, 0.5, 1.0, 1.5, 2.0])[:, None] + random.normal(0, 1, (5, 3))
        noise = shared_noise.estimate_noise(y, blocks=False)
        shown, best = gaps.judge_gaps(noise), int(y.mean(1).argmin())
        others = [i for i in range(5) if i != best]
        assert noise.freedom == 10 and noise.sd == pytest.approx(math.sqrt(y.var(1, ddof=1).mean()))
        dunnett = stats.dunnett(*y[others], control=y[best], alternative="greater", rng=0).pvalue
        tukey = stats.studentized_range.sf((y.mean(1)[others] - y.mean(1)[best]) / (noise.sd / math.sqrt(3)), 5, 10)
        p = shown.p[others]
        assert (p >= dunnett - 0.03).all() and (p <= tukey + 0.03).all()
        assert p.max() <= 1 and p[np.argmax(y.mean(1)[others])] == pytest.approx(tukey.min(), abs=0.03)


def test_effects_of_seeds_are_set_aside_as_in_the_textbooks_two_way_table(monkeypatch):
    monkeypatch.setattr(shared_noise, "ALIKENESS", np.array([1e6]))
    y = 2 + np.random.default_rng(0).normal(0, 1, (4, 3)) + np.array([0, 5, 9])
    left = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    noise = shared_noise.estimate_noise(y)
    assert noise.blocks and noise.freedom == 6 and noise.sd == pytest.approx(math.sqrt((left**2).sum() / 6))
    assert gaps.judge_pair(noise, 1, 0).error == pytest.approx(noise.sd * math.sqrt(2 / 3), rel=0.05)
    y[3, 2] = math.nan  # least squares of means and seeds, by hand
    rows = [(i, s) for i in range(4) for s in range(3) if (i, s) != (3, 2)]
    design = np.array([[*(i == j for j in range(4)), *(s == t for t in (1, 2))] for i, s in rows], float)
    values = np.array([y[row] for row in rows])
    known, (left,) = np.linalg.lstsq(design, values)[:2]
    noise = shared_noise.estimate_noise(y)
    assert noise.freedom == 5 and noise.sd == pytest.approx(math.sqrt(left / 5))
    assert noise.means - noise.means[0] == pytest.approx(known[:4] - known[0], rel=1e-3)
    covariance = np.linalg.inv(design.T @ design) * left / 5
    contrast = np.array([-1, 0, 0, 1, 0, 0])
    assert gaps.judge_pair(noise, 3, 0).error == pytest.approx(math.sqrt(contrast @ covariance @ contrast), rel=0.05)


def test_a_noisy_setting_is_said_and_does_not_hide_the_others():
    random = np.random.default_rng(3)
    y = (
        np.array([2.0, 2.1, 2.2, 2.6])[:, None]
        + random.normal(0, 1, (4, 5)) * np.array([0.01, 0.01, 0.01, 0.3])[:, None]
    )
    noise = shared_noise.estimate_noise(y)
    assert noise.equal < 0.01 and noise.variances[3] > 5 * noise.variances[:3].max()
    assert (gaps.judge_gaps(noise).p[1:3] < 0.05).all(), "one variance for all would hide both"
    table = {i: row.tolist() for i, row in enumerate(y)}
    assert any("equal in all settings: p = 0.0" in line for line in wording.describe_answer(answered(table)))


def test_many_seeds_show_each_settings_own_noise():
    random = np.random.default_rng(5)
    y = random.normal(0, 1, (4, 60)) * np.array([1, 1, 1, 4])[:, None] + random.normal(0, 9, 60)
    noise = shared_noise.estimate_noise(y)
    assert noise.freedom == 177 and noise.variances.mean() == pytest.approx(noise.sd**2)
    assert noise.draws.mean(0).mean() == pytest.approx(noise.sd**2, rel=0.1)
    assert 5 < noise.variances[3] / noise.variances[:3].mean() < 16


def test_a_table_with_holes_keeps_its_verdicts():
    """Seeds shift by ten times the noise, and each setting lacks another one."""
    y = np.array([0.0, 0.1, 5.0, 6.0])[:, None] + np.random.default_rng(6).normal(0, 1, (4, 4)) + 10 * np.arange(4)
    y[np.arange(4), np.arange(4)] = math.nan
    noise = shared_noise.estimate_noise(y)
    shown = gaps.judge_gaps(noise)
    assert noise.freedom == 5 and shown.best in (0, 1)
    assert (shown.p[2:] < 0.05).all() and (shown.p[:2] > 0.1).all() and ((shown.low > 0) == (shown.p < 0.05)).all()


def test_readmes_sweep_answers():
    """Seen: 2.069 and 2.689 "not told apart", by a paired t of one degree of freedom."""
    losses = {0.003: [2.091, 2.071], 0.01: [2.125, 2.005], 0.03: [2.422, 2.326], 0.1: [2.695, 2.682]}
    answer = answered(losses)
    assert verdicts(answer) == {0.003: "not told apart", 0.01: "best", 0.03: "worse", 0.1: "worse"}
    text = " ".join(wording.describe_answer(answer))
    assert "Not told apart from it: 0.003. Worse: 0.03, 0.1." in text
    assert (
        "Noise of one run: 0.038 nats, 3 degrees of freedom over 4 settings (the effect of each seed set aside" in text
    )
    assert [cells["mean"] for cells in wording.answer_cells(answer)][1] == "2.065 ± 0.060"


def test_other_seeds_are_compared_with_the_luck_of_seeds_in_the_noise():
    losses = {1: [2.0, 2.01, 2.02, 1.99], 2: [2.03, 2.05, 2.04, 2.06]}
    answer = answered(losses, {1: range(4), 2: range(4, 8)})
    p = stats.ttest_ind(losses[2], losses[1]).pvalue
    assert not answer.settings[1].gap.paired and answer.settings[1].p == pytest.approx(p, abs=0.01)
    assert any("seeds are not shared" in line for line in wording.describe_answer(answer))


def test_seeds_that_only_one_side_has_do_not_unpair_the_others():
    answer = answered({1: [2.0, 2.2, 1.9, 2.1], 2: [2.01, 2.22]})  # unpaired, the seeds' own spread would hide it all
    (_, other) = answer.settings
    assert other.gap.paired and other.gap.mean == pytest.approx(0.015) and other.gap.freedom == 1
    assert any(line.startswith("Settings have different seeds") for line in wording.describe_answer(answer))


@pytest.mark.slow
@pytest.mark.parametrize("k, seeds", [(2, 3), (4, 2), (8, 3), (8, 6)])
def test_what_is_as_good_as_the_best_is_called_worse_in_at_most_a_twentieth_of_sweeps(k, seeds):
    """All k settings equal, where picking by luck is easiest, and any of them counts; unequal noise, as large LRs have.

    At 8 settings of 3 seeds the noise varies by 4, which three seeds hardly show: 7 %.
    """
    random, wrong, repeats = np.random.default_rng(k + seeds), 0, 1200
    scale = np.linspace(0.5, 2.0, k)
    for _ in range(repeats):
        shared = random.normal(0, 0.1, seeds)
        losses = {i: (2 + shared + random.normal(0, 0.01 * scale[i], seeds)).tolist() for i in range(k)}
        wrong += "worse" in verdicts(answered(losses)).values()
    assert wrong / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def sized(losses, sizes):
    """Rows of {(lr, steps): [loss of each seed]} with the tokens and FLOPs of `sizes` tokens a step."""
    return [
        {LR: lr, "train.steps": steps, SEED_KEY: seed, "status": "done", "val_loss": loss, "N": 1000,
            "D": steps * sizes, "C": 6000 * steps * sizes}
        for (lr, steps), each in losses.items() for seed, loss in enumerate(each)
    ]  # fmt: skip


def test_steps_are_a_design_and_have_no_best():
    table = sized({(1e-2, steps): [3 - steps / 1e3, 3.01 - steps / 1e3] for steps in (100, 200, 400)}, 64)
    answer = answer_sweep(table, ["train.steps"])
    assert answer.best is None and answer.design == ("train.steps",)
    assert set(each.verdict for each in answer.settings) == {"no verdict"}
    text = " ".join(wording.describe_answer(answer))
    assert "axis of a design" in text and "`scalelab fit DIR`" in text and "edge" not in text and "Best" not in text
    assert wording.answer_json(answer)["design"] == ["train.steps"] and not wording.list_warnings(answer)


def test_in_a_design_settings_are_ranked_at_each_size():
    best = {100: 3e-3, 400: 1e-3}
    height = {(lr, steps): 4 - steps / 1e3 + 0.5 * (lr != best[steps]) for lr in (1e-3, 3e-3) for steps in best}
    table = sized({key: [loss + 0.001 * (s + key[0]) for s in (0, 1)] for key, loss in height.items()}, 64)
    answer = answer_sweep(table, [LR, "train.steps"])
    shown = {(each.setting.values["train.steps"], each.setting.values[LR]): each.verdict for each in answer.settings}
    assert shown == {(100, 3e-3): "best", (400, 1e-3): "best", (100, 1e-3): "worse", (400, 3e-3): "worse"}
    assert [each.values["train.steps"] for each in answer.with_verdict("best")] == [100, 400]  # from rung to rung
    text = " ".join(wording.describe_answer(answer))
    assert "With train.steps = 100: best optim.peak_lr = 0.003, loss 3.9" in text and answer.best is None


def test_a_setting_with_the_losses_of_the_best_is_named_beside_it():
    """At muP's base width both parametrizations are one: neither is the best."""
    name = "parametrization.name"
    table = [
        {"model.d_model": width, name: value, SEED_KEY: 0, "status": "done", "N": width**2, "D": 1000, "C": width**3,
            "val_loss": 4 - width / 100 - (0.1 * (value == "mup") if width > 32 else 0)}
        for width in (32, 64) for value in ("standard", "mup")
    ]  # fmt: skip
    text = " ".join(wording.describe_answer(answer_sweep(table, ["model.d_model", name])))
    assert f"{name} = mup, loss 3.6800 (the same losses with {name} = standard)." in text
    assert f"{name} = mup, loss 3.2600." in text
    alone = answer_sweep([row for row in table if row["model.d_model"] == 32], [name])
    assert "the same losses with" in wording.describe_answer(alone)[0]


def test_rungs_that_change_width_depth_and_steps_together_have_no_best():
    """No two rungs of an ablation differ in one key alone; the variant, which changes no size, is ranked at each."""
    table = [
        {"model.d_model": width, "model.n_layers": depth, "model.qk_norm": norm, SEED_KEY: seed, "status": "done",
            "val_loss": 4 - width / 100 - 0.05 * norm + 0.001 * seed, "N": width**2 * depth, "D": 1000 * width,
            "C": 6000 * width**3 * depth}
        for width, depth in ((32, 2), (64, 4), (96, 6)) for norm in (False, True) for seed in (0, 1, 2)
    ]  # fmt: skip
    answer = answer_sweep(table, ["model.d_model", "model.n_layers", "model.qk_norm"])
    assert answer.design == ("model.d_model", "model.n_layers") and answer.best is None
    shown = [(each.setting.values["model.qk_norm"], each.verdict) for each in answer.settings]
    assert shown == [(False, "worse"), (True, "best")] * 3


def test_one_seed_ranks_but_tells_nothing_apart():
    answer = answered({1e-3: [2.5], 1e-2: [2.1], 1e-1: [2.9]})
    assert verdicts(answer) == {1e-3: "not compared", 1e-2: "best", 1e-1: "not compared"}
    text = " ".join(wording.describe_answer(answer))
    assert "One seed: no interval" in text and "One seed tells no settings apart" in text
    assert "The best learning rate by a parabola in log LR: 0.00" in text and "no interval: one seed" in text
    assert [cells["verdict"] for cells in wording.answer_cells(answer)].count("one seed: no interval") == 2


def test_a_run_without_a_seed_has_none():
    """Imported runs may name no seed; one beside a seed is another run."""
    text = " ".join(wording.describe_answer(answered({1e-3: [2.0], 2e-3: [2.1]}, {1e-3: [None], 2e-3: [None]})))
    assert "nats/token with no seed. One run: no interval" in text and "None" not in text
    text = " ".join(wording.describe_answer(answered({1e-3: [2.0, 2.02], 2e-3: [2.3, 2.31]}, {1e-3: [0, None]})))
    assert "over seed 0 and no seed" in text and "None" not in text


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
    assert "never by the mean of its other seeds: 0.01, 0.1." in text
    assert wording.answer_json(answer)["settings"][1]["lost"] == {"1": "diverged"}


def test_unfinished_seeds_wait():
    answer = answered({1e-3: [2.5, 2.6], 1e-2: [1.5, "running"], 1e-1: ["waiting", "stopped"]})
    assert verdicts(answer) == {1e-3: "best", 1e-2: "not ranked", 1e-1: "not ranked"}
    waits = [cells["verdict"] for cells in wording.answer_cells(answer)[1:]]
    assert waits == [f"not ranked yet: {n} not finished" for n in (1, 2)]
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
    (2.06401, 0.25, "2.06 ± 0.25"), (2.06401, 0.0996, "2.06 ± 0.10"), (20.6, 31.0, "21 ± 31"),
])  # fmt: skip
def test_digits_follow_the_error(value, error, text):
    assert wording.with_error(value, error) == text
