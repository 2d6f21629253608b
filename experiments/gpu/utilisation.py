"""MFU of a model's train step on one device, against a plan that is written before it runs."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from scalelab import config as config_lib
from scalelab import records
from scalelab.experiments.gpu.settings import Settings, build_config
from scalelab.model import loss
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.measure import measure_throughput
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.published.mfu import flops_utilisation
from scalelab.plan.step.time import step_time

REMAT_POLICIES = ("none", "dots", "full")
FP8 = "fp8_delayed"


def measure_mfu(settings: Settings, folder: pathlib.Path, precision: str = "bf16") -> dict[str, Any]:
    """One row per model: the plan (written to `folder`/plan.json before anything is compiled) and the measurement."""
    on, device = present_machine()
    planned = {name: choose_plan(model, on, settings.rows, precision) for name, model in settings.models.items()}
    records.write_json(folder / "plan.json", {"device": device.device_kind, "planned": planned})
    rows = {name: _measured(settings, name, planned[name], on, device) for name in planned}
    return {"precision": precision, "goals": settings.goals, "models": rows}


def measure_fp8(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """`measure_mfu` of products in fp8; MFU is of the dense peak in bf16, so that both can be compared."""
    return measure_mfu(settings, folder, FP8)


def measure_sweeps(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """One model under each remat policy at its planned rows, and with other chunks of the loss."""
    on, device = present_machine()
    model, name = settings.models[settings.varied], settings.varied
    by_remat = {remat: choose_plan(model, on, settings.rows, "bf16", (remat,)) for remat in REMAT_POLICIES}
    best = choose_plan(model, on, settings.rows)
    records.write_json(folder / "plan.json", {"device": device.device_kind, "remat": by_remat})
    remat = {each: _measured(settings, name, way, on, device) for each, way in by_remat.items()}
    chunks = {}
    for tokens in settings.chunks:
        jax.clear_caches()  # traces with other chunks
        with chunks_of(tokens):
            chunks[str(tokens)] = _measured(settings, name, best, on, device)
    jax.clear_caches()
    return {"model": name, "remat": remat, "chunks": chunks}


@contextlib.contextmanager
def chunks_of(tokens: int) -> Iterator[None]:
    """Programs traced here take so many tokens a chunk of the loss."""
    usual, loss.chunk_tokens = loss.chunk_tokens, lambda *_: tokens
    try:
        yield
    finally:
        loss.chunk_tokens = usual


def present_machine() -> tuple[Machine, Any]:
    """This device as the planner knows it, and jax's own object."""
    device = jax.local_devices()[0]
    return load_machine("cpu" if device.platform == "cpu" else device.device_kind), device


def choose_plan(
    model: dict[str, Any], on: Machine, rows: tuple[int, ...], precision: str = "bf16",
    policies: tuple[str, ...] = REMAT_POLICIES,
) -> dict[str, Any]:  # fmt: skip
    """The remat policy and rows with the most tokens/s of those that fit; if none fits, the smallest."""
    ways = [_way(model, on, remat, n, precision) for remat in policies for n in rows]
    fitting = [way for way in ways if way["fits"]] or [min(ways, key=lambda way: way["memory_bytes"])]
    return max(fitting, key=lambda way: way["tokens_per_s"])


def planned_config(model: dict[str, Any], way: dict[str, Any]) -> Any:
    """The config of a model as its plan has it."""
    values = {"model__remat": way["remat"], "precision__name": way["precision"], "train__global_batch": way["rows"]}
    return build_config(model, **values)


def _way(model: dict[str, Any], on: Machine, remat: str, rows: int, precision: str) -> dict[str, Any]:
    way: dict[str, Any] = {"remat": remat, "rows": rows, "precision": precision}
    static = config_lib.static(planned_config(model, way))
    held, step = step_memory(static, on), step_time(static, on)
    return way | {
        "fits": held.fits, "memory_bytes": held.total, "capacity_bytes": held.capacity,
        "step_s": step.total_s, "tokens_per_s": step.tokens_per_s, "mfu": step.mfu,
        "mfu_range": [step.mfu_low, step.mfu_high],
        "flops_per_token": step.flops_per_token, "peak_flops": step.peak_flops,
    }  # fmt: skip


def _measured(settings: Settings, name: str, way: dict[str, Any], on: Machine, device: Any) -> dict[str, Any]:
    tree = planned_config(settings.models[name], way)
    measured = measure_throughput(tree, on, rows=(way["rows"],), budget_s=settings.budget_s)
    row: dict[str, Any] = {"planned": way, "stopped": measured.stopped}
    if measured.points:
        (point,) = measured.points
        row |= {"step_s": point.step_s, "tokens_per_s": point.tokens_per_s, "compile_s": point.compile_s}
        row["mfu"] = flops_utilisation(way["flops_per_token"], point.tokens_per_s, 1, way["peak_flops"])
        row["in_range"] = way["mfu_range"][0] <= row["mfu"] <= way["mfu_range"][1]
        row["peak_bytes"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return row
