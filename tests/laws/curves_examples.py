"""Schedules and simulated curves that the tests of the laws of curves share."""

import numpy as np

from scalelab.laws.curves.curve import make_curve, schedule_columns
from scalelab.laws.law import curve_forms as forms

PEAK = 4e-3
ANNEALING = {"E": 1.5, "A": 0.9, "alpha": 0.4, "C": 0.8, "memory": 60.0}
MULTI_POWER = {"E": 1.5, "A": 0.9, "alpha": 0.4, "B": 60.0, "C": 2.0, "beta": 0.6, "gamma": 0.6}


def shares(steps):
    """(step, share of the fall after a warm-up of a twentieth, warm-up factor)."""
    t, first = np.arange(steps), steps // 20
    return t, np.clip((t - first) / (steps - first), 0, 1), np.minimum(1.0, (t + 1) / first)


def cosine(steps):
    _, fall, rise = shares(steps)
    return PEAK * rise * (0.1 + 0.45 * (1 + np.cos(np.pi * fall)))


def linear(steps):
    _, fall, rise = shares(steps)
    return PEAK * rise * (1 - 0.95 * fall)


def wsd(steps):
    t, _, rise = shares(steps)
    return PEAK * rise * np.clip((1.02 * steps - t) / (0.25 * steps), 0, 1)


def two_step(steps):
    t, _, rise = shares(steps)
    return PEAK * rise * np.where(t >= 0.7 * steps, 0.3, 1.0)


SCHEDULES = {
    "constant": lambda steps: PEAK * shares(steps)[2],
    "cosine": cosine, "linear": linear, "wsd": wsd, "two_step": two_step,
}  # fmt: skip


def measure_curve(name, steps, random, run_sd=0.0, row_sd=0.0, correlation=0.0, every=12, truth=ANNEALING):
    """A run of a schedule by the annealing law, with an error of the run and correlated ones of its rows."""
    curve = make_curve(name, SCHEDULES[name](steps))
    at = np.arange(curve.warmup + every, steps + 1, every).astype(float)
    columns = schedule_columns(curve, at, False)
    noise = random.standard_normal(len(at))
    for i in range(1, len(at)):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    errors = run_sd * random.standard_normal() + row_sd * noise
    return make_curve(name, curve.lr, at, forms.CURVE_LAWS["annealing"](columns, truth) * np.exp(errors))
