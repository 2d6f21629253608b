"""NVIDIA's fused attention, forward and backward apart, by the primitives that `jax.nn.dot_product_attention` binds.

They are bound here, as jax's function has no place for what a ring, packs of trials and absent devices need: a backward
from given sums; document offsets under vmap, where jax drops them, and for fewer key heads than heads, whose stride
jax 0.10.2 gets wrong; and a program for a device that is not there, which jax's check refuses.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

from scalelab.model.attention.blockwise import block_size, blockwise_backward, blockwise_forward, group_heads
from scalelab.model.attention.fused import packed
from scalelab.model.attention.fused.output import PartOutput
from scalelab.model.attention.fused.packed import Runs
from scalelab.model.attention.mask import MaskInfo, Scoring, attention_mask
from scalelab.sharding import vary_like

PRIMITIVES = ("_dot_product_attention_fwd_p", "_dot_product_attention_bwd_p")  # of jax 0.10.2 to 0.11.2
AMPERE, HOPPER = (8, 0), (9, 0)
MOST_OFFSET = 2**31 - 1  # of an element in memory: cuDNN's offsets are int32
HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}  # jax's: of less, cuDNN's differences are wrong


class Options(NamedTuple):
    """Static choices of a call. `window` in tokens, 0: none. `offsets`: documents are packed, else a mask of S x T."""

    scale: float
    causal: bool
    window: int = 0
    offsets: bool = True


def widest_head(capability: tuple[int, int]) -> int:
    """The largest d_head with a backward (cuDNN 9.18, "Attention", support matrix): 256 on Hopper, else 128."""
    return 256 if capability[0] == HOPPER[0] else 128


def obstacle(d_head: int, compute: jnp.dtype, capability: tuple[int, int], named: str = "d_head") -> str:
    """Why cuDNN's attention can't run on a GPU of this compute capability; "" where it can. `named`: that is d_head."""
    if not all(hasattr(jax_cudnn, name) for name in PRIMITIVES):
        return f"jax {jax.__version__} does not have the primitives that it is called by"
    if not any(capability):
        return "it runs on NVIDIA's GPUs alone"
    if capability < AMPERE:
        return f"it runs from compute capability 8.0 on (Ampere), not on {'.'.join(map(str, capability))}"
    widest = widest_head(capability)
    if not (compute.itemsize == 2 and d_head % 8 == 0 and d_head <= widest):
        where = f" on compute capability {'.'.join(map(str, capability))}"
        return (
            f"it takes bf16 or fp16 and {named} a multiple of 8 up to {widest}{where}, not {compute.name} and {d_head}"
        )
    return ""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def cudnn_attention(
    q_BSNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, segment_BS: jax.Array | None, options: Options
) -> jax.Array:
    """Causal attention [B, S, N, H], with `segment_BS` within documents."""
    return _forward(q_BSNH, k_BSKH, v_BSKH, segment_BS, options)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_BS: jax.Array | None, options: Options
) -> tuple[jax.Array, tuple]:
    documents = None if segment_BS is None else (segment_BS, segment_BS)
    y, log_z = forward(options)(q, k, v, documents)
    return y, (q, k, v, documents, log_z, y)


def _backward(options: Options, residuals: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, documents, log_z, y = residuals
    return (*backward(options)(q, k, v, documents, PartOutput(log_z, y, dy)), None)


cudnn_attention.defvjp(_forward, _backward)


@functools.cache
def forward(options: Options) -> Callable:
    """(q, k, v, documents) -> (y [B, S, N, H], log of the softmax's sum [B, N, S] in fp32).

    `documents`: numbers of the queries' and of the keys', [B, S] and [B, T], or None. Without `causal` all keys come
    before all queries.
    """
    return _fold_trials(functools.partial(_by_rows, _forward_rows, options=options))


@functools.cache
def backward(options: Options) -> Callable:
    """(q, k, v, documents, a `PartOutput`) -> (dq, dk, dv)."""
    return _fold_trials(functools.partial(_by_rows, _backward_rows, options=options))


def _fold_trials(function: Callable) -> Callable:
    """`function` whose vmap puts trials behind each other along the batch: its conditional stays one."""
    folding = jax.custom_batching.custom_vmap(function)

    @folding.def_vmap
    def rule(trials: int, batched: Any, *arrays: Any) -> tuple[Any, Any]:
        def fold(x: jax.Array, is_batched: bool) -> jax.Array:
            x = x if is_batched else jnp.broadcast_to(x[None], (trials, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        folded = folding(*jax.tree.map(fold, arrays, tuple(batched)))
        unfolded = jax.tree.map(lambda x: x.reshape(trials, -1, *x.shape[1:]), folded)
        return unfolded, jax.tree.map(lambda _: True, unfolded)

    return folding


def _by_rows(function: Callable, q: jax.Array, k: jax.Array, *others: Any, options: Options) -> Any:
    """`function` of as many rows at once as offsets reach."""
    rows = q.shape[0]
    has_offsets = options.offsets and others[1] is not None
    most = max(1, MOST_OFFSET // max(x.size // rows for x in (q, k))) if has_offsets else rows
    parts = [
        function(*jax.tree.map(lambda x, at=at: x[at : at + most], (q, k, *others)), options)
        for at in range(0, rows, most)
    ]
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _forward_rows(q: jax.Array, k: jax.Array, v: jax.Array, documents: Any, options: Options) -> Any:
    if documents is None or not options.offsets:
        return call_forward(q, k, v, _hidden_pairs(q, documents), options)

    def in_runs(runs: Runs) -> tuple[jax.Array, jax.Array]:
        y, log_z = call_forward(q, k, v, runs, options)
        log_z = packed.sums_by_row(log_z, runs)
        return _where(runs.q_covered, y), vary_like(log_z, y)

    def in_blocks() -> tuple[jax.Array, jax.Array]:
        scoring = Scoring(options.scale, MaskInfo(documents[0]), options.window)
        y, residuals = blockwise_forward(q, k, v, scoring, block_size())
        batch, length, heads, _ = q.shape
        return y, residuals[-1].reshape(batch, heads, -1)[..., :length]

    return _if_few_documents(documents, options, in_runs, in_blocks)


def _backward_rows(
    q: jax.Array, k: jax.Array, v: jax.Array, documents: Any, output: PartOutput, options: Options
) -> Any:
    if documents is None or not options.offsets:
        return call_backward(q, k, v, _hidden_pairs(q, documents), output, options)

    def in_runs(runs: Runs) -> tuple[jax.Array, ...]:
        by_run = output._replace(log_z=packed.sums_by_run(output.log_z, runs))
        dq, dk, dv = call_backward(q, k, v, runs, by_run, options)
        return _where(runs.q_covered, dq), _where(runs.k_covered, dk), _where(runs.k_covered, dv)

    def in_blocks() -> tuple[jax.Array, ...]:
        batch, length, heads = q.shape[0], q.shape[1], k.shape[2]
        filled = jnp.pad(output.log_z, ((0, 0), (0, 0), (0, -length % min(block_size(), length))))
        grouped = group_heads(output.y, heads).astype(jnp.float32), filled.reshape(batch, heads, -1, filled.shape[-1])
        scoring = Scoring(options.scale, MaskInfo(documents[0]), options.window)
        return blockwise_backward(block_size(), (q, k, v, scoring, *grouped), output.dy)[:3]

    return _if_few_documents(documents, options, in_runs, in_blocks)


def _if_few_documents(documents: Any, options: Options, in_runs: Callable, in_blocks: Callable) -> Any:
    """By cuDNN's offsets where rows have no more documents than these hold, else in blocks."""
    if not options.causal:
        return in_runs(packed.shared_runs(*documents))
    runs, number = packed.document_runs(documents[0])
    if not packed.may_exceed(*documents[0].shape):
        return in_runs(runs)
    return jax.lax.cond(number <= runs.q_length.shape[0], lambda: in_runs(runs), in_blocks)


def _where(covered: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x` with zeros where cuDNN has written nothing."""
    return x if covered is None else jnp.where(covered[..., None, None], x, 0).astype(x.dtype)


def _hidden_pairs(q: jax.Array, documents: Any) -> jax.Array | None:
    """What is added to logits [B, 1, S, T] to keep documents apart, without offsets for them."""
    if documents is None:
        return None
    index = jnp.arange(q.shape[1])
    mask = attention_mask(index, index, 0, None, *documents)
    return jnp.where(mask, 0.0, HIDDEN[q.dtype.name]).astype(q.dtype)[:, None]


def call_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, documents: jax.Array | Runs | None, options: Options
) -> tuple[jax.Array, jax.Array]:
    """(y, log of the softmax's sum: [B, N, S], or by run [R, N, S]); both undefined for queries of no run.

    `documents`: runs, or what is added to logits.
    """
    inputs, params = _call_arguments(q, k, v, documents, options)
    y, log_z = jax_cudnn._dot_product_attention_fwd_p.bind(*inputs, **params, is_training=True)
    return y, log_z


def call_backward(
    q: jax.Array, k: jax.Array, v: jax.Array, documents: jax.Array | Runs | None, output: PartOutput, options: Options
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(dq, dk, dv), undefined for tokens of no run; `output.log_z` as `call_forward` returns it."""
    inputs, params = _call_arguments(q, k, v, documents, options)
    dq, dk, dv = jax_cudnn._dot_product_attention_bwd_p.bind(*inputs, *output, **params)
    return dq, dk, dv


def _call_arguments(
    q: jax.Array, k: jax.Array, v: jax.Array, documents: jax.Array | Runs | None, options: Options
) -> tuple[tuple, dict[str, Any]]:
    """(arrays, parameters) of jax's primitives."""
    bias, runs = (None, documents) if isinstance(documents, Runs) else (documents, None)
    unused = jnp.zeros(0, q.dtype)
    lengths_and_offsets = (unused,) * 4 if runs is None else memory_runs(runs, q.shape, k.shape)
    kinds = jax_cudnn.MaskType
    params = {
        "scale": options.scale, "seed": 42, "dropout_rate": 0.0, "variadic_args": (bias is not None, False),
        "mask_type": {
            (True, False): kinds.CAUSAL, (True, True): kinds.PADDING_CAUSAL,
            (False, False): kinds.NO_MASK, (False, True): kinds.PADDING,
        }[options.causal, runs is not None],
        "layout": jax_cudnn.AttentionLayout.BTNH.value, "sliding_window_length": options.window or None,
    }  # fmt: skip
    return (q, k, v, unused if bias is None else bias, *lengths_and_offsets, unused, unused), params


def memory_runs(runs: Runs, q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """(lengths of queries, of keys [B, M], offsets of queries, of keys [B, M + 1]) as cuDNN reads them.

    It reads R lengths and R + 1 offsets, in elements; the rest fills up jax's shape.
    """
    rows = q_shape[0]
    fill = runs.q_start.shape[0] + rows

    def offsets(start: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        batch, length, heads, width = shape
        padded = jnp.full(fill, batch * length, jnp.int32).at[: start.shape[0]].set(start)
        return (padded * (heads * width)).reshape(rows, -1)

    lengths = (x.reshape(rows, -1) for x in (runs.q_length, runs.k_length))
    return (*lengths, offsets(runs.q_start, q_shape), offsets(runs.k_start, k_shape))
