"""What a training step moves between devices: every collective of a step, by mesh axis, with its bytes.

ZeRO's stages after Rajbhandari et al. 2020, section 7; tensor parallelism after Shoeybi et al. 2019, section 3, its
sequence-parallel form after Korthikanti et al. 2022, section 4.2.2; the ring of attention after Liu et al. 2023. Where
our trainer does otherwise than those, `systems.py` says so.
"""

import functools

import jax

from scalelab.config import ModelShape, Static
from scalelab.model.attention.ring import ring_stretches
from scalelab.model.experts.exchange import gathered_form
from scalelab.model.stacks import count_local_layers
from scalelab.model.transformer import parameter_declarations
from scalelab.parallel import gathered, rules
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.ticks import PIPELINE_SCHEDULES
from scalelab.plan.step import expert_rows
from scalelab.plan.step.block_products import block_products
from scalelab.plan.step.device_share import fullest_device_share, layers_by_kind, params_in_slots
from scalelab.plan.step.links import Transfer
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.precision.policy import POLICIES, array_dtype

GRADIENT_BYTES = 4  # a weight's gradient is summed over tokens and devices in fp32


def step_transfers(static: Static, traits: SystemTraits = OUR_TRAITS) -> tuple[Transfer, ...]:
    """All transfers of a step of the device that has most; axes of one device have none."""
    by_axis = {"tensor": _tensor_transfers, "data": _weight_transfers, "expert": _expert_transfers}
    by_axis |= {"context": _ring_transfers, "stage": _stage_transfers}  # weights travel along other axes than data too
    asked = [of for axis, of in by_axis.items() if axis == "data" or getattr(static.layout, axis) > 1]
    transfers = [transfer for list_transfers in asked for transfer in list_transfers(static, traits)]
    return tuple(t for t in transfers if t.times and getattr(static.layout, t.axis) > 1)


def _tensor_transfers(static: Static, traits: SystemTraits) -> list[Transfer]:
    """Activations between devices that share a product, of each kind of block, and of head and embedding."""
    of = fullest_device_share(static)
    edges = of.microbatches * of.ends
    return [
        transfer
        for i, (kind, layers) in enumerate(layers_by_kind(static))
        for transfer in _block_transfers(kind, traits, layers * of.microbatches, 0 if i else edges)
    ]


