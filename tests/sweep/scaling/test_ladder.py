"""(size, budget) -> run: the budget is spent, the rule's numbers are the config's, nonsense is refused."""

import math

import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import quickstart
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep import trials
from scalelab.sweep.scaling import ladder, rules
from tests.quick import one_in

RULE = rules.find_rule("small-bytes", quickstart.get_config())


@pytest.mark.parametrize(("size", "budget"), [(16, 1.25e11), (64, 4e12), (80, 1e12)])
def test_a_rung_spends_its_budget_and_follows_the_rule(size, budget):
    run = ladder.make_rung(quickstart.get_config(), size, budget, RULE)
    model, steps = run.model, run.train.steps
    # By hand: 6 FLOPs a matrix parameter and token (tied head included), 12 L S d for attention.
    matrices = model.n_layers * (4 * size**2 + 2 * size * 4 * size) + size * 256
    flops = (6 * matrices + 12 * model.n_layers * 64 * size) * 8 * 64 * steps
    assert flops == pytest.approx(budget, rel=0.5 / steps)
    assert run.optim.peak_lr == pytest.approx(3.7e-3 * (steps / 1500) ** -0.12 * (size / 48) ** -0.35)
    assert run.schedule.warmup_steps == round(0.08 * steps)
    assert run.schedule.decay_steps == round(0.3 * steps)
    assert (model.d_model, model.d_head, model.d_ff) == (size, size // 4, 4 * size)


def test_a_factor_scales_the_learning_rate_and_nothing_else():
    base = quickstart.get_config()
    one, two = (ladder.make_rung(base, 32, 1e11, RULE, lr_factor=factor) for factor in (1.0, 2.0))
    assert two.optim.peak_lr == pytest.approx(2 * one.optim.peak_lr)
    two.optim.peak_lr, two.log.set_by = one.optim.peak_lr, one.log.set_by
    assert one.to_dict() == two.to_dict()


@pytest.mark.parametrize("size", one_in(3, [8, 88, 1024]))
def test_a_rule_is_refused_outside_its_range(size):
    with pytest.raises(BadInput, match=f"d_model 16 to 80, not {size}; nearest: {16 if size < 16 else 80}, or another"):
        ladder.make_rung(quickstart.get_config(), size, 1e13, RULE)


def test_another_batch_takes_other_steps_on_as_many_tokens_and_scores_as_many():
    base = quickstart.get_config()
    one, half, two = (ladder.make_rung(base, 32, 1e11, RULE, batch_factor=factor) for factor in (1.0, 0.5, 2.0))
    assert [run.train.global_batch for run in (half, one, two)] == [4, 8, 16]
    for run, factor in ((half, 0.5), (two, 2.0)):
        assert run.train.steps == pytest.approx(one.train.steps / factor, abs=1)
        assert run.optim.peak_lr == pytest.approx(one.optim.peak_lr * factor**0.5)  # Malladi et al. 2022
        assert run.eval.batches * run.train.global_batch == one.eval.batches * one.train.global_batch
        assert run.schedule.warmup_steps == round(0.08 * run.train.steps)


def test_mup_keeps_the_configs_own_lr_and_batch_at_any_width():
    base = override(quickstart.get_config(), {"optim.peak_lr": 0.0123, "train.global_batch": 16})
    rule = rules.find_rule("mup", base)
    for size in (16, 512):
        run = ladder.make_rung(base, size, 1e13, rule)
        assert (run.optim.peak_lr, run.train.global_batch) == (0.0123, 16)
    with pytest.raises(BadInput, match=r"parametrization\.name=mup or completep, not 'standard'; nearest: --config"):
        rules.find_rule("mup", override(base, {"parametrization.name": "standard"}))


def test_step_law_as_published():
    """Li et al. 2025, abstract: at 1e9 parameters and 1e11 tokens, by hand."""
    config = override(quickstart.get_config(), {"parametrization.name": "standard"})
    rule = rules.find_rule("step_law", config)
    assert rule.peak_lr(N=1e9, D=1e11) == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert rule.batch(1e11, 2048) == round(0.58 * 1e11**0.571 / 2048)
    assert not rule.refusal(d_model=2048, N=1e9, D=1e11)
    assert "N (non-embedding) 2.14e+08 to 1.08e+09, not 3e+09" in rule.refusal(d_model=2048, N=3e9, D=1e11)
    wide = override(config, {"model.n_layers": 16, "model.vocab_size": 4096, "model.seq_len": 2048})
    run = ladder.make_rung(wide, 1536, 1.5e19, rule)
    tokens = run.train.steps * run.train.global_batch * 2048
    assert run.train.global_batch == round(0.58 * tokens**0.571 / 2048)


def lr_checks(folder, best, cells, lrs, **facts):
    """Runs whose loss over log2 LR is a parabola around `best(d_model, steps)`, written as a sweep leaves them."""
    for d_model, steps in cells:
        for lr in lrs:
            values = {"model.d_model": d_model, "train.steps": steps, "optim.peak_lr": lr, "train.global_batch": 4}
            place = folder / "runs" / f"{d_model}-{steps}-{lr:.4g}"
            records.write_json(
                place / "config.json", config_lib.resolve(override(quickstart.get_config(), values | facts)).to_dict()
            )
            loss = 2.0 + 0.05 * math.log2(lr / best(d_model, steps)) ** 2
            records.write_json(place / "record.json", {"status": "done", "val_loss": loss})


LRS = [2.0**-k for k in range(4, 13)]
CELLS = [(16, 400), (16, 1600), (64, 400), (64, 1600)]


def test_a_rule_fitted_to_ones_own_lr_checks_finds_the_law_that_made_them(tmp_path):
    lr_checks(tmp_path, lambda d, n: 4e-3 * (n / 800) ** -0.3 * (d / 32) ** -0.6, CELLS, LRS)
    rule = rules.find_rule(f"fitted:{tmp_path}", quickstart.get_config())
    for d, n in (*CELLS, (32, 100_000)):
        assert rule.peak_lr(d_model=d, steps=n) == pytest.approx(4e-3 * (n / 800) ** -0.3 * (d / 32) ** -0.6, rel=1e-6)
    assert rule.global_batch == 4 and ladder.make_rung(quickstart.get_config(), 32, 1e11, rule).train.global_batch == 4
    with pytest.raises(BadInput, match="'fitted' was measured for d_model 16 to 64, not 96; nearest: 64"):
        ladder.make_rung(quickstart.get_config(), 96, 1e12, rule)
    with pytest.raises(BadInput, match=r"measured with parametrization\.name=mup, not 'standard'"):
        rules.find_rule(f"fitted:{tmp_path}", override(quickstart.get_config(), {"parametrization.name": "standard"}))


FIT = {
    "laws": {
        "lr": {"exponents": {"N": -0.5, "D": 0.25}, "intervals": {"N": [-0.6, -0.4], "D": [0.1, 0.4]}, "groups": 12,
               "ranges": {"N": [1e4, 1e6], "D": [1e6, 1e9]}, "centre": {"N": 1e5, "D": 4e7},
               "at_centre": [0.01, 0.009, 0.011]},
        "batch_tokens": {"exponents": {"D": 0.5}, "intervals": {"D": [0.4, 0.6]}, "groups": 12,
                         "ranges": {"D": [1e6, 1e9]}, "centre": {"D": 4e7}, "at_centre": [2048.0, 1e3, 4e3]},
    },
    "shared": {"optim.name": "adamw", "optim.beta2": 0.97, "warmup_share": 0.05}, "refused": {},
    "n_convention": "non_embedding", "n_rows": 480,
}  # fmt: skip


def test_a_rule_takes_lr_and_batch_from_a_fit_of_best_settings(tmp_path):
    path = tmp_path / "fit.json"
    records.write_json(path, FIT)
    rule = rules.find_rule(f"fitted:{path}", quickstart.get_config())
    assert rule.peak_lr(N=4e5, D=16e7) == pytest.approx(0.01 * 4**-0.5 * 4**0.25)
    assert rule.batch(4e7, 64) == 32 and rule.batch(16e7, 64) == 64
    run = ladder.make_rung(quickstart.get_config(), 32, 4e12, rule)
    tokens = run.train.steps * run.train.global_batch * 64
    N = ladder.rule_inputs(run, 4e12)["N"]
    assert run.optim.peak_lr == pytest.approx(0.01 * (N / 1e5) ** -0.5 * (tokens / 4e7) ** 0.25, rel=2e-3)
    assert run.train.global_batch == round(2048 * (tokens / 4e7) ** 0.5 / 64)
    assert run.optim.beta2 == 0.97 and run.schedule.warmup_steps == round(0.05 * run.train.steps)
    assert "N^-0.5 D^0.25 (intervals of exponents: -0.6 to -0.4, 0.1 to 0.4)" in rule.source
    with pytest.raises(BadInput, match=r"'fitted' was measured for N \(non-embedding\) 10000 to 1e\+06"):
        ladder.make_rung(quickstart.get_config(), 256, 4e12, rule)
    with pytest.raises(BadInput, match=r"measured with optim\.name=adamw, not 'lion'"):
        rules.find_rule(f"fitted:{path}", override(quickstart.get_config(), {"optim.name": "lion"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"laws": {}, "refused": {"lr": "too few groups"}}, "that fit has no law of lr: too few groups"),
        ({"laws": {}}, "it was made without --best-of=lr"),
        ({"n_convention": "total"}, "its N is total, a ladder's is non_embedding: fit with --n-convention=non_embed"),
        ({"laws": {"lr": FIT["laws"]["lr"]}}, "says nothing of the batch: add it, --best-of=lr,batch_tokens"),
        ({"laws": FIT["laws"] | {"batch_tokens": FIT["laws"]["lr"]}}, "follows N, D; .*--over=batch_tokens=D"),
        ({"laws": FIT["laws"] | {"lr": FIT["laws"]["lr"] | {"exponents": {"depth": 1.0}}}}, "is one of depth"),
        ({"laws": None}, "laws is null, not an object"),
    ],
)  # fmt: skip
def test_a_fit_that_gives_no_rule_is_refused(tmp_path, changes, message):
    records.write_json(tmp_path / "fit.json", FIT | changes)
    with pytest.raises(BadInput, match=message):
        rules.find_rule(f"fitted:{tmp_path / 'fit.json'}", quickstart.get_config())


