"""Activations that the real step keeps for its backward: the residuals of its vjp, traced for the mesh.

Unchanged parameters are not counted here: they are in memory anyway. XLA may keep less (what it can fuse into the
backward, such as broadcast constants) and, in a loop's own working set, more: `memory.py` has a line for that.

Shapes: B batch, S sequence, D d_model, V vocab.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from scalelab.config import Layout, Optim, Static, with_fields
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import Batch, DocumentEnds
from scalelab.model.declare import Declaration, with_variables
from scalelab.model.products.saved import keep_all
from scalelab.model.stacks import BLOCKS, all_layer_flags, bare_stack, has_expert_blocks, select_layers
from scalelab.parallel import gathered, rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.step import expert_rows
from scalelab.plan.step.device_share import filled_up_shape
from scalelab.precision import delayed
from scalelab.precision.policy import POLICIES, array_dtype, first_alike
from scalelab.precision.products import product_precision
from scalelab.sharding import (
    BATCH_AXES,
    GatheredWeight,
    activation_spec,
    residual_axes,
    trace_for_platform,
)
from scalelab.train.step.gradients import PassInputs, micro_batch_objective

ROWS = 3  # sequences a device of the program that is traced: more than one, to tell what grows with them
# Tokens a device of a longest sequence that is traced, and of the shortest that tell of longer ones: a trace lists all
# pairs of blocks of attention, half a million of them at LONG, and 30 million at a million tokens.
LONG, SHORT = 65_536, 8192
WHOLE_BLOCKS = 1024  # tokens a device, of which each kernel's blocks are a divisor


@dataclasses.dataclass(frozen=True)
class SavedActivations:
    """Bytes a device: `row_bytes` a sequence of its micro-batch, `fixed_bytes` for any number (head's gradient, which
    the loss sums whole over its chunks, and only then splits along `fsdp`)."""

    row_bytes: int
    fixed_bytes: int

    def bytes(self, rows: int) -> int:
        """Bytes of a micro-batch with so many sequences a device."""
        return rows * self.row_bytes + self.fixed_bytes


def count_saved_activations(static: Static) -> SavedActivations:
    """What the whole model's backward keeps; `layout.stage` is disregarded."""
    return _traced_activations(_canonical_static(static), whole=True)


