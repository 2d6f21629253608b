"""The loss of a batch and its gradient, summed over micro-batches; shared by the step, evaluation and the planner."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import reshard

from scalelab.config import Static
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import Batch, DocumentEnds, SplitTokens
from scalelab.model.declare import with_variables, without_variables
from scalelab.model.pieces import UNOBSERVED, Observe, Variables, end_in_loss, run_loss
from scalelab.model.stacks import by_stack, name_stacks, stacks
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import no_sums
from scalelab.model.sums.loss_sums import LossSums, add_sums, no_loss_sums
from scalelab.optim import schedules
from scalelab.optim.schedules import Hparams
from scalelab.parallel import gathered, pipeline, rules
from scalelab.precision.loss_scale import LossScale
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.states import policy_state
from scalelab.sharding import activation_spec, has_explicit_mesh
from scalelab.train.step import hooks

Summed = tuple[LossSums, Any, Any]  # loss sums, gradient, amax: as `scaled_gradients` returns them


class LeftOut(NamedTuple):
    """Which micro-batches a step does without: int32, how many, and the first (-1: none)."""

    number: jax.Array
    first: jax.Array


class PassInputs(NamedTuple):
    """What a forward and its backward read beside the batch; `pass_inputs` makes them."""

    params: Any
    z_weight: jax.Array | float
    scales: Any = ()  # of delayed scaling; (): products use their operands' amax
    loss_factor: jax.Array | None = None  # the loss scale; None: the policy has none
    variables: Any = None  # the model's, beside the parameters (`declare.Variable`)
    copies: Any = None  # of weights, gathered once a step (`parallel/gathered.py`)


class Gradient(NamedTuple):
    """The gradient of a step's mean loss: `tree`, like the parameters, or the `replay` by which layers are updated."""

    sums: LossSums
    tree: Any
    replay: Any  # `per_layer.backward.Kept`
    norm: jax.Array  # before the clip
    amax: Any = None  # of the blocks' operands, under delayed scaling
    left_out: LeftOut | None = None  # None: no micro-batch may be


def pass_inputs(
    static: Static, params: Any, z_weight: jax.Array | float, precision_state: Any, variables: Any = None
) -> PassInputs:
    """The inputs of a pass, with the scales that the policy's state `TrainState.precision` holds."""
    keeping = policy_state(POLICIES[static.precision])
    scales, factor = keeping.operand_scales(precision_state), keeping.loss_factor(precision_state)
    return PassInputs(params, z_weight, scales, factor, variables)


def document_ends(static: Static, h: Hparams, step: jax.Array | None = None) -> DocumentEnds | None:
    """What ends a document, in training at `step` also a length; None: sequences are read in full, across documents."""
    separator = h.dataset.separator if static.masks_documents else None
    length = schedules.scheduled_seq_len(static, step, h) if static.seq_warmup and step is not None else None
    return DocumentEnds(separator, length) if separator is not None or length is not None else None


def loss_sums(
    static: Static, params: Any, tokens: jax.Array, z_weight: jax.Array | float, ends: DocumentEnds | None = None
) -> LossSums:
    """Summed next-token loss of `tokens` [B, S+1]; a negative token is neither predicted nor counted.

    With `ends`, attention stays within documents and the first token of a document is not predicted.
    """
    if static.layout.stage > 1:
        params, variables = without_variables(params, transformer.variable_declarations(static.model))
        held = _with_slots(static, pipeline.into_slots(static, params), variables)
        return pipeline.pipeline_loss_sums(static, held, Batch(tokens, ends), z_weight)
    return _whole_loss_sums(static, PassInputs(params, z_weight), documents.split_inputs_targets(tokens, ends))


def _whole_loss_sums(
    static: Static, inputs: PassInputs, tokens: SplitTokens, observe: Observe = UNOBSERVED
) -> LossSums:
    """Loss sums without stages."""
    shape, policy = static.model, POLICIES[static.precision]
    more: dict[str, Variables] = {stack.name: {} for stack in stacks(shape)}
    for name, part in name_stacks(shape, inputs.scales).items() if inputs.scales else ():
        more[name]["scales"] = part
    for name, part in by_stack(shape, observe.probes).items() if observe.probes is not None else ():
        more[name]["probes"] = {"zeros": part}
    end = end_in_loss(shape, tokens, inputs.z_weight, observe)
    with product_precision(policy):
        pieces = transformer.make_pieces(shape, policy, tokens, end, observe.due)
        return run_loss(shape, pieces, inputs.params, more)


