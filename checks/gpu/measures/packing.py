"""Trials that differ in learning rate and seed: under vmap, one after the other in one program, a process for each."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from checks.gpu.question import Context, Question
from checks.gpu.settings import FULL_SETTINGS, TOY_SETTINGS, Settings, build_config
from scalelab import config as config_lib
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import PACKINGS, Program, hparam_shapes
from scalelab.train.step.step import many_steps

CHILD_CODE = "import sys; from checks.gpu.measures import packing; packing.run_process(*sys.argv[1:])"
PATIENCE_S = 120.0  # until all processes have compiled
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def trial_configs(settings: Settings) -> list[Any]:
    """The trials' configs: every learning rate with every seed, as many as `settings.trials`."""
    points = [(rate, seed) for seed in range(settings.trials) for rate in LEARNING_RATES][: settings.trials]
    return [
        build_config(settings.trial, optim__peak_lr=rate, train__seed=seed, train__global_batch=settings.trial_rows)
        for rate, seed in points
    ]


def make_program(settings: Settings, how: str) -> Program:
    """The trials' program with this packing."""
    configs = trial_configs(settings)
    return PACKINGS[how](config_lib.static(configs[0]), [_hparams(config) for config in configs])


def _hparams(config: Any) -> config_lib.Hparams:
    """A trial's numbers, without a token that ends a document."""
    return config_lib.replace_hparams(config_lib.hparams(config), {"dataset.separator": -1})


def ask_packing(cost_s: float) -> list[Question]:
    """All trials under vmap, and one after another in one program."""
    return [Question(how, cost_s, functools.partial(_timed, how=how)) for how in ("vmap", "turn")]


def ask_processes(cost_s: float) -> list[Question]:
    """All trials at once, each in a process of its own."""
    return [Question("processes", cost_s, time_processes)]


def vmap_steps(static: config_lib.Static) -> Callable:
    """All trials' steps in one program: state, batches [trials, k, B, S+1], number of steps, hparams."""
    return jax.vmap(functools.partial(many_steps, static), in_axes=(0, 0, None, 0))


def stacked_shapes(settings: Settings) -> tuple[config_lib.Static, Any, Any]:
    """(static config, shapes of the trials' hparams, shapes of their states), with the trials' axis in front."""
    configs = trial_configs(settings)
    static, n = config_lib.static(configs[0]), len(configs)
    h = hparam_shapes([*config_lib.flatten_hparams(config_lib.hparams(configs[0])), "dataset.separator"])
    front = lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype)  # noqa: E731
    return static, jax.tree.map(front, h), jax.tree.map(front, state_lib.state_shapes(static))


def time_processes(context: Context) -> dict[str, Any]:
    """Seconds from the moment at which a process for each trial has compiled until the last one has trained."""
    settings, folder = context.settings, context.folder
    size = "toy" if settings == TOY_SETTINGS else "full"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("process*"):
        old.unlink()
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD_CODE, size, str(folder), str(i)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"process{i}.log").open("w"),
        )
        for i in range(settings.trials)
    ]
    try:
        return _release(settings, folder, started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _release(settings: Settings, folder: pathlib.Path, started: list[subprocess.Popen]) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("process*.ready"))) < settings.trials:
        if lost := [i for i, process in enumerate(started) if process.poll()]:
            why = (folder / f"process{lost[0]}.log").read_text().strip().splitlines()[-1:]
            return {"left_out": f"{len(lost)} of {settings.trials} processes failed: {why}"}
        if time.monotonic() > end:
            return {"left_out": f"not all of {settings.trials} processes had compiled after {PATIENCE_S:.0f} s"}
        time.sleep(0.01)
    start = time.time()
    (folder / "process.go").touch()
    if any([process.wait() for process in started]):
        return {"left_out": "a process failed while it trained"}
    ends = [json.loads((folder / f"process{i}.json").read_text())["end"] for i in range(settings.trials)]
    return {"seconds": max(ends) - start}


def run_process(size: str, folder: str, number: str) -> None:
    """Train one trial in this process: compile, say so, await the signal of all, train."""
    settings, place, i = TOY_SETTINGS if size == "toy" else FULL_SETTINGS, pathlib.Path(folder), int(number)
    config = trial_configs(settings)[i]
    packed = PACKINGS["turn"](config_lib.static(config), [_hparams(config)])
    batches = draw_batches(settings)[i : i + 1]
    _, (states, _) = _clocked(lambda: packed.advance(packed.init(), batches, settings.steps))
    (place / f"process{i}.ready").touch()
    while not (place / "process.go").exists():
        time.sleep(0.005)
    seconds, _ = _clocked(lambda: packed.advance(states, batches, settings.steps))
    (place / f"process{i}.json").write_text(json.dumps({"seconds": seconds, "end": time.time()}))


def draw_batches(settings: Settings) -> list[np.ndarray]:
    """Random tokens for each trial: [steps, rows, S + 1]."""
    random = np.random.default_rng(0)
    size = (settings.steps, settings.trial_rows, settings.trial["seq_len"] + 1)
    return [random.integers(settings.trial["vocab_size"], size=size, dtype=np.int32) for _ in range(settings.trials)]


def _timed(context: Context, how: str) -> dict[str, Any]:
    """Seconds of all trials, compilation left out, and their losses after the first steps: equal however packed."""
    settings = context.settings
    packed, batches = make_program(settings, how), draw_batches(settings)
    first, (states, metrics) = _clocked(lambda: packed.advance(packed.init(), batches, settings.steps))
    losses = [float(np.asarray(m["train_loss"])[-1]) for m in metrics]
    seconds, _ = _clocked(lambda: packed.advance(states, batches, settings.steps))
    size = {"trials": settings.trials, "steps": settings.steps}
    return size | {"seconds": seconds, "first_s": first, "losses": losses}


def _clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start, result
