"""A small transformer trained to a target loss at several batches and rates, and its noise scale on the way."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.cli.parser import print_status
from scalelab.configs import tiny
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.noise.measure import measure_noise
from scalelab.errors import WorkFailed
from scalelab.experiments.shared import train_trials
from scalelab.laws.use.isoflop_minima import lowest_parabola
from scalelab.record import records

SEQ_LEN, TARGET = 32, 2.5  # the loss of single bytes is 3.2, of pairs 2.5 nats
RATES = 0.0007 * 2.0 ** np.arange(7)
# {batch in sequences: (steps, the first of RATES)}: steps reach half as far again as the target at a good rate.
BATCHES = {1: (2000, 0), 2: (1000, 0), 4: (550, 1), 8: (320, 1), 16: (200, 2), 64: (110, 2), 256: (85, 2)}
QUICK_BATCHES = (4, 16, 64)
N_RATES, QUICK_RATES = 5, 3
EVALUATIONS, EVALUATION_SEQUENCES = 40, 256
EARLY = {"batch": 256, "rate": 0.0112, "steps": 50, "saved": (10, 20, 30, 40, 50)}  # about as far as the target
LONG = {"batch": 16, "rate": 0.0056, "steps": 640, "saved": (20, 40, 80, 160, 320, 640)}
NOISE_SEQUENCES = 1024

Noise = dict[str, Any]  # of a saved step: `StepNoise` as JSON, with the seed


def make_config(batch: int, rate: float, seed: int, steps: int, save_every: int = 0) -> ConfigDict:
    """A block of width 32 on bytes under Adam at a constant rate, without warm-up and decay."""
    every = max(1, steps // EVALUATIONS)
    values = {
        "model.d_model": 32, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": SEQ_LEN,
        "train.global_batch": batch, "train.steps": steps, "train.seed": seed,
        "optim.peak_lr": rate, "optim.weight_decay": 0.0, "schedule.name": "constant", "schedule.warmup_steps": 0,
        "eval.every_steps": every, "eval.batches": max(1, EVALUATION_SEQUENCES // batch), "log.every_steps": every,
        "checkpoint.every_steps": save_every or steps, "checkpoint.keep_every": save_every, "guard.policy": "off",
    }  # fmt: skip
    return config_lib.resolve(config_lib.override(tiny.get_config(), values))


def choose_rates(batch: int, quick: bool) -> np.ndarray:
    """The learning rates that are tried at a batch."""
    first = BATCHES[batch][1] + quick
    return RATES[first : first + (QUICK_RATES if quick else N_RATES)]


def race(folder: pathlib.Path, batch: int, seeds: int, quick: bool) -> dict[str, Any]:
    """Steps to the target at each rate and seed of a batch, and the best."""
    steps, rates = BATCHES[batch][0], choose_rates(batch, quick)
    trials = {f"lr{rate:g}-seed{s}": make_config(batch, rate, s, steps) for rate in rates for s in range(seeds)}
    place = folder / f"batch{batch}"
    print_status(f"batch {batch}: {len(trials)} runs of {steps} steps")
    train_trials(place, trials)
    taken = [find_crossing(*read_losses(place / "runs" / name), TARGET) for name in trials]
    return {"batch": batch, "rates": rates.tolist()} | describe_race(rates, np.reshape(taken, (len(rates), seeds)))


def read_losses(run: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """(steps, validation losses) of a run."""
    lines = [line for line in records.read_metrics(run) if "val_loss" in line]
    return np.array([line["step"] for line in lines]), np.array([line["val_loss"] for line in lines])


def find_crossing(steps: np.ndarray, losses: np.ndarray, target: float) -> float:
    """The step at which the mean of three evaluations first is at the target, log-linear between; inf if never."""
    mean = np.convolve(losses, np.ones(3) / 3, "valid")
    at = np.log(steps[1:-1])
    below = np.flatnonzero(mean <= target)
    if not len(below) or below[0] == 0:
        return np.inf
    i = below[0]
    share = (mean[i - 1] - target) / (mean[i - 1] - mean[i])
    return float(np.exp(at[i - 1] + share * (at[i] - at[i - 1])))


def describe_race(rates: np.ndarray, taken: np.ndarray) -> dict[str, Any]:
    """The fewest steps and the best rate, from steps [rates, seeds]: vertices of parabolas in the logarithms.

    Errors are of the mean over seeds, relative. `inside`: whether the best rate is not at the edge of those tried.
    WorkFailed if a seed never reaches the target.
    """
    if (never := ~np.isfinite(taken).any(axis=0)).any():
        raise WorkFailed(f"no run of seed {never.argmax()} reaches {TARGET} nats; give them more steps")
    x, y = np.log(rates), np.log(taken)
    mean = y.mean(axis=1)
    place, least, inside, _ = lowest_parabola(x, mean)
    each = [lowest_parabola(x, column)[:2] for column in y.T]
    spread = np.std(each, axis=0, ddof=1) / len(each) ** 0.5 if len(each) > 1 else [np.nan] * 2
    return {
        "steps": float(np.exp(least)), "steps_error": float(spread[1]), "rate": float(np.exp(place)),
        "rate_error": float(spread[0]), "inside": bool(inside), "taken": taken.tolist(),
    }  # fmt: skip


def noise_trials(run: Mapping[str, Any], seeds: int) -> dict[str, ConfigDict]:
    """{name: config} of a run whose steps are saved."""
    return {f"seed{s}": make_config(run["batch"], run["rate"], s, run["steps"], run["saved"][0]) for s in range(seeds)}


def measure_along(place: pathlib.Path, run: Mapping[str, Any], seeds: int) -> list[Noise]:
    """The noise scale at the saved steps of a run, for each seed."""
    rows = []
    for seed, name in enumerate(noise_trials(run, seeds)):
        evidence = gather_evidence(place / "runs" / name)
        for step in run["saved"]:
            noise = measure_noise(evidence, step, NOISE_SEQUENCES // run["batch"])
            print_status(f"noise scale: batch {run['batch']}, seed {seed}, step {step}: {noise.simple.scale:.1f}")
            scales = {key: getattr(noise, key)._asdict() for key in ("simple", "adam")}
            rows.append({"seed": seed, "step": step, "loss": noise.loss} | scales)
    return rows


def average_scale(rows: Sequence[Noise], kind: str) -> tuple[float, float]:
    """(mean over steps of the noise scale, relative standard error over seeds), in sequences.

    In steps of a batch without noise this mean is E_min / S_min: a batch B takes 1 + B_noise / B steps for each of
    them, so its steps sum to S_min + (sum of B_noise) / B (McCandlish et al. 2018, appendix D).
    """
    seeds = sorted({row["seed"] for row in rows})
    means = [np.mean([row[kind]["scale"] for row in rows if row["seed"] == seed]) for seed in seeds]
    error = np.std(means, ddof=1) / len(means) ** 0.5 / np.mean(means) if len(means) > 1 else np.nan
    return float(np.mean(means)), float(error)
