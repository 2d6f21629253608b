"""The training step beside the bare one: equal parameters, batches and losses, then tokens/s of each."""

import statistics
from typing import Any

import jax
import numpy as np

from checks.speed.benchmarks.steps import bare, ours
from scalelab import config as config_lib
from scalelab.experiments import timing
from scalelab.train.step.program import sequential_program

STEPS_A_DISPATCH = 4
SLOW_RATIO = 0.25  # a reference below this share of the matmul peak doesn't count


def measure_step(shape: bare.BareShape, rounds: int) -> dict[str, Any]:
    """One row of the table. `ratio`: scalelab's tokens/s over the bare step's, None if the bare step is too slow."""
    run = ours.config_for_shape(shape, **{"train.steps": 1000})
    program = sequential_program(config_lib.static(run), [config_lib.hparams(run)])
    batches = ours.random_batches(shape, STEPS_A_DISPATCH)
    _, bare_run = bare.make_run(shape)
    rates = ours.learning_rates(run)[:STEPS_A_DISPATCH]
    state = {"scalelab": program.init()}
    state["bare"] = ours.to_bare_state(shape, state["scalelab"][0])
    losses: dict[str, list] = {"scalelab": [], "bare": []}

    def step_scalelab() -> Any:
        state["scalelab"], logs = program.advance(state["scalelab"], [batches], STEPS_A_DISPATCH)
        losses["scalelab"].append(logs[0]["train_loss"])
        return logs

    def step_bare() -> Any:
        state["bare"], loss = bare_run(state["bare"], batches, rates)
        losses["bare"].append(loss)
        return loss

    peak, peak_flops = timing.peak_matmul()
    seconds = timing.time_interleaved({"peak": peak, "scalelab": step_scalelab, "bare": step_bare}, rounds)
    first = [np.asarray(losses[name][0]) for name in ("scalelab", "bare")]
    np.testing.assert_allclose(*first, rtol=1e-5, err_msg="not the same arithmetic")
    median = {name: statistics.median(values) for name, values in seconds.items()}
    tokens = STEPS_A_DISPATCH * shape.batch * shape.seq_len
    share = STEPS_A_DISPATCH * bare.step_flops(shape) / median["bare"] / (peak_flops / median["peak"])
    middle, low, high = timing.ratio_over_rounds(seconds, "bare", "scalelab")
    return {
        "vocab": shape.vocab_size,
        "peak_gflops": peak_flops / median["peak"] / 1e9,
        "bare_tokens_per_s": tokens / median["bare"],
        "bare_share_of_peak": share,
        "scalelab_tokens_per_s": tokens / median["scalelab"],
        "ratio": middle if share >= SLOW_RATIO else None,
        "ratio_range": (low, high),
    }


def measure_step_rows(rounds: int) -> list[dict[str, Any]]:
    """The rows for vocabularies of 256 and 32,768."""
    rows = []
    for shape in (bare.STEP_256, bare.STEP_32768):
        rows.append(measure_step(shape, rounds))
        jax.clear_caches()
    return rows
