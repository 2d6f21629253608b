"""Equal parameters and gradients for both sides: ours through the whole chain, theirs tensor by tensor."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import groups, registry
from scalelab.optim.chain import build_optimizer_chain

STEPS = 30
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "vocab_size": 24, "seq_len": 16}
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class UpdateProblem:
    """A model's parameters, STEPS gradients of each, and learning rates; `tensors` are what the other side updates."""

    config: ConfigDict
    declared: dict[str, Declaration]
    params: Arrays
    gradients: list[Arrays]
    estimates: list[Arrays]  # of the Hessian's diagonal, for those that take it: every `optim.every` steps
    rates: np.ndarray
    tensors: dict[str, list[torch.nn.Parameter]]  # one of a stack for itself; float64 or float32
    transposed: bool  # matrices are torch's (out, in); else ours (in, out)

    @property
    def o(self) -> ConfigDict:
        """`config.optim`."""
        return self.config.optim

    @functools.cached_property
    def own(self) -> list[str]:
        """The parameters that the optimizer updates itself."""
        member = registry.find_optimizer(self.o.name)
        return [name for name, d in self.declared.items() if member.claims(d)]

    def groups(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """torch's parameter groups of the optimizer's own parameters (or of `names`): with decay, and without."""
        decays = named_leaves(
            groups.decay_mask(config_lib.static(self.config).model, config_lib.static(self.config).optim)
        )
        chosen = self.own if names is None else names
        all_groups = []
        for decay in (True, False):
            some = [t for name in chosen if decays[name] == decay for t in self.tensors[name]]
            all_groups.append({"params": some, "weight_decay": self.o.weight_decay if decay else 0.0})
        return [group for group in all_groups if group["params"]]

    def follow(
        self,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[float, int], float] = lambda lr, t: lr,
        extra: Callable[[int], dict[str, Any]] = lambda t: {},
    ) -> None:
        """Run STEPS steps of `optimizer` at the learning rates `rate(ours)`; `extra`: arguments of steps t = 1, …"""
        for t, (gradient, lr) in enumerate(zip(self.gradients, self.rates, strict=True), start=1):
            for name, tensors in self.tensors.items():
                each = to_torch(self.declared[name], gradient[name], tensors[0].dtype, self.transposed)
                for tensor, g in zip(tensors, each, strict=True):
                    tensor.grad = g
            for group in optimizer.param_groups:
                group["lr"] = rate(float(lr), t)
            optimizer.step(**extra(t))


def make_problem(optimizer: str, changes: dict[str, Any], dtype: torch.dtype, transposed: bool) -> UpdateProblem:
    """Random parameters and gradients in float64, each parameter's gradients of another size; no clipping.

    Parameters are small, because they are rounded at every step; learning rates rise.
    """
    config = tiny.get_config()
    config.optim.peak_lr = None
    values = {f"model.{key}": value for key, value in MODEL.items()}
    values |= {"optim.name": optimizer, "optim.clip_norm": 1e9, "optim.weight_decay": 0.0} | changes
    config = config_lib.resolve(config_lib.override(config, values))
    declared, random = named_leaves(parameter_declarations(config_lib.static(config).model)), np.random.default_rng(0)
    params = {k: 0.03 * random.normal(size=d.shape) for k, d in declared.items()}
    sizes = {k: 10 ** random.uniform(-2, 0) for k in declared}
    gradients = [{k: sizes[k] * random.normal(size=d.shape) for k, d in declared.items()} for _ in range(STEPS)]
    estimates = [{k: 10 * np.abs(g) + 12 * g for k, g in each.items()} for each in gradients[::-1]]  # some are negative
    tensors = {k: to_torch(d, params[k], dtype, transposed) for k, d in declared.items()}
    tensors = {k: [torch.nn.Parameter(x) for x in some] for k, some in tensors.items()}
    rates = config.optim.peak_lr * np.linspace(0.5, 1.0, STEPS)
    return UpdateProblem(config, declared, params, gradients, estimates, rates, tensors, transposed)


def to_torch(d: Declaration, x: np.ndarray, dtype: torch.dtype, transposed: bool) -> list[torch.Tensor]:
    """Convert a parameter [stack…, ins…, outs…] to a list of tensors, one for each of the stack.

    Shapes: (out, in) or (in, out); (n,) if it has no ins.
    """
    stacked = x.reshape(groups.matrix_shape(d)) if d.ins else x.reshape(groups.matrix_shape(d)[0], -1)
    stacked = stacked.swapaxes(1, 2) if d.ins and transposed else stacked
    return [torch.tensor(np.ascontiguousarray(one), dtype=dtype) for one in stacked]


def our_updates(problem: UpdateProblem) -> Arrays:
    """The total update of each parameter by our chain (of its evaluation point, if that differs)."""
    config = problem.config
    static = config_lib.static(config)
    h = jax.tree.map(np.float32, config_lib.hparams(config))
    member = registry.find_optimizer(static.optim.name)
    gradients, estimates = (
        nest_arrays({k: np.stack([x[k] for x in each]) for k in problem.params})
        for each in (problem.gradients, problem.estimates)
    )
    fresh = jnp.arange(STEPS) % (problem.o.every or 1) == 0
    extra = {"curvature": (estimates, fresh)} if member.curvature else {}
    start = nest_arrays(problem.params)
    rates = jnp.asarray(problem.rates, jnp.float32)

    @jax.jit
    def run(params: Any) -> Any:
        def step(carry: Any, at: Any) -> Any:
            params, state = carry
            gradient, lr, more = at
            updates, state = build_optimizer_chain(static, h, lr).update(gradient, state, params, **more)
            return (optax.apply_updates(params, updates), state), None

        first = (params, build_optimizer_chain(static, h, 0.0).init(params))
        params, state = jax.lax.scan(step, first, (gradients, rates, extra))[0]
        return member.evaluated(params, state, h) if member.evaluated else params

    return {k: np.float64(x) - np.float64(named_leaves(start)[k]) for k, x in named_leaves(run(start)).items()}


def nest_arrays(flat: Arrays) -> dict[str, Any]:
    """{"a.b": x} -> {"a": {"b": x}} in fp32."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *path, last = name.split(".")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = jnp.asarray(leaf, jnp.float32)
    return tree


def oracle_updates(problem: UpdateProblem, oracle: Callable[[UpdateProblem], None]) -> Arrays:
    """The total update of each parameter by `oracle`; parameters left to AdamW are updated by torch's."""
    before = {k: [t.detach().double().clone() for t in ts] for k, ts in problem.tensors.items()}
    oracle(problem)
    rest, o = [name for name in problem.declared if name not in problem.own], problem.o
    if rest:
        adamw = torch.optim.AdamW(problem.groups(rest), betas=(o.rest_beta1, o.rest_beta2), eps=o.rest_eps)
        problem.follow(adamw, lambda lr, t: lr * o.rest_lr / o.peak_lr)
    moved = {}
    for k, tensors in problem.tensors.items():
        each = [(t.detach().double() - b).numpy() for t, b in zip(tensors, before[k], strict=True)]
        each = [x.T for x in each] if problem.transposed else each  # a vector is its own transpose
        moved[k] = np.stack(each).reshape(problem.declared[k].shape)
    return moved


def relative_difference(ours_or_theirs: Arrays, wanted: Arrays) -> float:
    """The relative difference of total updates, of the parameter where it is largest."""
    return max(float(np.linalg.norm(ours_or_theirs[k] - wanted[k]) / np.linalg.norm(wanted[k])) for k in wanted)
