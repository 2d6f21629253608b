"""Our own functions, named in a config or on the command line as `functions:NAME`."""

import jax
import jax.numpy as jnp
import optax

from scalelab.laws import Coefficient, Exponent


def soft_signs(declared, o, h, lr):
    """An optimizer: momentum, then g / (|g| + gamma), a sign that is soft near 0. Returns an optax transform.

    `h` holds traced numbers by key: no Python `if` on them. Weight decay, clipping and the LR are scalelab's part.
    """

    def soften(gradients, _):
        return jax.tree.map(lambda g: g / (jnp.abs(g) + h.optim.own.gamma), gradients)

    return optax.chain(optax.trace(h.optim.beta1), optax.stateless(soften))


def tokens_only(D, *, E: Coefficient, B: Coefficient, beta: Exponent):
    """L = E + B/D^beta

    A scaling law: columns first, then annotated parameters. `scalelab fit runs/grid --law=functions:tokens_only`
    """
    return E + B / D**beta
