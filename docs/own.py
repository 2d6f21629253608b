"""An optimizer, a schedule and a scaling law of one's own, each named on the command line: docs/fork.md runs them."""

import jax
import jax.numpy as jnp
import optax

from scalelab.laws import Coefficient, Exponent


def signs(declared, o, h, lr):
    """signSGD with momentum (Bernstein et al. 2018): an optax transform of gradients into directions.

    `declared`: the parameters' declarations, `o`: options that are compiled in, `h`: numbers that are traced (beta1,
    …), `lr`: the step's LR. Weight decay, clipping, multipliers and -LR are the chain's.
    """
    return optax.chain(optax.trace(h["beta1"]), optax.stateless(lambda g, _: jax.tree.map(jnp.sign, g)))


def soft_signs(declared, o, h, lr):
    """g / (|g| + gamma): a sign that is soft near 0. `gamma` is a number of its own, traced:
    --config.optim.own.gamma=0.025.
    """
    return optax.stateless(lambda g, _: jax.tree.map(lambda x: x / (jnp.abs(x) + h["gamma"]), g))


def triangle(step, h):
    """Up to the peak at half of the run, and down to 0 at its end. `step` and `h` are traced: no Python `if` on
    them.
    """
    return h["peak_lr"] * (1.0 - jnp.abs(2.0 * (step + 1.0) / h["steps"] - 1.0))


def of_tokens(D, *, E: Coefficient, B: Coefficient, beta: Exponent):
    """L = E + B/D^beta

    Columns come first; parameters after the `*`, annotated with their kind (scalelab/laws/law/law.py).
    """
    return E + B / D**beta
