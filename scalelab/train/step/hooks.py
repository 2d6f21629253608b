"""Functions of the user inside the step: `train.loss`, `train.metrics`, `eval.metrics`, each named as pkg.mod:fn.

They are traced like the step itself, so Python's `if` can't look at an array. On a mesh their arrays are whole, and the
compiler shards the work (`auto_axes`); in a pack each trial has its own. `scalelab.testing` has a contract for each.

Shapes: L layers, B batch, S sequence, D d_model, V vocab.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, auto_axes

from scalelab.config import ModelShape, Static
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds, SplitTokens
from scalelab.model.declare import with_variables
from scalelab.model.pieces import end_in_logits, run_pieces
from scalelab.model.sums.block_sums import LOSSES
from scalelab.model.sums.cross_entropy import softcap_logits
from scalelab.model.sums.measures import when
from scalelab.model.transformer import CALL, KEPT, make_pieces
from scalelab.optim.registry import find_optimizer
from scalelab.optim.schedules import Hparams
from scalelab.precision.policy import POLICIES, Policy
from scalelab.precision.products import product_precision
from scalelab.sharding import has_explicit_mesh, without_mesh
from scalelab.train.step.metrics import describe_unloggable
from scalelab.user_code import user_function

LOSS_TERM = "loss_term"  # the metric of `train.loss`: its value, the mean over the batch's tokens
STREAM = "stream"  # among activations: the residual stream after each layer
EVAL_PREFIX = "eval/"  # before the names of `eval.metrics` in the log


class StepArrays(NamedTuple):
    """The argument of `train.metrics`. Parameters and gradients are nested dicts; blocks are stacked along layers."""

    step: jax.Array  # steps taken, this one included
    tokens: jax.Array  # [B, S+1]
    params: Any  # fp32, before the update
    new_params: Any  # after it
    grads: Any  # of the mean loss, before the clip
    loss: jax.Array  # nats a token
    lr: jax.Array
    h: Hparams  # every traced number of the config, by its key: a.h.optim.peak_lr


class Step(StepArrays):
    """`StepArrays` of a step whose forward pass can be run again: what `train.metrics` gets.

    Nothing is computed unless a method is called, and then only on steps that are logged.
    """

    static: Static
    ends: DocumentEnds | None
    variables: Any  # of the modules, that are not parameters

    def logits(self, rows: int | None = None) -> jax.Array:
        """Logits [rows, S, V] in fp32 of the batch's first `rows` sequences (default: all), before the update."""
        return self._run_forward(rows)[0]

    def activations(self, rows: int | None = None) -> dict[str, jax.Array]:
        """{module: its output [L, rows, S, …]} of the same forward pass, e.g. `mlp/up`; `stream` after each layer."""
        return self._run_forward(rows)[1]

    def _run_forward(self, rows: int | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        if self.static.layout.stage > 1:
            raise BadInput(
                f"train.metrics={self.static.own_metrics!r} asks for activations or logits, which need the model in "
                f"one piece: parallel.stage=1, not {self.static.layout.stage}"
            )
        policy = POLICIES[self.static.precision]
        tokens = documents.split_inputs_targets(self.tokens[:rows], self.ends)
        params = with_variables(self.params, self.variables)
        with product_precision(policy):
            return keep_activations(self.static.model, params, tokens, policy)


def keep_activations(
    shape: ModelShape, params: Any, tokens: SplitTokens, policy: Policy
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Run the model forward: logits [B, S, V] in fp32, and {module: its output [L, B, S, …]} in the compute dtype.

    `stream` is the residual stream after each layer; other names are the modules' own, e.g. `mlp/up`. Where a model
    stacks blocks of several kinds, whose modules differ, `stream` alone is there.
    """
    pieces = make_pieces(shape, policy, tokens, end_in_logits(shape), keep=True)
    logits_BSV, written = run_pieces(shape, pieces, params)
    return logits_BSV, dict(_by_module(written[KEPT], ""))


def _by_module(outputs: Mapping[str, Any], path: str) -> Iterator[tuple[str, jax.Array]]:
    """(path, the first array that the call returned) of each module; the block's own is the stream."""
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            yield from _by_module(value, f"{path}/{name}".lstrip("/"))
        elif name == CALL and (arrays := jax.tree.leaves(value)):
            yield path or STREAM, arrays[0]


class LossArrays(NamedTuple):
    """The argument of `train.loss`, of one micro-batch. Gradients flow through `params` and `hidden`."""

    params: Any
    inputs: jax.Array  # [B, S]
    targets: jax.Array  # [B, S]; below zero: not predicted
    hidden: jax.Array  # [B, S, D], after the final norm
    head: jax.Array  # [D, V]
    softcap: float

    def logits(self) -> jax.Array:
        """Logits [B, S, V] in fp32. The built-in loss never holds them all at once."""
        product = jnp.dot(self.hidden, self.head.astype(self.hidden.dtype), preferred_element_type=jnp.float32)
        return softcap_logits(product, self.softcap)


class EvalArrays(NamedTuple):
    """The argument of `eval.metrics`, of one validation batch. A mean should count where `counts` is true."""

    params: Any
    inputs: jax.Array  # [B, S]
    targets: jax.Array  # [B, S]
    nats: jax.Array  # [B, S], loss of each target
    correct: jax.Array  # [B, S], whether the target was the likeliest token
    counts: jax.Array  # [B, S], whether the position is scored


def refuse_unsupported(static: Static) -> None:
    """BadInput where a function of the user has no place in this program, by the names of both keys."""
    named = {"train.loss": static.own_loss, "eval.metrics": static.own_eval_metrics}
    for key, name in named.items():
        if name and static.layout.stage > 1:
            raise BadInput(
                f"{key}={name!r} needs the last hidden states in one piece: parallel.stage=1, not {static.layout.stage}"
            )
    if find_optimizer(static.optim.name).curvature and transformer.variable_declarations(static.model):
        raise BadInput(
            f"model.block={static.model.block!r} has variables that are not parameters, which "
            f"optim.name={static.optim.name!r} does not read; nearest: optim.name=adamw"
        )
    if static.own_loss and find_optimizer(static.optim.name).curvature:
        raise BadInput(
            f"train.loss={static.own_loss!r}: {static.optim.name} estimates the curvature of the built-in loss alone; "
            "nearest: optim.name=adamw"
        )
    if find_optimizer(static.optim.name).curvature and transformer.block_sums(static.model).get(LOSSES):
        raise BadInput(
            f"model.block={static.model.block!r} has a loss of its own: {static.optim.name} estimates the curvature of "
            "the built-in loss alone; nearest: optim.name=adamw"
        )


def _on_whole_arrays(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, numbers out; on an explicit mesh the compiler shards the work."""
    if not has_explicit_mesh():
        return function(*arguments)
    with without_mesh():
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
        shapes = jax.eval_shape(function, *plain)
    return auto_axes(function, out_sharding=jax.tree.map(lambda _: PartitionSpec(), shapes))(*arguments)


def _numbers(values: Any, what: str, reserved: tuple[str, ...] = ()) -> dict[str, jax.Array]:
    """A user's `{name: number}` as arrays. BadInput for anything else, and for a name that the step has."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise BadInput(f"{what} returned {type(values).__name__}: a dict {{name: number}} is expected")
    for name, value in values.items():
        if name in reserved:
            raise BadInput(f"{what} returned {name!r}, which the step logs itself: use mine/{name}")
        if problem := describe_unloggable(name, value):
            raise BadInput(f"{what} returned {name!r}, which {problem}")
    return {name: _as_array(value) for name, value in values.items()}


def _as_array(value: Any) -> jax.Array:
    array = jnp.asarray(value)
    return array.astype(jnp.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.int32)


def step_metrics(
    static: Static,
    due: jax.Array,
    arrays: StepArrays,
    reserved: tuple[str, ...],
    beside: tuple[DocumentEnds | None, Any] = (None, None),
) -> dict[str, jax.Array]:
    """The values of `train.metrics`, computed only where `due`; zeros elsewhere. `reserved`: the step's own names.

    `beside`: what ends a document, and the modules' variables, for a forward pass that the function may ask for.
    """
    if not static.own_metrics:
        return {}
    what = f"train.metrics={static.own_metrics!r}"
    function = user_function(static.own_metrics, "train.metrics", "a function (arrays) -> {name: number}")

    Given = tuple[StepArrays, tuple[DocumentEnds | None, Any]]

    def values(given: Given) -> dict[str, jax.Array]:
        step = Step(*given[0])
        step.static, (step.ends, step.variables) = static, given[1]
        return _numbers(function(step), what, reserved)

    with without_mesh():
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), (arrays, beside))
        shapes = jax.eval_shape(values, plain)

    def if_due(due: jax.Array, given: Given) -> dict[str, jax.Array]:
        return when(due, values, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), given)

    result: dict[str, jax.Array] = _on_whole_arrays(if_due, due, (arrays, beside))
    return result