def count_block_activations(static: Static, recomputed: bool = False) -> SavedActivations:
    """What a single block keeps without remat, of a model of one kind of block (`stacks.kinds`).

    `recomputed`: the working set of a backward that has computed it once more, in which XLA also holds what norms and
    activations would compute again (`model/products/saved.py`).
    Traced for as few devices along `tensor` and `context` as do, for many layouts ask; what they split, more split
    further. Where two can divide the block, one along `tensor` asks two as well: what they split, it holds whole.
    """
    layout, canonical, shape = static.layout, _canonical_static(static), static.model
    way = shape.expert_products if has_expert_blocks(shape) else "auto"  # of a dense block it says nothing
    model = with_fields(canonical.model, remat="none", expert_products=way)
    canonical = with_fields(canonical, model=model)
    if canonical.layout.devices == 1:
        return _traced_activations(canonical, False, recomputed)
    halved = layout.tensor == 1 and not any(n % 2 for n in (shape.n_heads, shape.n_kv_heads, shape.d_ff))
    tensor = 2 if halved else _smallest_divisor(layout.tensor)
    few = with_fields(canonical.layout, tensor=tensor, context=_smallest_divisor(layout.context), expert=1)
    alone = with_fields(canonical, layout=few, global_batch=2 * ROWS)
    by_rows, fixed = _block_bytes(alone, recomputed, layout.tensor, layout.context)
    return SavedActivations(by_rows // ROWS + expert_rows.buffered_bytes(static, recomputed), fixed)


@functools.cache
def _block_bytes(static: Static, recomputed: bool, tensor: int, context: int) -> tuple[int, int]:
    """Bytes on one of so many devices that grow with the rows, and those that don't, of the parts of `static`."""
    sums, sizes = {True: 0, False: 0}, {"tensor": tensor, "context": context}
    for grows, size, axes in _block_parts(static, recomputed):
        split = [(getattr(static.layout, axis), sizes[axis]) for axis in axes if axis in sizes]
        sums[grows] += size * math.prod(few for few, _ in split) // math.prod(many for _, many in split)
    return sums[True], sums[False]


def _smallest_divisor(devices: int) -> int:
    """The smallest number of devices above one that divides as many."""
    return next((k for k in range(2, devices + 1) if devices % k == 0), 1)


def _canonical_static(static: Static) -> Static:
    """A program with the same residuals row by row, without optimizer, batch and fsdp: many configs share it."""
    layout, static = static.layout, with_fields(static, model=filled_up_shape(static.model, static.layout))
    mesh = Layout(
        data=2,
        expert=layout.expert,
        context=layout.context,
        tensor=layout.tensor,
        sequence=layout.sequence,
        zero=3 if layout.zero or not has_expert_blocks(static.model) else 0,  # 1 to 3 split experts' weights alike
    )
    return with_fields(
        static,
        precision=first_alike(static.precision),
        optim=Optim(),
        schedule="wsd",
        decay_shape="linear",
        wd_shape="constant",
        ema=False,
        batch_ramp=(),
        global_batch=2 * layout.expert * ROWS,
        accumulate=1,
        layout=Layout() if layout.devices == 1 else mesh,
    )


def _count_at_length(count: Callable[[Static], dict[Any, int]], static: Static) -> dict[Any, int]:
    """Bytes that `count` finds; of a long sequence, on the parabola through those of three shorter ones.

    Exact: an array has the length as an axis once or, with all logits at once, twice, in whole blocks.
    """
    shape, layout = static.model, static.layout
    if shape.seq_len <= LONG * layout.context:
        return count(static)
    step = layout.context * math.lcm(WHOLE_BLOCKS, layout.tensor)
    first = shape.seq_len % step + step * math.ceil(max(SHORT * layout.context, shape.window) / step)
    n, lengths = (shape.seq_len - first) // step, [first + k * step for k in range(3)]
    counts = [count(with_fields(static, model=with_fields(shape, seq_len=s))) for s in lengths]
    sizes = zip(*(each.values() for each in counts), strict=True)
    longer = (a + n * (b - a) + n * (n - 1) // 2 * (c - 2 * b + a) for a, b, c in sizes)
    return dict(zip(counts[0], longer, strict=True))


@functools.cache
def _traced_activations(static: Static, whole: bool, recomputed: bool = False) -> SavedActivations:
    return SavedActivations(**_count_at_length(lambda each: _traced_bytes(each, whole, recomputed), static))


def _traced_bytes(static: Static, whole: bool, recomputed: bool) -> dict[str, int]:
    """The fields of a `SavedActivations`."""
    layout = static.layout
    if layout.devices == 1 or has_expert_blocks(static.model):  # two programs tell what grows with the batch
        programs = [with_fields(static, global_batch=rows * layout.batch_parts) for rows in (1, 2)]
        one, two = (sum(map(_device_bytes, vjp_residuals(program, whole, recomputed))) for program in programs)
        return {"row_bytes": two - one, "fixed_bytes": 2 * one - two}
    residuals = vjp_residuals(static, whole, recomputed)
    by_row = sum(_device_bytes(x) for x in residuals if _grows_with_rows(x))
    return {"row_bytes": by_row // ROWS, "fixed_bytes": sum(map(_device_bytes, residuals)) - by_row}


@functools.cache
def _block_parts(static: Static, recomputed: bool) -> tuple[tuple[bool, int, tuple[str, ...]], ...]:
    """(whether it grows with the rows, a device's bytes, the axes that split it) of what a block keeps."""
    parts = _count_at_length(lambda each: _traced_parts(each, recomputed), static)
    return tuple((grows, size, axes) for (_, grows, axes), size in parts.items())


def _traced_parts(static: Static, recomputed: bool) -> dict[tuple[int, bool, tuple[str, ...]], int]:
    """{(its number, whether it grows with the rows, the axes that split it): a device's bytes}."""
    residuals = vjp_residuals(static, False, recomputed)
    split = [tuple(axis for axes in _axes_by_dimension(x) for axis in axes) for x in residuals]
    if not has_expert_blocks(static.model):
        each = zip(residuals, split, strict=True)
        return {(i, _grows_with_rows(x), axes): _device_bytes(x) for i, (x, axes) in enumerate(each)}
    # Rows of experts stand one behind the other along one axis, so two programs tell: of as many rows, and of twice.
    twice = vjp_residuals(with_fields(static, global_batch=2 * static.global_batch), False, recomputed)
    sizes = [(_device_bytes(x), _device_bytes(y)) for x, y in zip(residuals, twice, strict=True)]
    both = list(zip(sizes, split, strict=True))
    grown = {(i, True, axes): two - one for i, ((one, two), axes) in enumerate(both)}
    return grown | {(i, False, axes): 2 * one - two for i, ((one, two), axes) in enumerate(both)}


def _grows_with_rows(x: jax.ShapeDtypeStruct) -> bool:
    """Whether an axis of it is split by `data` and holds rows; or, of what each device has of its own, one behind that.

    A function of a device's own part (attention's) keeps arrays that stand one behind the other along their first axis,
    which may be heads; a number of each device's is one of these.
    """
    split = [
        math.prod(x.sharding.mesh.shape[axis] for axis in axes) if "data" in axes else 0
        for axes in _axes_by_dimension(x)
    ]
    if not any(split):
        return False
    at = split.index(max(split))
    return x.shape[at] // split[at] % ROWS == 0 or ROWS in x.shape[at + 1 :]


def vjp_residuals(static: Static, whole: bool = True, recomputed: bool = False) -> list[jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of what the vjp of a step's micro-batch keeps beside parameters and arguments.

    `whole`: of the objective; else of one block without remat. `recomputed`: as in `count_block_activations`.
    """
    mesh = AbstractMesh(
        tuple(getattr(static.layout, axis) for axis in MESH_AXES),
        MESH_AXES,
        axis_types=(AxisType.Explicit,) * len(MESH_AXES),
    )
    alone = static.layout.devices == 1
    within: AbstractContextManager = nullcontext() if alone else jax.sharding.use_abstract_mesh(mesh)

    def like(shape: tuple[int, ...], kind: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, kind, sharding=None if alone else NamedSharding(mesh, spec))

    function, arguments = (_objective if whole else _block)(static, like)

    def keep(*arguments: Any) -> list[jax.Array]:
        _, pull = jax.vjp(functools.partial(function, *arguments[1:]), arguments[0])
        given = {id(x) for x in jax.tree.leaves(arguments)}
        return list({id(x): x for x in jax.tree.leaves(pull) if id(x) not in given}.values())

    platform = {"cudnn": "gpu", "splash": "tpu"}.get(static.model.attention)  # whose kernel is traced without a device
    traced_for: AbstractContextManager = trace_for_platform(platform) if platform else nullcontext()
    keeping: AbstractContextManager = keep_all() if recomputed else nullcontext()
    with within, traced_for, product_precision(POLICIES[static.precision]), keeping:
        return jax.eval_shape(keep, *arguments)


def _parameters(static: Static, like: Callable) -> Any:
    def parameter(declaration: Declaration, spec: PartitionSpec, whole: PartitionSpec) -> Any:
        master, form = like(declaration.shape, jnp.float32, spec), gathered.gathered_format(static, declaration)
        return master if form is None else GatheredWeight(like(declaration.shape, form, whole), master)

    specs = rules.parameter_specs(static.model, static.layout), rules.whole_specs(static.model)
    params = jax.tree.map(parameter, transformer.parameter_declarations(static.model), *specs)
    variables = transformer.variable_declarations(static.model)
    stages = static.layout.stage > 1
    place = lambda v: like(v.shape, jnp.dtype(v.dtype), rules.parameter_spec(v, False, stages))  # noqa: E731
    return with_variables(params, jax.tree.map(place, variables))


def _objective(static: Static, like: Callable) -> tuple[Callable, tuple]:
    """(function of (ends, tokens, parameters and scales), its arguments but with these first)."""
    policy, number = POLICIES[static.precision], PartitionSpec()
    scales: Any = ()
    if policy.scaling == "delayed":
        declared = bare_stack(static.model, transformer.parameter_declarations(static.model))
        shapes = jax.eval_shape(lambda: delayed.delayed_scales(delayed.init_amax_history(declared), policy))
        scales = jax.tree.map(lambda x: like(x.shape, x.dtype, number), shapes)
    tokens = like((static.global_batch, static.model.seq_len + 1), jnp.int32, PartitionSpec(BATCH_AXES, None))
    ends = _ends(static, like)

    def function(tokens: Any, ends: Any, given: tuple[Any, Any]) -> jax.Array:
        params, scales = given
        inputs = PassInputs(params, jnp.float32(0), scales)
        return micro_batch_objective(static, inputs, Batch(tokens, ends), jnp.float32(1))[0]

    return function, ((_parameters(static, like), scales), tokens, ends)


def _block(static: Static, like: Callable) -> tuple[Callable, tuple]:
    shape, policy = static.model, POLICIES[static.precision]
    stacked = _parameters(static, like)[BLOCKS]
    weights = jax.tree.map(
        lambda w: like(w.shape[1:], w.dtype, PartitionSpec(*(w.sharding.spec[1:] if w.sharding else ()))), stacked
    )
    sizes = (static.global_batch, shape.seq_len, shape.d_model)
    place = activation_spec(*residual_axes(shape.sequence_parallel))
    x_BSD = like(sizes, array_dtype(policy.residual), place)
    tokens = like((static.global_batch, shape.seq_len + 1), jnp.int32, PartitionSpec(BATCH_AXES, None))
    ends, first = _ends(static, like), select_layers(all_layer_flags(shape), 0)

    def function(tokens: Any, ends: Any, given: tuple[Any, Any]) -> Any:
        packed = documents.split_inputs_targets(tokens, ends)[2]
        return transformer.apply_block(shape, *given, policy, first, packed)

    return function, ((weights, x_BSD), tokens, ends)


def _ends(static: Static, like: Callable) -> DocumentEnds | None:
    number = like((), jnp.int32, PartitionSpec())
    ends = DocumentEnds(number if static.masks_documents else None, number if static.seq_warmup else None)
    return None if ends == DocumentEnds() else ends


def _axes_by_dimension(x: jax.ShapeDtypeStruct) -> list[tuple[str, ...]]:
    """The mesh axes that split each axis of an array."""
    spec = [*(x.sharding.spec.partitions if x.sharding else ())]
    entries = spec + [None] * (len(x.shape) - len(spec))
    return [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in entries]


def _device_bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's part."""
    split = math.prod(x.sharding.mesh.shape[axis] for axes in _axes_by_dimension(x) for axis in axes)
    return math.prod(x.shape) * x.dtype.itemsize // split
