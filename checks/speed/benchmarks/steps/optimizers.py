"""A training step under every optimizer over one under AdamW, beside the ratio predicted from added FLOPs."""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from checks.speed.benchmarks.steps import bare, ours
from scalelab import config as config_lib
from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.experiments.timing import ratio_over_rounds, time_interleaved
from scalelab.model import count
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.groups import matrix_shape
from scalelab.train.step import program

SHAPE = bare.BareShape(d_model=256, n_layers=4, n_heads=4, vocab_size=256, seq_len=128, batch=32)
STEPS = 10  # a dispatch: one refresh of what is refreshed every 10 steps
# Goals: at most this many AdamW steps. Optimizers without a goal are only measured.
RATIO_GOALS = {
    "lion": 1.05,
    "sgd": 1.05,
    "schedule_free_adamw": 1.05,
    "adam8bit": 1.3,
    "muon": 1.35,
    "soap": 2.0,
    "shampoo": 2.0,
}


def added_flops(name: str, m: int, n: int) -> float:
    """FLOPs per step of an optimizer on an m x n matrix, m <= n, beyond elementwise work.

    A refresh every 10 steps counts a tenth. muon: 5 Newton-Schulz iterations. A product with a square factor on both
    sides takes 2 m^2 n + 2 m n^2. shampoo: statistics and preconditioning, and eigendecompositions (9 k^3). soap:
    statistics, gradient and moment into the basis, the step back out, and a product and a QR (2 k^3 + 10/3 k^3) per
    refresh.
    """
    both = 2 * m * m * n + 2 * m * n * n
    cubes = m**3 + n**3
    return {
        "muon": 20 * m * m * n * (1 + m / (2 * n)),
        "shampoo": 2 * both + 9 * cubes / 10,
        "soap": 4 * both + (16 / 3) * cubes / 10,
    }.get(name, 0.0)


def predicted_ratio(name: str, config: Any) -> float:
    """A step's time over AdamW's, if all FLOPs took the same time."""
    static = config_lib.static(config)
    step = count.flops_per_token(static.model)["exact"] * config.train.global_batch * config.model.seq_len
    hidden = [matrix_shape(d) for d in jax.tree.leaves(parameter_declarations(static.model)) if d.is_hidden_matrix]
    return 1 + sum(stack * added_flops(name, min(ins, outs), max(ins, outs)) for stack, ins, outs in hidden) / step


def make_contender(name: str, batches: np.ndarray) -> tuple[Callable[[], Any], Any]:
    """(STEPS steps under optimizer `name` with its own values, its config)."""
    matrices = {"optim.every": 10} if name in ("soap", "shampoo") else {}
    config = ours.config_for_shape(
        SHAPE, **{"optim.name": name, "train.steps": 10_000, "train.steps_per_dispatch": STEPS}, **matrices
    )
    run = program.PACKINGS["turn"](config_lib.static(config), [config_lib.hparams(config)])
    carry = [run.init()]

    def steps() -> Any:
        carry[0], _ = run.advance(carry[0], [batches], STEPS)
        return carry[0]

    return steps, config


def measure_optimizers(rounds: int) -> list[dict[str, Any]]:
    """One row per optimizer: ms per step, time over AdamW's, prediction, goal.

    Time over AdamW's is (median, lowest, highest) of neighbours in time.
    """
    batches = ours.random_batches(SHAPE, STEPS)
    made = {name: make_contender(name, batches) for name in OPTIM_DEFAULTS}
    seconds = time_interleaved({name: steps for name, (steps, _) in made.items()}, rounds=rounds, warmup=1)
    rows = []
    for name, (_, config) in made.items():
        middle, low, high = ratio_over_rounds(seconds, name, "adamw")
        rows.append({
            "optimizer": name, "ms_a_step": 1e3 * statistics.median(seconds[name]) / STEPS, "ratio": middle, "low": low,
            "high": high, "predicted": predicted_ratio(name, config), "goal": RATIO_GOALS.get(name),
        })  # fmt: skip
    return rows
