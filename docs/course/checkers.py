"""Checkers of the problems in exercises.md: each computes the truth with the library and names likely mistakes.

`check(n, answer)` returns "problem n: right", or raises AssertionError with one line that says what is off.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab.hardware import chips
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.use.isoflop import fit_isoflop
from scalelab.model import count
from scalelab.optim import adam, schedules
from scalelab.plan.published import claims, textbook
from scalelab.plan.run import goodput
from scalelab.precision.exponent_histograms import cast_loss_shares
from scalelab.sweep.answer.differences import mean_difference

ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
COSINE = {"train.steps": 10_000, "optim.peak_lr": 3e-4, "schedule.warmup_steps": 500, "schedule.final_share": 0.1}
STEPS_ASKED = (0, 9, 499, 500, 2000, 5000, 9000, 9999)
TOKENS, DEVICES, UTILISATION = 15e12, 512, 0.4  # of problem 5
SMALL, LARGE = 2e-9, 1e-3  # sizes of gradients in problem 6
BUDGET = 1e21  # FLOPs of problem 7
SAVE_S, CLUSTER = 30.0, 1024  # of problem 9: seconds that a save blocks, and devices
LOSSES = {  # of problem 10: by seed
    "a": {0: 2.712, 1: 2.694, 2: 2.731, 3: 2.705, 4: 2.720},
    "b": {0: 2.703, 1: 2.687, 2: 2.719, 3: 2.699, 4: 2.710},
}


def check(problem: int, answer: Any) -> str:
    """Say that the answer is right, or that there is none yet (`...`); AssertionError with one line if it is wrong."""
    if answer is ...:
        return f"problem {problem}: not answered yet"
    try:
        PROBLEMS[problem](answer)
    except AssertionError as wrong:
        raise AssertionError(f"problem {problem}: {wrong}") from None
    return f"problem {problem}: right"


def judge(answer: Any, truth: Any, tolerance: float, mistakes: Mapping[str, Any]) -> None:
    """AssertionError unless all numbers of `answer` are within a relative `tolerance` of `truth`.

    `mistakes`: {what to say: the numbers that somebody who made that mistake gets}.
    """
    numbers, right = _as_numbers(answer, np.asarray(truth, float).shape), np.asarray(truth, float)
    if _are_near(numbers, right, tolerance):
        return
    for hint, wrong in mistakes.items():
        assert not _are_near(numbers, np.asarray(wrong, float), tolerance), hint
    far = np.unravel_index(np.argmax(np.abs(numbers - right) / np.maximum(np.abs(right), 1e-30)), right.shape)
    where = f" (number {'.'.join(str(i + 1) for i in far)} of the answer)" if right.size > 1 else ""
    raise AssertionError(f"{numbers[far]:.4g} is too {'large' if numbers[far] > right[far] else 'small'}{where}")


def _as_numbers(answer: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        numbers = np.asarray(answer, float)
    except (TypeError, ValueError):
        raise AssertionError(f"{str(answer)[:40]!r} is not made of numbers") from None
    assert numbers.shape == shape, f"an answer of shape {shape or 'one number'} is asked for, not {numbers.shape}"
    assert np.isfinite(numbers).all(), "not all numbers are finite"
    return numbers


def _are_near(numbers: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
    return bool(np.all(np.abs(numbers - others) <= tolerance * np.abs(others) + 1e-12))


def _as_entries(answer: Any, names: tuple[str, ...]) -> list[Any]:
    assert isinstance(answer, Mapping) and set(answer) == set(names), (
        f"a dict with the keys {', '.join(names)} is asked for"
    )
    return [answer[name] for name in names]


def _call(answer: Any, *values: Any, **options: Any) -> Any:
    assert callable(answer), f"a function is asked for, not {str(answer)[:40]!r}"
    try:
        return answer(*values, **options)
    except Exception as trouble:
        raise AssertionError(f"the function raised {type(trouble).__name__}: {trouble}") from None


def adamw_path(gradients: np.ndarray, start: np.ndarray, corrected: bool = True, coupled: bool = False) -> np.ndarray:
    """Parameters after each step, [T, d], by optim/adam.py."""
    numbers = (jnp.float32(ADAMW[name]) for name in ("beta1", "beta2", "eps"))
    decay = optax.add_decayed_weights(ADAMW["weight_decay"])
    adams = adam.scale_by_adam(*numbers, corrected=corrected)
    rule = optax.chain(*((decay, adams) if coupled else (adams, decay)), optax.scale(-ADAMW["lr"]))
    params = jnp.asarray(start, jnp.float32)
    state, path = rule.init(params), []
    for g in jnp.asarray(gradients, jnp.float32):
        updates, state = rule.update(g, state, params)
        params = optax.apply_updates(params, updates)
        path.append(np.asarray(params))
    return np.stack(path)


def check_adamw(answer: Any) -> None:
    """Problem 1: AdamW, written out."""
    rng = np.random.default_rng(1)
    gradients, start = rng.normal(0.5, 1.0, (20, 3)), np.array([1.0, -1.0, 2.0])
    moved = _as_numbers(_call(answer, gradients, start, **ADAMW), gradients.shape) - start
    paths = {
        "the steps are those without bias correction": adamw_path(gradients, start, corrected=False) - start,
        "the decay goes through the moments; AdamW's does not": adamw_path(gradients, start, coupled=True) - start,
    }
    judge(moved, adamw_path(gradients, start) - start, 1e-3, paths)


def check_forgotten(answer: Any) -> None:
    """Problem 2: how much farther parameters move if the division by K is forgotten."""
    gradients = np.random.default_rng(2).normal(1.0, 1.0, (60, 64))
    rules = {"sgd": optax.identity(), "adamw": adam.scale_by_adam(*map(jnp.float32, (0.9, 0.95, 1e-8)))}
    many, one = claims.MICRO_BATCHES, claims.parameter_movement
    truth = [float(np.median(one(rule, many * gradients) / one(rule, gradients))) for rule in rules.values()]
    hints = {"AdamW divides the gradient by its own size: what does a factor do to it?": [truth[0], truth[0]],
             "SGD's step is proportional to the gradient": [truth[1], truth[1]]}  # fmt: skip
    judge(_as_entries(answer, tuple(rules)), truth, 0.01, hints)


def cosine_lrs(**changes: Any) -> np.ndarray:
    """LRs at STEPS_ASKED by optim/schedules.py."""
    named = COSINE | {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), named))
    return np.asarray(schedules.schedule_curves(config, STEPS_ASKED)["lr"], float)


def check_cosine(answer: Any) -> None:
    """Problem 3: a cosine with warm-up."""
    steps = np.array(STEPS_ASKED)
    late = cosine_lrs() * np.where(steps < 500, steps / (steps + 1), 1)
    whole = cosine_lrs(schedule__warmup_steps=0) * np.minimum(1, (steps + 1) / 500)
    mistakes = {
        "the last step should be near a tenth of the peak, not near zero": cosine_lrs(schedule__final_share=0.0),
        "step 0 already learns: the warm-up is (step + 1) / 500": late,
        "the cosine begins where the warm-up ends, not at step 0": whole,
    }
    judge([_call(answer, step) for step in STEPS_ASKED], cosine_lrs(), 1e-3, mistakes)


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
    judge(_as_entries(answer, names), [2 * weights + state for state in states], 0.01, mistakes)


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


def check_loss_scale(answer: Any) -> None:
    """Problem 6: the loss scales with which fp16 keeps all gradients."""
    sizes = np.geomspace(SMALL, LARGE, 1001)
    lost = [cast_loss_shares(sizes * 2.0**k, "float16") for k in range(40)]
    good = [k for k, share in enumerate(lost) if share["zero"] == share["overflow"] == 0]
    mistakes = {
        "numbers below the smallest normal one are not lost yet: fp16 has subnormals": [15, good[-1]],
        "what is above half of the smallest subnormal rounds up to it": [good[0] + 1, good[-1]],
    }
    judge(answer, [good[0], good[-1]], 1e-6, mistakes)


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
    lowest = [min(zip(runs["loss"], runs["N"], runs["C"] != c, strict=True), key=lambda run: (run[2], run[0]))[1]
              for c in budgets]  # fmt: skip
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


PROBLEMS: dict[int, Callable[[Any], None]] = dict(
    enumerate(
        (check_adamw, check_forgotten, check_cosine, check_memory, check_days, check_loss_scale, check_allocation,
         check_isoflop, check_save_interval, check_difference),
        1,
    )
)  # fmt: skip
