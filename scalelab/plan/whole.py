"""A whole plan: parameters, FLOPs, memory, time, batch, checkpoints and advice of one config on one machine."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.hardware import device_memory
from scalelab.plan.compiled.absent_devices import describe_no_slices
from scalelab.plan.compiled.compile import CompiledMemory, compile_step
from scalelab.plan.machine.layout import apply_mesh, partial_mesh
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.host import HostMemory, host_memory
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.run.as_json import plan_json, summarize
from scalelab.plan.run.batch import BatchPlan, plan_batch
from scalelab.plan.run.goodput import RESTART_S, Checkpointing, plan_checkpointing
from scalelab.plan.run.inference import Inference, inference_memory
from scalelab.plan.run.training import Training, estimate_training
from scalelab.plan.search.advice import Advice, advise_changes
from scalelab.plan.search.levers import changed_keys
from scalelab.plan.search.nearest import (
    Candidate,
    devices_that_fit,
    fewer_devices,
    fill_mesh,
    find_refusal,
    free_fit,
    in_16_bits,
    nearest_fit,
    with_even_batch,
    without_ramp,
)
from scalelab.plan.search.remat import AUTO, choose_remat, with_remat
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.step.flops import Flops, count_flops
from scalelab.plan.step.savings import cost_of_traits
from scalelab.plan.step.time import StepTime, step_time
from scalelab.train.step.hooks import refuse_unsupported
from scalelab.train.step.update.per_layer import refusals

PINNED = 0.9  # of the time, at most, of a plan that is named because it has no batch warm-up, 16 bits or an even batch


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a plan is told beside its config and machine; None: what is published or assumed.

    `mtbf_s`, `restart_s`: seconds between failures of the job, and to go on after one. `write_bytes_per_s`: of the
    storage. `serve`: sequences served at once and their tokens (0: model.seq_len).
    """

    critical_tokens: float | None = None
    mtbf_s: float | None = None
    restart_s: float = RESTART_S
    write_bytes_per_s: float | None = None
    serve: tuple[int, int] = (1, 0)


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A plan under changed keys. `alters`: those that change the numbers of the training beyond rounding."""

    changes: dict[str, Any]  # config key -> value, as on the command line; a mesh asked for beside them is dropped
    alters: tuple[str, ...]
    plan: "Plan"

    def to_json(self) -> dict[str, Any]:
        """The changes and what the plan comes to."""
        return {"changes": self.changes, "alters": list(self.alters), **summarize(self.plan)}


Planner = Callable[[Candidate | None], Alternative | None]  # plans a candidate


@dataclasses.dataclass(frozen=True)
class Plan:
    """Requirements of a run. Bytes are of one device and seconds of one step, unless a name says otherwise.

    `refusal`: the trainer's own. `nearest`: the plan to take where this one can't run, if there is one; else
    `fits_from`: devices on which it can, with `fits_with` changed. `unpinned`: the fastest plan without the batch's
    warm-up, where that is much faster. `narrower`: in 16 bits on the same mesh, where an fp32 plan runs. `even`: a
    batch near an odd one, where that is much faster.
    """

    machine: Machine
    static: config_lib.Static
    layout: Layout
    steps: int
    tokens: int  # predicted over all steps
    flops: Flops
    memory: Memory
    host: HostMemory | None  # None: nothing of the state lies in the host's memory
    inference: Inference
    time: StepTime
    savings: dict[str, float]  # {trait of this trainer, in words: seconds that it costs a step}
    training: Training
    batch: BatchPlan
    checkpoint: Checkpointing
    notes: tuple[str, ...]
    advice: tuple[Advice, ...] = ()
    compiled: CompiledMemory | None = None
    refusal: str | None = None
    nearest: Alternative | None = None
    fits_from: int | None = None
    fits_with: Mapping[str, Any] | None = None
    unpinned: Alternative | None = None
    faster: Mapping[str, Any] | None = None  # the first of `advice`, as changes of the config without `mesh`
    narrower: Alternative | None = None
    even: Alternative | None = None
    filled: Mapping[str, Any] | None = None  # changes that make a mesh whole of which only a part was asked
    mesh_chosen: bool = False  # here, as neither the config nor the question has one

    @property
    def runs(self) -> bool:
        """Whether the trainer takes it and device and host hold it."""
        return self.refusal is None and self.memory.fits and (self.host is None or self.host.fits is not False)

    @property
    def lead(self) -> Alternative | None:
        """The plan that is meant in place of this one: on a chosen mesh `unpinned`, else `nearest`."""
        return self.unpinned if self.unpinned and self.mesh_chosen else self.nearest

    @property
    def meant(self) -> "Plan | None":
        """This plan, or its `lead`; None where it can't run and there is none."""
        return self.lead.plan if self.lead else self if self.runs else None

    @property
    def devices(self) -> int:
        """The size of the mesh."""
        return self.layout.devices

    def to_json(self) -> dict[str, Any]:
        """JSON of `scalelab plan --json`: bytes of the fullest device, seconds of one step unless a name differs."""
        return plan_json(self)


