"""What has no place in a step that updates layer by layer, each by name and with the nearest option."""

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.hardware.device_memory import jax_started
from scalelab.hardware.host_memory import reserve_host_memory
from scalelab.optim.parts import refuse_inseparable
from scalelab.precision.policy import POLICIES
from scalelab.sharding import trace_for_platform
from scalelab.train.step.state import host_bytes


def reserve_for_moments(config: ConfigDict, trials: int = 1) -> None:
    """Give the moments of so many trials of a config room in the host's memory, before jax starts.

    BadInput as in `reserve_host_memory`.
    """
    if config.train.moments == "device":
        return
    static = config_lib.static(config)
    if jax_started():
        moments = host_bytes(static)
    else:  # whose tracing must not start jax
        with trace_for_platform("cpu"):
            moments = host_bytes(static)
    reserve_host_memory(trials * moments)


def refuse_missing_memory(static: Static) -> None:
    """BadInput where the devices that are here don't have the memory that `train.moments` names."""
    device = jax.local_devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if static.moments_on_host and static.moments not in kinds:
        reached = ", ".join(kinds) or "its own memory"
        raise BadInput(
            f"train.moments={static.moments!r}: {device.device_kind} reaches only {reached}; "
            "nearest: train.moments=device"
        )


def refuse_unsupported(static: Static) -> None:
    """BadInput where `train.updates=per_layer` does not go with another key."""
    if not static.updates_layers:
        if static.moments_on_host:
            raise BadInput(
                f"train.moments={static.moments!r} with train.updates={static.updates!r}, which would fetch the whole "
                "state at once; nearest: train.updates=per_layer, or train.moments=device"
            )
        return
    policy = POLICIES[static.precision]
    refusals = (
        (static.layout.devices > 1, f"a mesh of {static.layout.devices} devices", "it is for a single device; a mesh "
         "splits gradients itself", "train.updates=whole with parallel.fsdp"),
        (static.accumulate > 1, f"train.accumulate={static.accumulate}", "gradients would have to be summed over "
         "micro-batches", "train.accumulate=1"),
        (static.model.remat != "full", f"model.remat={static.model.remat!r}", "every block is computed again in the "
         "backward", "model.remat=full"),
        (policy.scaled_loss or policy.scaling == "delayed", f"precision.name={static.precision!r}", "a loss scale or "
         "delayed scales need all gradients of a step", "precision.name=bf16"),
        (policy.rounding == "kahan", f"precision.name={static.precision!r}", "weights with what rounding lost are "
         "as large as fp32", "precision.name=bf16_stochastic"),
        (static.layers, "log.layers_every", "layers are measured in one backward of all", "log.layers_every=0"),
        (bool(static.own_loss), f"train.loss={static.own_loss!r}", "it may read all parameters", 'train.loss=""'),
        (bool(static.own_metrics), f"train.metrics={static.own_metrics!r}", "it gets all gradients at once",
         'train.metrics=""'),
    )  # fmt: skip
    for refused, key, why, nearest in refusals:
        if refused:
            raise BadInput(f"train.updates='per_layer' with {key}: {why}; nearest: {nearest}")
    refuse_inseparable(static)
