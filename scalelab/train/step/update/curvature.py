"""Estimates of the Hessian's diagonal on a batch: Hutchinson and Gauss-Newton-Bartlett (Liu et al. 2023, sec. 2.3).

Both use the token mean without z-loss, fp32 under every precision policy, and as many micro-batches as the step.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax.sharding import auto_axes

from scalelab.config import ModelShape, Static
from scalelab.hardware.tactics.turn import run_if
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import Batch, DocumentEnds, PackedDocuments, SplitTokens
from scalelab.model.pieces import run_loss
from scalelab.model.sums.cross_entropy import LossOptions, smooth_cross_entropy
from scalelab.model.sums.loss_sums import LossSums
from scalelab.optim.registry import find_optimizer
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.precision.policy import FP32, POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast
from scalelab.precision.states import Tree
from scalelab.sharding import activation_spec, reshard_to
from scalelab.train.step.gradients import document_ends, reshard_as, split_micro_batches
from scalelab.train.step.state import TrainState

CURVATURE_STREAM = 0x63757276  # "curv": of the seed's random numbers


def curvature_if_due(
    static: Static, state: TrainState, tokens: jax.Array, h: Hparams
) -> dict[str, tuple[Tree, jax.Array]]:
    """The keyword `curvature` of optimizers that use it: (estimate, whether it is new), every `every` steps."""
    kind, every = find_optimizer(static.optim.name).curvature, static.optim.every or 1
    if not kind:
        return {}
    due, params = state.step % every == 0, upcast(state.params, POLICIES[static.precision].parameters)
    nothing = reshard_as(static, rules.moment_specs, jax.tree.map(jnp.zeros_like, params))

    def estimate(_: Tree, params: Tree, tokens: jax.Array, step: jax.Array) -> Tree:
        batch = Batch(tokens, document_ends(static, h, step))
        new = estimate_curvature(static, kind, params, batch, step, h.train.seed)
        return reshard_as(static, rules.moment_specs, new)

    # Without the turn's tie a step of Sophia-G takes 2.7 times AdamW's, one of Sophia-H 4.6 (a CPU; .98 and 1.15 with).
    new = run_if(due, estimate, nothing, params, tokens, state.step)
    return {"curvature": (new, due & jnp.isfinite(optax.tree.norm(new)))}


def estimate_curvature(static: Static, kind: str, params: Tree, batch: Batch, step: jax.Array, seed: jax.Array) -> Tree:
    """A tree like the parameters: one estimate by `kind` (as `Optimizer.curvature`) on the global batch.

    Its random numbers follow from (seed, step), not from the mesh or the micro-batches.
    """
    stream = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), CURVATURE_STREAM)
    with product_precision(FP32):
        return {"hutchinson": hutchinson_diagonal, "gauss_newton": gauss_newton_diagonal}[kind](
            static, params, batch.tokens, jax.random.fold_in(stream, step), batch.ends
        )


def hutchinson_diagonal(
    static: Static, params: Tree, tokens: jax.Array, key: jax.Array, ends: DocumentEnds | None = None
) -> Tree:
    """u * (H u) with u from N(0, 1) (Alg. 1), whose mean is the diagonal.

    Reverse over reverse mode, since backward passes are hand-written. On a mesh the compiler splits the work
    (`auto_axes`): the model's own sharding constraints have no second derivative.
    """
    measured = functools.partial(_hutchinson, static)
    if static.layout.devices > 1:
        measured = auto_axes(measured, out_sharding=rules.parameter_specs(static.model, static.layout))
    return measured(params, tokens, key, ends)


def _hutchinson(static: Static, params: Tree, tokens: jax.Array, key: jax.Array, ends: DocumentEnds | None) -> Tree:
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    u = jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
    return jax.tree.map(jnp.multiply, u, hessian_product(static, params, u, tokens, ends))


def hessian_product(static: Static, params: Tree, u: Tree, tokens: jax.Array, ends: DocumentEnds | None = None) -> Tree:
    """H u of the token mean on `tokens` [global_batch, S+1], trees like the parameters."""
    # kernels, and loops over as many blocks as experts have, have no second derivative
    shape = dataclasses.replace(static.model, attention="plain", expert_products="dense")

    def along(
        params: Tree, inputs: jax.Array, targets: jax.Array, packed: PackedDocuments | None, rows: jax.Array
    ) -> jax.Array:
        del rows
        tokens = SplitTokens(inputs, targets, packed)
        gradient = jax.grad(lambda p: _smooth_loss(shape, p, tokens))(params)
        products = jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, u)
        return jax.tree.reduce(jnp.add, products)

    return _mean_gradient(static, params, tokens, along, ends)


def _smooth_loss(shape: ModelShape, params: Tree, tokens: SplitTokens) -> jax.Array:
    """Summed loss in fp32, for derivatives of any order (reverse over reverse: products define their own backward)."""

    def end(_: Tree, x_BSD: jax.Array, head_DV: jax.Array) -> LossSums:
        targets_BS, zero = reshard_to(tokens.targets_BS, "batch", "context"), jnp.zeros(())
        return smooth_cross_entropy(x_BSD, head_DV, targets_BS, zero, LossOptions(shape.logit_softcap))

    pieces = transformer.make_pieces(shape, FP32, tokens, end)
    return run_loss(shape, pieces, params).objective


def gauss_newton_diagonal(
    static: Static, params: Tree, tokens: jax.Array, key: jax.Array, ends: DocumentEnds | None = None
) -> Tree:
    """B g * g, whose mean is the diagonal of the Gauss-Newton matrix (Alg. 2).

    g is the mean gradient on labels drawn from the model's predictions, B the number of predicted tokens.
    """

    def draw(key: jax.Array, logits_BSV: jax.Array, rows_B: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows_B)
        return jax.vmap(jax.random.categorical)(keys, logits_BSV).astype(jnp.int32)

    def drawn(
        params: Tree, inputs: jax.Array, targets: jax.Array, packed: PackedDocuments | None, rows: jax.Array
    ) -> jax.Array:
        logits_BSV = jax.lax.stop_gradient(transformer.next_token_logits(static.model, params, inputs, packed=packed))
        by_token = activation_spec("batch", "context")
        placed = auto_axes(draw, out_sharding=by_token) if static.layout.devices > 1 else draw
        labels = jnp.where(targets >= 0, placed(key, logits_BSV, rows), -1)
        return transformer.split_loss(static.model, params, SplitTokens(inputs, labels, packed), 0.0).objective

    counted = jnp.sum(documents.prediction_targets(tokens, ends) >= 0)
    return jax.tree.map(lambda g: counted * jnp.square(g), _mean_gradient(static, params, tokens, drawn, ends))


def _mean_gradient(static: Static, params: Tree, tokens: jax.Array, summed: Tree, ends: DocumentEnds | None) -> Tree:
    """The gradient of `summed(params, inputs, targets, packed, rows)` over all micro-batches, divided by their tokens.

    Rows that a growing batch does not take hold -1 (`data/batches/batches.py`): they are computed, and add nothing.
    """
    n, tokens = static.accumulate, tokens.astype(jnp.int32)
    counted = jnp.maximum(jnp.sum(documents.prediction_targets(tokens, ends) >= 0), 1)

    def of(part: jax.Array, rows: jax.Array) -> Tree:
        return jax.grad(lambda p: summed(p, *documents.split_inputs_targets(part, ends), rows) / counted)(params)

    rows = jnp.arange(tokens.shape[0])
    if n == 1:
        return of(tokens, rows)
    parts = split_micro_batches(static, tokens)
    body = lambda total, part: (jax.tree.map(jnp.add, total, of(*part)), None)  # noqa: E731
    return jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), (parts, rows.reshape(-1, n).T))[0]
