"""MFU of a model's train step on one device, against a plan that is written before it runs."""

import pathlib
from typing import Any

import jax

from scalelab import config as config_lib
from scalelab import records
from scalelab.experiments.gpu.settings import Settings, build_config
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.measure import measure_throughput
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.published.mfu import flops_utilisation
from scalelab.plan.step.time import step_time

REMAT_POLICIES = ("none", "dots", "full")


def measure_mfu(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """One row per model: the plan (written to `folder`/plan.json before anything is compiled) and the measurement."""
    device = jax.local_devices()[0]
    on = load_machine("cpu" if device.platform == "cpu" else device.device_kind)
    planned = {name: choose_plan(model, on, settings.rows) for name, model in settings.models.items()}
    records.write_json(folder / "plan.json", {"device": device.device_kind, "planned": planned})
    return {"models": {name: _measured(settings, name, planned[name], on, device) for name in planned}}


def choose_plan(model: dict[str, Any], on: Machine, rows: tuple[int, ...]) -> dict[str, Any]:
    """The remat policy and rows with the most tokens/s of those that fit; if none fits, the smallest."""
    ways = [_way(model, on, remat, n) for remat in REMAT_POLICIES for n in rows]
    fitting = [way for way in ways if way["fits"]] or [min(ways, key=lambda way: way["memory_bytes"])]
    return max(fitting, key=lambda way: way["tokens_per_s"])


def _way(model: dict[str, Any], on: Machine, remat: str, rows: int) -> dict[str, Any]:
    static = config_lib.static(build_config(model, model__remat=remat, train__global_batch=rows))
    held, step = step_memory(static, on), step_time(static, on)
    return {
        "remat": remat, "rows": rows, "fits": held.fits, "memory_bytes": held.total, "capacity_bytes": held.capacity,
        "step_s": step.total_s, "tokens_per_s": step.tokens_per_s, "mfu": step.mfu,
        "mfu_range": [step.mfu_low, step.mfu_high],
        "flops_per_token": step.flops_per_token, "peak_flops": step.peak_flops,
    }  # fmt: skip


def _measured(settings: Settings, name: str, way: dict[str, Any], on: Machine, device: Any) -> dict[str, Any]:
    tree = build_config(settings.models[name], model__remat=way["remat"])
    measured = measure_throughput(tree, on, rows=(way["rows"],), budget_s=settings.budget_s)
    row: dict[str, Any] = {"planned": way, "stopped": measured.stopped}
    if measured.points:
        (point,) = measured.points
        row |= {"step_s": point.step_s, "tokens_per_s": point.tokens_per_s, "compile_s": point.compile_s}
        row["mfu"] = flops_utilisation(way["flops_per_token"], point.tokens_per_s, 1, way["peak_flops"])
        row["in_range"] = way["mfu_range"][0] <= row["mfu"] <= way["mfu_range"][1]
        row["peak_bytes"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return row
