"""Cross-entropy of the head that never holds the logits of the whole batch.

Each chunk's gradient is computed in the forward pass, while its logits exist. That takes three products a chunk;
recomputing the logits in the backward would take four. Both hold one chunk.

Shapes: B batch, S sequence, T tokens, D d_model, V vocab.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from scalelab.hardware.tactics.exchange import scatter_sum
from scalelab.model.sums.loss_sums import LossSums, no_loss_sums
from scalelab.model.sums.measures import (
    add_chunk,
    measure_head,
    measures_specs,
    sum_head_over_devices,
    token_losses,
    with_token_losses,
    zero_measures,
)
from scalelab.precision.products import matmul_gradients, mixed_matmul
from scalelab.sharding import (
    TENSOR_AXIS,
    Weight,
    activation_spec,
    as_partial_sums,
    gradient_like,
    gradient_spec,
    has_explicit_mesh,
    mesh_axes,
    per_device,
    spec_of,
    target_platform,
    times_scalar,
    token_axes,
    vary_like,
    weight_master,
    weight_values,
)

CPU_LOGITS = 2**24  # held at once by a CPU: 64 MiB in fp32; with fewer, re-reading the head's gradient costs time
# Tokens of a chunk on an accelerator, at least. Each chunk adds to the head's fp32 gradient, 8 bytes for 6 FLOPs a
# token: on an H100 30 % of the time of the three products in chunks of 1,024 tokens, 240 % in chunks of 130.
ACCELERATOR_TOKENS = 1024


class LossOptions(NamedTuple):
    """`softcap` > 0 bounds logits by a tanh (Gemma 2). At most `chunk` tokens at a time; 0: `chunk_tokens`."""

    softcap: float = 0.0
    chunk: int = 0


UNBOUNDED = LossOptions()


def chunk_tokens(platform: str, d_model: int, vocab: int) -> int:
    """Tokens whose logits are held at once, by the platform of the program; `vocab`: rows on a device.

    A wide model's are a quarter of its width: logits and their gradient then take half as much as the head's gradient.
    """
    return max(8, CPU_LOGITS // vocab) if platform == "cpu" else max(ACCELERATOR_TOKENS, d_model // 4)


def _chunk_logits(x_TD: jax.Array, head_DV: jax.Array, form: Any) -> jax.Array:
    # precision/formats_in_jaxpr.py finds the logits by this name.
    return checkpoint_name(mixed_matmul(x_TD, head_DV, form), "logits")


def _chunk_sums(
    logits_TV: jax.Array, targets_T: jax.Array, z_weight: jax.Array, softcap: float, due: jax.Array | None = None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Any]]:
    logits_TV = softcap_logits(logits_TV, softcap)
    counts_T = targets_T >= 0
    log_z_T, correct_T = (_split_vocabulary if has_explicit_mesh() else _whole_vocabulary)(
        logits_TV, jnp.maximum(targets_T, 0)
    )
    nll = jnp.sum(jnp.where(counts_T, log_z_T - correct_T, 0.0))
    z = jnp.sum(jnp.where(counts_T, jnp.square(log_z_T), 0.0))
    measured = () if due is None else measure_head(due, logits_TV, log_z_T, correct_T, counts_T)
    return nll + z_weight * z, (nll, jnp.sum(counts_T, dtype=jnp.float32), measured)


def _whole_vocabulary(logits_TV: jax.Array, targets_T: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(logsumexp, logit of the target), each [T]."""
    return jax.nn.logsumexp(logits_TV, axis=-1), jnp.take_along_axis(logits_TV, targets_T[:, None], axis=-1)[:, 0]


