"""The largest micro-batch that fits one GPU, by remat policy: with this trainer's step, and with GaLore's and APOLLO's.

Theirs keeps weights and gradients in bf16 without fp32 copies, and may take the update parameter by parameter within
the backward, so that a single gradient exists at a time (`per_layer`; Zhao et al. 2024, section 4.3). This trainer's
own ways to hold a model so are those of `search` (`list_trainable`).
"""

import dataclasses

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout, Static
from scalelab.model import pieces, transformer
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.search import levers
from scalelab.plan.search.nearest import Candidate, fastest_fit
from scalelab.plan.step.efficiency import default_efficiency

MOST_ROWS = 4096
ONE_DEVICE = {f"parallel.{axis}": "1" for axis in MESH_AXES} | {"parallel.sequence": "false"}


@dataclasses.dataclass(frozen=True)
class SingleGpuFit:
    """`rows`: sequences of the largest micro-batch (a power of two) that fits, 0: none; `memory`: for max(1, rows)."""

    weights: str  # float32: as this trainer keeps them | bfloat16: the papers' way
    per_layer: bool
    remat: str
    rows: int
    memory: Memory


def list_fits(static: Static, machine: Machine) -> tuple[SingleGpuFit, ...]:
    """Every way to hold the model of `static` on one of `machine`, with the optimizer that it names."""
    ways = [("float32", False), ("bfloat16", False), ("bfloat16", True)]
    return tuple(_largest_fit(static, machine, *way, remat) for way in ways for remat in pieces.REMAT_POLICIES)


def list_trainable(config: ConfigDict, machine: Machine) -> tuple[Candidate, ...]:
    """The ways of `search` to train the model on one device that fit, nearest first, all by steps of this trainer."""
    static, efficiency = config_lib.static(config), default_efficiency(machine)
    single = config_lib.resolve(config_lib.override(config, ONE_DEVICE))
    ways = levers.list_changes(single, dataclasses.replace(static, layout=Layout()), machine)
    options = (fastest_fit(single, changes, machine, 1, efficiency) for changes in ways)
    fitting = {tuple(option.changes.items()): option for option in options if option}
    return tuple(fitting.values())


def _largest_fit(static: Static, machine: Machine, weights: str, per_layer: bool, remat: str) -> SingleGpuFit:
    model = dataclasses.replace(static.model, remat=remat, sequence_parallel=False)
    static = dataclasses.replace(static, model=model, layout=Layout(), accumulate=1, batch_ramp=())

    def of(rows: int) -> Memory:
        ours = step_memory(dataclasses.replace(static, global_batch=rows), machine)
        return lean_memory(static, ours, per_layer) if weights == "bfloat16" else ours

    rows = 0
    while rows < MOST_ROWS and of(max(1, 2 * rows)).fits:
        rows = max(1, 2 * rows)
    return SingleGpuFit(weights, per_layer, remat, rows, of(max(1, rows)))


def lean_memory(static: Static, ours: Memory, per_layer: bool) -> Memory:
    """`ours` with weights and gradients in two bytes; `per_layer`: with one gradient of one layer at a time."""
    declared = jax.tree.leaves(transformer.parameter_declarations(static.model))
    largest = max(d.size // (d.shape[0] if "layers" in d.axes else 1) for d in declared)
    number = sum(d.size for d in declared)
    components = ours.components | {"parameters": 2 * number, "gradients": 2 * (largest if per_layer else number)}
    total, before = sum(components.values()), ours.total
    margin = ours.capacity - total
    how = "weights and gradients in bf16, without fp32 copies" + ", updated parameter by parameter" * per_layer
    notes = (*ours.notes, f"{how}: this trainer has no such step")
    return dataclasses.replace(
        ours,
        components=components,
        total=total,
        least=ours.least + total - before,
        fits=margin >= 0,
        margin_bytes=margin,
        notes=notes,
    )
