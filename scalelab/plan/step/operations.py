"""What one device computes in a step: its operations, each with FLOPs, bytes of memory it reads and writes, and the unit it runs on.

Every product counts what it reads and writes once (tiles fit on the chip); what is elementwise is fused into passes over
memory as XLA and hand-written kernels fuse it, and costs bytes only.

Symbols: T tokens of a micro-batch on the device, a bytes of an activation, K inputs and N outputs of a product.
"""

import dataclasses
import math

from scalelab.config import Layout, ModelShape, Static
from scalelab.model.attention.kernels import step_kernel
from scalelab.model.layer_flags import count_local_layers
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step import update
from scalelab.plan.step.device_share import fullest_device_share
from scalelab.plan.step.efficiency import machine_platform
from scalelab.plan.step.operation import Operation
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.plan.step.traffic import recompute_policy
from scalelab.precision.policy import POLICIES, Policy, array_dtype

FUSED = ("cudnn", "splash")  # kinds of attention whose logits never leave the chip
SPARING = (*FUSED, "blockwise")  # kinds that leave out blocks of logits that are hidden whole


def step_operations(static: Static, machine: Machine, habits: SystemTraits = OUR_TRAITS) -> tuple[Operation, ...]:
    """All of a step on the device that has most."""
    of = fullest_device_share(static)
    block = [
        *_block_products(static, habits),
        *_attention_operations(static, machine, habits),
        *_elementwise_operations(static, habits),
    ]
    runs = of.layers * of.microbatches
    found = [dataclasses.replace(op, times=op.times * runs) for op in block]
    return (*found, *_head_operations(static, habits), *update.update_operations(static))


def attention_kind(static: Static, machine: Machine) -> str:
    """How attention is computed there, as the trainer would choose; a sequence that is split goes round a ring of blocks."""
    how = step_kernel(static, machine_platform(machine))
    return "blockwise" if how == "ring" else how


def block_matrices(shape: ModelShape, layout: Layout) -> dict[str, tuple[float, float]]:
    """(inputs, outputs) of a block's products on one device."""
    d, q = shape.d_model, shape.n_heads * shape.d_head / layout.tensor
    kv, f = max(1.0, shape.n_kv_heads / layout.tensor) * shape.d_head, shape.d_ff / layout.tensor
    ups = {"up": (d, f)} | ({"gate": (d, f)} if shape.mlp == "swiglu" else {})
    return {"q": (d, q), "k": (d, kv), "v": (d, kv), "o": (q, d), **ups, "down": (f, d)}


def _block_products(static: Static, habits: SystemTraits) -> list[Operation]:
    """A block's products: forward, the same again where recomputed, and two backward, of inputs and of weights."""
    policy, tokens, again = (
        POLICIES[static.precision],
        fullest_device_share(static).tokens,
        recompute_policy(static, habits),
    )
    unit, operand, a = policy.unit, array_dtype(policy.forward).itemsize, array_dtype(policy.compute).itemsize
    found = []
    for name, (k, n) in block_matrices(static.model, static.layout).items():
        flops, passes = 2.0 * tokens * k * n, 1 + (again == "full" and name not in unneeded_products(static.model))
        moved = operand * (tokens * k + k * n) + a * tokens * n
        found.append(Operation(name, "block", unit, flops, moved, passes))
        found.append(Operation(f"d{name}, inputs", "block", unit, flops, moved, 1))
        # Added to the sum over micro-batches: read, and written again.
        kept = 4.0 * k * n * (3 if fullest_device_share(static).microbatches > 1 else 1)
        found.append(Operation(f"d{name}, weights", "block", unit, flops, operand * tokens * (k + n) + kept, 1))
        found.append(_rounding_operations(static, policy, habits, name, k, n, passes))
    if static.model.position == "relative":
        found += _distance_operations(static, policy, again)
    return found


def unneeded_products(shape: ModelShape) -> tuple[str, ...]:
    """Products that a block's backward needs no result of: what they give is only added to the residual stream."""
    if shape.norm_place == "after":
        return ()
    return ("o", "down") if shape.block == "parallel" else ("down",)


def _rounding_operations(
    static: Static, policy: Policy, habits: SystemTraits, name: str, k: float, n: float, passes: float
) -> Operation:
    """Operands on their way to what they are multiplied in: weights anew for each use, fp8 activations as well."""
    layout, tokens = static.layout, fullest_device_share(static).tokens
    operand, a = array_dtype(policy.forward).itemsize, array_dtype(policy.compute).itemsize
    uses = passes + 1
    cast = (4 + operand) * k * n / (layout.fsdp if layout.zero >= 3 else 1) if habits.casts and operand < 4 else 0.0
    gathered = operand * k * n if layout.zero >= 3 and layout.fsdp > 1 else 0.0
    scaled = (2 * a + operand) * tokens * (passes * k + n) if policy.scaling else 0.0  # once for amax, once to round
    return Operation(f"{name}, rounding", "block", "", 0.0, uses * (cast + gathered) + scaled, 1)


