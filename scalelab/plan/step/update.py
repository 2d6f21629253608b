"""What the optimizer's update costs a device: the bytes it keeps, and the products of those that multiply matrices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import Layout, Static, group_hparams, traced_names, with_fields
from scalelab.hardware.chips import host_bytes_per_s
from scalelab.jaxprs import matmul_flops
from scalelab.model import count
from scalelab.optim.optimizer import claims_everything
from scalelab.optim.registry import find_optimizer
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.device_share import Operation, fullest_device_share, params_at_rest
from scalelab.train.step import state as state_lib
from scalelab.train.step.update.update import compute_updates


def update_operations(static: Static) -> list[Operation]:
    """Once a step: parameters and their state are read and written; gradients are read twice, once for their norm.

    Products of matrix optimizers count as if the mesh split them as it splits the parameters; what that moves between
    devices is the compiler's choice and not counted.
    """
    parameters, alone = params_at_rest(static, 1), _update_key(static)
    total = count.count_parameters(static.model)["total"]
    moved = parameters * (2 * (4 + state_bytes(alone)) + 2 * 4)
    unit = {None: "float32", "fp32": "float32", "bf16": "bfloat16"}[static.optim.newton_schulz]
    split = static.layout.fsdp if static.layout.zero >= 1 else 1
    products = product_flops(alone) * fullest_device_share(static).parameters / total / split
    return [
        Operation("update", "update", "", 0.0, moved, 1),
        Operation("update, products", "update", unit, products, 0.0, 1 if products else 0),
    ]


def _update_key(static: Static) -> Static:
    """`static` with what the optimizer's update does not depend on at its default."""
    return with_fields(
        static,
        layout=Layout(),
        global_batch=1,
        accumulate=1,
        batch_ramp=(),
        documents="cross",
        seq_warmup=False,
        model=static.model.plain,
        ema=False,
    )


def moments_s(static: Static, machine: Machine) -> float:
    """Seconds in which moments in the host's memory come and go, a layer after the other, behind nothing."""
    rate = host_bytes_per_s(machine.chip)
    return 2 * state_lib.host_bytes(static) / rate if rate else 0.0


@functools.cache
def state_bytes(static: Static) -> float:
    """Bytes the optimizer keeps a parameter, all of them counted, by the real optimizer's own shapes."""
    state = state_lib.state_shapes(static)
    state_size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.opt_state))
    return state_size / sum(x.size for x in jax.tree.leaves(state.params))


@functools.cache
def product_flops(static: Static) -> float:
    """FLOPs of the matrix products of one update, walked from its jaxpr; 0 of optimizers that work entry by entry.

    The dearer side of what happens every n-th step; decompositions (eigh, svd) are not products, and are not counted.
    """
    if find_optimizer(static.optim.name).claims is claims_everything:
        return 0.0
    state = state_lib.state_shapes(static)
    h = group_hparams(dict.fromkeys(traced_names(static.optim), jax.ShapeDtypeStruct((), jnp.float32)))

    def update(grads: Any, opt_state: Any, params: Any, h: Any) -> Any:
        return compute_updates(static, grads, opt_state, params, h, h.optim.peak_lr)

    return matmul_flops(jax.make_jaxpr(update)(state.params, state.opt_state, state.params, h).jaxpr)
