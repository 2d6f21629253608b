"""Settings: betas by what their averages reach back to, beside optax's own Adam on gradients that end."""

import jax.numpy as jnp
import optax
import pytest

from scalelab.diagnose.checks.settings.betas import check_betas
from tests.diagnose.evidences import ask, causes, healthy


def grows_without_gradients(beta1, beta2):
    """Whether optax's Adam takes larger and larger steps once the gradients are zero."""
    adam = optax.scale_by_adam(beta1, beta2, eps=0.0)
    params = jnp.ones(())
    state, sizes = adam.init(params), []
    for step in range(240):
        update, state = adam.update(jnp.float32(step < 20), state)
        sizes.append(float(update))
    return sizes[-1] > 1.5 * sizes[120]


@pytest.mark.parametrize(
    "betas", [(0.9, 0.95), (0.9, 0.99), (0.99, 0.9), (0.96, 0.9), (0.9, 0.75), (0.9, 0.85), (0.5, 0.3), (0.0, 0.5)]
)
def test_squares_that_are_forgotten_first_are_named_where_adam_grows_without_gradients(betas):
    run = healthy(optim__beta1=betas[0], optim__beta2=betas[1])
    assert ("betas_wrong" in causes(run)) == grows_without_gradients(*betas)


def test_swapped_betas_are_told_to_be_swapped_back():
    (verdict,) = ask(check_betas, healthy(optim__beta1=0.99, optim__beta2=0.9))
    assert verdict.knob == "optim.beta1=0.9, optim.beta2=0.99" and "the other way round" in verdict.evidence
    (verdict,) = ask(check_betas, healthy(optim__beta1=0.9, optim__beta2=0.5))
    assert verdict.knob.endswith("optim.beta2=0.95") and "the other way round" not in verdict.evidence


def test_momentum_as_long_as_the_run_is_named_and_one_of_an_eighth_is_not():
    assert "betas_wrong" in causes(healthy(optim__beta1=0.995, optim__beta2=0.999))
    assert "betas_wrong" not in causes(healthy(optim__beta1=0.98, optim__beta2=0.999))
    assert "betas_wrong" not in causes(healthy(optim__name="lion", optim__beta1=0.9, optim__beta2=0.7))
    assert "betas_wrong" in causes(healthy(optim__name="momentum", optim__beta1=0.998))
