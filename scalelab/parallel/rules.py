"""The table from a parameter's declared axes to the mesh axes that split it, and checks of what it can't split.

ZeRO (Rajbhandari et al. 2020) by `parallel.zero` along `fsdp`: 0 splits nothing, 1 optimizer state and fp32 parameters,
2 also gradients, 3 gathers weights layer by layer (FSDP), where 1 and 2 gather them once a step (`gathered.py`).
`tensor` splits the same axes at every ZeRO stage (Shoeybi et al. 2019).
"""

import dataclasses
import functools
import math
import os
from typing import Any

import jax
from jax.sharding import PartitionSpec

from scalelab.config import Layout, ModelShape, Static
from scalelab.config.checks import validate
from scalelab.config.checks.validate import check_divides
from scalelab.errors import BadInput
from scalelab.model.declare import Declaration, Variable
from scalelab.model.products.parts import choose_parts, refuses_parts
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.registry import find_optimizer
from scalelab.parallel.stages.assignment import is_even
from scalelab.parallel.stages.checks import check_pipeline, has_even_stages
from scalelab.precision.policy import POLICIES
from scalelab.sharding import BATCH_AXES, CONTEXT_AXIS, SPLIT_BY_TENSOR, STAGE_AXIS, TENSOR_AXIS, mesh_axes

FSDP_AXES = ("embed", "latent")  # no parameter has both
NO_LIBRARY_FLAG = "--xla_cpu_experimental_ynn_fusion_type="  # an XLA flag; its value is empty
MAX_UNSHARDED_SHARE = 0.02  # of the parameters: warn if FSDP leaves more unsharded


def parameter_spec(declaration: Declaration | Variable, fsdp: bool, stages: bool) -> PartitionSpec:
    """The mesh axis that splits each logical axis of a parameter, or of a variable."""
    split = dict.fromkeys(SPLIT_BY_TENSOR, TENSOR_AXIS) | (dict.fromkeys(FSDP_AXES, "fsdp") if fsdp else {})
    split |= {"layers": STAGE_AXIS} if stages else {}
    return PartitionSpec(*[split.get(axis) for axis in declaration.axes])


@functools.cache
def _specs(shape: ModelShape, fsdp: bool, stages: bool) -> Any:
    return jax.tree.map(lambda d: parameter_spec(d, fsdp, stages), parameter_declarations(shape))


@functools.cache
def _specs_at_rest(shape: ModelShape, layout: Layout, fsdp: bool) -> Any:
    """Specs of arrays like the parameters between steps, split along `fsdp` or not.

    jax cannot split 126 layers 16 ways: stages of unequal numbers of layers split within them. Where fsdp splits the
    moments only, `stage` is around it, so that a device's moments are of the parameters that it has.
    """
    specs = _specs(shape, fsdp, layout.stage > 1)
    if has_even_stages(shape, layout):
        return specs
    around = layout.zero < 3
    return jax.tree.map(lambda d, spec: within_layers(d, spec, around), parameter_declarations(shape), specs)


def within_layers(declaration: Declaration, spec: PartitionSpec, around: bool = False) -> PartitionSpec:
    """`spec` with all layers on every stage: `stage` splits the axis of a layer that fsdp splits, within its parts.

    `around`: `stage` splits first, and fsdp its parts.
    """

    def split(axis: str, entry: Any) -> Any:
        if axis not in FSDP_AXES:
            return None if axis == "layers" else entry
        return STAGE_AXIS if entry is None else (STAGE_AXIS, entry) if around else (entry, STAGE_AXIS)

    if "layers" not in declaration.axes:
        return spec
    return PartitionSpec(*map(split, declaration.axes, spec))


def parameter_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of the parameters at rest. In a pipeline ZeRO 1 and 2 leave them whole: a stage gathers nothing."""
    return _specs_at_rest(shape, layout, layout.zero >= 3 or (layout.zero >= 1 and layout.stage == 1))


def stage_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of the parameters, and of their gradients, as a pipeline's stages hold them: layers in slots."""
    return _specs(shape, layout.zero >= 3, layout.stage > 1)


def whole_specs(shape: ModelShape) -> Any:
    """Specs of the parameters whole along `fsdp`, all layers on every device."""
    return _specs(shape, False, False)


