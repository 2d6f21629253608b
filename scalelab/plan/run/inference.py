"""Memory of serving a model on one device: weights, the cache of keys and values, activations.

The engine is assumed to keep each layer's cache in place, no longer than its window, and to attend without holding all
logits. Our `model/decode.py` is for samples from a run: it holds whole sequences in every layer, and the old cache
beside the new one.
"""

import dataclasses
import functools
import math

import jax

from scalelab.config import Layout, ModelShape, Static
from scalelab.errors import BadInput, nearest_hint
from scalelab.model import decode, transformer
from scalelab.model.stacks import count_local_layers, kinds
from scalelab.parallel import rules
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.held import device_bytes
from scalelab.plan.step.block_products import block_products
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import SPLIT_BY_TENSOR

# Bytes a number. Scales of quantised formats are left out: 3 % of int4's in groups of 64.
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
    kv_bytes_per_token: int  # a token's share of the cache over all devices, while it is in every window
    decode_bytes: int  # activations of a step that adds a token to each sequence
    prefill_bytes: int  # activations of reading one sequence of `context` tokens; the larger of the two counts
    most_sequences: int  # sequences of that length that fit on the device; 0: not one
    own_cache_bytes: int  # cache of `model/decode.py` on one device, in the config's precision
    notes: tuple[str, ...]


def inference_memory(
    static: Static,
    machine: Machine,
    batch: int = 1,
    context: int = 0,
    weights: str = "bfloat16",
    cache: str = "bfloat16",
    tensor: int = 1,
) -> Inference:
    """Memory of serving a resolved config's model to `batch` sequences of up to `context` tokens (0: model.seq_len).

    Weights and cache have their own formats (`BYTES`). `tensor` devices split heads, feed-forward units and vocabulary;
    each has at least one key head. BadInput for an unknown format or a size below 1.
    """
    shape, context = static.model, context or static.model.seq_len
    for name, value in (("batch", batch), ("context", context), ("tensor", tensor)):
        if value < 1:
            raise BadInput(f"inference: {name}={value} is not a count; at least 1")
    split = Layout(tensor=tensor)
    token_bytes, n_local = _token_bytes(shape, cache, split), count_local_layers(shape)
    sequence_bytes = token_bytes * ((shape.n_layers - n_local) * context + n_local * min(context, shape.window))
    decoded = _peak_activation_bytes(shape, batch, batch, static.precision, split)
    prefilled = _peak_activation_bytes(shape, context, 1, static.precision, split)
    components = {
        "weights": math.ceil(_parameters_per_device(shape, split) * _bytes_per_number(weights)),
        "kv_cache": math.ceil(batch * sequence_bytes),
        "activations": max(decoded, prefilled),
    }
    total, capacity = sum(components.values()), machine.chip.hbm_bytes
    room = capacity - components["weights"] - components["activations"]
    return Inference(
        batch,
        context,
        components,
        total,
        capacity,
        total <= capacity,
        capacity - total,
        kv_bytes_per_token=math.ceil(_token_bytes(shape, cache, Layout()) * shape.n_layers),
        decode_bytes=decoded,
        prefill_bytes=prefilled,
        most_sequences=max(0, int(room // sequence_bytes)),
        own_cache_bytes=decode_cache_bytes(static, batch, context),
        notes=_notes(shape, context, tensor),
    )


def decode_cache_bytes(static: Static, batch: int, context: int) -> int:
    """Bytes of the cache of `model/decode.py`, by its shapes; nothing is allocated."""
    shape = dataclasses.replace(static.model, seq_len=max(static.model.seq_len, context))
    empty = functools.partial(decode.empty_cache, shape, batch, context, POLICIES[static.precision])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(empty)))


def _bytes_per_number(form: str) -> float:
    if form not in BYTES:
        raise BadInput(f"inference: no format {form!r}{nearest_hint(form, BYTES)}")
    return BYTES[form]


def _token_bytes(shape: ModelShape, cache: str, split: Layout) -> float:
    """Bytes of a token's keys and values in one layer on a device, as `model/decode.py` declares them."""
    token = jax.eval_shape(functools.partial(decode.empty_cache, shape, 1, 1)).keys
    numbers = sum(math.ceil(array.shape[3] / split.tensor) * array.shape[4] for array in token.values())
    return numbers * _bytes_per_number(cache)


def _parameters_per_device(shape: ModelShape, split: Layout) -> int:
    """Parameters on a device: its part of those that `tensor` splits, and all others."""
    declared = jax.tree.leaves(transformer.parameter_declarations(shape))
    return sum(device_bytes(d.shape, "int8", rules.parameter_spec(d, False, False), split) for d in declared)


def _peak_activation_bytes(shape: ModelShape, tokens: int, sequences: int, precision: str, split: Layout) -> int:
    """Peak bytes of running `tokens` at once, for `sequences` that each need the next token's logits (fp32).

    The residual stream and its norm, plus the larger of a branch's products (with the input of its last one) and the
    logits. XLA's buffers on CPU agree within a tenth.
    """
    branch = max(_branch_entries(shape, split))
    logits = 4 * sequences * math.ceil(shape.vocab_size / split.tensor)
    wide, stream = (
        array_dtype(format).itemsize for format in (POLICIES[precision].compute, POLICIES[precision].residual)
    )
    return tokens * shape.d_model * (stream + wide) + max(tokens * branch * wide, logits)


def _branch_entries(shape: ModelShape, split: Layout) -> list[int]:
    """For each product into the residual stream: entries a token of its input and of the products behind it."""

    def entries(axes: tuple[tuple[str, int], ...]) -> int:
        sizes = [math.ceil(size / split.tensor) if axis in SPLIT_BY_TENSOR else size for axis, size in axes]
        return math.prod(sizes)

    blocks = [{p.name: p for p in block_products(kind) if not p.of_constant} for kind in kinds(shape)]
    return [
        entries(last.ins) + sum(entries(products[name].outs) for name in last.upstream if name in products)
        for products in blocks
        for last in products.values()
        if last.into_stream
    ]


def _notes(shape: ModelShape, context: int, tensor: int) -> tuple[str, ...]:
    notes = []
    if context > shape.seq_len:
        notes += [f"trained on sequences of {shape.seq_len:,} tokens, served with {context:,}"]
        notes += ["learned positions end there"] if shape.position == "learned" else []
    if count_local_layers(shape) and context > shape.window:
        notes += [
            f"{count_local_layers(shape)} of {shape.n_layers} layers hold their window of {shape.window:,} tokens only"
        ]
    if shape.d_kv_latent and tensor > 1:
        notes += [f"each of {tensor} devices holds the whole cache, as latents have no heads to split"]
    elif shape.n_kv_heads % tensor:
        notes += [f"{shape.n_kv_heads} key heads over {tensor} devices: some hold a head that others hold as well"]
    return tuple(notes)
