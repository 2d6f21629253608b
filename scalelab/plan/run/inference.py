"""What serving a model takes, beside what training it takes: weights, the cache of keys and values, activations; a device's share.

Of an engine that holds each layer's cache no longer than its window, in place, and attends without holding all logits. Our own
`model/decode.py` is for sampling from a run: it holds whole sequences in every layer, and both the old and the new cache.
"""

import dataclasses
import functools
import math

import jax

from scalelab.config import Layout, ModelShape, Static
from scalelab.errors import BadInput, nearest_hint
from scalelab.model import decode, transformer
from scalelab.model.layer_flags import count_local_layers
from scalelab.parallel import rules
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import device_bytes
from scalelab.precision.policy import POLICIES, array_dtype

# Bytes a number. Scales of quantised formats are not counted: 3 % of int4's in groups of 64.
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclasses.dataclass(frozen=True)
class Inference:
    """Bytes of one of `tensor` devices. `components`: weights, kv_cache and activations, which sum to `total`."""

    batch: int  # sequences served at once
    context: int  # tokens of each, at their longest
    components: dict[str, int]
    total: int
    capacity: int
    fits: bool
    margin_bytes: int
    # What one more token adds to its sequence's cache while it is in every window, all devices together.
    kv_bytes_per_token: int
    decode_bytes: int  # activations of a step that adds a token to each sequence
    prefill_bytes: int  # of reading one sequence of `context` tokens; activations are the larger of the two
    most_sequences: int  # of that length that the device has room for; 0: not one
    own_cache_bytes: int  # of the cache of `model/decode.py`, on one device, in the config's precision
    notes: tuple[str, ...]


def inference_memory(
    static: Static, machine: Machine, batch: int = 1, context: int = 0, weights: str = "bfloat16",
    cache: str = "bfloat16", tensor: int = 1,
) -> Inference:  # fmt: skip
    """Memory of serving a resolved config's model to `batch` sequences of up to `context` tokens (0: model.seq_len).

    Weights and cache are kept in formats of their own (`BYTES`); `tensor` devices split heads, feed-forward units and
    vocabulary, and each has a key head at least. BadInput for a format or a size that isn't one.
    """
    shape, context = static.model, context or static.model.seq_len
    for name, value in (("batch", batch), ("context", context), ("tensor", tensor)):
        if value < 1:
            raise BadInput(f"inference: {name}={value} is not a count; at least 1")
    split = Layout(tensor=tensor)
    each = _token_bytes(shape, cache, split)
    held = each * (shape.n_layers - count_local_layers(shape)) * context + each * count_local_layers(shape) * min(
        context, shape.window
    )
    decoded = _peak_activation_bytes(shape, batch, batch, static.precision, split)
    prefilled = _peak_activation_bytes(shape, context, 1, static.precision, split)
    components = {
        "weights": math.ceil(_parameters_per_device(shape, split) * _bytes_per_number(weights)),
        "kv_cache": math.ceil(batch * held),
        "activations": max(decoded, prefilled),
    }
    total, capacity = sum(components.values()), machine.chip.hbm_bytes
    room = capacity - components["weights"] - components["activations"]
    return Inference(
        batch, context, components, total, capacity, total <= capacity, capacity - total,
        kv_bytes_per_token=math.ceil(_token_bytes(shape, cache, Layout()) * shape.n_layers),
        decode_bytes=decoded,
        prefill_bytes=prefilled,
        most_sequences=max(0, int(room // held)),
        own_cache_bytes=decode_cache_bytes(static, batch, context),
        notes=_notes(shape, context, tensor),
    )  # fmt: skip


def decode_cache_bytes(static: Static, batch: int, context: int) -> int:
    """Of the cache that `model/decode.py` makes, by its own shapes; nothing is allocated."""
    shape = dataclasses.replace(static.model, seq_len=max(static.model.seq_len, context))
    empty = functools.partial(decode.empty_cache, shape, batch, context, POLICIES[static.precision])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(empty)))


def _bytes_per_number(form: str) -> float:
    if form not in BYTES:
        raise BadInput(f"inference: no format {form!r}{nearest_hint(form, BYTES)}")
    return BYTES[form]


def _token_bytes(shape: ModelShape, cache: str, split: Layout) -> float:
    """Keys and values of a token in one layer, on a device."""
    return 2 * math.ceil(shape.n_kv_heads / split.tensor) * shape.d_head * _bytes_per_number(cache)


def _parameters_per_device(shape: ModelShape, split: Layout) -> int:
    """Parameters on a device: what `tensor` splits, and all of the rest."""
    declared = jax.tree.leaves(transformer.parameter_declarations(shape))
    return sum(device_bytes(d.shape, "int8", rules.parameter_spec(d, False, False), split) for d in declared)


def _peak_activation_bytes(shape: ModelShape, tokens: int, sequences: int, precision: str, split: Layout) -> int:
    """The most that `tokens` at once hold, of `sequences` that want their next token's logits, in fp32.

    The residual stream and its norm, and the largest of: queries, keys, values and what attention gives; the units of the
    feed-forward layer and what they are multiplied to; the logits. XLA's buffers on CPU are these to a tenth.
    """
    keys, heads = math.ceil(shape.n_kv_heads / split.tensor), math.ceil(shape.n_heads / split.tensor)
    attention = 2 * (heads + keys) * shape.d_head
    units = (3 if shape.mlp == "swiglu" else 2) * math.ceil(shape.d_ff / split.tensor)
    logits = 4 * sequences * math.ceil(shape.vocab_size / split.tensor)
    wide, stream = (
        array_dtype(format).itemsize for format in (POLICIES[precision].compute, POLICIES[precision].residual)
    )
    return tokens * shape.d_model * (stream + wide) + max(tokens * max(attention, units) * wide, logits)


def _notes(shape: ModelShape, context: int, tensor: int) -> tuple[str, ...]:
    said = []
    if context > shape.seq_len:
        said += [f"trained on sequences of {shape.seq_len:,} tokens, served with {context:,}"]
        said += ["learned positions end there"] if shape.position == "learned" else []
    if count_local_layers(shape) and context > shape.window:
        said += [
            f"{count_local_layers(shape)} of {shape.n_layers} layers hold their window of {shape.window:,} tokens only"
        ]
    if shape.n_kv_heads % tensor:
        said += [f"{shape.n_kv_heads} key heads over {tensor} devices: some hold a head that others hold as well"]
    return tuple(said)