def gradient_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of gradients while they are summed over micro-batches, in a pipeline as the stages hold them.

    Rows of an embedding go back where they lie.
    """
    split, whole = (_specs(shape, fsdp, layout.stage > 1) for fsdp in (layout.zero >= 1, layout.zero >= 2))
    if layout.stage > 1:
        return whole
    declared = parameter_declarations(shape)
    return jax.tree.map(lambda d, at, once: at if "vocab" in d.ins else once, declared, split, whole)


def postponed_axes(layout: Layout) -> frozenset[str]:
    """The mesh axes along which gradients of micro-batches are added up once a step, if any is longer than one.

    Not `fsdp` where it splits the gradients: whole ones need not fit into a device.
    """
    axes = frozenset((*BATCH_AXES, CONTEXT_AXIS)) - ({"fsdp"} if layout.zero >= 2 else set())
    return axes if any(getattr(layout, axis) > 1 for axis in axes) and layout.stage == 1 else frozenset()


def is_postponed(declaration: Declaration) -> bool:
    """Whether the parameter's gradient can be left unadded: of `weight_product`, the embedding and the head."""
    return (declaration.is_hidden_matrix and declaration.role == "weight") or "vocab" in declaration.axes


def once_a_step(specs: Any, shape: ModelShape, layout: Layout, kind: str) -> Any:
    """`specs` of parameters or gradients; all matrices `reduced` or `unreduced` (`kind`) over `postponed_axes`.

    A gradient of a parameter that is `reduced` comes `unreduced`: each device has its own part of the sum.
    """
    axes = postponed_axes(layout)

    def mark(declaration: Declaration, spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(*spec, **{kind: axes - {*mesh_axes(spec)}}) if is_postponed(declaration) else spec

    return jax.tree.map(mark, parameter_declarations(shape), specs)


def moment_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of the optimizer's state of each parameter."""
    return _specs_at_rest(shape, layout, layout.zero >= 1)


def reshaped_moment_spec(declaration: Declaration, shape: tuple[int, ...], layout: Layout) -> PartitionSpec:
    """Spec of optimizer state whose shape is not its parameter's: stacked layers by stage, longest side by fsdp."""
    stacked = layout.stage > 1 and declaration.stack[:1] == ("layers",) and shape[:1] == declaration.shape[:1]
    stages = stacked and is_even(shape[0], layout.stage, layout.rounds)
    split: list[Any] = [STAGE_AXIS if stages and axis == 0 else None for axis in range(len(shape))]
    axes: tuple[str, ...] = ("fsdp",) if layout.zero >= 1 else ()
    axes += (STAGE_AXIS,) if stacked and not stages else ()
    parts = math.prod(getattr(layout, axis) for axis in axes)
    free = [axis for axis in range(len(shape)) if split[axis] is None and shape[axis] % parts == 0]
    if axes and free:
        split[max(free, key=lambda axis: shape[axis])] = axes if len(axes) > 1 else axes[0]
    return PartitionSpec(*split)


def check_layout(static: Static, layout: Layout) -> list[str]:
    """Raise BadInput, before compiling, where a resolved layout cannot divide the model or batch; returns warnings."""
    model, micro = static.model, static.global_batch // static.accumulate
    if layout.devices == 1 < jax.process_count():
        raise BadInput(
            f"a mesh of one device for {jax.process_count()} processes; nearest: parallel.data={jax.device_count()}"
        )
    check_layout_options(layout)
    for name in ("n_heads", "n_kv_heads", "d_ff", "vocab_size"):
        check_divides(f"model.{name}", getattr(model, name), "parallel.tensor", layout.tensor)
    _check_ring(model.seq_len, layout.context)
    split_sequence = layout.context * (layout.tensor if layout.sequence else 1)
    check_divides("model.seq_len", model.seq_len, "parallel.context" + " x tensor" * layout.sequence, split_sequence)
    _check_parts(static, layout)
    if layout.context > 1 and model.attention != "auto":
        raise BadInput(
            f"model.attention={model.attention!r} with parallel.context={layout.context}: "
            "devices that share a sequence attend in a ring; nearest: auto"
        )
    if layout.zero:
        for name in ("d_model", "d_kv_latent", "d_q_latent"):
            check_divides(f"model.{name}", getattr(model, name), "parallel.fsdp", layout.fsdp)
    check_divides(
        "train.global_batch / train.accumulate", micro, "parallel.data x parallel.fsdp", layout.data * layout.fsdp
    )
    _check_curvature(static.optim.name, layout)
    return check_pipeline(static, layout) + unsharded_warnings(parameter_declarations(model), layout)


def parts_of_sequences(static: Static, platform: str) -> int:
    """In how many parts a step on a `platform` gathers a sequence along `tensor`; 1 where it gathers none."""
    layout, policy = static.layout, POLICIES[static.precision]
    if not static.model.sequence_parallel or layout.tensor == 1 or refuses_parts(policy, staged=layout.stage > 1):
        return 1
    rows, length = static.global_batch // static.accumulate // (layout.data * layout.fsdp), static.model.seq_len
    stretch = length // (layout.context * layout.tensor)
    return choose_parts(layout.parts, platform, rows * length // layout.context, stretch)


def _check_parts(static: Static, layout: Layout) -> None:
    """Raise BadInput where a sequence can't have the parts that were asked for (`model/products/parts.py`)."""
    if layout.parts < 2:
        return
    if not layout.sequence or layout.tensor == 1:
        raise BadInput(
            f"parallel.parts={layout.parts} has no effect without parallel.sequence and parallel.tensor > 1: only then "
            "is a sequence gathered; nearest: parallel.parts=0"
        )
    if reason := refuses_parts(POLICIES[static.precision], staged=layout.stage > 1):
        raise BadInput(f"parallel.parts={layout.parts}: {reason}; nearest: parallel.parts=1")
    ways = layout.context * layout.tensor
    check_divides("model.seq_len", static.model.seq_len, "parallel.context x tensor x parts", ways * layout.parts)


def _check_ring(seq_len: int, context: int) -> None:
    """Raise BadInput where a sequence has no head and tail for each device (see `model/attention/order.py`)."""
    if context > 1 and seq_len % (2 * context):
        low = seq_len // (2 * context) * 2 * context
        fits = max(k for k in range(1, context) if k == 1 or seq_len % (2 * k) == 0)
        raise BadInput(
            f"model.seq_len={seq_len} is not divisible by 2 x parallel.context={2 * context}, as each device takes two "
            f"parts of a sequence; nearest model.seq_len: {f'{low} or ' if low else ''}{low + 2 * context}, "
            f"nearest parallel.context: {fits}"
        )


def check_layout_options(layout: Layout) -> None:
    """Raise BadInput for a value that no mesh can have; a layout need not come from a checked config."""
    for name, value in dataclasses.asdict(layout).items():
        validate.check_choice(f"parallel.{name}", value)
        validate.check_range(f"parallel.{name}", value)


def check_layout_runtime(static: Static, layout: Layout) -> None:
    """Raise BadInput for a step that can't be run, though it may be planned: experts on several devices.

    Also one that this machine's runtime would never finish: jax 0.10.2 on a CPU as several devices. There a product
    in XLA's library of kernels and an exchange between stages wait for the same threads, for ever.
    """
    if static.model.n_experts and layout.devices > 1:
        raise BadInput(
            f"model.n_experts={static.model.n_experts} on a mesh of {layout.devices} devices: this version multiplies "
            "experts on one device alone; nearest: every size of parallel 1"
        )
    bf16 = POLICIES[static.precision].forward == "bfloat16"
    waits = jax.default_backend() == "cpu" and layout.stage > 1 and static.model.position == "relative" and bf16
    if waits and NO_LIBRARY_FLAG not in os.environ.get("XLA_FLAGS", ""):
        raise BadInput(
            f"precision.name={static.precision} with model.position=relative and parallel.stage={layout.stage}: "
            "on a CPU XLA never finishes that step; nearest: precision.name=fp32, "
            f"or run it with XLA_FLAGS={NO_LIBRARY_FLAG}"
        )


def _check_curvature(name: str, layout: Layout) -> None:
    """Raise BadInput for meshes on which an optimizer's curvature can't be measured."""
    kind = find_optimizer(name).curvature
    for axis in ("stage", "context"):
        if kind and getattr(layout, axis) > 1:
            raise BadInput(
                f"optim.name={name!r} with parallel.{axis}={getattr(layout, axis)}: curvature is measured on "
                f"whole models and whole sequences only; nearest: parallel.{axis}=1 and more of data, fsdp or tensor"
            )


def unsharded_warnings(declared: Any, layout: Layout) -> list[str]:
    """Warn if parameters that FSDP leaves unsharded are over 2 % of the model."""
    if layout.zero < 3 or layout.fsdp == 1:
        return []
    leaves = jax.tree_util.tree_leaves_with_path(declared, is_leaf=lambda d: isinstance(d, Declaration))
    unsharded = [(path, d) for path, d in leaves if not {*FSDP_AXES} & {*d.axes}]
    share = sum(d.size for _, d in unsharded) / sum(d.size for _, d in leaves)
    if share <= MAX_UNSHARDED_SHARE:
        return []
    names = ", ".join(".".join(str(key.key) for key in path) for path, _ in unsharded[:6])
    return [f"{share:.1%} of the parameters are not split by fsdp, since they have no `{FSDP_AXES[0]}` axis: {names}"]