def _distance_operations(static: Static, policy: Policy, again: str) -> list[Operation]:
    """Transformer-XL's: every query with every distance, forward and two backward, and the projection of distances."""
    shape, of = static.model, fullest_device_share(static)
    width, seen = of.heads * shape.d_head, shape.seq_len
    logits = Operation("distances", "block", policy.compute, 2.0 * of.tokens * seen * width, 0.0, 3 + (again != "none"))
    projected = 2.0 * seen * shape.d_model * width  # of constants: one backward; once a micro-batch
    return [logits, Operation("r", "block", policy.unit, projected, 0.0, 2 + (again == "full"))]


def keys_per_query(static: Static, machine: Machine, habits: SystemTraits) -> float:
    """Keys that a query's logits are computed for, the mean over layers: half of all where blocks that are hidden are left out."""
    shape, context = static.model, static.layout.context
    length = shape.seq_len
    if attention_kind(static, machine) not in SPARING:
        return float(length)
    if context > 1 and not habits.balanced_ring:
        return length - length / context / 2  # the last device's: all, less half of its own block
    window = min(shape.window, length) if shape.window else length
    near, far = window - window * (window - 1) / (2 * length), (length + 1) / 2
    local = count_local_layers(shape) / shape.n_layers
    return local * near + (1 - local) * far


def _attention_operations(static: Static, machine: Machine, habits: SystemTraits) -> list[Operation]:
    """Logits and values: two products forward; backward four, and five where logits are computed again from what was kept."""
    shape, of, policy = static.model, fullest_device_share(static), POLICIES[static.precision]
    again, kind = recompute_policy(static, habits), attention_kind(static, machine)
    fused = kind in FUSED or (habits.fused_ring and static.layout.context > 1)
    a, width, keys = array_dtype(policy.compute).itemsize, of.heads * shape.d_head, of.key_heads * shape.d_head
    seen = keys_per_query(static, machine, habits)
    flops = 4.0 * of.tokens * seen * width
    passes, backward = 1 + (again != "none"), 2.5 if kind in SPARING else 2.0
    held = a * of.tokens * (2 * width + 2 * keys)
    ops = [
        Operation("attention", "block", policy.compute, flops, held, passes),
        Operation("attention, backward", "block", policy.compute, backward * flops, 2 * held, 1),
    ]
    if not fused and machine_platform(machine) != "cpu":  # whose caches hold the blocks
        # fp32 from the product, read and written again by the softmax, read by the next product; backward as much.
        logits = of.tokens * of.heads * seen * (8 + 2 * a)
        ops.append(Operation("softmax", "block", "", 0.0, logits, passes + 1))
    return ops


def _elementwise_operations(static: Static, habits: SystemTraits) -> list[Operation]:
    """Norms with residual sums, rotations and the activation, in passes over memory; backward what derivatives read besides."""
    shape, layout, of, policy = static.model, static.layout, fullest_device_share(static), POLICIES[static.precision]
    a, r, again = (
        array_dtype(policy.compute).itemsize,
        array_dtype(policy.residual).itemsize,
        recompute_policy(static, habits),
    )
    streams = of.tokens * shape.d_model / (layout.tensor if shape.sequence_parallel else 1)
    turned = of.tokens * (of.heads + of.key_heads) * shape.d_head if shape.position == "rope" else 0.0
    inner, gated = of.tokens * shape.d_ff / layout.tensor, shape.mlp == "swiglu"
    # A sum with its norm reads two streams and writes two, twice a block; backward it reads three and writes two. Half of
    # them are the residual stream, half what layers take and give.
    forward = a * (4 * streams + 2 * turned + (3 if gated else 2) * inner) + r * 4 * streams
    backward = a * (5 * streams + 2 * turned + (5 if gated else 3) * inner) + r * 5 * streams
    passes = 1 + (again != "none")
    return [
        Operation("norms, rotations, activation", "block", "", 0.0, forward, passes),
        Operation("their backward", "block", "", 0.0, backward, 1),
    ]


def _head_operations(static: Static, habits: SystemTraits) -> list[Operation]:
    """The head's three products, with its loss, as many tokens at a time as logits are held; embedding's rows."""
    shape, of, policy = static.model, fullest_device_share(static), POLICIES[static.precision]
    vocab, a = shape.vocab_size / static.layout.tensor, array_dtype(policy.compute).itemsize
    chunk = min(of.tokens, habits.logits_at_once / vocab) if habits.logits_at_once else of.tokens
    chunks = math.ceil(of.tokens / max(chunk, 8))
    table = shape.d_model * vocab
    flops, logits = 2.0 * of.tokens * table, 4.0 * of.tokens * vocab
    # Each chunk reads the table twice (fp32 where it is rounded on the way) and adds to its fp32 gradient.
    weights = chunks * table * (2 * (4 if habits.casts else a))
    gradient = chunks * table * 12
    rows = of.tokens * shape.d_model * (4 + 4 + a) + 4 * table
    return [
        Operation("head", "head", policy.compute, flops, logits + weights / 2, of.microbatches),
        Operation("dhead, inputs", "head", policy.compute, flops, logits + weights / 2, of.microbatches),
        Operation("dhead, weights", "head", policy.compute, flops, logits + gradient, of.microbatches),
        Operation("softmax of the loss", "head", "", 0.0, 2 * logits, of.microbatches),
        Operation("embedding", "head", "", 0.0, 2 * rows, of.microbatches),
    ]
