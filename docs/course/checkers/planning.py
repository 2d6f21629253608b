"""Problems of planning and of judging: memory, days, the best split, IsoFLOP profiles, saves, differences."""

import functools
import math
from typing import Any

import numpy as np

from scalelab import config as config_lib
from scalelab.hardware import chips
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.use.isoflop import fit_isoflop
from scalelab.model import count
from scalelab.plan.published import claims, textbook
from scalelab.plan.run import goodput
from scalelab.sweep.answer.differences import mean_difference

from .judging import entries_of, judge

TOKENS, DEVICES, UTILISATION = 15e12, 512, 0.4  # of problem 5
BUDGET = 1e21  # FLOPs of problem 7
SAVE_S, CLUSTER = 30.0, 1024  # of problem 9: seconds that a save blocks, and devices
LOSSES = {  # of problem 10: by seed
    "a": {0: 2.712, 1: 2.694, 2: 2.731, 3: 2.705, 4: 2.720},
    "b": {0: 2.703, 1: 2.687, 2: 2.719, 3: 2.699, 4: 2.710},
}


def check_memory(answer: Any) -> None:
    """Problem 4: GB of a 7B model between steps, with gradients."""
    names = ("adamw", "lion", "adam8bit")
    weights, states = textbook.weights_gb("7B"), [textbook.state_gb("7B", name) for name in names]
    mistakes = {
        "gradients are missing: they are as large as the weights": [weights + state for state in states],
        "that is the optimizer's state alone": states,
        "Lion has one moment and 8-bit Adam two; a moment has 4 bytes a parameter, or 1": [
            2 * weights + stated for stated in (56, 35, 21)
        ],
    }
    judge(entries_of(answer, names), [2 * weights + state for state in states], 0.01, mistakes)


@functools.cache
def llama_parameters() -> int:
    """All parameters of Llama 3 8B."""
    shape = {f"model.{key}": value for key, value in claims.LLAMA3_8B.items()} | {"optim.peak_lr": 3e-4}
    static = config_lib.static(config_lib.resolve(config_lib.override(config_lib.default_tree(), shape)))
    return count.count_parameters(static.model)["total"]


def check_days(answer: Any) -> None:
    """Problem 5: days of a training run."""
    chip = chips.find_chip("H100")
    assert chip
    days = 6 * llama_parameters() * TOKENS / (DEVICES * chip.flops["bfloat16"] * UTILISATION) / 86_400
    mistakes = {
        "that takes the sparse rate of the datasheet; dense products run at half of it": days / textbook.SPARSE,
        "a step is a forward pass and a backward pass that costs twice as much: 6 N D, not 2 N D": days / 3,
        "no machine reaches its peak: divide by the utilisation": days * UTILISATION,
    }
    judge(answer, days, 0.02, mistakes)


def check_allocation(answer: Any) -> None:
    """Problem 7: the best N and D of a budget."""
    best = chinchilla_optimum.optimal_allocation(textbook.PRINTED, BUDGET)
    rule = math.sqrt(BUDGET / 120)
    swapped = chinchilla_optimum.optimal_allocation(
        textbook.PRINTED._replace(alpha=textbook.PRINTED.beta, beta=textbook.PRINTED.alpha), BUDGET
    )
    mistakes = {
        "that is the rule of 20 tokens a parameter; this law has another optimum": [rule, 20 * rule],
        "alpha and beta are exchanged": [swapped.N, swapped.D],
        "N and D are exchanged": [best.D, best.N],
    }
    judge(answer, [best.N, best.D], 0.01, mistakes)


def isoflop_runs() -> dict[str, np.ndarray]:
    """C, N and loss of the runs of four budgets over a grid of sizes, by the printed law: no noise."""
    budgets, sizes = np.meshgrid([1e18, 6e18, 3e19, 2e20], 3e7 * 2.0 ** np.arange(14), indexing="ij")
    best = chinchilla_optimum.optimal_allocation(textbook.PRINTED, budgets).N
    near = np.abs(np.log(sizes / best)) < np.log(8)
    C, N = budgets[near], sizes[near]
    return {"C": C, "N": N, "loss": chinchilla_optimum.loss_at(textbook.PRINTED, N, C / 6 / N)}


def check_isoflop(answer: Any) -> None:
    """Problem 8: the exponent of N_opt ~ C^a from parabolas."""
    runs = isoflop_runs()
    truth, budgets = fit_isoflop(**runs, method="parabola").a, np.unique(runs["C"])
    lowest = [
        min(zip(runs["loss"], runs["N"], runs["C"] != c, strict=True), key=lambda run: (run[2], run[0]))[1]
        for c in budgets
    ]
    slope = np.polyfit(*np.log([budgets, lowest]), 1)[0]
    mistakes = {
        "that is the exponent of D: a and b sum to 1": 1 - truth,
        "the minimum lies between the sizes that were tried: fit a parabola": slope,
    }
    judge(answer, truth, 0.005, mistakes)


def check_save_interval(answer: Any) -> None:
    """Problem 9: seconds of work between saves."""
    one, job = goodput.job_mtbf(1), goodput.job_mtbf(CLUSTER)
    mistakes = {
        "a job stops when any of its devices fails: its mean time between failures is shorter": [
            goodput.daly_interval(SAVE_S, one)
        ],
        "Young's formula has a 2 under the root": [math.sqrt(SAVE_S * job)],
        "count in seconds": [goodput.daly_interval(SAVE_S, job) / 60],
    }
    judge([answer], [goodput.daly_interval(SAVE_S, job)], 0.02, mistakes)


def check_difference(answer: Any) -> None:
    """Problem 10: a difference over seeds, with its standard error."""
    truth = mean_difference(LOSSES["a"], LOSSES["b"])
    unpaired = mean_difference(LOSSES["a"], {seed + 100: loss for seed, loss in LOSSES["b"].items()})
    assert truth and unpaired
    mistakes = {
        "the seeds are paired: take the differences first, then their spread": [unpaired.mean, unpaired.error],
        "that is the standard deviation of the differences, not their mean's error": [
            truth.mean,
            truth.error * 5**0.5,
        ],
        "a minus b is asked for": [-truth.mean, truth.error],
    }
    judge(answer, [truth.mean, truth.error], 0.02, mistakes)
