"""Tokens/s of all sides in one process: they take turns, so that a busy machine slows all alike."""

import time
from collections.abc import Mapping

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.train.step.program import sequential_program

ROUNDS, WARMUP = 9, 2
LEAST_S = 0.1  # of work in a measurement


def measure_throughput(runs: Mapping[str, ConfigDict]) -> dict[str, list[float]]:
    """{side: tokens/s in each of ROUNDS turns}, of full steps on random tokens, without reading data."""
    turns = {name: _Turn(run) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for i in range(-WARMUP, ROUNDS):
        for name in list(turns) if i % 2 else reversed(turns):
            taken = turns[name].run()
            if i >= 0:
                seconds[name].append(taken)
    return {name: [turn.tokens / each for each in seconds[name]] for name, turn in turns.items()}


class _Turn:
    """One side's step, compiled, with its state: `run()` -> seconds for one step."""

    def __init__(self, config: ConfigDict) -> None:
        self.program = sequential_program(config_lib.static(config), [config_lib.hparams(config)])
        size = (config.train.global_batch, config.model.seq_len + 1)
        self.tokens = config.train.global_batch * config.model.seq_len
        self.batch = np.random.default_rng(0).integers(0, config.model.vocab_size, size, np.int32)
        self.states, self.steps = self.program.init(), 1
        self.run()  # compiles
        once = self.run()
        self.steps = max(1, min(64, round(LEAST_S / once)))

    def run(self) -> float:
        batches = np.broadcast_to(self.batch, (self.steps, *self.batch.shape))
        begun = time.perf_counter()
        self.states, logs = self.program.advance(self.states, [batches], self.steps)
        jax.block_until_ready((self.states, logs))
        return (time.perf_counter() - begun) / self.steps
