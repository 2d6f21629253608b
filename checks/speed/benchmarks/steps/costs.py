"""What benchmarks of a part of the step share: the interval of a median, XLA's counts, and a line for each model."""

import functools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from checks.speed.benchmarks.steps import bare, ours
from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.train.step import state
from scalelab.train.step.step import train_step

STEPS = 10  # in one dispatch
DRAWS = 2000  # of rounds, for the interval
COUNTED = ("flops", "bytes accessed")


def median_with_ends(shares: Sequence[float]) -> list[float]:
    """The median over rounds, and the ends of its 90 % interval by resampled rounds."""
    drawn = np.median(np.random.default_rng(0).choice(shares, (DRAWS, len(shares))), axis=1)
    return [round(x, 4) for x in (statistics.median(shares), *np.quantile(drawn, (0.05, 0.95)).tolist())]


def count_step(static: Any, h: Any, batch: jax.Array) -> dict[str, float]:
    """FLOPs and bytes of the compiled step, by XLA's own count."""
    shapes = jax.eval_shape(functools.partial(state.init_state, static), h)
    counts: dict[str, float] = (
        jax.jit(train_step, static_argnums=0).lower(static, shapes, batch, h).compile().cost_analysis()
    )
    return counts


def print_by_model(measure: Callable[[Any, int], dict[str, Any]]) -> None:
    """Print a line for configs/tiny.py, and one for the step of width 256 that the other benchmarks use.

    The command line names models, or the number of rounds.
    """
    models = {
        "tiny": lambda: config_lib.resolve(tiny.get_config()),
        "256": lambda: ours.config_for_shape(bare.STEP_256),
    }
    names = [name for name in sys.argv[1:] if name in models] or list(models)
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit() and word not in models), 30)
    for name in names:
        print(json.dumps({"model": name, "rounds": rounds} | measure(models[name](), rounds)), flush=True)
