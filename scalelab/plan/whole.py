"""A whole plan: parameters, FLOPs, memory, time, batch, checkpoints and advice of one config on one machine."""

import dataclasses
import os
from collections.abc import Mapping
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
from scalelab.plan.memory.advice import Advice, advise_changes
from scalelab.plan.memory.host import HostMemory, host_memory
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.memory.remat import AUTO, choose_remat, with_remat
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


@dataclasses.dataclass(frozen=True)
class Plan:
    """Requirements of a run. Bytes are of one device and seconds of one step, unless a name says otherwise."""

    machine: Machine
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

    @property
    def devices(self) -> int:
        """The size of the mesh."""
        return self.layout.devices

    def to_json(self) -> dict[str, Any]:
        """JSON of `scalelab plan --json`: bytes of the fullest device, seconds of one step unless a name differs."""
        t, c = self.time, self.checkpoint
        totals = ("total", "fits", "capacity", "margin_bytes", "formula_bytes")
        described = {
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
            "advice": [dataclasses.asdict(one) for one in self.advice],
            "savings_s": self.savings,
            "assumptions": list(t.assumptions),
            "notes": list(self.notes),
        }  # fmt: skip
        if self.host:
            described["host_memory_bytes"] = dataclasses.asdict(self.host) | {"fits": self.host.fits}
        return described | ({"compiled": dataclasses.asdict(self.compiled)} if self.compiled else {})


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
) -> Plan:
    """Plan `config` (a tree or a file's path) on `devices` of `hardware` (a name, a JSON file's path or a `Machine`).

    `mesh`: sizes by axis ("fsdp=8,tensor=8", a mapping or a `Layout`) instead of the config's. `efficiency`: shares of
    the datasheet (default: published ones). `compile`: also compile the real step for the machine. `serve`: sequences
    served at once and their tokens (0: model.seq_len). Nothing is allocated. BadInput where a part of the plan raises
    it.
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
    return Plan(
        machine=machine,
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
        advice=advise_changes(static, machine, efficiency),
        compiled=compile_step(static, machine) if compile else None,
        notes=(*notes, *uncounted_functions(static), *memory.notes, *([usable_note] if usable_note else [])),
    )  # fmt: skip
