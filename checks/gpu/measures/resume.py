"""A run under `train.deterministic`: killed and resumed, it must give the bits of an uninterrupted run."""

import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from checks.gpu.question import Context, Question
from checks.gpu.settings import Settings
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage import determinism

MOST_WAIT_S = 120.0  # for a first checkpoint


def train_command(settings: Settings, workdir: pathlib.Path) -> list[str]:
    """`scalelab train` of the small model, with a checkpoint every tenth of the run."""
    model = {key: value for key, value in settings.trial.items() if key not in ("preset", "vocab_size")}
    every = max(1, settings.run_steps // 10)
    values = {f"model.{key}": value for key, value in model.items()} | {
        "train.steps": settings.run_steps,
        "checkpoint.every_steps": every,
        "eval.every_steps": settings.run_steps,
        "train.steps_per_dispatch": every,
        "train.deterministic": "true",
        "precision.name": "bf16",
        "data.source": "synthetic",
        "train.global_batch": settings.trial_rows,
        "optim.peak_lr": 1e-3,
    }
    overrides = [f"--config.{key}={value}" for key, value in values.items()]
    return [sys.executable, "-m", "scalelab", "train", "--config=configs/tiny.py", f"--workdir={workdir}", *overrides]


def ask_resume(cost_s: float) -> list[Question]:
    """One run killed and resumed, beside one that was not."""
    return [Question("same bits", cost_s, compare_resumed_run)]


def compare_resumed_run(context: Context) -> dict[str, Any]:
    """Whether both runs end with equal parameters and metrics, and where the second was killed."""
    settings, folder = context.settings, context.folder
    whole, killed = folder / "whole", folder / "killed"
    for old in (whole, killed):  # a question that was stopped is asked anew
        shutil.rmtree(old, ignore_errors=True)
    undisturbed = _finish(settings, whole)
    killed.mkdir(parents=True)
    chosen = whole / determinism.AUTOTUNE_FILE  # the first run's kernels: another choice has other roundings
    if chosen.exists():
        shutil.copy(chosen, killed)
    at = _kill(settings, killed)
    resumed = _finish(settings, killed)
    return {
        "steps": settings.run_steps, "killed_after_checkpoint": at, "resumed_from": resumed["resumed_from"],
        "same_parameters": undisturbed["params_digest"] == resumed["params_digest"],
        "same_losses": _losses(whole) == _losses(killed), "val_loss": [undisturbed["val_loss"], resumed["val_loss"]],
    }  # fmt: skip


def _finish(settings: Settings, workdir: pathlib.Path) -> dict[str, Any]:
    """Train to the end; returns the command's JSON."""
    done = subprocess.run([*train_command(settings, workdir), "--json=-"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"scalelab train: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def _kill(settings: Settings, workdir: pathlib.Path) -> int | None:
    """Send SIGKILL as soon as there is a checkpoint; returns its step, None if the run ended before."""
    running = subprocess.Popen(train_command(settings, workdir), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    start = time.monotonic()
    try:
        while running.poll() is None and time.monotonic() - start < MOST_WAIT_S:
            steps = manifest.list_steps(workdir / "checkpoints")
            if steps:
                return steps[-1]
            time.sleep(0.01)
        return None
    finally:
        running.kill()
        running.wait()


def _losses(workdir: pathlib.Path) -> list[tuple[int, float]]:
    """(step, training loss) of every line of metrics."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
