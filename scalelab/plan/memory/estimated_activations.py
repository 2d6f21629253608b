"""Activations that a step keeps for its backward, estimated: nothing is traced but a block.

For who compares many layouts; `saved_activations.py` counts them.
"""

import math
from collections.abc import Callable

from scalelab.config import Static, with_fields
from scalelab.config.choices import pick
from scalelab.model.stacks import kinds
from scalelab.plan.memory.saved_activations import SavedActivations, count_block_activations
from scalelab.plan.step import expert_rows
from scalelab.plan.step.block_products import Product, block_products
from scalelab.plan.step.device_share import sequences_per_device
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import target_platform

CountBlock = Callable[[Static, bool], SavedActivations]  # of a model of one kind of block; whether it is recomputed


def estimate_saved_activations(static: Static) -> SavedActivations:
    """`saved_activations.count_saved_activations` within some 15 %: nothing is traced but a block.

    Layers under `full` keep the stream, under `dots` besides the outputs of all their products but the last, in the
    format of activations, under `none` what a block keeps; besides what lies outside, and the head's gradient.
    """
    return _sum_layers(static, count_block_activations)


def least_saved_activations(static: Static) -> SavedActivations:
    """`estimate_saved_activations` without what only a trace of a block can tell."""
    return _sum_layers(static, least_block_activations)


def least_block_activations(static: Static, recomputed: bool = False) -> SavedActivations:
    """`saved_activations.count_block_activations` without its trace: what is sent between experts' devices."""
    return SavedActivations(expert_rows.buffered_bytes(static, recomputed), 0)


def _sum_layers(static: Static, count_block: CountBlock) -> SavedActivations:
    """What all layers keep, each kind's with what `count_block` says, and what lies outside."""
    shape = static.model
    each_kind = kinds(shape).items()
    grown = sum(depth * _estimate_layer(with_fields(static, model=kind), count_block) for kind, depth in each_kind)
    return SavedActivations(
        grown + bytes_outside_blocks(static), 4 * shape.d_model * shape.vocab_size // static.layout.tensor
    )


def _estimate_layer(static: Static, count_block: CountBlock) -> int:
    """Bytes that a layer of a model of one kind keeps of a sequence."""
    layout, shape, policy = static.layout, static.model, POLICIES[static.precision]
    width, each = array_dtype(policy.residual).itemsize, array_dtype(policy.compute).itemsize
    tokens, tensor = math.ceil(shape.seq_len / layout.context), layout.tensor
    stream = tokens * shape.d_model // (tensor if shape.sequence_parallel else 1)
    products = [product for product in block_products(shape) if not product.of_constant]
    routed, products = [p for p in products if p.experts], [p for p in products if not p.experts]
    wide = sum(math.prod(size for _, size in p.outs) for p in products if not p.into_stream)
    added = sum(p.into_stream for p in products) - (not routed)  # results in the stream, without the last
    layer = {"full": width * stream, "dots": (width + each * added) * stream + each * tokens * wide // tensor}
    if routed:
        layer["full"] += _exchanged_bytes(static)
        layer["dots"] += _exchanged_bytes(static) + _routed_bytes(static, routed)
    if shape.remat == "none":
        # A block's own count leaves out its input, an argument, which its norm keeps, or else a product.
        keeps_input = shape.norm_place != "after" or width == each
        layer["none"] = count_block(static, False).row_bytes + keeps_input * width * stream
    each_layer: int = pick(layer, "model.remat", shape.remat, "estimate of memory")
    return each_layer


def _exchanged_bytes(static: Static) -> int:
    """Bytes of a sequence that come from other devices, or would, for a layer's experts: every remat keeps them.

    Rows with their experts' numbers and weights (model/experts/exchange.py); of what goes back no backward reads any.
    """
    if static.layout.devices == 1:
        return 0
    return math.ceil(expert_rows.sent_rows(static) * sum(expert_rows.row_bytes(static)) / sequences_per_device(static))


def _routed_bytes(static: Static, routed: list[Product]) -> int:
    """Bytes of a sequence of the results of experts' first products, in all rows that there is room for."""
    each, rows = array_dtype(POLICIES[static.precision].compute).itemsize, sequences_per_device(static)
    width = sum(p.device_size(static.layout)[1] for p in routed if p.from_stream)
    return math.ceil(each * width * expert_rows.held_rows(static, target_platform()) / rows)


def bytes_outside_blocks(static: Static) -> int:
    """Bytes a sequence keeps outside the blocks: the look-up's mask and rows, the final norm's input and output."""
    layout, shape, policy = static.layout, static.model, POLICIES[static.precision]
    width = array_dtype(policy.compute).itemsize + array_dtype(policy.residual).itemsize
    tokens = math.ceil(shape.seq_len / layout.context)
    stream = tokens * shape.d_model // (layout.tensor if shape.sequence_parallel else 1)
    return 5 * tokens * shape.d_model + width * stream