def compute_gradients(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array,
    scale: jax.Array | float = 1.0,
    ends: DocumentEnds | None = None,
) -> tuple[LossSums, Any]:
    """Sums over the batch [B, S+1] and the gradient of the token mean; `scale`: the loss scale, if the policy has one.

    With `accumulate` > 1 micro-batches are summed, not averaged, each divided by the number of predicted tokens in all
    of them. The result is that of the whole batch, even if micro-batches ignore different numbers of positions.
    """
    precision_state = LossScale(jnp.asarray(scale), jnp.int32(0)) if POLICIES[static.precision].scaled_loss else ()
    return scaled_gradients(static, pass_inputs(static, params, z_weight, precision_state), Batch(tokens, ends))[:2]


def scaled_gradients(static: Static, inputs: PassInputs, batch: Batch, due: jax.Array | None = None) -> Summed:
    """Sums over the batch, the gradient of the token mean, and amax for delayed scaling.

    Under a loss scale the backward pass computes a gradient that many times as large, so that less of it underflows;
    dividing by a power of two is exact in fp32. If `batch.n_micro` is given, only that many micro-batches are run: row
    r belongs to micro-batch r % accumulate, and the other rows are ignored. With `due` the sums also hold `measures` of
    all layers, taken in the same pass where it is true.
    """
    counted, factor = jnp.maximum(_count_targets(static, batch), 1), inputs.loss_factor
    with product_precision(POLICIES[static.precision]):
        if factor is None:
            return _gradients(static, inputs, batch, counted, due)
        sums, grads, amax = _gradients(static, inputs, batch, counted / factor, due)
        return sums, jax.tree.map(lambda g: g / factor, grads), amax


def _count_targets(static: Static, batch: Batch) -> jax.Array:
    """The number of predicted tokens."""
    predicted_BS = documents.prediction_targets(batch.tokens, batch.ends) >= 0
    if batch.n_micro is None:
        return jnp.sum(predicted_BS)
    each = jnp.sum(_split_rows(predicted_BS, static.accumulate), axis=(0, 2))
    return jnp.sum(jnp.where(jnp.arange(static.accumulate) < batch.n_micro, each, 0))


def micro_batch_objective(
    static: Static,
    inputs: PassInputs,
    batch: Batch,
    counted: jax.Array,
    due: jax.Array | None = None,
    probes: Any = None,
) -> tuple[jax.Array, LossSums]:
    """(differentiated scalar, sums) of a micro-batch [b, S+1]; `due` and `probes` as in `Observe`."""
    params = with_variables(gathered.with_gathered(inputs.params, inputs.copies), inputs.variables)
    observe = Observe(due, probes, hooks.loss_term(static))
    tokens = documents.split_inputs_targets(batch.tokens, batch.ends)
    sums = _whole_loss_sums(static, inputs._replace(params=params), tokens, observe)
    return sums.objective / counted, sums


def _gradients(static: Static, inputs: PassInputs, batch: Batch, counted: jax.Array, due: jax.Array | None) -> Summed:
    """The sums of all micro-batches, whose gradients are divided by `counted`."""
    copies, params = gathered.gather_weights(static, inputs.params), pipeline.into_slots(static, inputs.params)
    held, tokens = inputs._replace(copies=copies), batch.tokens

    def differentiate(params: Any, part: jax.Array) -> Summed:
        return differentiate_micro_batch(static, held._replace(params=params), Batch(part, batch.ends), counted, due)

    if static.accumulate == 1:
        sums, grads, amax = differentiate(params, tokens)
        return sums, pipeline.out_of_slots(static, grads), amax
    parts, measured = split_micro_batches(static, tokens), due is not None
    once = bool(rules.postponed_axes(static.layout))
    laid_out = _once("unreduced") if once else rules.gradient_specs
    summed_as = reshard_as(static, _once("reduced"), params) if once else params

    def micro(carry: Summed, at: Any) -> tuple[Summed, None]:
        part, index = at if measured else (at, None)
        sums, grads, amax = differentiate(summed_as, part)
        if measured:
            head = measures.place_rows(sums.measures.head, index, static.accumulate)
            sums = sums._replace(measures=sums.measures._replace(head=head))
        grads = reshard_as(static, laid_out, grads)
        total = add_sums(carry[0], sums)
        return (total, jax.tree.map(jnp.add, carry[1], grads), jax.tree.map(jnp.maximum, carry[2], amax)), None

    sums, zeros, amax = _nothing_summed(static, held._replace(params=params), tokens, due)
    summed: Summed = sums, reshard_as(static, laid_out, zeros), amax
    if batch.n_micro is not None:
        at = lambda i: (parts[i], i) if measured else parts[i]  # noqa: E731
        summed = jax.lax.fori_loop(0, batch.n_micro, lambda i, carry: micro(carry, at(i))[0], summed)
    else:
        summed = jax.lax.scan(micro, summed, (parts, jnp.arange(static.accumulate)) if measured else parts)[0]
    grads = pipeline.out_of_slots(static, summed[1])
    return summed[0], reshard_as(static, rules.moment_specs, grads), summed[2]


