"""The z-loss and attention's entropy: the arms, the share that is prevented, and what the penalty reaches."""

import jax
import jax.numpy as jnp
import pytest

from scalelab.experiments.studies import z_loss
from scalelab.experiments.studies.stability_forecast import ladder


def test_arms_differ_in_what_they_are_named_for():
    trials = z_loss.make_trials((1, 2))
    assert len(trials) == 4 * len(z_loss.LRS) * 2
    plain, with_z, with_norm, strong = (trials[ladder.run_name(arm, 4e-3, 2)] for arm in z_loss.ARMS)
    assert (strong.train.z_loss, strong.model.qk_norm) == (1e-2, False)
    assert [each.train.z_loss for each in (plain, with_z, with_norm)] == [0, 1e-4, 0]
    assert [each.model.qk_norm for each in (plain, with_z, with_norm)] == [False, False, True]
    assert {each.train.seed for each in (plain, with_z, with_norm)} == {2}


def rows(**falls):
    """Runs of seeds 1 and 2 whose entropy falls from 3 by these amounts at the high rate, by 2 at the low one."""
    return [
        {"arm": arm, "lr": lr, "seed": seed, "entropy": [3.0, 3.0 - (fall if lr == z_loss.LRS[1] else 2.0)]}
        for arm, fall in zip(ladder.ARMS, falls.values(), strict=True)
        for lr in z_loss.LRS
        for seed in (1, 2)
    ]


def test_the_share_that_an_arm_prevents():
    made = rows(neither=2.0, z=1.5, norm=0.0)
    assert z_loss.prevented_share(made, ladder.Z_LOSS) == pytest.approx([0.25, 0.25])
    assert z_loss.prevented_share(made, ladder.QK_NORM) == pytest.approx([1.0, 1.0])
    assert z_loss.prevented_share(made, ladder.PLAIN) == pytest.approx([0.0, 0.0])


def test_a_penalty_on_the_outputs_softmax_reaches_attention_through_values_alone():
    """A single query over two keys: log Z of the output depends on its logits, so keys of equal values feel nothing."""

    def penalty(key, value):
        weights = jax.nn.softmax(jnp.array([1.0, 2.0]) * key)
        return jax.nn.logsumexp(weights @ value) ** 2

    same, apart = jnp.ones((2, 3)), jnp.arange(6.0).reshape(2, 3)
    assert jnp.abs(jax.grad(penalty)(jnp.ones(2), same)).max() < 1e-6
    assert jnp.abs(jax.grad(penalty)(jnp.ones(2), apart)).max() > 0.1
