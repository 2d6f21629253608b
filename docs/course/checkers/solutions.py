"""Solutions of the problems in docs/course/exercises.md, by hand: numpy and arithmetic, none of the library's formulas.

A reader who wants to learn tries first. `solutions(…)[n]` is an answer that `checkers.check(n, answer)` passes.
"""

import math
from typing import Any

import numpy as np

A, B, ALPHA, BETA = 406.4, 410.7, 0.34, 0.28  # of the law in problems 7 and 8


def adamw(gradients, start, lr, beta1, beta2, eps, weight_decay):
    """Moments, bias correction, and a decay that does not go through the moments."""
    w, m, v, path = np.array(start, float), 0.0, 0.0, []
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        direction = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        w = w - lr * (direction + weight_decay * w)
        path.append(w)
    return np.stack(path)


def cosine(step):
    """Linear to the peak over 500 steps, then half a cosine to a tenth of it at step 10,000."""
    if step < 500:
        return 3e-4 * (step + 1) / 500
    progress = (step - 500) / (10_000 - 500)
    return 3e-5 + (3e-4 - 3e-5) * 0.5 * (1 + math.cos(math.pi * progress))


def memory():
    """GB of 7e9 parameters: 4 bytes of weight, 4 of gradient, and the state."""
    state = {"adamw": 4 + 4, "lion": 4, "adam8bit": 2 * (1 + 4 / 256)}  # codes, and an fp32 scale for 256 of them
    return {name: 7 * (4 + 4 + each) for name, each in state.items()}


def days():
    """6 N D over what 512 devices do in a day."""
    return 6 * 8.03e9 * 15e12 / (512 * 989.4e12 * 0.4) / 86_400


def loss_scale():
    """2e-9 x 2^k above half of 2^-24, and 1e-3 x 2^k below 65,520, from where fp16 rounds to infinity."""
    return math.floor(math.log2(2**-25 / 2e-9)) + 1, math.floor(math.log2(65_520 / 1e-3))


def allocation(flops):
    """Where the derivative of A / N^alpha + B / D^beta along 6 N D = flops is zero."""
    g = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    n = g * (flops / 6) ** (BETA / (ALPHA + BETA))
    return n, flops / 6 / n


def isoflop_exponent(runs):
    """A parabola in log N for each budget, then a line through the logs of its minima."""
    budgets = np.unique(runs["C"])
    best = []
    for budget in budgets:
        here = runs["C"] == budget
        bend, slope, _ = np.polyfit(np.log(runs["N"][here]), np.log(runs["loss"][here]), 2)
        best.append(-slope / (2 * bend))
    return np.polyfit(np.log(budgets), best, 1)[0]


def save_interval():
    """Young's interval with Daly's correction; a failure of one device stops all 1,024."""
    between = 16_384 * 54 * 86_400 / 419 / 1024
    ratio = 30 / (2 * between)
    return math.sqrt(2 * 30 * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - 30


def difference(losses):
    """Mean of a minus b over seeds, and the standard error of the paired differences."""
    each = np.array([losses["a"][seed] - losses["b"][seed] for seed in losses["a"]])
    return each.mean(), each.std(ddof=1) / len(each) ** 0.5


def clip(gradients, most):
    """One factor for all, from the norm of all."""
    norm = math.sqrt(sum(float(np.sum(g**2)) for g in gradients))
    return [g * min(1.0, most / norm) for g in gradients]


def whole_batch(gradients, tokens):
    """Each micro-batch counts by its tokens."""
    return tokens @ gradients / tokens.sum()


def masks(tokens, separator):
    """Documents by a walk over the row; token i + 1 is a target of token i if both are of one document."""
    document, number = [], 0
    for token in tokens:
        document.append(-1 if token < 0 else number)
        number += int(token == separator)
    n = len(tokens) - 1
    allowed = np.array([[j <= i and document[i] == document[j] for j in range(n)] for i in range(n)])
    counted = np.array([document[i + 1] >= 0 and document[i] == document[i + 1] for i in range(n)])
    return allowed, counted


def solutions(runs, losses) -> dict[int, Any]:
    """All answers; `runs` and `losses` are the tables of problems 8 and 10."""
    return {
        1: adamw, 2: {"sgd": 8, "adamw": 1}, 3: cosine, 4: memory(), 5: days(), 6: loss_scale(), 7: allocation(1e21),
        8: isoflop_exponent(runs), 9: save_interval(), 10: difference(losses), 11: clip, 12: whole_batch, 13: masks,
    }  # fmt: skip
