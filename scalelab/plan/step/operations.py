"""The operations of one device in a step, each with FLOPs, bytes of memory read and written, and the unit it runs on.

Every product counts what it reads and writes once (tiles fit on the chip); elementwise work is fused into passes over
memory, as XLA and hand-written kernels do, and costs bytes only.

Symbols: T tokens of a micro-batch on the device, a bytes of an activation, K inputs and N outputs of a product.
"""

import math

from scalelab.config import ModelShape, Static, with_fields
from scalelab.hardware.chips import compute_capability
from scalelab.model.attention.kernels import FUSED, TPU_LANES, kernel_widths, step_kernel
from scalelab.model.stacks import count_local_layers
from scalelab.model.sums.cross_entropy import chunk_tokens
from scalelab.parallel import gathered
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step import expert_rows, update
from scalelab.plan.step.block_products import Product, block_products
from scalelab.plan.step.device_share import Operation, fullest_device_share, layers_by_kind
from scalelab.plan.step.efficiency import machine_platform
from scalelab.plan.step.expert_rows import ProductRows
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.plan.step.traffic import recompute_policy
from scalelab.precision.policy import POLICIES, Policy, array_dtype

SPARING = (*FUSED, "blockwise")  # kinds that leave out fully masked blocks of logits
WHOLE = ("plain", "xla")  # kinds whose logits exist as a whole


def step_operations(static: Static, machine: Machine, traits: SystemTraits = OUR_TRAITS) -> tuple[Operation, ...]:
    """All operations of a step on the device that has most."""
    return (*pass_operations(static, machine, traits), *update.update_operations(static))


def pass_key(static: Static) -> Static:
    """`static` with what its `pass_operations` don't see at its default: how `fsdp` splits weights gathered once."""
    at = static.layout
    if at.zero >= 3 or at.fsdp == 1:
        return static
    return with_fields(static, layout=with_fields(at, data=1, fsdp=at.data * at.fsdp, zero=min(at.zero, 1)))


def pass_operations(static: Static, machine: Machine, traits: SystemTraits = OUR_TRAITS) -> tuple[Operation, ...]:
    """Operations of forward and backward, of blocks and head.

    Layer by layer each block's backward, with its forward, and the head's run twice (train/per_layer).
    """
    of = fullest_device_share(static)
    again, operations = static.updates_layers, []
    for kind, layers in layers_by_kind(static):
        block = [
            *_block_products(kind, machine, traits),
            *_attention_operations(kind, machine, traits),
            *_elementwise_operations(kind, machine, traits),
        ]
        runs = layers * of.microbatches
        operations += [
            op._replace(times=(op.times + again) * runs, bytes=op.bytes * _passes(op, traits)) for op in block
        ]
    head = [op._replace(times=op.times * (1 + again)) for op in _head_operations(static, machine, traits)]
    return (*operations, *head)


def _passes(op: Operation, traits: SystemTraits) -> float:
    """How often a system moves the bytes of an operation: of products and logits they are counted."""
    return 1.0 if op.flops or op.name == "softmax" else traits.passes


def attention_kind(static: Static, machine: Machine) -> str:
    """The kernel of attention that the trainer would choose there, or that of a ring's parts."""
    kernel = step_kernel(static, machine_platform(machine), compute_capability(machine.chip))
    return kernel.removeprefix("ring of ")


def _block_products(static: Static, machine: Machine, traits: SystemTraits) -> list[Operation]:
    """A block's products: forward, once more if recomputed, and two backward, of inputs and of weights."""
    operations = [
        op
        for product in block_products(static.model)
        if not product.of_constant
        for op in _product_operations(static, traits, product, product_rows(static, machine, traits, product))
    ]
    return operations + (_distance_operations(static, traits) if static.model.position == "relative" else [])


def product_rows(static: Static, machine: Machine, traits: SystemTraits, product: Product) -> ProductRows:
    """Rows that a product multiplies on a device in a micro-batch."""
    if product.experts:
        return expert_rows.expert_product_rows(static, machine_platform(machine), traits)
    tokens = fullest_device_share(static).tokens
    return ProductRows(tokens, 1, tokens)


