"""Memory of the fullest device during a training step, component by component, from the real step's own shapes.

Between steps it holds parameters, optimizer state and averages; the optimizer counts itself, by `eval_shape` of its
real state. At the height of a backward it also holds gradients and what the forward saved. `logits` and `temporary` are
estimates, the rest is exact in the program's own terms; XLA may share or drop some of it. How far the total is off the
peaks of steps compiled for TPUs and H100s stands in checks/results/compiled.md.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax

from scalelab.config import Layout, ModelShape, Static, with_fields
from scalelab.hardware.chips import compute_capability
from scalelab.hardware.device_memory import usable_bytes
from scalelab.model import transformer
from scalelab.model.attention.kernels import step_kernel
from scalelab.model.experts.ways import CHOOSERS
from scalelab.model.stacks import kinds
from scalelab.model.sums.cross_entropy import chunk_tokens
from scalelab.parallel import rules
from scalelab.parallel.stages import ticks
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory import estimated_activations, megatron, saved_activations
from scalelab.plan.memory.held import gathered_bytes, gradient_bytes, parameter_bytes, state_bytes
from scalelab.plan.step import expert_rows
from scalelab.plan.step.device_share import rows_per_device
from scalelab.plan.step.efficiency import machine_platform
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import Capability
from scalelab.train.step import state as state_lib

ESTIMATES = ("logits", "temporary")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of the fullest device. `components` sum to `total`; `least` leaves out what is estimated or may be shared.

    `formula_bytes`: the activations by Korthikanti et al. 2022, beside our step's own.
    """

    components: dict[str, int]
    total: int
    least: int
    capacity: int
    fits: bool
    margin_bytes: int
    formula_bytes: int
    notes: tuple[str, ...]
    has_experts: bool = False


def step_memory(
    static: Static,
    machine: Machine,
    count_saved: Callable[[Static], saved_activations.SavedActivations] = saved_activations.count_saved_activations,
) -> Memory:
    """Memory that the step of `static` (a resolved layout) needs on `machine`, on the stage with most layers.

    `count_saved`: counts the saved activations; `estimated_activations.estimate_saved_activations` is a fast one.
    """
    chip = machine.chip
    capability = compute_capability(chip)
    return memory_on_backend(static, machine_platform(machine), usable_bytes(chip), 1, count_saved, capability)


def memory_on_backend(
    static: Static,
    backend: str,
    capacity: int,
    trials: int = 1,
    count_saved: Callable[[Static], saved_activations.SavedActivations] = saved_activations.count_saved_activations,
    capability: Capability | None = None,
) -> Memory:
    """`step_memory` for a device of `backend` (cpu, gpu, tpu) with `capacity` bytes; `trials` share it in turn."""
    static = _on_backend(static, backend, capability)
    grown, fixed = _saved_bytes(static, count_saved)
    components = {name: trials * size for name, size in state_bytes(static).items()} | {
        "gradients": gradient_bytes(static),
        "activations": grown + fixed,
        "logits": _logits_bytes(static, backend),
        "temporary": _temporary_bytes(static, backend),
        "batch": _batch_bytes(static),
    }
    total = sum(components.values())
    least = total - sum(components[name] for name in ESTIMATES) - fixed
    notes, formula = tuple(_memory_notes(static)), megatron.formula_bytes(static)
    margin, has_experts = capacity - total, static.model.n_experts > 0
    return Memory(components, total, least, capacity, total <= capacity, margin, formula, notes, has_experts)


def untraced_bytes(static: Static, backend: str, capability: Capability | None = None) -> int:
    """Bytes beside `held.held_bytes` that an estimate of a step adds at least: those that need no trace of a block."""
    static = _on_backend(static, backend, capability)
    saved = sum(_saved_bytes(static, estimated_activations.least_saved_activations))
    temporary = _temporary_bytes(static, backend, estimated_activations.least_block_activations)
    return saved + _logits_bytes(static, backend) + temporary + _batch_bytes(static)


def _on_backend(static: Static, backend: str, capability: Capability | None) -> Static:
    """`static` with its kernel of attention and its way to multiply experts chosen."""
    kernel = step_kernel(static, backend, capability).removeprefix("ring of ")
    way = static.model.expert_products
    way = CHOOSERS[way](backend) if way in CHOOSERS else way
    return with_fields(static, model=_computed_by(static.model, kernel, way))


@functools.cache
def _computed_by(shape: ModelShape, kernel: str, way: str) -> ModelShape:
    """Cached so that what is known of one shape is found by identity: a search asks tens of thousands of times."""
    return with_fields(shape, attention=kernel, expert_products=way)


def _batch_bytes(static: Static) -> int:
    return 4 * math.ceil(static.global_batch / static.layout.batch_parts) * (static.model.seq_len + 1)


def _saved_bytes(
    static: Static,
    count_saved: Callable[[Static], saved_activations.SavedActivations] = saved_activations.count_saved_activations,
) -> tuple[int, int]:
    """Bytes that the forward leaves for the backward: those that grow with the rows, and those that don't."""
    layout, rows = static.layout, rows_per_device(static)
    if layout.stage == 1:
        whole = count_saved(static)
        return rows * whole.row_bytes, whole.fixed_bytes
    # parallel/stage.py: the input of every block of each micro-batch in flight, one more for what nobody needs, and
    # the two that are under way between stages; whatever model.remat says.
    return ((pipeline_slots(layout) + 1) * _blocks_per_chunk(static) + 2) * rows * _stream_bytes(static), 0


