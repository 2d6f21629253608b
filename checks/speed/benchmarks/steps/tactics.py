"""What tactics for a CPU's compiler are worth: CPU seconds of a step with all of them over those without one.

    python -m checks.speed.benchmarks.steps.tactics [ROUNDS]

Writes checks/results/tactics.json. Both programs are compiled in one process and take turns; ratios are of CPU seconds
of this process, which other work hardly changes. The step is that of width 256 of the other benchmarks; a tactic that
is about a large vocabulary has one of 32,768. Tactics for GPUs and TPUs can be measured in the same way on these only.
"""

import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from checks.shared import RESULTS, result_header
from checks.speed.benchmarks.steps import bare, ours
from scalelab import config as config_lib
from scalelab.hardware.tactics import switch
from scalelab.train.step import state
from scalelab.train.step.program import traced_hparams
from scalelab.train.step.step import many_steps

OUT = RESULTS / "tactics.json"
VOCABULARIES = {"transposed_copy": 32_768, "two_matrices": 256}  # tactic -> vocabulary of the step


def compile_step(config: Any, off: str, *arguments: Any) -> Any:
    """The compiled step without the tactic `off`; "": with all."""
    os.environ[switch.VARIABLE] = off
    jax.clear_caches()  # of traces, which don't depend on the variable
    step = functools.partial(many_steps, config_lib.static(config))
    return jax.jit(step, donate_argnums=0).lower(*arguments).compile()


def measure_tactic(tactic: str, vocab: int, rounds: int) -> dict[str, Any]:
    """CPU seconds a step with and without the tactic, and the ratio: median, lowest and highest of the rounds."""
    shape = dataclasses.replace(bare.STEP_256, vocab_size=vocab)
    config = ours.config_for_shape(shape)
    h = traced_hparams(config_lib.hparams(config))
    others = jnp.asarray(ours.random_batches(shape, 1)), jnp.int32(1), h
    first = jax.jit(functools.partial(state.init_state, config_lib.static(config)))
    states = {off: first(h) for off in ("", tactic)}
    steps = {off: compile_step(config, off, states[off], *others) for off in states}
    seconds: dict[str, list[float]] = {off: [] for off in states}
    for i in range(-1, rounds):
        for off in list(states) if i % 2 else list(states)[::-1]:
            begun = time.process_time()
            states[off], _ = jax.block_until_ready(steps[off](states[off], *others))
            if i >= 0:  # the first round warms up
                seconds[off].append(time.process_time() - begun)
    ratios = [a / b for a, b in zip(seconds[""], seconds[tactic], strict=True)]
    cpu_s = {name: statistics.median(seconds[off]) for name, off in (("with", ""), ("without", tactic))}
    return {"tactic": tactic, "vocab": vocab, "cpu_s_a_step": cpu_s,
            "ratio": [statistics.median(ratios), min(ratios), max(ratios)]}  # fmt: skip


def main() -> None:
    """Measure each tactic, print its row, and write all of them."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 6
    result = result_header("speed.benchmarks.steps.tactics", sys.argv[1:]) | {"rounds": rounds, "rows": []}
    for tactic, vocab in VOCABULARIES.items():
        result["rows"].append(measure_tactic(tactic, vocab, rounds))
        print(json.dumps(result["rows"][-1]), flush=True)
    OUT.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
