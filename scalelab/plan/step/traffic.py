"""What a training step moves between devices: every collective of a step, by mesh axis, with its bytes.

ZeRO's stages after Rajbhandari et al. 2020, section 7; tensor parallelism after Shoeybi et al. 2019, section 3, its
sequence-parallel form after Korthikanti et al. 2022, section 4.2.2; the ring of attention after Liu et al. 2023. Where
our trainer does otherwise than those, `systems.py` says so.
"""

import dataclasses

from scalelab.config import Static
from scalelab.plan.step.device_share import fullest_device_share
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.precision.policy import POLICIES, array_dtype

GRADIENT_BYTES = 4  # a weight's gradient is summed over tokens and devices in fp32


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective along `axis`: `whole_bytes` of the array once gathered (or before it is scattered), `times` a step.

    `hidden`: computing that doesn't wait for it can go on meanwhile.
    """

    axis: str
    kind: str  # all-gather | reduce-scatter | all-reduce | send
    whole_bytes: float
    times: float
    hidden: bool
    what: str


def step_transfers(static: Static, habits: SystemTraits = OUR_TRAITS) -> tuple[Transfer, ...]:
    """All of a step, of the device that has most; axes of one device have none."""
    found = [
        *_tensor_transfers(static, habits),
        *_weight_transfers(static, habits),
        *_ring_transfers(static, habits),
        *_stage_transfers(static, habits),
    ]
    return tuple(t for t in found if t.times and getattr(static.layout, t.axis) > 1)


def _tensor_transfers(static: Static, habits: SystemTraits) -> list[Transfer]:
    """Activations between devices that share a product."""
    shape, of = static.model, fullest_device_share(static)
    width = array_dtype(POLICIES[static.precision].compute).itemsize
    summed = max(habits.summed_bytes, width)
    again = recompute_policy(static, habits) == "full"
    runs = of.layers * of.microbatches
    ups = 2 if shape.mlp == "swiglu" else 1
    # A parallel block's two outputs are one sum where a system joins them, and so are gradients of one input.
    outs = 1 if habits.joined and shape.block == "parallel" else 2
    inputs = outs if habits.joined else 3 + ups
    elements = of.tokens * shape.d_model
    # Not recomputed is the sum that nothing in the block waits for (both of a parallel block).
    sums = (outs + again * (outs == 2 and shape.block != "parallel"), inputs)
    edges = of.microbatches * of.ends
    ends = [Transfer("tensor", "all-reduce", summed * elements, 2 * edges, False, "embedding, head")]
    if not static.model.sequence_parallel:
        return [Transfer("tensor", "all-reduce", summed * elements, sum(sums) * runs, False, "products' sums"), *ends]
    # Forward and of gradients; before the head and after the embedding.
    gathers = (outs * (1 + again) + outs) * runs + 2 * edges
    return [
        Transfer("tensor", "all-gather", width * elements, gathers, False, "sequences"),
        Transfer("tensor", "reduce-scatter", summed * elements, sum(sums) * runs, False, "products' sums"),
        *ends,
    ]


def _weight_transfers(static: Static, habits: SystemTraits) -> list[Transfer]:
    """Gradients over `data`, `fsdp` and `context`; parameters over `fsdp`, as the stage of ZeRO says."""
    layout, of = static.layout, fullest_device_share(static)
    zero, width = layout.zero, array_dtype(POLICIES[static.precision].forward).itemsize
    each = of.microbatches if habits.reduced_each else 1
    mine, kept = of.parameters, of.parameters * 4.0
    found = []
    if zero >= 3:
        gathered = "all-gather", width * mine
        found += [Transfer("fsdp", *gathered, 2 * of.microbatches, True, "parameters, forward and backward")]
        found += [Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * mine, of.microbatches, True, "gradients")]
    elif zero >= 1:
        scatters = of.microbatches if zero == 2 else each
        found += [Transfer("fsdp", "reduce-scatter", GRADIENT_BYTES * mine, scatters, True, "gradients")]
        found += [Transfer("fsdp", "all-gather", kept, 1, False, "updated parameters")]
    else:
        found += [Transfer("fsdp", "all-reduce", GRADIENT_BYTES * mine, each, True, "gradients")]
    scattered = mine / (layout.fsdp if zero >= 2 else 1)
    for axis in ("data", "context"):
        found += [Transfer(axis, "all-reduce", GRADIENT_BYTES * scattered, each, True, "gradients")]
    return found


def _ring_transfers(static: Static, habits: SystemTraits) -> list[Transfer]:
    """Keys and values once round the devices that share a sequence, forward; with their gradients (fp32), backward."""
    shape, of, turns = static.model, fullest_device_share(static), static.layout.context
    width = array_dtype(POLICIES[static.precision].compute).itemsize
    elements = 2 * of.tokens * of.key_heads * shape.d_head
    runs = of.layers * of.microbatches * turns
    forwards = 2 if recompute_policy(static, habits) != "none" else 1
    return [
        Transfer("context", "send", width * elements, forwards * runs, True, "keys and values"),
        Transfer("context", "send", (width + 4) * elements, runs, True, "keys, values and their gradients"),
    ]


def _stage_transfers(static: Static, habits: SystemTraits) -> list[Transfer]:
    """Each micro-batch's activations to the next stage and gradients back, once a round; in lockstep both after every tick."""
    shape, layout, of = static.model, static.layout, fullest_device_share(static)
    width = array_dtype(POLICIES[static.precision].residual).itemsize
    sent = width * of.tokens * shape.d_model / (layout.tensor if shape.sequence_parallel else 1)
    times = layout.microbatches * layout.rounds + (layout.stage - 1 if habits.lockstep else 0)
    each = static.accumulate * times * (4 if habits.lockstep else 2)
    return [Transfer("stage", "send", sent, each, not habits.lockstep, "activations and gradients")]


def recompute_policy(static: Static, habits: SystemTraits) -> str:
    """What the backward computes again: none | dots | full."""
    return "full" if static.layout.stage > 1 and habits.pipeline_recomputes else static.model.remat
