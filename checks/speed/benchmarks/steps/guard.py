"""Cost of guard.policy=watch: ten steps in one dispatch with the guard's watch over ten without.

    python -m checks.speed.benchmarks.steps.guard [tiny|256] [ROUNDS]

Prints one JSON line a model. Both take turns in each round, the first by turns as well. `share`: what the watch adds
to a step's CPU seconds, the median over rounds with its 90 % interval (resampled). `added`: what it adds to the
FLOPs and bytes that XLA counts in the compiled step, as shares; where the interval is wider than the goal, they decide.
"""

import functools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checks.speed.benchmarks.steps import costs
from checks.speed.benchmarks.steps.costs import STEPS
from scalelab import config as config_lib
from scalelab.train.step import state
from scalelab.train.step.step import many_steps

POLICIES = ("off", "watch")


def measure_cost(config: Any, rounds: int) -> dict[str, Any]:
    """What the module lists, of a config's step."""
    size = (STEPS, config.train.global_batch, config.model.seq_len + 1)
    batches = jnp.asarray(np.random.default_rng(0).integers(0, config.model.vocab_size, size), jnp.int32)
    configs = {policy: config_lib.override(config, {"guard.policy": policy}) for policy in POLICIES}
    statics = {policy: config_lib.static(each) for policy, each in configs.items()}
    given = {policy: jax.tree.map(jnp.float32, config_lib.hparams(each)) for policy, each in configs.items()}
    states = {each: jax.jit(functools.partial(state.init_state, statics[each]))(given[each]) for each in POLICIES}
    run = jax.jit(many_steps, static_argnums=0, donate_argnums=1)
    seconds: dict[str, list[float]] = {each: [] for each in POLICIES}
    for i in range(-2, rounds):
        for each in POLICIES if i % 2 else reversed(POLICIES):
            begun = time.process_time()
            states[each], log = run(statics[each], states[each], batches, jnp.int32(STEPS), given[each])
            jax.block_until_ready((states[each], log))
            if i >= 0:  # the first two rounds compile and warm up
                seconds[each].append(time.process_time() - begun)
    shares = [a / b - 1 for a, b in zip(seconds["watch"], seconds["off"], strict=True)]
    off, watch = (costs.count_step(statics[each], given[each], batches[0]) for each in POLICIES)
    added = {name: round(watch[name] / off[name] - 1, 4) for name in costs.COUNTED}
    seconds_off = statistics.median(seconds["off"]) / STEPS
    return {"cpu_s_a_step": seconds_off, "share": costs.median_with_ends(shares), "added": added}


if __name__ == "__main__":
    costs.print_by_model(measure_cost)
