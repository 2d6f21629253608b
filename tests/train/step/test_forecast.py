"""The running forecast of a batch's loss, against numpy's line of least squares."""

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Guard
from scalelab.train.step import guard

sigmas = jax.jit(guard.loss_sigmas)


def test_sigmas_are_those_of_a_line_through_the_last_finite_losses():
    random, step = np.random.default_rng(0), 700
    logs = np.log(5.0) - 0.002 * np.arange(step) + 0.02 * random.standard_normal(step)
    logs[[670, 680]] = np.inf  # not finite
    memory = guard.init_guard(Guard(policy="watch"))
    for at, least in ((15, 0), (16, 1), (40, 1), (step, 1)):
        recent = np.full(guard.RECENT, np.inf)
        for s in range(at):
            recent[s % guard.RECENT] = logs[s]
        x = np.arange(max(0, at - 64), at)
        x = x[np.isfinite(logs[x])]
        line = np.polyfit(x, logs[x], 1)
        std = np.sqrt(np.sum((logs[x] - np.polyval(line, x)) ** 2) / (len(x) - 2))
        for above in (-1.0, 0.0, 6.0):
            loss = np.exp(np.polyval(line, at) + above * std)
            value = sigmas(memory._replace(recent=jnp.float32(recent)), jnp.int32(at), jnp.float32(loss))
            np.testing.assert_allclose(value, least * above, atol=2e-3)
