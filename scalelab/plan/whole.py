"""A whole plan: parameters, FLOPs, memory, time, batch, checkpoints and advice of one config on one machine."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.config.steps import schedule_steps
from scalelab.hardware import device_memory
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.compiled.compile import CompiledMemory, compile_step
from scalelab.plan.machine.layout import apply_mesh
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.advice import Advice, advise_changes, changed_keys
from scalelab.plan.memory.host import HostMemory, host_memory
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.memory.remat import AUTO, choose_remat, with_remat
from scalelab.plan.memory.search import Candidate, devices_that_fit, find_refusal, nearest_fit, without_ramp
from scalelab.plan.run.batch import BatchPlan, plan_batch
from scalelab.plan.run.goodput import RESTART_S, Checkpointing, plan_checkpointing
from scalelab.plan.run.inference import Inference, inference_memory
from scalelab.plan.run.training import Training, estimate_training
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.step.flops import Flops, count_flops
from scalelab.plan.step.savings import cost_of_traits
from scalelab.plan.step.time import StepTime, step_time
from scalelab.train.step.hooks import refuse_unsupported
from scalelab.train.step.update.per_layer import refusals

PINNED = 0.9  # of the step time: a plan without the batch's warm-up is named where it takes at most so much


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A plan under changed keys. `alters`: those that change the numbers of the training beyond rounding."""

    changes: dict[str, Any]  # config key -> value, as on the command line; a mesh asked for beside them is dropped
    alters: tuple[str, ...]
    plan: "Plan"

    def to_json(self) -> dict[str, Any]:
        """The changes and what the plan comes to."""
        return {"changes": self.changes, "alters": list(self.alters), **summarize(self.plan)}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Requirements of a run. Bytes are of one device and seconds of one step, unless a name says otherwise.

    `refusal`: the trainer's own. `nearest`: the plan to take where this one can't run, if there is one; else
    `fits_from`: devices on which it can. `unpinned`: the fastest plan without the batch's warm-up, where there is one.
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
    advice: tuple[Advice, ...]
    compiled: CompiledMemory | None
    notes: tuple[str, ...]
    refusal: str | None = None
    nearest: Alternative | None = None
    fits_from: int | None = None
    unpinned: Alternative | None = None
    faster: Mapping[str, Any] | None = None  # the first of `advice`, as changes of the config without `mesh`

    @property
    def runs(self) -> bool:
        """Whether the trainer takes it and device and host hold it."""
        return self.refusal is None and self.memory.fits and (self.host is None or self.host.fits is not False)

    @property
    def meant(self) -> "Plan | None":
        """This plan or, where it can't run, the nearest that does."""
        return self if self.runs else self.nearest.plan if self.nearest else None

    @property
    def devices(self) -> int:
        """The size of the mesh."""
        return self.layout.devices

    def to_json(self) -> dict[str, Any]:
        """JSON of `scalelab plan --json`: bytes of the fullest device, seconds of one step unless a name differs."""
        t, c = self.time, self.checkpoint
        totals = ("total", "fits", "capacity", "margin_bytes", "formula_bytes")
        described = {
            "verdict": self.verdict(),
            "hardware": self.machine.chip.name,
            "devices": self.devices,
            "mesh": dataclasses.asdict(self.layout),
            "params": self.flops.parameters,
            "flops": {
                name: {
                    "per_token": per_token,
                    "total": per_token * self.tokens,
                    "per_token_with_remat": self.flops.remat_per_token[name],
                }
                for name, per_token in self.flops.per_token.items()
            },
            "memory_bytes": self.memory.components | {name: getattr(self.memory, name) for name in totals},
            "time_s": {"compute": t.compute_s, "hbm": t.hbm_s}
            | dict.fromkeys(MESH_AXES, 0.0)
            | t.axes
            | {"exposed": t.exposed, "bubble": t.bubble_s, "total": t.total_s, "low": t.low_s, "high": t.high_s},
            "mfu": t.mfu,
            "mfu_range": [t.mfu_low, t.mfu_high],
            "tokens_per_s": t.tokens_per_s,
            "steps": self.steps,
            "tokens": self.tokens,
            "days": self.training.days,
            "device_hours": self.training.device_hours,
            "cost": self.training.cost,
            "checkpoint": dataclasses.asdict(c),
            "batch_tokens": self.batch.tokens,
            "batch": dataclasses.asdict(self.batch),
            "inference_bytes": dataclasses.asdict(self.inference),
            "advice": [one.to_json() for one in self.advice],
            "savings_s": self.savings,
            "assumptions": list(t.assumptions),
            "notes": list(self.notes),
        }  # fmt: skip
        if self.host:
            described["host_memory_bytes"] = dataclasses.asdict(self.host) | {"fits": self.host.fits}
        return described | ({"compiled": dataclasses.asdict(self.compiled)} if self.compiled else {})

    def verdict(self) -> dict[str, Any]:
        """Whether it fits, and the plan that is meant: this one or the nearest that does, with its own time."""
        answer = summarize(self) if self.runs else self.nearest.to_json() if self.nearest else {}
        return {
            "fits": self.runs,
            "refusal": self.refusal,
            **answer,
            **({"fits_from_devices": self.fits_from} if self.fits_from else {}),
            **({"without_batch_warmup": self.unpinned.to_json()} if self.unpinned else {}),
        }


