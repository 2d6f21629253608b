"""The parts of a run's record that are known before the first step."""

import dataclasses
from typing import Any

import jax

from scalelab.config import ModelShape, Static
from scalelab.data.dataset import Dataset
from scalelab.hardware import chips, device_memory, measured
from scalelab.model import count
from scalelab.model.attention import kernels
from scalelab.precision.policy import POLICIES
from scalelab.train import formats_found
from scalelab.train.lineage.facts import package_versions
from scalelab.train.lineage.spec import TrainSpec


def describe_run(name: str, spec: TrainSpec, dataset: Dataset) -> dict[str, Any]:
    """The record of a run that has not started."""
    static, layout = spec.static, spec.static.layout
    shape = static.model
    peak_flops, peak_source = measured.peak_flops(jax.devices()[0], POLICIES[static.precision].unit)
    return {
        "name": name,
        "identity": spec.identity,
        **({"own_code": spec.own_code} if spec.own_code else {}),
        "set_by": dict(spec.origins),
        "params": count.count_parameters(shape),
        "params_by_group": count.count_parameters_by_group(shape),
        "flops_per_token": count.flops_per_token(shape),
        **describe_computed(static),
        "data": dataset.description
        | {
            "fingerprint": dataset.fingerprint,
            "bytes_per_token": dataset.bytes_per_token,
            "entropy_rate": dataset.entropy_rate,
        },
        "versions": package_versions(),
        "device": jax.devices()[0].device_kind,
        "device_memory": describe_device_memory(),
        "dtypes": formats_found.step_formats(static, spec.hparams),
        "mesh": dataclasses.asdict(layout) | {"devices": layout.devices},
        "attention": kernels.program_kernel(kernels.step_kernel(static), shape.attention),
        "remat": {"policy": static.model.remat} | ({"chosen": spec.config.log.remat} if spec.config.log.remat else {}),
        "peak_flops": peak_flops,
        "mfu": f"exact training FLOPs ({describe_useful(shape)}) / {peak_source}",
    }


def describe_useful(shape: ModelShape) -> str:
    """Describe what is counted as useful."""
    experts = ", each token with its own experts" if shape.n_experts else ""
    return f"attention in full, no recomputation{experts}"


def describe_computed(static: Static) -> dict[str, float]:
    """With experts, FLOPs a token of the products that a device makes of its part of a micro-batch, useful or not."""
    if not static.model.n_experts:
        return {}
    layout = static.layout
    parts = static.accumulate * layout.batch_parts * layout.microbatches
    return {
        "computed_flops_per_token": count.computed_flops_per_token(static.model, max(1, static.global_batch // parts))
    }


def describe_device_memory() -> dict[str, int | float]:
    """Bytes of device memory available to this program; on a GPU also the share that jax was given."""
    device = jax.local_devices()[0]
    facts: dict[str, int | float] = {"bytes": chips.capacity_bytes(device)}
    on_gpu = device.platform == "gpu"
    return facts | ({"share": device_memory.gpu_memory_share(device_memory.JAX_DEFAULT_SHARE)} if on_gpu else {})
