"""(size, budget) -> run: the budget is spent, the rule's numbers are the config's, nonsense is refused."""

import pytest

from configs import quickstart
from scalelab.config import override, resolve
from scalelab.errors import BadInput
from scalelab.sweep import ladder

RULE = ladder.rule("small-bytes")


@pytest.mark.parametrize(("size", "budget"), [(16, 1.25e11), (64, 4e12), (80, 1e12)])
def test_a_rung_spends_its_budget_and_follows_the_rule(size, budget):
    run = ladder.rung(quickstart.get_config(), size, budget, RULE)
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
    one, two = (ladder.rung(base, 32, 1e11, RULE, lr_factor=factor) for factor in (1.0, 2.0))
    assert two.optim.peak_lr == pytest.approx(2 * one.optim.peak_lr)
    two.optim.peak_lr = one.optim.peak_lr
    assert one.to_dict() == two.to_dict()


def test_what_a_resolved_base_derived_from_its_own_length_is_derived_again():
    base = quickstart.get_config()
    base.schedule.decay_share = None  # 20 % by default
    run = ladder.rung(resolve(base), 16, 1.25e11, RULE)
    assert run.schedule.decay_steps == round(0.2 * run.train.steps) != resolve(base).schedule.decay_steps
    base.schedule.decay_steps = 77
    assert ladder.rung(resolve(base), 16, 1.25e11, RULE).schedule.decay_steps == 77


def test_mistakes_say_what_would_be_right():
    with pytest.raises(BadInput, match="only 5 steps at d_model=64: take a smaller size or a larger budget"):
        ladder.rung(quickstart.get_config(), 64, 2e9, RULE)
    with pytest.raises(BadInput, match="did you mean 'small-bytes'"):
        ladder.rule("small-byte")
    with pytest.raises(BadInput, match="nearest widths: 16, 20"):
        ladder.rung(quickstart.get_config(), 18, 1e11, RULE)


@pytest.mark.parametrize(
    ("changed", "said"),
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
def test_what_is_planned_for_one_length_is_no_rung(changed, said):
    with pytest.raises(BadInput, match=said):
        ladder.rung(override(quickstart.get_config(), changed), 32, 1e11, RULE)
