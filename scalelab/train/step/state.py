"""Everything a run needs to go on, as one pytree; randomness and data follow from (seed, step)."""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding, auto_axes

from scalelab.config import Layout, ModelShape, Static, group_hparams, traced_names, with_fields
from scalelab.model import transformer
from scalelab.model.declare import Declaration, named_leaves, with_variables, without_variables
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import ema, user_numbers
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.parts import fetch
from scalelab.optim.registry import find_optimizer
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.parallel.processes import gather_to_host
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import cast_for_storage, upcast
from scalelab.train.step.incident import MEMORY
from scalelab.train.step.variables import (
    MODEL,
    PRECISION,
    SKIPPED,
    STREAK,
    Metrics,
    ModelVariables,
    Outcome,
    Part,
)

# What a run carries beside parameters, optimizer state and their average. The first four are fields of a state, by
# whose names checkpoints hold them; those of any further one stand in its field `variables`.
PARTS: tuple[Part, ...] = (SKIPPED, STREAK, PRECISION, MEMORY, MODEL)


class TrainState(NamedTuple):
    """`step` counts batches consumed; a skipped batch counts, but changes neither `params` nor `opt_state`.

    All but the first three and `ema` are PARTS, declared in `variables.py`.
    """

    step: jax.Array  # int32
    params: Any  # nested dict, fp32 except under policy bf16_master
    opt_state: Any
    skipped: jax.Array  # int32, batches skipped so far
    streak: jax.Array  # int32, batches skipped in a row up to now
    ema: Any = ()  # an `ema.Ema` if train.ema > 0
    precision: Any = ()  # the precision policy's state: a LossScale, amax of past steps, what rounding lost, or nothing
    guard: Any = ()  # a `guard.GuardState` unless guard.policy is off
    variables: dict[str, Any] = {}  # noqa: RUF012 - the other PARTS by name, of those that this config has

    def part(self, name: str) -> Any:
        """The value of one of PARTS."""
        return getattr(self, name) if name in self._fields else self.variables.get(name, ())

    def with_parts(self, values: Mapping[str, Any]) -> "TrainState":
        """This state with these values of PARTS."""
        fields = {name: value for name, value in values.items() if name in self._fields}
        others = {name: value for name, value in values.items() if name not in fields and jax.tree.leaves(value)}
        return self._replace(**fields, variables=self.variables | others)


def init_state(static: Static, h: Hparams) -> TrainState:
    """A fresh state; parameters are drawn from the stream `seed`."""
    return state_from_params(
        static, h, transformer.init_params(static.model, jax.random.key(jnp.asarray(h.train.seed, jnp.uint32)))
    )


def state_from_params(static: Static, h: Hparams, params: Any) -> TrainState:
    """The state of step 0 on these parameters (fp32)."""
    zero, policy = jnp.zeros((), jnp.int32), POLICIES[static.precision]
    parts = {part.name: part.init(static, params) for part in PARTS}
    opt_state = cast_for_storage(build_optimizer_chain(static, h, jnp.zeros(())).init(params), policy.moments)
    if static.moments_on_host:
        send = lambda x: jax.device_put(x, jax.memory.Space.Host) if x.ndim else x  # noqa: E731
        opt_state = jax.tree.map(send, opt_state)
    average = ema.init_ema(params) if static.ema else ()
    stored = cast_for_storage(params, policy.parameters)
    return TrainState(zero, stored, opt_state, zero, zero, average).with_parts(parts)


def next_state(static: Static, state: TrainState, outcome: Outcome) -> tuple[TrainState, Metrics]:
    """The state after a step, and the metrics of its PARTS."""
    updated, metrics, values = outcome.updated, Metrics(), dict[str, Any]()
    for part in PARTS:
        values[part.name], noted = part.next(static, state.part(part.name), outcome)
        metrics |= noted
    after = state._replace(step=state.step + 1, params=updated.params, opt_state=updated.opt_state, ema=updated.ema)
    return after.with_parts(values), metrics


def state_shapes(static: Static) -> TrainState:
    """The shapes and dtypes of a state, for any mesh and batch, without computing it. Cached: do not modify."""
    like = with_fields(static, model=static.model.plain, layout=Layout(), global_batch=1, accumulate=1)
    return _shapes(with_fields(like, batch_ramp=(), past=()))


@functools.cache
def _shapes(static: Static) -> TrainState:
    h = group_hparams(dict.fromkeys(traced_names(static.optim), jax.ShapeDtypeStruct((), jnp.float32)))
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), parameter_declarations(static.model))
    return jax.eval_shape(functools.partial(state_from_params, static), h, params)


def host_bytes(static: Static) -> int:
    """Bytes of optimizer state in the host's memory (`train.moments`); scalars stay on the device."""
    if not static.moments_on_host:
        return 0
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state_shapes(static).opt_state) if x.ndim)