def _split_vocabulary(logits_TV: jax.Array, targets_T: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Like `_whole_vocabulary`, with the vocabulary split over devices (Shoeybi et al. 2019, section 3)."""
    most_T = jax.lax.pmax(jax.lax.stop_gradient(logits_TV.max(axis=-1)), TENSOR_AXIS)
    log_z_T = most_T + jnp.log(jax.lax.psum(jnp.exp(logits_TV - most_T[:, None]).sum(axis=-1), TENSOR_AXIS))
    column_T = targets_T - jax.lax.axis_index(TENSOR_AXIS) * logits_TV.shape[1]
    is_here_T = (column_T >= 0) & (column_T < logits_TV.shape[1])
    correct_T = jnp.take_along_axis(logits_TV, jnp.where(is_here_T, column_T, 0)[:, None], axis=-1)[:, 0]
    return log_z_T, jax.lax.psum(jnp.where(is_here_T, correct_T, 0.0), TENSOR_AXIS)


def smooth_cross_entropy(
    x_BSD: jax.Array,
    head_DV: Weight,
    targets_BS: jax.Array,
    z_weight: jax.Array,
    options: LossOptions = UNBOUNDED,
    due: jax.Array | None = None,
) -> LossSums:
    """Summed loss in nats of next-token logits `x_BSD @ head_DV`; targets below zero are ignored.

    `z_weight` scales sum(logsumexp^2) (PaLM, section 5). jax can differentiate this any number of times,
    but then keeps all logits; `cross_entropy` computes the same sums for one derivative, and only its `objective`
    carries gradients. On a mesh each device computes its own sequences and part of the vocabulary. With `due` the
    sums' `measures` are `HeadMeasures`, taken where it is true.
    """
    head_DV, (softcap, chunk) = weight_values(head_DV), options
    split, axes = _split_axes(head_DV), token_axes()

    def device_sums(
        x_BSD: jax.Array, head_DV: jax.Array, targets_BS: jax.Array, z_weight: jax.Array, *due: jax.Array
    ) -> LossSums:
        head_DV = _gather(head_DV, split, x_BSD.dtype)

        def body(sums: LossSums, part: tuple[jax.Array, jax.Array]) -> tuple[LossSums, Any]:
            logits_TV = _chunk_logits(part[0], head_DV, x_BSD.dtype)
            objective, more = _chunk_sums(logits_TV, part[1], z_weight, softcap, *due)
            return _added(sums, objective, *more), token_losses(more[2])

        begin = _zero(x_BSD, head_DV, bool(due))
        sums, nll = jax.lax.scan(body, begin, _chunks(x_BSD, head_DV, targets_BS, chunk))
        sums = _sum_over_devices(sums, axes)
        return sums._replace(measures=with_token_losses(sums.measures, nll, targets_BS))

    more = () if due is None else (due,)
    specs = (*_argument_specs(x_BSD, head_DV), *[PartitionSpec() for _ in more])
    return per_device(device_sums, specs, _sums_specs(due))(x_BSD, head_DV, targets_BS, z_weight, *more)


def head_token_losses(
    x_BSD: jax.Array, head_DV: jax.Array, targets_BS: jax.Array, softcap: float = 0.0, chunk: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Each target's loss in nats [B, S] (0 where it is negative), and whether it was the likeliest. On one device."""

    def body(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, tuple[jax.Array, jax.Array]]:
        logits_TV = softcap_logits(mixed_matmul(part[0], head_DV, x_BSD.dtype), softcap)
        log_z_T, correct_T = _whole_vocabulary(logits_TV, jnp.maximum(part[1], 0))
        return None, (jnp.where(part[1] >= 0, log_z_T - correct_T, 0.0), logits_TV.argmax(axis=-1) == part[1])

    _, chunks = jax.lax.scan(body, None, _chunks(x_BSD, head_DV, targets_BS, chunk))
    nll_BS, best_BS = (values.ravel()[: targets_BS.size].reshape(targets_BS.shape) for values in chunks)
    return nll_BS, best_BS


def softcap_logits(logits_TV: jax.Array, softcap: float) -> jax.Array:
    """Bound logits to ±softcap by a tanh; 0 leaves them as they are."""
    return softcap * jnp.tanh(logits_TV / softcap) if softcap else logits_TV


def _argument_specs(x_BSD: jax.Array, head_DV: jax.Array) -> tuple[PartitionSpec, ...]:
    """How a mesh splits the arguments of `cross_entropy`: hidden states and head as they come."""
    return spec_of(x_BSD), spec_of(head_DV), activation_spec("batch", "context"), PartitionSpec()


def _split_axes(head_DV: jax.Array) -> tuple[str, ...]:
    """The mesh axes that split the head along D."""
    return mesh_axes(spec_of(head_DV).partitions[:1])


def _gather(head_DV: jax.Array, axes: tuple[str, ...], form: Any) -> jax.Array:
    """This device's part of the vocabulary, whole along D: sent in `form`, which is that of its products."""
    return jax.lax.all_gather(head_DV.astype(form), axes, tiled=True) if axes else head_DV


def _added(sums: LossSums, objective: jax.Array, nll: jax.Array, count: jax.Array, measured: Any) -> LossSums:
    measures = add_chunk(sums.measures, measured)
    return LossSums(sums.objective + objective, sums.nll + nll, sums.tokens + count, measures)


def _sums_specs(due: Any) -> Any:
    """How a mesh splits the sums: only single tokens' values are split."""
    whole: Any = PartitionSpec()
    return whole if due is None else LossSums(whole, whole, whole, measures_specs(), ())


def _sum_over_devices(sums: LossSums, axes: tuple[str, ...]) -> LossSums:
    """Sums of all devices."""
    if not has_explicit_mesh():
        return sums
    measured = sum_head_over_devices(sums.measures, axes) if sums.measures else ()
    return jax.tree.map(lambda x: jax.lax.psum(x, axes), sums._replace(measures=()))._replace(measures=measured)


def _zero(x: jax.Array, head: jax.Array, measured: bool) -> LossSums:
    zeros: LossSums = jax.tree.map(lambda zero: vary_like(zero, x), no_loss_sums())
    by_head, by_token = vary_like(jnp.zeros(()), x, head), vary_like(jnp.zeros(()), x)
    return zeros._replace(measures=zero_measures(by_head, by_token) if measured else ())


def _chunks(x_BSD: jax.Array, head_DV: jax.Array, targets_BS: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """Tokens in equal chunks of at most `chunk`, the last one padded with ignored positions: [n, c, D], [n, c]."""
    tokens, d_model = targets_BS.size, x_BSD.shape[-1]
    chunk = min(tokens, chunk or chunk_tokens(target_platform(), *head_DV.shape))
    n = -(-tokens // chunk)
    chunk = -(-tokens // n)  # as even as possible: padding is wasted work
    padding = n * chunk - tokens
    x = jnp.pad(x_BSD.reshape(tokens, d_model), ((0, padding), (0, 0))).reshape(n, chunk, d_model)
    return x, jnp.pad(targets_BS.reshape(tokens), (0, padding), constant_values=-1).reshape(n, chunk)


def _forward(x_BSD, head_DV, targets_BS, z_weight, options, due):
    weight, master, head_DV = head_DV, weight_master(head_DV), weight_values(head_DV)
    softcap, chunk = options
    gathered, split, postponed, axes = _split_axes(head_DV), _split_axes(master), spec_of(master).reduced, token_axes()
    rest = tuple(axis for axis in axes if axis not in {*split, *postponed})
    shared = tuple(spec_of(x_BSD).reduced)  # devices along these have parts of the gradient of x, added up elsewhere

    def device_gradients(x_BSD, head_DV, targets_BS, z_weight, *due):
        form = x_BSD.dtype
        whole_DV = vary_like(_gather(head_DV, gathered, form).astype(form), x_BSD)

        def body(carry, part):
            sums, head_grad = carry
            logits_TV = _chunk_logits(part[0], whole_DV, form)
            of_logits = jax.value_and_grad(_chunk_sums, has_aux=True)
            (objective, more), logits_grad = of_logits(logits_TV, part[1], z_weight, softcap, *due)
            x_grad, part_grad = matmul_gradients(vary_like(part[0], whole_DV), whole_DV, logits_grad, form)
            carry = _added(sums, objective, *more), head_grad + part_grad
            return carry, (x_grad.astype(grad_dtype if shared else jnp.float32), token_losses(more[2]))

        # Gradients of single tokens before the loss scale: fp16 would lose the smallest ones.
        grad_dtype = jnp.float32 if form == jnp.float16 else form
        zeros = vary_like(jnp.zeros(whole_DV.shape), x_BSD, whole_DV)
        (sums, head_grad), (x_grad, nll) = jax.lax.scan(
            body, (_zero(x_BSD, whole_DV, bool(due)), zeros), _chunks(x_BSD, whole_DV, targets_BS, chunk)
        )
        x_grad = x_grad.reshape(-1, x_BSD.shape[-1])[: targets_BS.size].reshape(x_BSD.shape)
        if has_explicit_mesh() and not shared:
            x_grad = jax.lax.psum(x_grad, TENSOR_AXIS).astype(grad_dtype)
        grads = as_partial_sums(x_grad, x_spec), as_partial_sums(_scatter(head_grad, split, rest), head_spec)
        sums = _sum_over_devices(sums, axes)
        return sums._replace(measures=with_token_losses(sums.measures, nll, targets_BS)), grads

    x_spec, head_spec = gradient_spec(x_BSD), gradient_spec(master)
    out = _sums_specs(due), (x_spec, head_spec)
    more = () if due is None else (due,)
    specs = (*_argument_specs(x_BSD, head_DV), *[PartitionSpec() for _ in more])
    sums, (x_grad, head_grad) = per_device(device_gradients, specs, out)(x_BSD, head_DV, targets_BS, z_weight, *more)
    return sums, (x_grad, gradient_like(weight, head_grad), jnp.zeros((), x_BSD.dtype))


def _scatter(head_grad: jax.Array, split: tuple[str, ...], rest: tuple[str, ...]) -> jax.Array:
    """The gradient of this device's part of the head: scattered along `split`, summed along `rest`."""
    if not has_explicit_mesh():
        return head_grad
    if split:
        head_grad = scatter_sum(head_grad, split, 0)
    return jax.lax.psum(head_grad, rest) if rest else head_grad


def _backward(options, residuals, cotangents):
    del options
    x_grad, head_grad, like_x = residuals
    scale = cotangents.objective
    head_grad = jax.tree.map(lambda grad: times_scalar(grad, scale), head_grad)
    return times_scalar(x_grad, scale).astype(like_x.dtype), head_grad, None, None, None


cross_entropy = jax.custom_vjp(smooth_cross_entropy, nondiff_argnums=(4,))
cross_entropy.defvjp(_forward, _backward)
