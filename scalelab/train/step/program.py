"""The compiled program of one or many trials: run in turn, or all at once under vmap.

Both give the loop the same five functions over `states`, so the loop does not depend on the mode.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from scalelab.config import Hparams, Static, flatten_hparams, group_hparams
from scalelab.errors import BadInput
from scalelab.hardware.compiler_options import collective_options, initial_state_options
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import pipeline, rows
from scalelab.parallel.processes import compile_together
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.sharding import BATCH_AXES, target_platform, without_mesh
from scalelab.train.step import state as state_lib
from scalelab.train.step.state import TrainState
from scalelab.train.step.step import evaluation_values, many_steps

HparamsList = list[Hparams]
Batches = Sequence[np.ndarray | None]  # this process's rows; None: a trial that has ended


class Program(NamedTuple):
    """`states` is opaque to the loop; lists are in the order of the trials.

    init() -> states; advance(states, batches a trial [k, R, S+1], n) -> (states, metrics a trial,
    each [k]); a trial whose batches are None has ended, and its metrics are meaningless;
    evaluate(states, batches [n, R, S+1]) -> values a trial, `val_loss` among them; separate(states) -> [TrainState];
    join([TrainState]) -> states. `advance` donates the old states' memory. This process provides the R `rows` of each
    global batch.
    """

    init: Callable[[], Any]
    advance: Callable[[Any, Batches, int], tuple[Any, list]]
    evaluate: Callable[[Any, np.ndarray], list[dict[str, jax.Array]]]
    separate: Callable[[Any], list[TrainState]]
    join: Callable[[list[TrainState]], Any]
    rows: np.ndarray | slice = slice(None)


INTEGER_HPARAMS = {"train.seed": jnp.uint32, "dataset.separator": jnp.int32}


def traced_hparams(h: Hparams) -> Hparams:
    """The numbers of a config as the step's traced scalars."""
    values = flatten_hparams(h).items()
    return group_hparams({key: jnp.asarray(value, INTEGER_HPARAMS.get(key, jnp.float32)) for key, value in values})


def hparam_shapes(keys: Iterable[str]) -> Hparams:
    """The shapes and dtypes of `traced_hparams` of these keys."""
    return group_hparams({key: jax.ShapeDtypeStruct((), INTEGER_HPARAMS.get(key, jnp.float32)) for key in keys})


@functools.cache
def _compiled_functions(static: Static, trial_mesh: Mesh | None) -> tuple[Wrapped, Wrapped, Wrapped]:
    """(init, advance, evaluate), jitted once per process, `Static` and mesh: of one trial, or of trials on a mesh."""
    init: Callable = functools.partial(state_lib.init_state, static)
    advance: Callable = functools.partial(many_steps, static)
    evaluated: Callable = functools.partial(evaluation_values, static)
    if trial_mesh:
        init = _map_trials(init, trial_mesh, (0,))
        advance = _map_trials(advance, trial_mesh, (0, 0, None, 0))
        evaluated = _map_trials(evaluated, trial_mesh, (0, None, 0))
    options = collective_options(target_platform(), static.layout.devices)
    advancing = jax.jit(advance, donate_argnums=0, compiler_options=options or None)
    return _jit_first_state(init), advancing, jax.jit(evaluated)


def _jit_first_state(function: Callable, **more: Any) -> Wrapped:
    return jax.jit(function, compiler_options=initial_state_options(target_platform()) or None, **more)


def _map_trials(function: Callable, mesh: Mesh, in_axes: tuple[int | None, ...]) -> Callable:
    """vmap `function` over each device's trials. A device waits for no other: a shard_map cannot add communication."""

    def on_one_device(*arguments: Any) -> Any:
        with without_mesh():  # a trial knows of one device only
            return jax.vmap(function, in_axes=in_axes)(*arguments)

    specs = tuple(PartitionSpec() if axis is None else PartitionSpec("trial") for axis in in_axes)
    return jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("trial"), check_vma=False)