def _once(kind: str) -> Callable:
    """A rule of `reshard_as` under which gradients of blocks' matrices are added up between devices once a step."""
    return lambda shape, layout: rules.once_a_step(rules.gradient_specs(shape, layout), shape, layout, kind)


def split_micro_batches(static: Static, tokens: jax.Array) -> jax.Array:
    """[accumulate, b, S+1]: every n-th row, so that each device's own rows make its part of each micro-batch."""
    return _split_rows(tokens, static.accumulate).swapaxes(0, 1)


def _split_rows(x_BS: jax.Array, parts: int) -> jax.Array:
    """[B / parts, parts, S]; the first axis stays split over devices as B is (jax may split the second, too)."""
    split = activation_spec("batch", None, None) if has_explicit_mesh() else None
    return jnp.reshape(x_BS, (-1, parts, x_BS.shape[-1]), out_sharding=split)


def differentiate_micro_batch(
    static: Static, inputs: PassInputs, batch: Batch, counted: jax.Array, due: jax.Array | None = None
) -> Summed:
    """Sums, gradient and amax of a micro-batch [b, S+1], whose gradient is divided by `counted`.

    In a pipeline the layers of the parameters and of the gradient are as the stages hold them.
    """
    if static.layout.stage > 1:
        z_weight, scales = inputs.z_weight, inputs.scales
        held = _with_slots(static, inputs.params, inputs.variables)
        sums, grads = pipeline.pipeline_gradients(static, held, batch, z_weight, counted, due)
        return sums, without_variables(grads, inputs.variables)[0], scales
    can_underflow = due is not None and measures.underflow_format(POLICIES[static.precision])
    probes = jnp.zeros(static.model.n_layers) if can_underflow else None

    def objective(params: Any, scales: Any, probes: Any) -> tuple[jax.Array, LossSums]:
        read = inputs._replace(params=params, scales=scales)
        return micro_batch_objective(static, read, batch, counted, due, probes)

    differentiate = jax.value_and_grad(objective, argnums=(0, 1, 2), has_aux=True)
    (_, sums), (grads, amax, zeros) = differentiate(inputs.params, inputs.scales, probes)
    if zeros is not None:
        sums = sums._replace(measures=sums.measures._replace(gradient_zeros=zeros))
    return sums, grads, amax


def _with_slots(static: Static, params: Any, variables: Any) -> Any:
    """Parameters as the stages hold them, with the model's variables laid out alike."""
    return with_variables(params, pipeline.variables_in_slots(static, variables)) if variables else params


def _nothing_summed(static: Static, inputs: PassInputs, tokens: jax.Array, due: jax.Array | None) -> Summed:
    zeros = reshard_as(static, rules.gradient_specs, jax.tree.map(jnp.zeros_like, inputs.params))
    nothing, declared = no_loss_sums(), transformer.block_sums(static.model)
    if declared:
        nothing = nothing._replace(block=no_sums(declared))
    if static.own_loss:
        nothing = nothing._replace(term=jnp.zeros(()))
    if due is not None:
        head = measures.nothing_of_head(tokens.shape[0], tokens.shape[1] - 1)
        nothing = nothing._replace(measures=measures.nothing(static.model, head))
    return nothing, zeros, jax.tree.map(jnp.zeros_like, inputs.scales)


def reshard_as(static: Static, rule: Callable, tree: Any) -> Any:
    """A tree like the parameters, laid out as `rule` says; on a single device the tree itself."""
    if static.layout.devices == 1:
        return tree
    return jax.tree.map(reshard, tree, rule(static.model, static.layout))
