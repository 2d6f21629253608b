"""The metrics of a step, all in one place: what a step logs is added here."""

import functools

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model.sums.measures import when
from scalelab.optim.clip import clip_ratio
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import upcast
from scalelab.train.step import hooks
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.metrics import EXPERTS, LAYERS
from scalelab.train.step.report import experts, layers
from scalelab.train.step.report.read import read_metrics
from scalelab.train.step.state import TrainState, model_variables
from scalelab.train.step.variables import Outcome

STEP_METRICS = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr", "skipped")


def report(
    static: Static, before: TrainState, after: TrainState, outcome: Outcome, noted: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """The metrics of the step from `before` to `after`; `noted` are those of the state's variables.

    `clip_ratio`: norm of the gradient after the clip, over that before it (NaN if skipped). `update_norm` and
    `param_norm` are NaN on steps that are not logged, since they read every parameter once more (3 % of a step with a
    large vocabulary).
    """
    gradient, verdict, norms = outcome.gradient, outcome.verdict, outcome.updated.norms
    accepted, logged, now = verdict.accepted, verdict.logged, verdict.now
    shown = [jnp.where(logged | ~accepted, norm, jnp.nan) for norm in (norms.update, norms.weights)]
    values = verdict.loss, gradient.norm, *shown, now.step.lr, after.skipped
    metrics = dict(zip(STEP_METRICS, values, strict=True)) | {"streak": after.streak}
    ratio = clip_ratio(gradient.norm, now.optim.clip_norm, after.opt_state)
    metrics |= noted | {"clip_ratio": jnp.where(accepted, ratio, jnp.nan)} | read_metrics(static, outcome)
    if verdict.due is not None:
        metrics |= {LAYERS: _layer_metrics(static, after, outcome, verdict.due)}
    metrics |= layers.block_metrics(gradient.sums)
    if static.model.n_experts:
        metrics |= experts.expert_metrics(static, gradient.sums, after)
        metrics |= {EXPERTS: experts.guard_signals(gradient.sums)} if static.guard.watches else {}
    if static.own_loss:
        metrics |= {hooks.LOSS_TERM: gradient.sums.term / jnp.maximum(gradient.sums.tokens, 1.0)}
    if static.own_metrics:
        params, new_params = (upcast(s.params, POLICIES[static.precision].parameters) for s in (before, after))
        arrays = hooks.StepArrays(
            after.step, outcome.tokens, params, new_params, gradient.tree, verdict.loss, now.step.lr, outcome.h
        )
        beside = document_ends(static, outcome.h, outcome.step), model_variables(before)
        metrics |= hooks.step_metrics(static, logged, arrays, tuple(metrics), beside)
    return metrics


def _layer_metrics(static: Static, after: TrainState, outcome: Outcome, due: jax.Array) -> dict[str, jax.Array]:
    """The measures of each layer and of the batch; meaningless unless `due`."""
    sums, grads = outcome.gradient.sums, outcome.gradient.tree
    norms = functools.partial(layers.layer_norms, static)
    grad_norm = when(due, norms, layers.nothing_measured(jax.eval_shape(norms, grads)), grads)
    by_layer = outcome.updated.norms.by_layer | {"grad_norm": grad_norm}
    values = layers.describe_layers(static, sums.measures, sums.tokens, **by_layer)
    values |= {f"block_{name}": x for name, x in layers.describe_block_sums(sums).items()}
    values |= experts.describe_experts(static, sums, after) if static.model.n_experts else {}
    batch = layers.describe_batch(due, sums.measures.head.token_nll, after.params, outcome.tokens)
    return values | batch | {layers.DUE: due}