def mesh_program(static: Static, hparams: HparamsList) -> Program:
    """Trials in turn, each over all devices of the layout's mesh: arrays come and go as `state.state_specs` says."""
    mesh = mesh_lib.make_mesh(static.layout)
    _, advancing, evaluating = _compiled_functions(static, None)
    advance = compile_together(advancing, "the first step")
    evaluated = compile_together(evaluating, "the first evaluation")
    specs = state_lib.state_specs(static)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    by_row = NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, None))
    local_rows = rows.local_row_indices(by_row, (1, static.global_batch, 1), axis=1)
    with jax.set_mesh(mesh):
        traced = [traced_hparams(h) for h in hparams]

    def whole(batches_KRS: np.ndarray) -> jax.Array:
        return rows.assemble_global_array(by_row, batches_KRS, local_rows, axis=1, size=static.global_batch)

    def advance_all(states: list, batches: Batches, n: int) -> tuple[list, list]:
        with jax.set_mesh(mesh):
            return _one_by_one(advance, states, batches, n, traced, whole)

    def evaluate_all(states: list, val: np.ndarray) -> list[dict[str, jax.Array]]:
        with jax.set_mesh(mesh):
            batches = whole(val)
            return [evaluated(s, batches, h) for s, h in zip(states, traced, strict=True)]

    def begin() -> list:
        # Drawn under automatic partitioning: the numbers don't depend on the mesh, and no device holds them all.
        auto = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
        ordered = lambda h: pipeline.reorder_layers(state_lib.init_state(static, h), specs, static.layout)  # noqa: E731
        places = jax.tree.map(lambda spec: NamedSharding(auto, spec), specs)
        drawn = compile_together(_jit_first_state(ordered, out_shardings=places), "drawing the first state")
        return [jax.device_put(drawn(traced_hparams(h)), shardings) for h in hparams]

    def reorder(back: bool) -> Callable[[TrainState], TrainState]:
        jitted = jax.jit(lambda state: pipeline.reorder_layers(state, specs, static.layout, back))
        return compile_together(jitted, "reordering the layers")

    reordered = {back: reorder(back) for back in (False, True)}

    def in_order(states: Sequence[TrainState], back: bool) -> list[TrainState]:
        if static.layout.rounds == 1 or not has_even_stages(static.model, static.layout):
            return list(states)
        with jax.set_mesh(mesh):
            return [reordered[back](state) for state in states]

    return Program(
        init=begin,
        advance=advance_all,
        evaluate=evaluate_all,
        separate=lambda states: in_order(states, True),
        join=lambda states: in_order([jax.device_put(s, shardings) for s in states], False),
        rows=local_rows,
    )


def _one_by_one(
    advance: Callable, states: list, batches: Batches, n: int, traced: list, place: Callable = lambda batch: batch
) -> tuple[list, list]:
    """Advance each trial n steps, placing its batches just before; trials without batches are skipped."""
    states, logs = list(states), [None] * len(states)
    for i, (batch, h) in enumerate(zip(batches, traced, strict=True)):
        if batch is not None:
            states[i], logs[i] = advance(states[i], place(batch), np.int32(n), h)
    return states, logs


def sequential_program(static: Static, hparams: HparamsList) -> Program:
    """One compiled program of one trial, called for each: the fastest on CPU, and bit for bit each trial alone."""
    static = dataclasses.replace(static, layout=mesh_lib.resolve_layout(static.layout, jax.device_count()))
    if static.layout.devices > 1:
        return mesh_program(static, hparams)
    init, advance, evaluated = _compiled_functions(static, None)
    traced = [traced_hparams(h) for h in hparams]
    on_host = static.moments_on_host

    return Program(
        init=lambda: [_commit(init(h)) for h in traced],
        advance=lambda states, batches, n: _one_by_one(advance, states, batches, n, traced),
        evaluate=lambda states, val: [evaluated(s, val, h) for s, h in zip(states, traced, strict=True)],
        separate=list,
        join=lambda states: [state_lib.move_moments(static, state) if on_host else _commit(state) for state in states],
    )


def _commit(state: TrainState) -> TrainState:
    """Bind a new state's arrays to their device, as those of a checkpoint are: both then run one compiled program.

    NumPy arrays, which the programs of a mesh and of vmap also join, go to this process's first device.
    """
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding if isinstance(x, jax.Array) else first), state)