def _product_operations(static: Static, traits: SystemTraits, product: Product, sizes: ProductRows) -> list[Operation]:
    """One product with a weight, forward and backward, and the rounding of its operands."""
    policy, share, name = POLICIES[static.precision], fullest_device_share(static), product.name
    policy = POLICIES["fp32"] if product.routes else policy
    unit, operand, a = policy.unit, array_dtype(policy.forward).itemsize, array_dtype(policy.compute).itemsize
    layout = expert_rows.product_layout(static, traits) if product.experts else static.layout
    tokens, (k, n), of_experts = sizes.rows, product.device_size(layout), bool(product.experts)
    flops, least, weights = 2.0 * tokens * k * n, min(sizes.at_once, k, n), k * n * sizes.matrices
    # A loop over blocks takes each through all of an expert's products, unless fp8 needs a whole operand for its scale.
    alone = static.model.expert_products != "loop" or bool(policy.scaling)
    forward, backward = (sizes.turns / (1 if alone else n * max(1, len(_of_experts(static)))) for n in (1, 2))
    again = name in traits.recomputed_products
    passes = 1 + (again or (recompute_policy(static, traits) == "full" and product.recomputed))
    moved = operand * (tokens * k + weights) + a * tokens * n
    # Added to the sum over micro-batches: read, and written again.
    gradient = 4.0 * weights * (3 if share.microbatches > 1 else 1)
    return [
        Operation(name, "block", unit, flops, moved, passes, least, experts=of_experts, turns=forward),
        Operation(f"d{name}, inputs", "block", unit, flops, moved, 1, least, experts=of_experts, turns=backward),
        Operation(
            f"d{name}, weights",
            "block",
            unit,
            flops,
            operand * tokens * (k + n) + gradient,
            1,
            least,
            experts=of_experts,
            turns=backward,
        ),
        _rounding_operations(static, policy, traits, name, (tokens * k, tokens * n, weights), passes),
        *_wide_outputs(policy, traits, name, tokens * (passes * n + k)),
    ]


def _of_experts(static: Static) -> list[Product]:
    return [product for product in block_products(static.model) if product.experts]


def _wide_outputs(policy: Policy, traits: SystemTraits, name: str, elements: float) -> list[Operation]:
    """Results that come in fp32 and are read and rounded by a pass of their own."""
    a = array_dtype(policy.compute).itemsize
    if not traits.wide_outputs or a == 4:
        return []
    return [Operation(f"{name}, conversion", "block", "", 0.0, (4 - a + 4 + a) * elements, 1)]


def _rounding_operations(
    static: Static, policy: Policy, traits: SystemTraits, name: str, sizes: tuple[float, float, float], passes: float
) -> Operation:
    """The rounding of operands to the format they are multiplied in: weights for each use, fp8 activations as well.

    `sizes`: of the input, of the result, of the weight.
    """
    layout, (given, made, weights) = static.layout, sizes
    operand, a = array_dtype(policy.forward).itemsize, array_dtype(policy.compute).itemsize
    uses = passes + 1
    casts = traits.casts and operand < 4 and not gathered.gathers_once(static)  # that rounds a part, once a step
    cast = (4 + operand) * weights / (layout.fsdp if layout.zero >= 3 else 1) if casts else 0.0
    sent = operand * weights if layout.zero >= 3 and layout.fsdp > 1 else 0.0
    reads = 1 if policy.scaling == "delayed" else 2  # for amax and to round: of delayed scaling one pass does both
    scaled = (reads * a + operand) * (passes * given + made) if policy.scaling else 0.0
    return Operation(f"{name}, rounding", "block", "", 0.0, uses * (cast + sent) + scaled, 1)


def _distance_operations(static: Static, traits: SystemTraits) -> list[Operation]:
    """Transformer-XL's relative positions: every query with every distance, and the projections of distances."""
    shape, share, policy = static.model, fullest_device_share(static), POLICIES[static.precision]
    recomputed = recompute_policy(static, traits)
    flops = 2.0 * share.tokens * shape.seq_len * (share.heads * shape.d_head)
    operations = [Operation("distances", "block", policy.compute, flops, 0.0, 3 + (recomputed != "none"))]
    for product in block_products(shape):
        if product.of_constant:  # one backward; once a micro-batch
            k, n = product.device_size(static.layout)
            flops, again = 2.0 * shape.seq_len * k * n, recomputed == "full" and product.recomputed
            operations.append(Operation(product.name, "block", policy.unit, flops, 0.0, 2 + again))
    return operations


