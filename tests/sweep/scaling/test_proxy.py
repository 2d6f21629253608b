"""The small twin of a recipe: its size follows from the budget, its horizon and multipliers from the recipe."""

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config.steps import schedule_steps
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.model import block, count
from scalelab.sweep.scaling import proxy
from scalelab.sweep.scaling.ladder import flops_per_step
from tests.quick import one_in


def recipe(name: str = "standard", **changes):
    tree = base.get_config()
    tree.model = base.llama(128, 4, 8)
    tree.model.n_kv_heads = 4
    tree.train.steps, tree.train.global_batch = 1000, 8
    tree.schedule.warmup_steps = 100
    tree.parametrization.name = name
    return config_lib.resolve(config_lib.override(tree, {k.replace("__", "."): v for k, v in changes.items()}))


def total(config):
    return count.count_parameters(config_lib.static(config).model)["total"]


def cost(config):
    return config.train.steps * flops_per_step(config)


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(3, ["standard", "mup", "completep"]))
@pytest.mark.parametrize("budget", [3e12, 2e13])
def test_the_widest_twin_that_the_budget_allows(name, budget):
    of = recipe(name)
    plan = proxy.plan_proxy(of, budget, runs=6)
    twin = plan.twin
    assert plan.sweep_flops == pytest.approx(6 * cost(twin)) and plan.sweep_flops <= budget
    unit = 32  # two heads of 16 to a key head, four key heads at 128
    wider = twin.model.d_model + unit
    assert wider == 128 or 6 * cost(proxy._twin(of, wider)) > budget
    assert twin.model.d_head == 16 and twin.model.n_heads == 2 * twin.model.n_kv_heads == twin.model.d_model // 16
    assert twin.model.n_layers == (4 if name == "mup" else round(4 * twin.model.d_model / 128))


@pytest.mark.full
def test_horizon_warm_up_and_other_choices_are_proportionate():
    of = recipe(schedule__name="wsd", optim__beta2=0.98)
    twin = proxy.plan_proxy(of, 2e13, 6).twin
    tokens = [config.train.steps * schedule_steps.tokens_per_step(config) / total(config) for config in (of, twin)]
    assert tokens[1] == pytest.approx(tokens[0], rel=0.01)
    for key in ("warmup_steps", "decay_steps"):
        shares = [config.schedule[key] / config.train.steps for config in (of, twin)]
        assert shares[1] == pytest.approx(shares[0], abs=0.5 / twin.train.steps)
    assert twin.optim == of.optim and twin.data == of.data and twin.schedule.name == "wsd"


def test_a_short_twin_takes_smaller_batches_and_the_target_the_square_root():
    plan = proxy.plan_proxy(recipe(train__steps=200), 1e12, 6)
    assert plan.twin.train.steps >= 100 and plan.twin.train.global_batch < 8
    assert plan.lr_factor == pytest.approx((8 / plan.twin.train.global_batch) ** 0.5)
    assert any("square root" in line for line in plan.lines())


@pytest.mark.parametrize("name", one_in(3, ["mup", "standard", "completep"]))
def test_the_multipliers_are_one_at_the_twin_of_a_standard_recipe_and_the_recipes_own_else(name):
    of = recipe(name, parametrization__base_width=32)
    plan = proxy.plan_proxy(of, 3e12, 6)
    twin, target = (config_lib.static(config).model for config in (plan.twin, plan.target))
    assert plan.twin.parametrization == plan.target.parametrization
    if name == "standard":
        assert plan.target.parametrization.name == "completep"
        assert (twin.width_ratio, twin.depth_ratio) == (1, 1)
        assert (target.width_ratio, target.depth_ratio) == (128 / twin.d_model, 4 / twin.n_layers)
        assert not block.forward_multipliers(twin)
    else:
        assert plan.target == of


def test_the_target_takes_the_best_learning_rate():
    plan = proxy.plan_proxy(recipe(train__steps=200), 1e12, 6)
    lrs, seeds = [2.0**i for i in (-9, -8, -7, -6)], (3, 4)
    runs = proxy.proxy_trials(plan, lrs, seeds)
    assert {(c.optim.peak_lr, c.train.seed) for c in runs.values()} == {(lr, s) for lr in lrs for s in seeds}
    rows = [
        {"name": n, "status": "done", "val_loss": 2 + (np.log2(c.optim.peak_lr) + 7.4) ** 2} for n, c in runs.items()
    ]
    target, result = proxy.fill_target(plan, rows, lrs, seeds)
    assert result.log2_lr == pytest.approx(-7.4) and result.interior
    assert target.optim.peak_lr == pytest.approx(2**-7.4 * plan.lr_factor, rel=1e-3)
    assert target.model == plan.target.model


def test_a_budget_for_no_twin_names_the_least():
    with pytest.raises(
        BadInput, match=r"--flops=1e\+06: 6 runs of the narrowest twin \(d_model 32\) take (\S+); nearest"
    ) as why:
        proxy.plan_proxy(recipe(), 1e6, 6)
    least = float(str(why.value).split()[-1])
    assert proxy.plan_proxy(recipe(), 1.01 * least, 6).twin.model.d_model == 32
    with pytest.raises(BadInput, match="holds a single group of heads of 16: there is no narrower twin"):
        proxy.plan_proxy(recipe(model__d_model=32, model__n_heads=2, model__n_kv_heads=1), 1e15, 6)