def _block_transfers(static: Static, traits: SystemTraits, runs: float, edges: int) -> list[Transfer]:
    """Those of `runs` blocks of one kind, and of `edges` heads and embeddings."""
    shape, of = static.model, fullest_device_share(static)
    width = array_dtype(POLICIES[static.precision].compute).itemsize
    policy = POLICIES[static.precision].of_model(shape.sums, shape.remat)
    wide = static.layout.stage > 1 or not policy.sums_in_compute  # model/products/product.py: parts are sent in fp32
    summed = max(traits.summed_bytes, width) if wide or policy.scaling == "block" else width
    again = recompute_policy(static, traits) == "full"
    products = [product for product in block_products(shape) if not product.of_constant]
    routed, products = [p for p in products if p.experts], [p for p in products if not p.experts]
    rows, columns = [p for p in products if p.splits_ins], [p for p in products if p.splits_outs]
    # Products of one input send one gradient of it where a system joins them, and their branches give one sum.
    joined = len({p.input_id for p in columns})
    outs = joined if traits.joined else len(rows)
    # Ours does so within attention and within the MLP, each of which ends in one sum; not in fp32, nor in fp8.
    apart = wide or bool(policy.scaling)
    inputs = joined if traits.joined else len(columns) if apart else len(rows)
    returned = max(traits.summed_bytes, width) if apart else width
    elements = of.tokens * shape.d_model
    # Only sums that something in the block's backward waits for are recomputed.
    sums = outs + again * min(outs, sum(p.recomputed for p in rows))
    of_rows, of_head = 4 if shape.position == "learned" else width, summed if wide else width  # bytes
    # model/experts/exchange.py: whole sequences, once they are back; no policy computes them again but a pipeline's
    of_experts = 0 if traits.experts_over_tensor else bool(routed) * runs
    sums_of_experts = of_experts * (1 + _resends(static, traits))
    ends = [
        Transfer("tensor", "all-reduce", of_rows * elements, edges, False, "rows"),
        Transfer("tensor", "all-reduce", of_head * elements, edges, False, "gradient of the head's input"),
        Transfer("tensor", "all-reduce", summed * elements, sums_of_experts, False, "experts' sums"),
        Transfer("tensor", "all-reduce", returned * elements, of_experts, False, "gradients of experts' inputs"),
    ]
    if not shape.sequence_parallel:
        return [
            Transfer("tensor", "all-reduce", summed * elements, sums * runs, False, "products' sums"),
            Transfer("tensor", "all-reduce", returned * elements, inputs * runs, False, "gradients of inputs"),
            *ends,
        ]
    # Forward and of gradients; before the head and of the gradient of the embedding.
    inputs_gathered = outs + (bool(routed) and not shape.n_shared_experts)  # the router's, if no shared expert's is
    forward = inputs_gathered * (1 + again) * runs
    gathers = forward + inputs_gathered * runs + 2 * edges
    # Of a forward's parts the first that is gathered and the last that is added up are waited for.
    hidden = 1 - 1 / (_count_parts(static) if traits.in_parts else 1)
    return [
        Transfer("tensor", "all-gather", width * elements, hidden * forward, True, "sequences, in parts"),
        Transfer("tensor", "all-gather", width * elements, gathers - hidden * forward, False, "sequences"),
        Transfer("tensor", "reduce-scatter", summed * elements, hidden * sums * runs, True, "products' sums, in parts"),
        Transfer("tensor", "reduce-scatter", summed * elements, (1 - hidden) * sums * runs, False, "products' sums"),
        Transfer("tensor", "reduce-scatter", returned * elements, inputs * runs, False, "gradients of inputs"),
        *ends,
    ]


def _count_parts(static: Static) -> int:
    return rules.parts_of_sequences(static, "gpu")  # as on every accelerator


def _weight_transfers(static: Static, traits: SystemTraits) -> list[Transfer]:
    """Gradients over `data`, `fsdp` and `context`; parameters over `fsdp`, as the stage of ZeRO says."""
    layout, of = static.layout, fullest_device_share(static)
    zero, width = layout.zero, array_dtype(POLICIES[static.precision].forward).itemsize
    each = of.microbatches
    apart = layout.stage > 1 and POLICIES[static.precision].scaling and not traits.fp8_reduced_once
    if traits.reduced_once and not apart:
        each = static.accumulate if layout.stage > 1 else 1
    small = GRADIENT_BYTES * _small_parameters(static.model.plain)  # gains, biases, positions: after each micro-batch
    parameters, updated, routed = of.parameters, of.parameters * 4.0, of.expert_parameters
    by_layer = expert_rows.gathers_experts(static)  # a step's copies leave experts out
    transfers = _gathered_experts(static, routed, traits) if by_layer else []
    held = parameters - routed if by_layer else parameters
    if zero >= 3:
        # model/sums/cross_entropy.py gathers the head once for both passes; model/layers.py sends an embedding's rows,
        # not the table.
        head, layers, rows = _tables(static, held)
        scattered = GRADIENT_BYTES * (layers + head)
        transfers += [
            Transfer("fsdp", "all-gather", width * layers, 2 * of.microbatches, True, "parameters, both passes"),
            Transfer("fsdp", "all-gather", width * head, of.microbatches, True, "the head"),
            Transfer("fsdp", "all-to-all", rows, 2 * of.microbatches, False, "rows of the embedding"),
            Transfer("fsdp", "reduce-scatter", scattered, of.microbatches, True, "gradients"),
        ]
    elif gathered.gathers_once(static):
        transfers += _gathered_once(static, held, each)
    elif zero >= 1:
        scatters = of.microbatches if zero == 2 else each
        transfers += [Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * parameters, scatters, True, "gradients")]
        transfers += [Transfer("fsdp", "all-gather", updated, 1, False, "updated parameters")]
    else:
        transfers += [Transfer("fsdp", "all-reduce", GRADIENT_BYTES * parameters, each, True, "gradients")]
    dense, routed = (
        GRADIENT_BYTES * size / (layout.fsdp if split else 1)
        for size, split in ((parameters - routed, zero >= 2), (routed, zero >= 2 or by_layer))
    )
    # model/experts/exchange.py: without a pipeline experts' gradients are summed over devices with their backward
    with_backward = layout.stage == 1 and traits.reduced_once and not traits.grouped_products
    times_routed = of.microbatches if with_backward else each
    for axis in ("data", "context", "expert"):
        summed = functools.partial(Transfer, axis, "all-reduce", hidden=True, of_weights=True)
        transfers += [summed(dense, each, what="gradients")]
        transfers += [summed(small, of.microbatches - each, what="gradients of gains")]
        if routed and axis != "expert":
            transfers += [summed(routed, times_routed, what="gradients of experts")]
    return transfers


