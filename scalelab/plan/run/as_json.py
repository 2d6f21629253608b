"""JSON of `scalelab plan --json`: bytes of the fullest device, seconds of one step unless a name differs.

What a plan takes is null where it can't run: its `verdict` has the plan that is meant, with its own time.
"""

import dataclasses
from typing import Any

from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.memory.account_error import out_of_memory

TOTALS = ("total", "fits", "capacity", "margin_bytes", "formula_bytes")
OF_A_RUN = (  # keys of a plan that can run
    "time_s", "mfu", "mfu_range", "tokens_per_s", "days", "device_hours", "cost", "energy_kwh",
    "checkpoint", "savings_s",
)  # fmt: skip


def plan_json(plan: Any) -> dict[str, Any]:
    """All of a `scalelab.plan.Plan`, the verdict first."""
    t = plan.time
    described = {
        "verdict": verdict_json(plan),
        "hardware": plan.machine.chip.name,
        "devices": plan.devices,
        "mesh": dataclasses.asdict(plan.layout),
        "params": plan.flops.parameters,
        "flops": {
            name: {
                "per_token": per_token,
                "total": per_token * plan.tokens,
                "per_token_with_remat": plan.flops.remat_per_token[name],
            }
            for name, per_token in plan.flops.per_token.items()
        },
        "memory_bytes": plan.memory.components | {name: getattr(plan.memory, name) for name in TOTALS},
        "time_s": {"compute": t.compute_s, "hbm": t.hbm_s}
        | dict.fromkeys(MESH_AXES, 0.0)
        | t.axes
        | {"exposed": t.exposed, "bubble": t.bubble_s, "total": t.total_s, "low": t.low_s, "high": t.high_s},
        "mfu": t.mfu,
        "mfu_range": [t.mfu_low, t.mfu_high],
        "tokens_per_s": t.tokens_per_s,
        "steps": plan.steps,
        "tokens": plan.tokens,
        "days": plan.training.days,
        "device_hours": plan.training.device_hours,
        "cost": plan.training.cost,
        "energy_kwh": plan.training.energy_kwh,
        "checkpoint": dataclasses.asdict(plan.checkpoint),
        "batch_tokens": plan.batch.tokens,
        "batch": dataclasses.asdict(plan.batch),
        "inference_bytes": dataclasses.asdict(plan.inference),
        "advice": [one.to_json() | ({} if plan.runs else {"of_plan": None}) for one in plan.advice],
        "savings_s": plan.savings,
        "assumptions": list(t.assumptions),
        "notes": list(plan.notes),
    }  # fmt: skip
    if not plan.runs:
        described |= dict.fromkeys(OF_A_RUN)
    if plan.host:
        described["host_memory_bytes"] = dataclasses.asdict(plan.host) | {"fits": plan.host.fits}
    return described | ({"compiled": dataclasses.asdict(plan.compiled)} if plan.compiled else {})


def verdict_json(plan: Any) -> dict[str, Any]:
    """Whether it fits, and the plan that is meant: this one or its `lead`, with its own time.

    `with_batch_warmup`, `without_batch_warmup`: the plan that isn't meant, where the batch's warm-up makes two.
    """
    lead, beside = plan.lead, {}
    if plan.unpinned and lead is plan.unpinned:
        pinned = summarize(plan) if plan.runs else plan.nearest.to_json() if plan.nearest else None
        beside = {"with_batch_warmup": pinned}
    elif plan.unpinned:
        beside = {"without_batch_warmup": plan.unpinned.to_json()}
    return {
        "fits": plan.runs,
        "refusal": plan.refusal,
        **(lead.to_json() if lead else summarize(plan) if plan.runs else {}),
        **({"fits_from_devices": plan.fits_from} if plan.fits_from else {}),
        **beside,
        **({"in_16_bits": plan.narrower.to_json()} if plan.narrower else {}),
        **({"with_even_batch": plan.even.to_json()} if plan.even else {}),
    }


def summarize(plan: Any) -> dict[str, Any]:
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
        "out_of_memory_chance": out_of_memory(plan.memory),
        "step_s": t.total_s,
        "step_s_range": [t.low_s, t.high_s],
        "days": run.days,
        "days_range": [run.days_low, run.days_high],
        "device_hours": run.device_hours,
        "cost": run.cost,
        "energy_kwh": run.energy_kwh,
        "mfu": t.mfu,
        "mfu_range": [t.mfu_low, t.mfu_high],
    }