def uncounted_functions(static: config_lib.Static) -> tuple[str, ...]:
    """A note for each function of the user whose work the plan does not count."""
    names = {
        "train.loss": static.own_loss, "train.metrics": static.own_metrics, "eval.metrics": static.own_eval_metrics,
    }  # fmt: skip
    return tuple(f"FLOPs and time are without your {key}={name!r}" for key, name in names.items() if name)


def plan(
    config: ConfigDict | str | os.PathLike,
    hardware: Machine | str | os.PathLike,
    devices: int | None = None,
    mesh: str | Mapping[str, Any] | Layout | None = None,
    *,
    efficiency: Efficiency | None = None,
    terms: Terms = Terms(),
    compile: bool = False,
    free: tuple[str, ...] = (),
    search: bool = True,
) -> Plan:
    """Plan `config` (a tree or a file's path) on `devices` of `hardware` (a name, a JSON file's path or a `Machine`).

    `mesh`: sizes by axis ("fsdp=8,tensor=8", a mapping or a `Layout`) instead of the config's. `efficiency`: shares of
    the datasheet (default: published ones). `compile`: also compile the real step for the machine. Of a mesh that
    `devices` hold several times (stage=16 on 64) the rest is chosen. `free`: of ("precision", "optimizer"), what is
    chosen too, the fastest that fits. `search`: for advice and, where this can't run, for the nearest plan that does.
    Nothing is allocated. BadInput where a part of the plan raises it.
    """
    config = config_lib.resolve(config) if isinstance(config, ConfigDict) else config_lib.load(os.fspath(config))
    machine = hardware if isinstance(hardware, Machine) else load_machine(os.fspath(hardware))
    efficiency, asked_static = efficiency or default_efficiency(machine), config_lib.static(config)
    if free and mesh:
        raise BadInput("--free chooses the mesh, too; nearest: leave --mesh out")
    on = devices or asked_static.layout.devices
    if free and (candidate := free_fit(config, machine, on, efficiency, free)):
        freed = plan(candidate.config, machine, devices, efficiency=efficiency, terms=terms, compile=compile)
        return _after_freeing(freed, candidate, free)
    asked = partial_mesh(asked_static, devices, mesh) if search else {}
    if asked and (candidate := fill_mesh(config, machine, on, efficiency, asked)):
        filled = plan(candidate.config, machine, devices, efficiency=efficiency, terms=terms, compile=compile)
        return _after_filling(filled, candidate.changes, asked)
    static, notes = apply_mesh(asked_static, devices, mesh)
    planned = _plan_layout(config, static, machine, efficiency, terms, notes)
    mesh_chosen = mesh is None and static.layout.devices > asked_static.layout.devices == 1
    compiled = compile_step(planned.static, machine) if compile else None
    planned = dataclasses.replace(planned, mesh_chosen=mesh_chosen, compiled=compiled)
    if not search:
        return planned
    planned = dataclasses.replace(planned, advice=advise_changes(planned.static, machine, efficiency))

    def alternative(candidate: Candidate | None) -> Alternative | None:
        if candidate is None:
            return None
        on = candidate.static.layout.devices
        other = plan(candidate.config, machine, on, efficiency=efficiency, terms=terms, search=False)
        return Alternative(candidate.changes, candidate.alters, other)

    return add_alternatives(planned, config, efficiency, alternative)