def summarize(plan: Plan) -> dict[str, Any]:
    """What a plan that can run comes to: its layout, time, money and MFU."""
    t, run, static = plan.time, plan.training, plan.static
    return {
        "mesh": dataclasses.asdict(plan.layout),
        "remat": static.model.remat,
        "rows_per_device": plan.batch.rows_per_device,
        "accumulate": static.accumulate,
        "updates": static.updates,
        "moments": static.moments,
        "precision": static.precision,
        "optimizer": static.optim.name,
        "step_s": t.total_s,
        "step_s_range": [t.low_s, t.high_s],
        "days": run.days,
        "days_range": [run.days_low, run.days_high],
        "device_hours": run.device_hours,
        "cost": run.cost,
        "mfu": t.mfu,
        "mfu_range": [t.mfu_low, t.mfu_high],
    }


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
    price_per_hour: float | None = None,
    critical_tokens: float | None = None,
    mtbf_s: float | None = None,
    restart_s: float = RESTART_S,
    write_bytes_per_s: float | None = None,
    compile: bool = False,
    serve: tuple[int, int] = (1, 0),
    search: bool = True,
) -> Plan:
    """Plan `config` (a tree or a file's path) on `devices` of `hardware` (a name, a JSON file's path or a `Machine`).

    `mesh`: sizes by axis ("fsdp=8,tensor=8", a mapping or a `Layout`) instead of the config's. `efficiency`: shares of
    the datasheet (default: published ones). `compile`: also compile the real step for the machine. `serve`: sequences
    served at once and their tokens (0: model.seq_len). `search`: for advice and, where this can't run, for the nearest
    plan that does. Nothing is allocated. BadInput where a part of the plan raises it.
    """
    config = config_lib.resolve(config) if isinstance(config, ConfigDict) else config_lib.load(os.fspath(config))
    machine = hardware if isinstance(hardware, Machine) else load_machine(os.fspath(hardware))
    static, notes = apply_mesh(config_lib.static(config), devices, mesh)
    refuse_unsupported(static)
    if static.model.remat == AUTO:
        choice = choose_remat(static, lambda option: step_memory(option, machine))
        static, notes = with_remat(static, choice.policy), [*notes, f"model.remat={choice.policy}: {choice.why}"]
    refusals.refuse_unsupported(static)
    efficiency, steps = efficiency or default_efficiency(machine), config.train.steps
    tokens = schedule_steps.tokens_before(config, steps)
    memory, step = step_memory(static, machine), step_time(static, machine, efficiency)
    training = estimate_training(static, machine, steps, step, price_per_hour)
    usable_note = device_memory.describe_usable_bytes(machine.chip)
    planned = Plan(
        machine=machine,
        static=static,
        layout=static.layout,
        steps=steps,
        tokens=tokens,
        flops=count_flops(static),
        memory=memory,
        host=host_memory(static, machine),
        inference=inference_memory(static, machine, *serve),
        time=step,
        savings=cost_of_traits(static, machine, efficiency),
        training=training,
        batch=plan_batch(static, tokens, critical_tokens=critical_tokens),
        checkpoint=plan_checkpointing(
            static, machine, mtbf_s, restart_s, write_bytes_per_s, step_s=step.total_s,
            work_s=max(training.days * 86_400, step.total_s),
        ),
        advice=advise_changes(static, machine, efficiency) if search else (),
        compiled=compile_step(static, machine) if compile else None,
        notes=(*notes, *uncounted_functions(static), *memory.notes, *([usable_note] if usable_note else [])),
    )  # fmt: skip
    planned = dataclasses.replace(planned, refusal=find_refusal(static))
    if not search:
        return planned

    def alternative(candidate: Candidate | None) -> Alternative | None:
        if candidate is None:
            return None
        return Alternative(
            candidate.changes,
            candidate.alters,
            plan(
                candidate.config, machine, static.layout.devices, efficiency=efficiency, price_per_hour=price_per_hour,
                critical_tokens=critical_tokens, mtbf_s=mtbf_s, restart_s=restart_s,
                write_bytes_per_s=write_bytes_per_s, serve=serve, search=False,
            ),
        )  # fmt: skip

    return add_alternatives(planned, config, efficiency, alternative)


def add_alternatives(
    planned: Plan,
    config: ConfigDict,
    efficiency: Efficiency,
    alternative: Callable[[Candidate | None], Alternative | None],
) -> Plan:
    """`planned` with the plans beside it: the nearest that can run, and the one that no warm-up of the batch pins."""
    machine, devices = planned.machine, planned.devices
    if planned.runs and planned.advice:
        before = config_lib.static(config)
        planned = dataclasses.replace(planned, faster=changed_keys(before, planned.advice[0].option))
    if not planned.runs:
        nearest = alternative(nearest_fit(config, machine, devices, efficiency, planned.layout))
        fits_from = None if nearest else devices_that_fit(config, machine, devices, efficiency)
        planned = dataclasses.replace(planned, nearest=nearest, fits_from=fits_from)
    free = alternative(without_ramp(config, machine, devices, efficiency)) if devices > 1 else None
    reference = planned.meant
    if free is None or (reference and free.plan.time.total_s > PINNED * reference.time.total_s):
        return planned
    return dataclasses.replace(planned, unpinned=free)