def keys_per_query(static: Static, machine: Machine) -> float:
    """Keys a query's logits are computed for, mean over layers: half of all if fully masked blocks are left out.

    Devices that share a sequence have equal parts of them (`model/attention/ring.py`).
    """
    if attention_kind(static, machine) not in SPARING:
        return float(static.model.seq_len)
    return sum(_keys_by_layers(static.model))


def _keys_by_layers(shape: ModelShape) -> tuple[float, float]:
    """The parts of that mean from layers with a window and from layers without, fully masked blocks left out."""
    length = shape.seq_len
    window = min(shape.window, length) if shape.window else length
    local = count_local_layers(shape) / shape.n_layers
    return local * (window - window * (window - 1) / (2 * length)), (1 - local) * (length + 1) / 2


def _attention_operations(static: Static, machine: Machine, traits: SystemTraits) -> list[Operation]:
    """Logits and values: two products forward; four backward, or five if logits are recomputed from their sums."""
    shape, of, policy = static.model, fullest_device_share(static), POLICIES[static.precision]
    again, kind = recompute_policy(static, traits), attention_kind(static, machine)
    in_ring = static.layout.context > 1
    fused = kind in FUSED or traits.fused_attention == "all" or (traits.fused_attention == "ring" and in_ring)
    a, seen = array_dtype(policy.compute).itemsize, keys_per_query(static, machine)
    # A TPU's units take a head's numbers by its lanes: a narrower one leaves the rest idle.
    least = TPU_LANES if machine_platform(machine) == "tpu" else 1
    width = sum(max(each, least) for each in kernel_widths(kind, shape.d_key, shape.d_value))
    flops = 2.0 * of.tokens * seen * of.heads * width
    passes, backward = 1 + (again != "none"), 2.5 if kind in SPARING else 2.0
    held = a * of.tokens * (of.heads + of.key_heads) * width
    size = (float(shape.seq_len), traits.attention_kernel if fused else "")
    ops = [
        Operation("attention", "block", policy.compute, flops, held, passes, *size),
        Operation("attention, backward", "block", policy.compute, backward * flops, 2 * held, 1, *size),
    ]
    # A ring's fused parts know no window: layers with one take XLA's blocks.
    unfused = _keys_by_layers(shape)[0] if fused and in_ring and not traits.fused_attention else 0.0 if fused else seen
    if unfused and machine_platform(machine) != "cpu":  # whose caches hold the blocks
        # fp32 from the product, read and written again by the softmax, read by the next product; backward as much. A
        # cap is a pass of its own, with its tanh kept: an upper bound where a compiler fuses it with the softmax.
        logits = of.tokens * of.heads * unfused * (8 + 2 * a + (8 if shape.attention_softcap else 0))
        ops.append(Operation("softmax", "block", "", 0.0, logits, passes + 1))
        in_blocks = kind not in WHOLE and machine_platform(machine) == "gpu"
        # Times `passes`, as all elementwise work.
        more = ((traits.block_passes if in_blocks else traits.passes) - 1) / traits.passes
        ops.append(Operation("softmax, more passes", "block", "", 0.0, more * logits, passes + 1))
    return ops