def _plan_layout(
    config: ConfigDict,
    static: config_lib.Static,
    machine: Machine,
    efficiency: Efficiency,
    terms: Terms,
    notes: list[str],
) -> Plan:
    """The plan of `config` on the resolved layout of `static`, without advice. `notes` come first of the plan's own."""
    refuse_unsupported(static)
    if static.model.remat == AUTO:
        choice = choose_remat(static, lambda option: step_memory(option, machine))
        static, notes = with_remat(static, choice.policy), [*notes, f"model.remat={choice.policy}: {choice.why}"]
    refusals.refuse_unsupported(static)
    steps = config.train.steps
    tokens = schedule_steps.tokens_before(config, steps)
    memory, step = step_memory(static, machine), step_time(static, machine, efficiency)
    training = estimate_training(static, machine, steps, step)
    work_s = max(training.days * 86_400, step.total_s)
    failures = terms.mtbf_s, terms.restart_s, terms.write_bytes_per_s
    facts = [device_memory.describe_usable_bytes(machine.chip), describe_no_slices(machine, static.layout.devices)]
    return Plan(
        machine=machine,
        static=static,
        layout=static.layout,
        steps=steps,
        tokens=tokens,
        flops=count_flops(static),
        memory=memory,
        host=host_memory(static, machine),
        inference=inference_memory(static, machine, *terms.serve),
        time=step,
        savings=cost_of_traits(static, machine, efficiency),
        training=training,
        batch=plan_batch(static, tokens, critical_tokens=terms.critical_tokens),
        checkpoint=plan_checkpointing(static, machine, *failures, step_s=step.total_s, work_s=work_s),
        notes=(*notes, *uncounted_functions(static), *memory.notes, *filter(None, facts)),
        refusal=find_refusal(static),
    )


def _after_freeing(freed: Plan, candidate: Candidate, free: tuple[str, ...]) -> Plan:
    """`freed`, the plan of a candidate, with what was chosen in a note."""
    altered = ", ".join(candidate.alters) or "nothing that changes numbers"
    note = f"free {' and '.join(free)}: the fastest that fits changes {altered}"
    return dataclasses.replace(freed, filled=candidate.changes, notes=(note, *freed.notes))


def _after_filling(planned: Plan, changes: dict[str, Any], asked: Mapping[str, int]) -> Plan:
    """`planned` on a mesh that was filled up by these `changes`: those of the plans beside it are added to them."""
    beside = {name: each for name in ("nearest", "unpinned", "narrower", "even") if (each := getattr(planned, name))}
    product = " x ".join(f"{axis}={size}" for axis, size in asked.items())
    note = f"mesh: {product} takes {math.prod(asked.values()):,} of {planned.devices:,} devices; the rest was chosen"
    return dataclasses.replace(
        planned,
        filled=changes,
        faster=None if planned.faster is None else changes | dict(planned.faster),
        notes=(note, *planned.notes),
        **{name: dataclasses.replace(each, changes=changes | each.changes) for name, each in beside.items()},
    )


def add_alternatives(planned: Plan, config: ConfigDict, efficiency: Efficiency, alternative: Planner) -> Plan:
    """`planned` with the plans beside it: the nearest that can run, and the one that no warm-up of the batch pins."""
    machine, devices, advice = planned.machine, planned.devices, planned.advice
    if planned.runs and advice:
        planned = dataclasses.replace(planned, faster=changed_keys(config_lib.static(config), advice[0].option))
    if not planned.runs:
        candidate = nearest_fit(config, machine, devices, efficiency, planned.layout)
        if candidate is None or "optim.name" in candidate.alters:
            candidate = fewer_devices(config, machine, devices, efficiency) or candidate
        nearest = alternative(candidate)
        more = None if nearest else devices_that_fit(config, machine, devices, efficiency)
        on, changes = (more.static.layout.devices, more.changes) if more else (None, None)
        planned = dataclasses.replace(planned, nearest=nearest, fits_from=on, fits_with=changes)
    free = alternative(without_ramp(config, machine, devices, efficiency)) if devices > 1 else None
    reference = planned.meant
    if free and not (reference and free.plan.time.total_s > PINNED * reference.time.total_s):
        planned = dataclasses.replace(planned, unpinned=free)
    if not (planned.nearest and "train.global_batch" in planned.nearest.changes):
        even = alternative(with_even_batch(config, machine, devices, efficiency))
        if even and even.plan.training.days <= PINNED * _fastest_days(planned):
            planned = dataclasses.replace(planned, even=even)
    if planned.meant is planned:
        narrower = alternative(in_16_bits(config, planned.static, machine))
        if narrower and narrower.plan.time.total_s <= PINNED * planned.time.total_s:
            return dataclasses.replace(planned, narrower=narrower)
    return planned


def _fastest_days(planned: Plan) -> float:
    """Days of the plan that is meant, or with the first advice on it; infinite where none can run."""
    if (meant := planned.meant) is None:
        return math.inf
    return meant.training.days * min([1.0, *(way.of_plan for way in planned.advice[:1] if meant is planned)])
