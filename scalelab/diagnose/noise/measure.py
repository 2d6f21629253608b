"""Measure the gradient noise scale of a saved step on the run's own batches after it.

Gradients of single sequences are computed one at a time, twice: for their sum, then for their products with it. This
takes the memory of three gradients for any batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.config import Static
from scalelab.data.batches.batches import NO_WINDOW
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.noise.estimate import LEAST_SEQUENCES, NoiseScale, estimate_noise_scale
from scalelab.diagnose.probes.subject import Subject, adam_roots, load_subject
from scalelab.errors import BadInput
from scalelab.model.attention.documents import Batch
from scalelab.model.declare import Declaration
from scalelab.model.transformer import parameter_declarations
from scalelab.train.step.gradients import document_ends, pass_inputs, scaled_gradients
from scalelab.train.step.state import model_variables

Progress = Callable[[str, int, int], None]  # called with the name of the work, how many are done, and of how many


class Diverged(BadInput):
    """A saved step whose loss or gradient is not finite."""


class StepNoise(NamedTuple):
    """The noise scale of a saved step. `sequence_tokens`: predicted tokens a sequence; `batch`: sequences of that step.

    `adam`: in the coordinates in which Adam without momentum is gradient descent (gradients divided by the fourth root
    of the second moment), without embedding and head; None for other optimizers.
    """

    step: int
    loss: float
    n: int
    sequence_tokens: float
    batch: int
    simple: NoiseScale
    adam: NoiseScale | None


def choose_steps(evidence: Evidence, step: int | None) -> list[int]:
    """Choose the saved steps to measure: all, or `step`. BadInput without such a step, or without the data."""
    if evidence.data is None:
        raise BadInput(f"the noise scale needs the run's data: {evidence.no_data}")
    saved = sorted(evidence.manifests)
    if not saved:
        raise BadInput(f"{evidence.folder} has no intact checkpoint; checkpoint.every_steps sets how often to save")
    if step is None:
        return saved
    if step not in saved:
        nearest = min(saved, key=lambda each: abs(each - step))
        raise BadInput(f"--step={step} was not saved; nearest: {nearest} (saved: {', '.join(map(str, saved))})")
    return [step]


def measure_noise(evidence: Evidence, step: int, batches: int, progress: Progress = lambda *_: None) -> StepNoise:
    """Measure a saved step on the run's next `batches`. BadInput if they are too few; Diverged if a number is inf."""
    subject = load_subject(evidence, step)
    rows = [_live_rows(subject.batch(step + i)) for i in range(batches)]
    n = sum(map(len, rows))
    if n < LEAST_SEQUENCES:
        least = -(-LEAST_SEQUENCES // len(rows[0]))
        raise BadInput(f"--batches={batches}: {n} sequences are too few for an error; nearest: --batches={least}")
    sums, norms, products = _measure_rows(subject, rows, progress)
    if not all(np.isfinite(each).all() for each in (sums, norms, products)):
        raise Diverged(f"step {step}: the loss or its gradient is not finite: the model has diverged")
    loss, tokens = sums.sum(axis=0)
    scales = [
        estimate_noise_scale(norms[:, i] * (n / tokens) ** 2, products[:, i] * (n / tokens) ** 2)
        for i in range(norms.shape[1])
    ]
    adam = scales[1] if len(scales) == 2 else None
    return StepNoise(step, float(loss / tokens), n, float(tokens / n), len(rows[0]), scales[0], adam)


def _live_rows(tokens: jax.Array) -> jax.Array:
    """Select the rows that hold a sequence: during the batch's warm-up some are empty."""
    return tokens[np.asarray(tokens != NO_WINDOW).any(axis=1)]


def _measure_rows(
    subject: Subject, batches: Sequence[jax.Array], progress: Progress
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measure each row: ([n, 2] nats and predicted tokens, [n, K] squared norms, [n, K] products with the sum of all).

    K is 2 with Adam's coordinates as the second, else 1. Gradients are those of a row's summed loss.
    """
    name, work = f"step {subject.step}", 2 * len(batches)
    trees = [jax.tree.map(jnp.ones_like, subject.params)]
    if (roots := adam_roots(subject)) is not None:
        trees.append(jax.tree.map(_without_vocabulary, parameter_declarations(subject.static.model), roots))
    state = subject.params, subject.state.precision, jnp.int32(subject.step), model_variables(subject.state)
    static = dataclasses.replace(subject.static, accumulate=1)
    total = jax.tree.map(jnp.zeros_like, subject.params)
    sums, norms, products = [], [], []
    for i, tokens in enumerate(batches):
        total, (sum_, norm) = _add_gradients(static, subject.h, state, trees, total, tokens)
        sums.append(np.asarray(sum_))
        norms.append(np.asarray(norm, float))
        progress(name, i + 1, work)
    for i, tokens in enumerate(batches):
        products.append(np.asarray(_multiply_gradients(static, subject.h, state, trees, total, tokens), float))
        progress(name, len(batches) + i + 1, work)
    return np.concatenate(sums), np.concatenate(norms), np.concatenate(products)


def _without_vocabulary(declaration: Declaration, root: jax.Array) -> jax.Array:
    """`root`, or 0: the second moment of a rare token's row is nearly zero when the token comes, and outweighs all."""
    return jnp.zeros_like(root) if "vocab" in (*declaration.ins, *declaration.outs) else root


@functools.partial(jax.jit, static_argnums=0)
def _add_gradients(static: Static, h: Any, state: Any, scales: Any, total: Any, tokens: jax.Array) -> Any:
    """(`total` plus the gradients of the rows, their sums [B, 2] and squared norms [B, K])."""

    def add(total: Any, row: jax.Array) -> Any:
        sums, grads = _row_gradient(static, h, state, row)
        return jax.tree.map(jnp.add, total, grads), (sums, _products(scales, grads, grads))

    return jax.lax.scan(add, total, tokens)


@functools.partial(jax.jit, static_argnums=0)
def _multiply_gradients(static: Static, h: Any, state: Any, scales: Any, total: Any, tokens: jax.Array) -> jax.Array:
    """Multiply each row's gradient with `total`, [B, K]."""
    return jax.lax.map(lambda row: _products(scales, _row_gradient(static, h, state, row)[1], total), tokens)


def _row_gradient(static: Static, h: Any, state: Any, row: jax.Array) -> tuple[jax.Array, Any]:
    """([nats, predicted tokens], gradient of the summed loss) of a row [S + 1], as the training step takes it."""
    params, precision, step, variables = state
    inputs = pass_inputs(static, params, h.train.z_loss, precision, variables)
    sums, grads, _ = scaled_gradients(static, inputs, Batch(row[None], document_ends(static, h, step)))
    return jnp.stack([sums.nll, sums.tokens]), jax.tree.map(lambda g: g * sums.tokens, grads)


def _products(scales: Sequence[Any], a: Any, b: Any) -> jax.Array:
    """Inner products of two trees, [K], one for each of the coordinates given by `scales`."""
    return jnp.stack(
        [
            optax.tree.vdot(jax.tree.map(jnp.multiply, scale, a), jax.tree.map(jnp.multiply, scale, b))
            for scale in scales
        ]
    )
