"""Eight trials (four learning rates, two seeds): packed, beside a bare loop over them, and eight processes."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from checks.speed.benchmarks.steps import bare, ours
from scalelab import config as config_lib
from scalelab.data.batches.batches import train_batches
from scalelab.experiments import timing
from scalelab.record import records
from scalelab.sweep.pack import train_pack
from scalelab.train.single import load_run_dataset
from scalelab.train.step.program import sequential_program

# Rates at which training forgets a rounding error; from 1e-2 on, it grows to the second digit of the loss in 200 steps.
POINTS = [{"optim.peak_lr": lr, "train.seed": seed} for lr in (5e-4, 1e-3, 2e-3, 3e-3) for seed in (0, 1)]
STEPS = 200
SETTINGS = {"train.steps": STEPS, "eval.every_steps": STEPS, "checkpoint.every_steps": STEPS}


def measure_packing(rounds: int) -> dict[str, Any]:
    """The row: seconds of each way, and ratios. Both ways in this process have compiled before the clock starts."""
    trials = {f"t{i}": ours.config_for_shape(bare.TRIAL_SHAPE, **SETTINGS, **point) for i, point in enumerate(POINTS)}
    last: dict[str, np.ndarray] = {}

    def packed() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train_pack(pathlib.Path(folder), "pack", trials)
            lines = [records.read_metrics(pathlib.Path(folder) / "runs" / name) for name in trials]
            last["packed"] = np.array([[x for x in ls if "train_loss" in x][-1]["train_loss"] for ls in lines])

    loop = _bare_loop(trials)

    def bare_loop() -> None:
        last["bare"] = loop()

    seconds = timing.time_interleaved({"packed": packed, "bare": bare_loop}, rounds, warmup=1)
    np.testing.assert_allclose(last["packed"], last["bare"], rtol=1e-5, err_msg="not the same eight trials")
    processes = _processes()
    middle, low, high = timing.ratio_over_rounds(seconds, "packed", "bare")
    packed_s = float(np.median(seconds["packed"]))
    return {
        "packed_s": packed_s,
        "bare_s": float(np.median(seconds["bare"])),
        "ratio": middle,
        "ratio_range": (low, high),
        "processes_s": processes,
        "over_processes": packed_s / processes,
        "largest_loss_difference": float(np.abs(last["packed"] / last["bare"] - 1).max()),
    }


def _bare_loop(trials: dict[str, ConfigDict]) -> Any:
    """A function that trains all eight, each from its own initialisation; returns their last losses."""
    first = next(iter(trials.values()))
    data, k = load_run_dataset(first), first.train.steps_per_dispatch
    _, run = bare.make_run(bare.TRIAL_SHAPE)
    states = sequential_program(config_lib.static(first), [config_lib.hparams(c) for c in trials.values()]).init()

    def loop() -> np.ndarray:
        losses = []
        for config, state in zip(trials.values(), states, strict=True):
            carry, rates = ours.to_bare_state(bare.TRIAL_SHAPE, state), ours.learning_rates(config)
            batches = train_batches(data, bare.TRIAL_SHAPE.seq_len, bare.TRIAL_SHAPE.batch, config.train.seed)
            for start in range(0, STEPS, k):
                carry, loss = run(carry, batches.chunk(start, k), rates[start : start + k])
            losses.append(loss[-1])
        return np.array(jax.device_get(losses))

    return loop


def _processes() -> float:
    """Seconds of the eight as `scalelab train` processes in sequence, with a warm compilation cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        overrides = [f"--config.{key}={value}" for key, value in SETTINGS.items()]

        def train(name: str, point: dict[str, Any]) -> None:
            extra = [f"--config.{key}={value}" for key, value in point.items()]
            command = [
                sys.executable,
                "-m",
                "scalelab",
                "train",
                "--config=configs/tiny.py",
                f"--workdir={folder}/{name}",
            ]
            subprocess.run([*command, *overrides, *extra], env=environment, check=True, capture_output=True)

        train("warm-up", POINTS[0])
        start = time.perf_counter()
        for i, point in enumerate(POINTS):
            train(f"t{i}", point)
        return time.perf_counter() - start