def _elementwise_operations(static: Static, machine: Machine, traits: SystemTraits) -> list[Operation]:
    """Norms with residual sums, rotations and activations, in passes over memory; backward with derivatives."""
    shape, layout, of, policy = static.model, static.layout, fullest_device_share(static), POLICIES[static.precision]
    a, r, again = (
        array_dtype(policy.compute).itemsize,
        array_dtype(policy.residual).itemsize,
        recompute_policy(static, traits),
    )
    products = block_products(shape)
    streams = of.tokens * shape.d_model / (layout.tensor if shape.sequence_parallel else 1)
    branches = sum(product.into_stream for product in products)
    key_heads = 1.0 if shape.d_kv_latent else of.key_heads  # of a latent's shared key each device rotates the whole
    turned = of.tokens * (of.heads + key_heads) * shape.d_rotated if shape.position == "rope" else 0.0
    # Activations and gates: each source of a product's input is read and the input written; backward the sources and
    # the input's gradient are read and the sources' gradients written.
    of_experts = expert_rows.product_layout(static, traits)
    inner = [
        (
            p.sources,
            product_rows(static, machine, traits, p).rows * p.device_size(of_experts if p.experts else layout)[0],
        )
        for p in products
        if p.sources and not p.from_stream
    ]
    written = sum((sources + 1) * size for sources, size in inner)
    derived = sum((2 * sources + 1) * size for sources, size in inner)
    # A sum with its norm reads two streams and writes two, once a branch; backward it reads three and writes two. Half
    # of them are the residual stream, half what layers take and give. A second norm, of a branch's output, is a pass of
    # its own, since its mean comes before the sum: it reads it and writes it, backward it reads two and writes one.
    ending = branches * streams if shape.norm_place == "around" else 0.0
    forward = a * (2 * branches * streams + 2 * turned + written + 2 * ending) + r * 2 * branches * streams
    backward = a * (2.5 * branches * streams + 2 * turned + derived + 3 * ending) + r * 2.5 * branches * streams
    rows = expert_rows.moved_rows(static, machine_platform(machine), traits) if _of_experts(static) else 0.0
    passes, moved = 1 + (again != "none"), a * rows * shape.d_model
    return [
        Operation("norms, rotations, activation", "block", "", 0.0, forward, passes),
        Operation("their backward", "block", "", 0.0, backward, 1),
        *([Operation("rows to experts and back", "block", "", 0.0, moved, passes + 1, experts=True)] if moved else []),
        *_expert_passes(static, machine, traits),
    ]


def _expert_passes(static: Static, machine: Machine, traits: SystemTraits) -> list[Operation]:
    """Passes of other systems over experts' rows: biases, clamps, padding."""
    if not (traits.expert_bytes and _of_experts(static)):
        return []
    rows = expert_rows.multiplied_rows(static, machine_platform(machine), traits)
    entries = rows * static.model.d_model
    return [Operation("experts' biases and padding", "block", "", 0.0, traits.expert_bytes * entries, 1, experts=True)]


def _head_operations(static: Static, machine: Machine, traits: SystemTraits) -> list[Operation]:
    """The head's three products, with its loss, as many tokens at a time as logits are held; embedding's rows."""
    shape, of, policy = static.model, fullest_device_share(static), POLICIES[static.precision]
    vocab, a = shape.vocab_size / static.layout.tensor, array_dtype(policy.compute).itemsize
    chunk = chunk_tokens(machine_platform(machine), shape.d_model, math.ceil(vocab))
    chunks = math.ceil(of.tokens / chunk) if traits.chunked_head else 1
    table = shape.d_model * vocab
    least = min(of.tokens / chunks, shape.d_model, vocab)
    flops, logits = 2.0 * of.tokens * table, 4.0 * of.tokens * vocab
    # Each chunk reads the table twice and adds to its fp32 gradient; the table is rounded once, before them.
    weights = table * (chunks * 2 * a + (4 + a if traits.casts and a < 4 else 0))
    gradient = chunks * table * 12
    rows = of.tokens * shape.d_model * (4 + 4 + a) + 4 * table
    runs = of.microbatches * (2 if traits.second_head else 1)
    backward = "tensorfloat32" if traits.wide_outputs and policy.compute == "bfloat16" else policy.compute
    return [
        Operation("head", "head", policy.compute, flops, logits + weights / 2, runs, least),
        Operation("dhead, inputs", "head", backward, flops, logits + weights / 2, runs, least),
        Operation("dhead, weights", "head", backward, flops, logits + gradient, runs, least),
        Operation("softmax of the loss", "head", "", 0.0, 2 * logits * (2 if shape.logit_softcap else 1), runs),
        Operation("embedding", "head", "", 0.0, 2 * rows, of.microbatches),
    ]
