"""The cost of log.layers_every: a dispatch of ten steps, one of which measures its layers, over ten steps without.

    python -m experiments.benchmarks.layers [ROUNDS]

Prints one JSON line per model: the ratio's median and range over rounds in which both take turns, in CPU seconds of
this process (other work on the machine hardly changes those), and in wall seconds.
"""

import dataclasses
import functools
import json
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import tiny
from experiments.benchmarks import bare, ours
from scalelab import config as config_lib
from scalelab.train.step import state
from scalelab.train.step.step import many_steps

EVERY = 10


def measure_cost(config: Any, rounds: int) -> dict[str, float]:
    """Medians of the ratio with over without measuring, its lowest and highest, and seconds a step without."""
    static = config_lib.static(config)
    h = {key: jnp.float32(value) for key, value in (config_lib.hparams(config) | {"layers_every": EVERY}).items()}
    size = (EVERY, config.train.global_batch, config.model.seq_len + 1)
    batches = jnp.asarray(np.random.default_rng(0).integers(0, config.model.vocab_size, size), jnp.int32)
    programs, states = {}, {}
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for measured in (True, False):
        fixed = dataclasses.replace(static, layers=measured)
        programs[measured] = jax.jit(functools.partial(many_steps, fixed), donate_argnums=0)
        states[measured] = jax.jit(functools.partial(state.init_state, fixed))(h)
    for i in range(-2, rounds):
        for measured in (True, False) if i % 2 else (False, True):
            begun = time.process_time(), time.perf_counter()
            states[measured], log = programs[measured](states[measured], batches, jnp.int32(EVERY), h)
            jax.block_until_ready((states[measured], log))
            if i >= 0:  # the first two rounds compile and warm up
                seconds[measured].append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
    result: dict[str, float] = {}
    for index, clock in enumerate(("cpu", "wall")):
        ratios = [a[index] / b[index] for a, b in zip(seconds[True], seconds[False], strict=True)]
        result |= {clock: statistics.median(ratios), f"{clock}_lowest": min(ratios), f"{clock}_highest": max(ratios)}
        result[f"{clock}_s_a_step"] = statistics.median(each[index] for each in seconds[False]) / EVERY
    return result


def main() -> None:
    """Print a line for configs/tiny.py and one for the step of width 256 that the other benchmarks use."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    models = {"tiny": config_lib.resolve(tiny.get_config()), "d_model 256": ours.config_for_shape(bare.STEP_256)}
    for name, config in models.items():
        print(json.dumps({"model": name} | measure_cost(config, rounds)), flush=True)


if __name__ == "__main__":
    main()