def state_specs(static: Static, like: TrainState | None = None) -> Any:
    """The sharding of each part of a state on the mesh of `static.layout`. `like`: its `state_shapes`, if known.

    Arrays of the optimizer state are matched to parameters by their path: of the same shape, they are sharded like the
    parameter's moments, else by `rules.reshaped_moment_spec`. Arrays without such a path are replicated.
    """
    shape, layout = static.model, static.layout
    like = state_shapes(static) if like is None else like
    whole, declared = PartitionSpec(), _declared_by_name(shape.plain)
    specs = jax.tree.leaves(rules.moment_specs(shape, layout), is_leaf=lambda x: isinstance(x, PartitionSpec))
    specs_by_name = dict(zip(declared, specs, strict=True))
    leaves, structure = jax.tree.flatten((like.opt_state, like.ema))

    def of(name: str | None, leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
        if name is None:
            return whole
        if leaf.shape == declared[name].shape:
            return specs_by_name[name]
        return rules.reshaped_moment_spec(declared[name], leaf.shape, layout)

    names = _parameter_names(shape.plain, structure)
    opt_state, average = jax.tree.unflatten(structure, map(of, names, leaves))
    parts = {part.name: part.specs(static, like.part(part.name)) for part in PARTS}
    fixed: Any = (whole, rules.parameter_specs(shape, layout), opt_state, whole, whole, average)
    return TrainState(*fixed).with_parts(parts)


@functools.cache
def _declared_by_name(shape: ModelShape) -> dict[str, Declaration]:
    """A model's declarations by dotted name. Cached: do not modify it."""
    return named_leaves(parameter_declarations(shape))


@functools.cache
def _parameter_names(shape: ModelShape, structure: jax.tree_util.PyTreeDef) -> tuple[str | None, ...]:
    """Of each leaf of a tree of optimizer state the parameter that its path names; None where it names none."""

    def name(path: Any) -> str | None:
        place = ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)) + "."
        return next((n for n in _declared_by_name(shape) if place.startswith(n + ".")), None)

    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return tuple(name(path) for path, _ in jax.tree_util.tree_leaves_with_path(numbered))


def state_memories(static: Static, device: jax.Device) -> TrainState:
    """The place of each part of a state on a single device; arrays of the optimizer's where `train.moments` says."""
    on_device = SingleDeviceSharding(device)
    moments = on_device.with_memory_kind(static.moments) if static.moments_on_host else on_device
    like = state_shapes(static)
    placed = jax.tree.map(lambda _: on_device, like)
    return placed._replace(opt_state=jax.tree.map(lambda x: moments if x.ndim else on_device, like.opt_state))


def move_moments(static: Static, state: TrainState) -> TrainState:
    """`state` on this process's first device, its optimizer state where `train.moments` says.

    By way of numpy, since jax 0.10 gives an array its memory's type only where it puts it there itself. The old arrays
    are deleted one by one, as a step deletes its state: two copies would take twice the pinned memory.
    """
    memories = state_memories(static, jax.local_devices()[0]).opt_state

    def move(x: jax.Array, place: Any) -> jax.Array:
        values = np.array(x)
        x.delete()
        return jax.device_put(values, place)

    return state._replace(opt_state=jax.tree.map(move, state.opt_state, memories))


def sharded_state_shapes(static: Static, mesh: Mesh) -> TrainState:
    """The shapes, dtypes and shardings of a state on `mesh`: the target that a checkpoint is restored to."""
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        state_shapes(static),
        state_specs(static),
    )


def model_variables(state: TrainState) -> Any:
    """The model's variables, as the forward reads them beside parameters (`declare.with_variables`); {}: none."""
    value = state.part(MODEL.name)
    return value.values if isinstance(value, ModelVariables) else {}


def evaluation_params(static: Static, state: TrainState, h: Hparams) -> Any:
    """What a forward of the trained model reads: `evaluation_point` and the model's variables, in their places."""
    return with_variables(evaluation_point(static, state, h), model_variables(state))


def evaluation_point(static: Static, state: TrainState, h: Hparams) -> Any:
    """The parameters to evaluate and export, in fp32: the optimizer's average if it has one, else the trained ones."""
    policy, point = POLICIES[static.precision], find_optimizer(static.optim.name).evaluated
    params = upcast(state.params, policy.parameters)
    if point is None:
        return params
    if static.layout.devices > 1:  # parameters and optimizer state may be sharded differently
        point = auto_axes(point, out_sharding=rules.parameter_specs(static.model, static.layout))
    return point(params, upcast(fetch(state.opt_state), policy.moments), user_numbers.readable_hparams(static.optim, h))


def replace_weights(state: TrainState, weights: Any) -> TrainState:
    """`state` with the parameters and model's variables in `weights`, a tree as `evaluation_params` gives."""
    params, variables = without_variables(weights, model_variables(state))
    params = jax.tree.map(
        lambda old, new: new if new.dtype == old.dtype else new.astype(old.dtype), state.params, params
    )
    value = state.part(MODEL.name)
    if not isinstance(value, ModelVariables):
        return state._replace(params=params)
    return state._replace(params=params).with_parts({MODEL.name: value._replace(values=variables)})


def params_digest(params: Any) -> str:
    """SHA-256 over names and bytes of all parameters, in sorted order. All processes of a mesh must call it."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sha.update(jax.tree_util.keystr(path).encode())
        sha.update(np.ascontiguousarray(gather_to_host(leaf)).tobytes())
    return sha.hexdigest()
