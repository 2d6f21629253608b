"""From a parameter's declared axes to the mesh axes that split it: the one table, and what it can't split.

ZeRO (Rajbhandari et al. 2020) by `parallel.zero` along `fsdp`: 0 splits nothing, 1 optimizer state, 2 gradients too,
3 parameters too (FSDP). `tensor` splits the same axes whatever the stage (Shoeybi et al. 2019).
"""

import dataclasses
import functools
import os
from typing import Any

import jax
from jax.sharding import PartitionSpec

from scalelab.config import Layout, ModelShape, Static, validate
from scalelab.errors import BadInput
from scalelab.model.declare import Declaration
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.registry import find_optimizer
from scalelab.parallel.ticks import predicted_bubble
from scalelab.precision.policy import POLICIES
from scalelab.sharding import SPLIT_BY_TENSOR, STAGE_AXIS, TENSOR_AXIS

FSDP_AXIS = "embed"
NO_LIBRARY_FLAG = "--xla_cpu_experimental_ynn_fusion_type="  # an XLA flag; its value is empty
MAX_UNSHARDED_SHARE = 0.02  # of the parameters: more left whole under FSDP is worth a word


def parameter_spec(declaration: Declaration, fsdp: bool, stages: bool) -> PartitionSpec:
    """How a parameter lies on the mesh: logical axis by logical axis."""
    split = dict.fromkeys(SPLIT_BY_TENSOR, TENSOR_AXIS) | ({FSDP_AXIS: "fsdp"} if fsdp else {})
    split |= {"layers": STAGE_AXIS} if stages else {}
    return PartitionSpec(*[split.get(axis) for axis in declaration.axes])


@functools.cache
def _specs(shape: ModelShape, fsdp: bool, stages: bool) -> Any:
    return jax.tree.map(lambda d: parameter_spec(d, fsdp, stages), parameter_declarations(shape))


def parameter_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of the parameters at rest."""
    return _specs(shape, layout.zero >= 3, layout.stage > 1)


def gradient_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of gradients while micro-batches are summed."""
    return _specs(shape, layout.zero >= 2, layout.stage > 1)


def moment_specs(shape: ModelShape, layout: Layout) -> Any:
    """Specs of whatever the optimizer keeps a parameter."""
    return _specs(shape, layout.zero >= 1, layout.stage > 1)


def reshaped_moment_spec(declaration: Declaration, shape: tuple[int, ...], layout: Layout) -> PartitionSpec:
    """Specs of what the optimizer keeps of a parameter in another shape: its stacked layers by stage, its longest side by fsdp."""
    stages = layout.stage > 1 and declaration.stack[:1] == ("layers",) and shape[:1] == declaration.shape[:1]
    split: list[str | None] = [STAGE_AXIS if stages and axis == 0 else None for axis in range(len(shape))]
    free = [axis for axis in range(len(shape)) if split[axis] is None and shape[axis] % layout.fsdp == 0]
    if layout.zero >= 1 and free:
        split[max(free, key=lambda axis: shape[axis])] = "fsdp"
    return PartitionSpec(*split)


def check_layout(static: Static, layout: Layout) -> list[str]:
    """Refuse what a resolved layout cannot divide (BadInput, before anything is compiled); returns what is worth a word."""
    model, micro = static.model, static.global_batch // static.accumulate
    if layout.devices == 1 < jax.process_count():
        raise BadInput(
            f"a mesh of one device for {jax.process_count()} processes; nearest: parallel.data={jax.device_count()}"
        )
    check_layout_options(layout)
    for name in ("n_heads", "n_kv_heads", "d_ff", "vocab_size"):
        _divides(f"model.{name}", getattr(model, name), "parallel.tensor", layout.tensor)
    split_sequence = layout.context * (layout.tensor if layout.sequence else 1)
    _divides("model.seq_len", model.seq_len, "parallel.context" + " x tensor" * layout.sequence, split_sequence)
    if layout.context > 1 and model.attention != "auto":
        raise BadInput(
            f"model.attention={model.attention!r} with parallel.context={layout.context}: devices that share a sequence attend "
            "in a ring; nearest: auto"
        )
    if layout.zero:
        _divides("model.d_model", model.d_model, "parallel.fsdp", layout.fsdp)
    _divides("train.global_batch / train.accumulate", micro, "parallel.data x parallel.fsdp", layout.data * layout.fsdp)
    _check_curvature(static.optim.name, layout)
    return check_pipeline(static, layout) + unsharded_warnings(parameter_declarations(model), layout)