def _gathered_experts(static: Static, routed: float, traits: SystemTraits) -> list[Transfer]:
    """Experts' weights, gathered along `fsdp` for each pass of a layer, and their gradients scattered, in fp32.

    Ours in fp32 where fp8 takes its scale from the weight, others' as they are multiplied.
    """
    policy, runs = POLICIES[static.precision], fullest_device_share(static).microbatches
    width = (array_dtype(policy.forward) if traits.grouped_products else gathered_form(policy)).itemsize
    return [
        Transfer("fsdp", "all-gather", width * routed, 2 * runs, True, "experts, both passes"),
        Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * routed, runs, True, "gradients of experts"),
    ]


def _expert_transfers(static: Static, traits: SystemTraits) -> list[Transfer]:
    """Tokens to the devices of their experts and the outputs back, and the gradients of both: each once.

    A recomputing backward of ours sends none again. A pipeline's stage computes each block anew from its input: rows
    come once more, outputs, which nothing reads, do not. Other systems that recompute send both. With the rows travel
    their experts' numbers and weights, in fp32, and the weights' gradients back; what was dropped, forward.
    """
    of = fullest_device_share(static)
    routed = sum(
        layers for kind, layers in layers_by_kind(static) if any(p.experts for p in block_products(kind.model))
    )
    if not routed or static.layout.expert == 1:
        return []
    rows, runs = expert_rows.sent_rows(static, traits), routed * of.microbatches
    (width, weights), again = expert_rows.row_bytes(static), _resends(static, traits)

    def exchange(whole: float, times: float, what: str) -> Transfer:
        return Transfer("expert", "all-to-all", whole, times * runs, traits.sends_hidden, what, traits.sends == "node")

    return [
        exchange(width * rows, 4 + again * (1 if traits.pipeline_recomputes else 2), "experts' rows"),
        exchange(weights * rows, 2 + again, "experts' weights"),
        exchange(4 * rows, expert_rows.returns_drops(static, traits), "how many experts a row lacks"),
    ]


def _resends(static: Static, traits: SystemTraits) -> bool:
    """Whether a backward sends experts' rows again: ours of a pipeline alone, others' of all that is recomputed."""
    apart = static.layout.stage > 1 or not traits.pipeline_recomputes
    return recompute_policy(static, traits) == "full" and apart


def _tables(static: Static, parameters: float) -> tuple[float, float, float]:
    """(parameters of the head, of the blocks, bytes of a micro-batch's rows of the embedding)."""
    head = static.model.vocab_size * static.model.d_model / static.layout.tensor
    width = array_dtype(POLICIES[static.precision].residual).itemsize
    rows = width * fullest_device_share(static).tokens * static.model.d_model
    return head, parameters - head * (1 if static.model.tied_head else 2), rows


