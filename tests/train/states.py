"""States of step 0 for tests: one program a model draws the parameters, whatever trains them.

A program that draws takes half a second of CPU to compile. A run draws within the program of its whole state, which
depends on the optimizer and on most of a config; runs are trained in many other tests.
"""

import jax
import jax.numpy as jnp

from scalelab.model import transformer
from scalelab.train.step import state as state_lib


def draw_params(shape, seed):
    """The parameters that a seed gives a model of this shape."""
    return transformer.init_params(shape, jax.random.key(jnp.asarray(seed, jnp.uint32)))


_draw = jax.jit(draw_params, static_argnums=0)
_begin = jax.jit(state_lib.state_from_params, static_argnums=0)


def init_state(static, h):
    """`state.init_state`, to the bit."""
    return _begin(static, h, _draw(static.model.plain, h.train.seed))
