"""Cost of log.layers_every: ten steps in one dispatch, of which one or all measure their layers, over ten that don't.

    python -m checks.speed.benchmarks.steps.layers [tiny|256] [ROUNDS]

Prints one JSON line a model. All variants take turns in each round; ratios are of CPU seconds of this process, which
other work hardly changes. `tenth` is the cost of layers_every=10; a tenth of what `each` adds, with the 90 % interval
of the median over rounds (resampled), is steadier: `share_of_each`. `added`: a tenth of the FLOPs and of the bytes that
XLA counts in the compiled step with measures, beyond those of the step without.
"""

import dataclasses
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

EVERY = {"off": 0, "tenth": 10, "each": 1}  # variant -> log.layers_every


def measure_cost(config: Any, rounds: int) -> dict[str, Any]:
    """{variant: (median, lowest, highest) of its CPU seconds over those of `off`}, and what else the module lists."""
    size = (STEPS, config.train.global_batch, config.model.seq_len + 1)
    batches = jnp.asarray(np.random.default_rng(0).integers(0, config.model.vocab_size, size), jnp.int32)
    measured = config_lib.override(config, {"log.layers_every": 1, "log.layers_after_alarm": 0})
    static, h = config_lib.static(config), jax.tree.map(jnp.float32, config_lib.hparams(measured))
    run = jax.jit(many_steps, static_argnums=0, donate_argnums=1)
    statics = {name: dataclasses.replace(static, layers=every > 0) for name, every in EVERY.items()}
    states = {name: jax.jit(functools.partial(state.init_state, static))(h) for name in EVERY}
    seconds: dict[str, list[float]] = {name: [] for name in EVERY}
    for i in range(-2, rounds):
        for name in list(EVERY) if i % 2 else reversed(EVERY):
            begun = time.process_time()
            given = config_lib.replace_hparams(h, {"log.layers_every": jnp.float32(EVERY[name] or STEPS)})
            states[name], log = run(statics[name], states[name], batches, jnp.int32(STEPS), given)
            jax.block_until_ready((states[name], log))
            if i >= 0:  # the first two rounds compile and warm up
                seconds[name].append(time.process_time() - begun)
    result: dict[str, Any] = {"cpu_s_a_step": statistics.median(seconds["off"]) / STEPS}
    for name in ("tenth", "each"):
        ratios = [a / b for a, b in zip(seconds[name], seconds["off"], strict=True)]
        result[name] = [round(x, 4) for x in (statistics.median(ratios), min(ratios), max(ratios))]
    shares = [(a / b - 1) / STEPS for a, b in zip(seconds["each"], seconds["off"], strict=True)]
    result["share_of_each"] = costs.median_with_ends(shares)
    return result | {"added": count_added(static, h, batches[0])}


def count_added(static: Any, h: Any, batch: jax.Array) -> dict[str, float]:
    """A tenth of what measures add to the FLOPs and bytes of the compiled step, as shares, by XLA's own count."""
    off, each = (costs.count_step(dataclasses.replace(static, layers=on), h, batch) for on in (False, True))
    return {name: round((each[name] / off[name] - 1) / STEPS, 4) for name in costs.COUNTED}


if __name__ == "__main__":
    costs.print_by_model(measure_cost)