@pytest.mark.parametrize(
    ("cells", "lrs", "facts", "message"),
    [
        (CELLS, LRS[5:], {}, "d_model=16, 400 steps: the best LR .* is the edge of those tried .*; add larger ones"),
        (CELLS, LRS[3:5], {}, "finished runs at 2 learning rates; an optimum needs 3"),
        (CELLS[:2], LRS, {}, "all its runs have model.d_model=16; sweep two values or more"),
        (CELLS[::2], LRS, {}, "all its runs have train.steps=400; sweep two values or more"),
        ([(24, 800)], LRS, {"train.global_batch": 2}, r"its runs differ in train.global_batch \(2, 4\)"),
    ],
)
def test_lr_checks_that_bracket_no_optimum_are_refused(tmp_path, cells, lrs, facts, message):
    lr_checks(tmp_path, lambda d, n: 4e-3, cells, lrs, **facts)
    if facts:
        lr_checks(tmp_path, lambda d, n: 4e-3, CELLS, LRS)
    with pytest.raises(BadInput, match=message):
        rules.find_rule(f"fitted:{tmp_path}", quickstart.get_config())


def test_the_example_of_lr_checks_is_what_a_fitted_rule_asks_for():
    runs = trials.load_trials("configs/lr_checks.py", {}).values()
    cells = {(run.model.d_model, run.train.steps) for run in runs}
    assert len(cells) == 4 and len(runs) == 20
    assert {run.train.global_batch for run in runs} == {RULE.global_batch}