def check_layout_options(layout: Layout) -> None:
    """Refuse a value that no mesh can have (BadInput): a layout need not come from a config that was checked."""
    for name, value in dataclasses.asdict(layout).items():
        validate.check_choice(f"parallel.{name}", value)
        validate.check_range(f"parallel.{name}", value)


def check_layout_runtime(static: Static, layout: Layout) -> None:
    """Refuse what this machine's runtime would not finish (BadInput): known of jax 0.10.2 on a CPU that plays several devices.

    A product that XLA hands to its library of kernels and an exchange between stages wait for the same threads, for ever.
    """
    bf16 = POLICIES[static.precision].forward == "bfloat16"
    waits = jax.default_backend() == "cpu" and layout.stage > 1 and static.model.position == "relative" and bf16
    if waits and NO_LIBRARY_FLAG not in os.environ.get("XLA_FLAGS", ""):
        raise BadInput(
            f"precision.name={static.precision} with model.position=relative and parallel.stage={layout.stage}: on a CPU XLA never "
            f"finishes that step; nearest: precision.name=fp32, or run it with XLA_FLAGS={NO_LIBRARY_FLAG}"
        )


def _check_curvature(name: str, layout: Layout) -> None:
    """Refuse meshes on which an optimizer's curvature can't be measured."""
    kind = find_optimizer(name).curvature
    for axis in ("stage", "context"):
        if kind and getattr(layout, axis) > 1:
            raise BadInput(
                f"optim.name={name!r} with parallel.{axis}={getattr(layout, axis)}: curvature is measured on whole models "
                f"and whole sequences only; nearest: parallel.{axis}=1 and more of data, fsdp or tensor"
            )


def check_pipeline(static: Static, layout: Layout) -> list[str]:
    """The same for what has to do with stages; says what the pipeline costs."""
    if layout.stage == 1:
        return []
    if static.precision == "fp8_delayed":
        raise BadInput(
            f"precision.name='fp8_delayed' with parallel.stage={layout.stage}: stages don't gather amax over micro-batches; "
            "nearest: precision.name='fp8'"
        )
    if layout.context > 1:
        raise BadInput(
            f"parallel.stage={layout.stage} with parallel.context={layout.context}: the ring of attention would wait for "
            "stages that do something else; set one of them to 1"
        )
    if layout.rounds > 1 and layout.schedule != "circular":
        raise BadInput(f"parallel.rounds={layout.rounds} is for parallel.schedule='circular', not {layout.schedule!r}")
    _divides("model.n_layers", static.model.n_layers, "parallel.stage x parallel.rounds", layout.stage * layout.rounds)
    if layout.rounds > 1:
        _divides("parallel.microbatches", layout.microbatches, "parallel.stage", layout.stage)
    micro = static.global_batch // static.accumulate
    split = layout.data * layout.fsdp * layout.microbatches
    _divides("train.global_batch / train.accumulate", micro, "parallel.data x fsdp x microbatches", split)
    bubble = predicted_bubble(layout.stage, layout.microbatches, layout.rounds)
    return [
        f"pipeline: {layout.stage} stages, {layout.schedule}, {layout.microbatches} micro-batches: {bubble:.0%} of the time idle; "
        "blocks are computed once more in the backward, as with model.remat=full"
    ]


def _divides(name: str, value: int, axis: str, size: int) -> None:
    if value % size:
        low = value // size * size
        nearest = f"{low} or {low + size}" if low else f"{size}"
        sizes = [k for k in range(1, size + 1) if value % k == 0]
        raise BadInput(
            f"{name}={value} is not divisible by {axis}={size}; nearest {name}: {nearest}, nearest {axis}: {sizes[-1]}"
        )


def unsharded_warnings(declared: Any, layout: Layout) -> list[str]:
    """Under FSDP, which parameters no rule splits, where they are more than 2 % of all."""
    if layout.zero < 3 or layout.fsdp == 1:
        return []
    leaves = jax.tree_util.tree_leaves_with_path(declared, is_leaf=lambda d: isinstance(d, Declaration))
    left = [(path, d) for path, d in leaves if FSDP_AXIS not in d.axes]
    share = sum(d.size for _, d in left) / sum(d.size for _, d in leaves)
    if share <= MAX_UNSHARDED_SHARE:
        return []
    names = ", ".join(".".join(str(key.key) for key in path) for path, _ in left[:6])
    return [f"{share:.1%} of the parameters are not split by fsdp, since they have no `{FSDP_AXIS}` axis: {names}"]