def _gathered_once(static: Static, parameters: float, each: int) -> list[Transfer]:
    """ZeRO 1 and 2 (parallel/gathered.py): a head that is the embedding as well is gathered once a micro-batch.

    Gradients are scattered after each micro-batch by ZeRO 2, after all of them by ZeRO 1 (`each`).
    """
    head, layers, rows = _tables(static, parameters)
    runs, policy = fullest_device_share(static).microbatches, POLICIES[static.precision]
    scatters, heads = runs if static.layout.zero == 2 else each, runs if static.model.tied_head else 1
    width = array_dtype(policy.compute).itemsize
    return [
        Transfer("fsdp", "all-gather", (4 if policy.scaling else width) * layers, 1, True, "parameters, once"),
        Transfer("fsdp", "all-gather", width * head, heads, True, "the head"),
        Transfer("fsdp", "all-to-all", rows, 2 * runs, False, "rows of the embedding"),
        Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * layers, scatters, True, "gradients"),
        Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * head, max(heads, scatters), True, "gradient of the head"),
    ]


@functools.cache
def _small_parameters(shape: ModelShape) -> int:
    """Parameters, but routed experts', whose gradients are summed over devices after each micro-batch."""
    declared = jax.tree.leaves(parameter_declarations(shape))
    return sum(each.size for each in declared if not rules.is_postponed(each) and rules.EXPERTS not in each.stack)


def _ring_transfers(static: Static, traits: SystemTraits) -> list[Transfer]:
    """Keys and values to each other device that shares a sequence; gradients (fp32) beside them, and home once more."""
    shape, of = static.model, fullest_device_share(static)
    width = array_dtype(POLICIES[static.precision].compute).itemsize
    elements, runs = of.tokens * of.key_heads * (shape.d_key + shape.d_value), of.layers * of.microbatches
    turns = _ring_turns(static) * runs
    # What a recomputed forward and the backward after it send first is one: the compiler joins the two.
    recomputed = turns - runs if recompute_policy(static, traits) != "none" and turns else 0.0
    return [
        Transfer("context", "send", width * elements, 2 * turns + recomputed, True, "keys and values"),
        Transfer("context", "send", 4 * elements, turns + runs, True, "gradients of keys and values"),
    ]


def _ring_turns(static: Static) -> float:
    """Turns of the ring in which something is sent, mean over layers: a window needs only those of its reach."""
    shape, devices = static.model, static.layout.context
    local, chunk = count_local_layers(shape) / shape.n_layers, shape.seq_len // (2 * devices)
    near = sum(len(stretch.turns) for stretch in ring_stretches(devices, chunk, chunk, shape.window))
    return local * near + (1 - local) * (devices - 1)


def _stage_transfers(static: Static, traits: SystemTraits) -> list[Transfer]:
    """Activations to the next stage and gradients back; what idle stages send, they send in their idle time.

    A tick of 1f1b computes a backward while activations travel and a forward while gradients do; those of the other
    schedules have nothing to compute meanwhile (`parallel/stage.py`).
    """
    shape, layout, of = static.model, static.layout, fullest_device_share(static)
    width = array_dtype(POLICIES[static.precision].residual).itemsize
    sent = width * of.tokens * shape.d_model / (layout.tensor if shape.sequence_parallel else 1)
    times = 2 * static.accumulate * layout.microbatches * layout.rounds
    waits = traits.waits_for_stages and layout.rounds == 1
    meanwhile = PIPELINE_SCHEDULES[layout.schedule].alternates and not waits
    # Where stages are uneven (`parallel/pipeline.py`), in fp32: weights into slots, gradients out of them.
    in_place = has_even_stages(shape, layout) or traits.keeps_stages
    in_slots = 0.0 if in_place else 4 * params_in_slots(static)
    return [
        Transfer("stage", "all-to-all", in_slots, 2 if in_slots else 0, False, "layers into slots, gradients out"),
        Transfer("stage", "send", sent, times, meanwhile, "activations and gradients"),
    ]


def recompute_policy(static: Static, traits: SystemTraits) -> str:
    """What the backward computes again: none | dots | full."""
    return "full" if static.layout.stage > 1 and traits.pipeline_recomputes else static.model.remat
