"""What is logged of experts, from loads written by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.sums.loss_sums import no_loss_sums
from scalelab.train.step.report import experts
from scalelab.train.step.state import TrainState
from scalelab.train.step.variables import ModelVariables

LOADS = [[0.0, 0, 0, 0], [10, 10, 10, 10], [40, 0, 0, 0]]  # a dense layer, an even one, all on one expert


def make_static():
    """A dense layer before two with four experts."""
    changes = {"model.block": "sequential=1,experts=2", "model.n_layers": 3, "model.n_experts": 4}
    return config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), changes)))


def make_sums(loads=LOADS, dropped=(0.0, 5, 5)):
    """Sums of a step with these loads."""
    block = {
        "counts": {"expert_load": jnp.array(loads), "dropped": jnp.array(dropped)},
        "maxima": {"router_logit": jnp.array([-jnp.inf, 2, 3])},
    }
    return no_loss_sums()._replace(block=block)


def make_state(bias):
    """A state that holds the model's variables alone."""
    variables = {"blocks_1": {"experts": {"bias": {"v": jnp.array(bias)}}}}
    return TrainState(*[jnp.zeros(())] * 5, variables={"model": ModelVariables(variables, {})})


def test_metrics_are_those_of_the_worst_layer():
    after = make_state([[0.0, 0, 0, 0.5], [0, -0.25, 0, 1]])
    values = experts.expert_metrics(make_static(), make_sums(), after)
    assert {name: float(x) for name, x in values.items()} == pytest.approx(
        {"experts/entropy": 0, "experts/idle": 3, "experts/dropped": 10 / 80, "experts/bias_range": 1.25}
    )


def test_layers_without_experts_are_nan_and_without_shares():
    values = experts.describe_experts(make_static(), make_sums(), make_state([[0.0, 0, 0, 0.5], [0, 0, 0, 1]]))
    assert sorted(values) == ["expert_bias_range", "expert_entropy", "expert_share/1", "expert_share/2"]
    np.testing.assert_allclose(values["expert_entropy"], [np.nan, 1, 0], atol=1e-6)
    np.testing.assert_allclose(values["expert_bias_range"], [np.nan, 0.5, 1])
    np.testing.assert_allclose(values["expert_share/2"], [4, 0, 0, 0])


def test_no_bias_no_range():
    after = TrainState(*[jnp.zeros(())] * 5)
    assert "experts/bias_range" not in experts.expert_metrics(make_static(), make_sums(), after)