def loss_term(static: Static) -> Callable[..., jax.Array] | None:
    """`train.loss` as (params, inputs, targets, hidden, head) -> nats a token; None if there is none."""
    if not static.own_loss:
        return None
    what = f"train.loss={static.own_loss!r}"
    function = user_function(static.own_loss, "train.loss", "a function (arrays) -> nats a token")

    def value(params: Any, inputs: jax.Array, targets: jax.Array, hidden: jax.Array, head: jax.Array) -> jax.Array:
        term = function(LossArrays(params, inputs, targets, hidden, head, static.model.logit_softcap))
        if problem := describe_unloggable(LOSS_TERM, term):
            raise BadInput(f"{what} returned a term that {problem}")
        return jnp.asarray(term, jnp.float32)

    return functools.partial(_on_whole_arrays, value)


def evaluation_metrics(
    static: Static, params: Any, batches: jax.Array, ends: DocumentEnds | None
) -> dict[str, jax.Array]:
    """The values of `eval.metrics` over batches [n, B, S+1]: means of the batches' values, by their scored tokens."""
    if not static.own_eval_metrics:
        return {}
    what = f"eval.metrics={static.own_eval_metrics!r}"
    function = user_function(static.own_eval_metrics, "eval.metrics", "a function (arrays) -> {name: number}")
    policy = POLICIES[static.precision]

    def values(params: Any, tokens: jax.Array, ends: DocumentEnds | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        inputs, targets, packed = documents.split_inputs_targets(tokens, ends)
        with product_precision(policy):
            nats, best = transformer.token_losses(static.model, params, inputs, targets, policy, packed)
        counts = targets >= 0
        user_values = _numbers(function(EvalArrays(params, inputs, targets, nats, best & counts, counts)), what)
        return jnp.sum(counts, dtype=jnp.float32), {k: v.astype(jnp.float32) for k, v in user_values.items()}

    def means(params: Any, batches: jax.Array, ends: DocumentEnds | None) -> dict[str, jax.Array]:
        counts, each = jax.lax.map(lambda tokens: values(params, tokens, ends), batches)
        total = jnp.maximum(counts.sum(), 1.0)
        return {name: jnp.sum(jnp.where(counts > 0, counts * x, 0.0)) / total for name, x in each.items()}

    result: dict[str, jax.Array] = _on_whole_arrays(means, params, batches, ends)
    return result
