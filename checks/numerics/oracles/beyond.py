"""Oracles of two things that aren't optimizers: muP's multipliers (its authors' package) and the loss scale (torch)."""

from typing import Any

import jax
import jax.numpy as jnp
import mup
import numpy as np
import torch

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.declare import named_leaves
from scalelab.model.layers import head_multiplier
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import groups, parametrization
from scalelab.precision import loss_scale

BASE, WIDTH = 64, 256


def compare_beyond() -> list[dict[str, Any]]:
    """Rows like those of the optimizers; here everything must be equal."""
    optimizers = {"adam": mup.MuAdamW, "sgd": mup.MuSGD}
    table = [
        _row(
            "mup",
            f"{like}: LR and decay by parameter, width {BASE} to {WIDTH}",
            f"mup.{theirs.__name__}",
            group_difference(like, theirs),
        )
        for like, theirs in optimizers.items()
    ]
    table.append(_row("mup", f"the head's factor, width {BASE} to {WIDTH}", "mup.MuReadout", head_difference()))
    table += [
        _row("loss scale", setting, "torch.amp.GradScaler", scale_difference(start, finite))
        for setting, (start, finite) in finite_traces().items()
    ]
    return table


def _row(what: str, setting: str, oracle: str, difference: float) -> dict[str, Any]:
    return {
        "what": what, "setting": setting, "oracle": oracle, "difference": difference, "tolerance": 1e-12, "note": "",
    }  # fmt: skip


def _shape(width: int) -> Any:
    sizes = {"model.d_model": width, "model.d_ff": 4 * width}
    mup = {"parametrization.name": "mup", "parametrization.base_width": BASE}
    return config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), sizes | mup))).model


def _module(width: int) -> torch.nn.ParameterDict:
    """Each of our parameters in torch's form: (out, in), heads folded, the first of a stack; names without dots."""
    tensors = {}
    for name, d in named_leaves(parameter_declarations(_shape(width))).items():
        _, ins, outs = groups.matrix_shape(d) if d.ins else (1, 1, d.shape[-1])
        tensors[name.replace(".", "-")] = torch.nn.Parameter(torch.empty(outs, ins) if d.ins else torch.empty(outs))
    return torch.nn.ParameterDict(tensors)


def group_difference(like: parametrization.UpdateFamily, theirs: Any) -> float:
    """The largest relative difference of an LR or a decay."""
    model = _module(WIDTH)
    mup.set_base_shapes(model, _module(BASE), delta=_module(2 * BASE), rescale_params=False)
    optimizer = theirs(model.parameters(), lr=1.0, weight_decay=1.0)
    by_parameter = {
        id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]
    }
    ours = named_leaves(parametrization.parameter_scales(_shape(WIDTH), like))
    return max(
        max(abs(s.lr / lr - 1.0), abs(s.decay / decay - 1.0))
        for name, s in ours.items()
        for lr, decay in [by_parameter[id(model[name.replace(".", "-")])]]
    )


def head_difference() -> float:
    """The relative difference of the logits' multiplier."""
    heads = [mup.MuReadout(width, 8) for width in (WIDTH, BASE, 2 * BASE)]
    mup.set_base_shapes(heads[0], heads[1], delta=heads[2])
    return abs(head_multiplier(_shape(WIDTH)) * heads[0].width_mult() - 1.0)


def finite_traces() -> dict[str, tuple[float, np.ndarray]]:
    """{setting: (first scale, whether each step was finite)}."""
    random = np.random.default_rng(0)
    rare = random.random(9000) > 1 / 1500
    often = random.random(200) > 0.5
    return {
        f"9,000 steps, {np.sum(~rare)} of them not finite": (loss_scale.INIT_SCALE, rare),
        f"200 steps, {np.sum(~often)} of them not finite": (loss_scale.INIT_SCALE, often),
        "from 2^126, 7,000 finite steps": (2.0**126, np.ones(7000, bool)),
    }


def scale_difference(start: float, finite: np.ndarray) -> float:
    """The largest relative difference of the scale after any step."""
    first = loss_scale.LossScale(jnp.float32(start), jnp.int32(0))

    def step(old: loss_scale.LossScale, ok: jax.Array) -> tuple[loss_scale.LossScale, jax.Array]:
        new = loss_scale.update_loss_scale(old, ok)
        return new, new.scale

    ours = np.float64(jax.jit(lambda: jax.lax.scan(step, first, jnp.asarray(finite))[1])())
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=start)
    scaler.scale(torch.zeros(()))
    theirs = []
    for ok in finite:
        parameter.grad = torch.full((1,), 1.0 if ok else float("inf"))
        scaler.step(optimizer)
        scaler.update()
        theirs.append(scaler.get_scale())
    return float(np.max(np.abs(ours / np.float64(theirs) - 1.0)))