def spread_trials(trials: int, devices: int) -> tuple[int, int]:
    """(devices used, trials on each): as few on each as can be, on no more devices than that takes.

    Where trials don't divide, the last device trains its last trial more than once: 11 trials on 8 devices are two on
    each of six, not eleven on one.
    """
    each = -(-trials // devices)
    return -(-trials // each), each


def vmapped_program(static: Static, hparams: HparamsList) -> Program:
    """All trials in one program, the trial axis sharded over this process's devices as `spread_trials` says."""
    if mesh_lib.resolve_layout(static.layout, jax.device_count()).devices > 1:
        raise BadInput(
            "sweep.pack='vmap' spreads trials over the devices, and `parallel` each of them: use sweep.pack='turn'"
        )
    if static.moments_on_host:
        raise BadInput(f"sweep.pack='vmap' with train.moments={static.moments!r}: use sweep.pack='turn'")
    devices = jax.local_devices()
    used, each = spread_trials(len(hparams), len(devices))
    mesh = jax.make_mesh((used,), ("trial",), axis_types=(AxisType.Auto,), devices=devices[:used])
    init, advance, evaluated = _compiled_functions(static, mesh)
    by_trial, everywhere = NamedSharding(mesh, PartitionSpec("trial")), NamedSharding(mesh, PartitionSpec())

    def fill(parts: Sequence[Any]) -> list[Any]:
        return [*parts, *[parts[-1]] * (used * each - len(parts))]

    def stack(trees: Sequence[Any]) -> Any:
        return jax.device_put(
            jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *fill(trees)), by_trial
        )

    def by_run(tree: Any) -> list:  # each from its own device's part: nothing is sent between devices
        leaves, kind = jax.tree.flatten(tree)
        parts = [[shard.data for shard in leaf.addressable_shards] for leaf in leaves]
        picked = ([part[i // each][i % each] for part in parts] for i in range(len(hparams)))
        return [jax.tree.unflatten(kind, row) for row in picked]

    def unstack(tree: Any) -> list:
        on_host = jax.device_get(tree)
        return [jax.tree.map(lambda leaf: leaf[i], on_host) for i in range(len(hparams))]  # noqa: B023

    traced = stack([traced_hparams(h) for h in hparams])

    def advance_all(states: Any, batches: Batches, n: int) -> tuple[Any, list]:
        filler = next(
            batch for batch in batches if batch is not None
        )  # a trial that has ended goes on, and its results are dropped
        stacked = np.stack(fill([filler if batch is None else batch for batch in batches]))
        states, metrics = advance(states, jax.device_put(stacked, by_trial), np.int32(n), traced)
        return states, by_run(metrics)

    return Program(
        init=lambda: init(traced),
        advance=advance_all,
        evaluate=lambda states, val: by_run(evaluated(states, jax.device_put(val, everywhere), traced)),
        separate=unstack,
        join=stack,
    )


PACKINGS = {"vmap": vmapped_program, "turn": sequential_program}
# Values of sweep.pack that choose one for this backend: batched products are slower than plain ones on a CPU only.
PACKING_CHOOSERS = {"auto": lambda: "turn" if jax.default_backend() == "cpu" else "vmap"}


def resolve_packing(choice: str) -> str:
    """The name in PACKINGS; `auto` is resolved for this backend."""
    return PACKING_CHOOSERS[choice]() if choice in PACKING_CHOOSERS else choice


def restore_targets(static: Static, trials: int, mode: str) -> list[TrainState]:
    """Shapes, dtypes and shardings of the states that `PACKINGS[mode]` joins, as targets to restore to.

    Under vmap each trial lies whole on the device that trains it.
    """
    static = dataclasses.replace(static, layout=mesh_lib.resolve_layout(static.layout, jax.device_count()))
    if mode == "turn" and static.layout.devices > 1:
        return [state_lib.sharded_state_shapes(static, mesh_lib.make_mesh(static.layout))] * trials
    devices = jax.local_devices()
    each = spread_trials(trials, len(devices))[1] if mode == "vmap" else trials
    places = [devices[i // each] for i in range(trials)]
    return [_on_one_device(static, place) for place in places]


def _on_one_device(static: Static, device: jax.Device) -> TrainState:
    like, memories = state_lib.state_shapes(static), state_lib.state_memories(static, device)
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), like, memories)


def cache_compilations() -> None:
    """Cache compiled programs on disk, in $JAX_COMPILATION_CACHE_DIR or ~/.cache/scalelab/xla, for later processes."""
    place = os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.path.expanduser("~/.cache/scalelab/xla")
    jax.config.update("jax_compilation_cache_dir", place)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