def test_what_a_resolved_base_derived_from_its_own_length_is_derived_again():
    base = quickstart.get_config()
    base.schedule.decay_share = None  # 20 % by default
    run = ladder.make_rung(config_lib.resolve(base), 16, 1.25e11, RULE)
    assert run.schedule.decay_steps == round(0.2 * run.train.steps) != config_lib.resolve(base).schedule.decay_steps
    base.schedule.decay_steps = 77
    assert ladder.make_rung(config_lib.resolve(base), 16, 1.25e11, RULE).schedule.decay_steps == 77


def test_mistakes_say_what_would_be_right():
    with pytest.raises(BadInput, match="only 5 steps at d_model=64: take a smaller size or a larger budget"):
        ladder.make_rung(quickstart.get_config(), 64, 2e9, RULE)
    with pytest.raises(BadInput, match="did you mean 'small-bytes'"):
        rules.find_rule("small-byte", quickstart.get_config())
    with pytest.raises(BadInput, match="nearest widths: 16, 20"):
        ladder.make_rung(quickstart.get_config(), 18, 1e11, RULE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"schedule.batch_start": 4, "schedule.batch_warmup_tokens": 4096},
            "schedule.batch_start=4: .*nearest: batch_start=none",
        ),
        (
            {"schedule.seq_start": 8, "schedule.seq_warmup_tokens": 4096},
            "schedule.seq_start=8: .*nearest: seq_start=none",
        ),
        ({"data.mixture": "a=1; 40: b=1"}, "data.mixture changes at step 40: .*nearest: one mixture"),
    ],
)
def test_what_is_planned_for_one_length_is_no_rung(changed, message):
    with pytest.raises(BadInput, match=message):
        ladder.make_rung(override(quickstart.get_config(), changed), 32, 1e11, RULE)