def _blocks_per_chunk(static: Static) -> int:
    """Slots for blocks of a stage's chunk."""
    return sum(table.shape[2] for table in layer_tables(static.model, static.layout))


def pipeline_slots(layout: Layout) -> int:
    """How many micro-batches' inputs a stage holds at once, one a chunk of layers, by the schedule's table."""
    return ticks.make_tick_table(layout.schedule, layout.stage, layout.microbatches, layout.rounds).slots


def _stream_bytes(static: Static) -> int:
    """Bytes of the residual stream of one sequence on a device."""
    layout, shape = static.layout, static.model
    split = layout.context * (layout.tensor if shape.sequence_parallel else 1)
    return math.ceil(shape.seq_len / split) * shape.d_model * array_dtype(POLICIES[static.precision].residual).itemsize


def _vocabulary_rows(static: Static) -> int:
    """Rows of the vocabulary on a device."""
    return math.ceil(static.model.vocab_size / static.layout.tensor)


def _logits_bytes(static: Static, backend: str) -> int:
    """A chunk of logits and their gradient, fp32 (model/sums/cross_entropy.py)."""
    tokens = rows_per_device(static) * math.ceil(static.model.seq_len / static.layout.context)
    chunk = min(tokens, chunk_tokens(backend, static.model.d_model, _vocabulary_rows(static)))
    return 2 * 4 * math.ceil(tokens / math.ceil(tokens / chunk)) * _vocabulary_rows(static)


def _temporary_bytes(
    static: Static,
    backend: str,
    count_block: Callable[
        [Static, bool], saved_activations.SavedActivations
    ] = saved_activations.count_block_activations,
) -> int:
    """An estimate of what comes and goes beside the rest: at the height of a block's backward, or of the head.

    After what compilers were seen to do (checks/compilers/compiled.py). A block's backward holds what the block keeps
    once more, and one weight at a time: as it is multiplied, and its gradient before that is scattered. What the
    forward left outside the blocks is gone or not yet computed by then. The head holds itself gathered, in fp32 and as
    it is multiplied. In a pipeline a chunk's inputs are taken out of their slot, and the gradients of its blocks are
    stacked before they are added to the others. Logits were never seen beside the largest of these. Weights that ZeRO 1
    and 2 gathered for the step are counted as `copies`.
    """
    layout, shape, policy = static.layout, static.model, POLICIES[static.precision]
    width, rows = array_dtype(policy.compute).itemsize, rows_per_device(static)
    weight = _largest_matrix(static.model.plain, layout.tensor)
    by_layer = layout.zero >= 3 and layout.fsdp > 1
    multiplied = width if by_layer or (width < 4 and not gathered_bytes(static)) else 0
    each_kind = [with_fields(static, model=kind) for kind in kinds(shape)]
    block = max(count_block(kind, True).bytes(rows) for kind in each_kind)
    block += max(weight * (multiplied + 4), expert_rows.matrix_entries(static, backend) * (width + 4))
    table = 4 * shape.d_model * _vocabulary_rows(static)
    head = (table if by_layer else 0) + (table * width // 4 if width < 4 else 0)
    if layout.stage > 1:
        chunk = parameter_bytes(static, rules.stage_specs, blocks=True) // layout.rounds
        return max(block, head) + chunk + _blocks_per_chunk(static) * rows * _stream_bytes(static)
    block -= min(block, estimated_activations.bytes_outside_blocks(static) * rows)
    if backend != "gpu" and static.accumulate == 1:  # the blocks' gradients aren't there yet; a GPU has filled them
        head -= min(head, parameter_bytes(static, rules.parameter_specs, blocks=True))
    block += state_lib.host_bytes(static) // shape.n_layers  # fetched for a layer's update
    return max(0, max(block, head) - _logits_bytes(static, backend))


@functools.cache
def _largest_matrix(shape: ModelShape, tensor: int) -> int:
    """Entries of a block's largest matrix, routed experts' aside, on one of `tensor` devices."""
    declared = jax.tree.leaves(transformer.parameter_declarations(shape))
    matrices = [d for d in declared if d.is_hidden_matrix and rules.EXPERTS not in d.stack]
    return max(d.size // (d.shape[0] * tensor) for d in matrices)


def _memory_notes(static: Static) -> list[str]:
    layout, shape, notes = static.layout, static.model, list[str]()
    if away := state_lib.host_bytes(static):
        notes += [f"{away / 2**30:,.2f} GiB of optimizer state lie in the host's memory and cross its bus twice a step"]
    if not has_even_stages(shape, layout):
        slots = f"{layout.rounds * _blocks_per_chunk(static)} on the fullest stage, fewer at the ends"
        notes += [
            f"{shape.n_layers} layers over {layout.stage * layout.rounds}: {slots}; a step copies them into slots"
        ]
    if layout.stage > 1 and layout.context > 1:
        notes += ["the trainer refuses parallel.stage together with parallel.context"]
    if layout.zero == 1 and gathered_bytes(static) and static.accumulate == 1:
        notes += ["ZeRO 1 without accumulation is as ZeRO 2: gradients are split as they are made"]
    return notes
