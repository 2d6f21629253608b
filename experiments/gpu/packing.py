"""Trials that differ in learning rate and seed: all at once under vmap, against one after the other in one program."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab.experiments.gpu.settings import Settings, build_config
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import PACKINGS, Program
from scalelab.train.step.step import many_steps

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
    return PACKINGS[how](config_lib.static(configs[0]), [config_lib.hparams(c) | {"separator": -1} for c in configs])


def measure_packing(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """Seconds per step of all trials each way, and whether their losses agree."""
    ways = {how: _timed(make_program(settings, how), settings) for how in PACKINGS}
    losses = np.array([ways[how].pop("losses") for how in PACKINGS])
    return {
        "trials": settings.trials, "steps": settings.steps, "ways": ways,
        "turn_over_vmap": ways["turn"]["seconds"] / ways["vmap"]["seconds"],
        "largest_loss_difference": float(np.abs(losses[0] / losses[1] - 1).max()),
    }  # fmt: skip


def vmap_steps(static: config_lib.Static) -> Callable:
    """All trials' steps in one program: state, batches [trials, k, B, S+1], number of steps, hparams."""
    return jax.vmap(functools.partial(many_steps, static), in_axes=(0, 0, None, 0))


def stacked_shapes(settings: Settings) -> tuple[config_lib.Static, Any, Any]:
    """(static config, shapes of the trials' hparams, shapes of their states), with the trials' axis in front.

    Attention runs in blocks: cuDNN's is a library call that can't be lowered without a device.
    """
    configs = trial_configs(settings)
    static, n = config_lib.static(configs[0]), len(configs)
    static = dataclasses.replace(static, model=dataclasses.replace(static.model, attention="blockwise"))
    kinds = {"seed": jnp.uint32, "separator": jnp.int32}
    names = [*config_lib.hparams(configs[0]), "separator"]
    h = {name: jax.ShapeDtypeStruct((n,), kinds.get(name, jnp.float32)) for name in names}
    front = lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype)  # noqa: E731
    return static, h, jax.tree.map(front, state_lib.state_shapes(static))


def _timed(packed: Program, settings: Settings) -> dict[str, Any]:
    random = np.random.default_rng(0)
    size = (settings.steps, settings.trial_rows, settings.trial["seq_len"] + 1)
    batches = [random.integers(settings.trial["vocab_size"], size=size, dtype=np.int32) for _ in range(settings.trials)]
    first, (states, metrics) = _clocked(lambda: packed.advance(packed.init(), batches, settings.steps))
    losses = [float(np.asarray(m["train_loss"])[-1]) for m in metrics]  # of the same states and batches each way
    seconds, _ = _clocked(lambda: packed.advance(states, batches, settings.steps))
    return {"seconds": seconds, "first_s": first, "losses": losses}


def _clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start, result
