"""Losses along lines between weights and on slices through them."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.data.batches.batches import val_batches
from scalelab.data.dataset import Dataset
from scalelab.model.declare import Declaration
from scalelab.parallel import rules
from scalelab.train.resume.weights import Weights, load_run_weights
from scalelab.train.step.gradients import loss_sums

SEQUENCES = 64  # of the validation text


def validation_tokens(data: Dataset, seq_len: int) -> np.ndarray:
    """Evenly spaced windows [SEQUENCES, S + 1] of the validation split."""
    return val_batches(data.parts[0], seq_len, SEQUENCES, 1)[0]


@functools.partial(jax.jit, static_argnums=0)
def losses_at(static: Static, base: Any, directions: Sequence[Any], places: jax.Array, tokens: jax.Array) -> jax.Array:
    """Mean losses (nats/token) [K] at base + sum_i places[k, i] directions[i], for places [K, n]."""

    def loss(place: jax.Array) -> jax.Array:
        params = base
        for i, direction in enumerate(directions):
            params = jax.tree.map(lambda p, d, i=i: p + place[i] * d, params, direction)
        sums = loss_sums(static, params, tokens, 0.0)
        return sums.nll / sums.tokens

    return jax.lax.map(loss, places)


def line_losses(first: Weights, last: Weights, tokens: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Losses on the straight line from `first` (share 0) to `last` (share 1)."""
    static = config_lib.static(first.config)
    away = jax.tree.map(lambda a, b: b - a, first.params, last.params)
    return np.asarray(losses_at(static, first.params, [away], jnp.asarray(shares, jnp.float32)[:, None], tokens))


def find_barrier(losses: np.ndarray, shares: np.ndarray) -> float:
    """How far the loss rises above the straight line between its ends (Frankle et al. 2020); shares from 0 to 1."""
    return float(np.max(losses - (losses[0] + (losses[-1] - losses[0]) * shares)))


def draw_direction(static: Static, params: Any, seed: int) -> Any:
    """A random direction of which each filter has the norm of the weights' own (Li et al. 2018); gains stay."""
    declarations = rules.parameter_declarations(static.model)
    is_declaration = lambda each: isinstance(each, Declaration)  # noqa: E731
    leaves, tree = jax.tree.flatten(declarations, is_leaf=is_declaration)
    rng = np.random.default_rng(seed)
    scaled = [_match_filters(d, np.asarray(w), rng) for d, w in zip(leaves, jax.tree.leaves(params), strict=True)]
    return jax.tree.unflatten(tree, scaled)


def _match_filters(declaration: Declaration, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if not (declaration.ins and declaration.outs):
        return np.zeros_like(weights)
    noise = rng.standard_normal(weights.shape).astype(weights.dtype)
    # A filter makes one output out of all inputs; of a table of tokens or positions it is a row.
    inner = declaration.outs if {"vocab", "seq"} & {*declaration.ins} else declaration.ins
    axes = tuple(i for i, name in enumerate(declaration.axes) if name in inner and i >= len(declaration.stack))
    norms = [np.sqrt(np.sum(each**2, axis=axes, keepdims=True)) for each in (weights, noise)]
    return noise * norms[0] / np.maximum(norms[1], 1e-12)


def load(folder: pathlib.Path, step: int | None = None, **averaged: Any) -> Weights:
    """The weights of a run at a step (None: its last)."""
    return load_run_weights(str(folder) if step is None else f"{folder}@{step}", **averaged)
