"""Find a recipe's learning rate on a scaled-down twin, whose size follows from what its learning-rate sweep may cost.

Yang et al. 2022, Algorithm 1 (muTransfer): tune a small model in muP, copy the learning rate to the large one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.sweep.answer.best_lr import BestLr, find_best_lr
from scalelab.sweep.scaling.ladder import check_fixed_schedule, flops_per_step
from scalelab.sweep.scaling.resize import depth_unit, resize_config, width_unit

LEAST_STEPS = 100  # a shorter run is mostly warm-up: the twin takes smaller batches instead
LR_OCTAVES = range(-3, 4)  # around the recipe's own learning rate


@dataclasses.dataclass(frozen=True)
class Proxy:
    """`twin`: the scaled-down config; `target`: the recipe that takes its learning rate from the twin.

    `lr_factor`: the target's learning rate over the twin's (1 unless batches differ). `sweep_flops`: FLOPs of all runs.
    """

    twin: ConfigDict
    target: ConfigDict
    lr_factor: float
    sweep_flops: float

    def lines(self) -> list[str]:
        """Describe the twin beside the target, for a person."""
        twin, target = self.twin, self.target
        sizes = [count.count_parameters(config_lib.static(c).model)["active"] for c in (twin, target)]
        which = "active" if target.model.n_experts else "total"
        tokens = [c.train.steps * schedule_steps.tokens_per_step(c) for c in (twin, target)]
        p = target.parametrization
        bases = f"base_width {p.base_width}" + f", base_layers {p.base_layers}" * (p.name == "completep")
        return [
            f"twin: d_model {twin.model.d_model} of {target.model.d_model}, "
            f"{twin.model.n_layers} of {target.model.n_layers} layers, "
            f"{sizes[0]:,} of {sizes[1]:,} parameters ({which})",
            f"horizon: {twin.train.steps:,} steps of {schedule_steps.tokens_per_step(twin):,} tokens, "
            f"{tokens[0] / sizes[0]:.3g} tokens a parameter (target: {tokens[1] / sizes[1]:.3g}); "
            f"warm-up {twin.schedule.warmup_steps} steps",
            f"parametrization: {p.name}, {bases}, d_head {twin.model.d_head}",
            f"batch: {twin.train.global_batch} of {target.train.global_batch} sequences"
            + f"; the target's LR is {self.lr_factor:.3g} x the twin's (square root of the batches)"
            * (self.lr_factor != 1),
        ]


def plan_proxy(recipe: ConfigDict, budget_flops: float, runs: int) -> Proxy:
    """Plan the widest twin whose `runs` runs cost at most `budget_flops` (exact, training; validation is not counted).

    d_head is fixed; heads and d_ff scale with the width. Under completep depth scales with the width too, under mup it
    is fixed, and both keep their bases; a standard recipe becomes a completep one with the twin as its base. BadInput
    if even the narrowest twin costs too much.
    """
    check_fixed_schedule(recipe, "a twin")
    unit = width_unit(recipe)
    widths = range(unit, recipe.model.d_model, unit)
    if not widths:
        raise BadInput(
            f"model.d_model={recipe.model.d_model} holds a single group of heads of {recipe.model.d_head}: "
            "there is no narrower twin"
        )
    low, high = 0, len(widths)  # widths[:low] fit, widths[high:] do not
    while low < high:
        middle = (low + high) // 2
        fits = runs * _flops(_twin(recipe, widths[middle])) <= budget_flops
        low, high = (middle + 1, high) if fits else (low, middle)
    if not low:
        least = runs * _flops(_twin(recipe, unit))
        raise BadInput(
            f"--flops={budget_flops:.3g}: {runs} runs of the narrowest twin (d_model {unit}) take {least:.3g}; "
            f"nearest: {least:.3g}"
        )
    twin = _twin(recipe, widths[low - 1])
    target = recipe.copy_and_resolve_references()
    if recipe.parametrization.name == "standard":
        bases = {
            "base_width": twin.model.d_model,
            "base_layers": twin.model.n_layers,
            "base_d_head": float(twin.model.d_head),
        }
        for config in (twin, target):
            config.parametrization.update(name="completep", **bases)
    factor = (target.train.global_batch / twin.train.global_batch) ** 0.5
    return Proxy(config_lib.resolve(twin), config_lib.resolve(target), factor, runs * _flops(twin))


def _flops(config: ConfigDict) -> float:
    return config.train.steps * flops_per_step(config)


def _twin(recipe: ConfigDict, width: int) -> ConfigDict:
    """The recipe at another width, with the same tokens per active parameter, in at least LEAST_STEPS steps."""
    depth = recipe.model.n_layers
    if recipe.parametrization.name != "mup":
        unit = depth_unit(recipe)
        depth = unit * max(1, round(depth * width / (recipe.model.d_model * unit)))
    twin = resize_config(recipe, width, depth)
    small, large = (count.count_parameters(config_lib.static(config).model)["active"] for config in (twin, recipe))
    tokens = recipe.train.steps * schedule_steps.tokens_per_step(recipe) * small / large
    batch = recipe.train.global_batch
    while tokens < LEAST_STEPS * batch * recipe.model.seq_len and batch % 2 == 0:
        batch //= 2
    steps = max(LEAST_STEPS, round(tokens / (batch * recipe.model.seq_len)))
    twin.train.update(global_batch=batch, accumulate=min(recipe.train.accumulate, batch))
    shorten_twin(twin, recipe, steps)
    return twin


def shorten_twin(twin: ConfigDict, recipe: ConfigDict, steps: int) -> None:
    """Set `twin` to `steps` steps: scale the recipe's schedule keys given in steps, and evaluate at the end."""
    twin.train.steps = steps
    for phase in ("warmup", "decay"):
        share = recipe.schedule[f"{phase}_steps"] / recipe.train.steps
        twin.schedule.update({f"{phase}_tokens": None, f"{phase}_share": None, f"{phase}_steps": round(share * steps)})
    for key in ("hold_steps", "beta1_steps"):
        twin.schedule[key] = round(recipe.schedule[key] * steps / recipe.train.steps)
    twin.eval.every_steps = twin.checkpoint.every_steps = steps
    twin.log.every_steps = max(1, steps // 100)


def proxy_trials(proxy: Proxy, lrs: Sequence[float], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of the twin at every one of its learning rates and seeds: one pack."""
    trials = {}
    for lr in lrs:
        for seed in seeds:
            config = proxy.twin.copy_and_resolve_references()
            config.optim.peak_lr, config.train.seed = float(lr), seed
            trials[f"peak_lr={lr:.4g}-seed={seed}"] = config_lib.resolve(config)
    return trials


def fill_target(
    proxy: Proxy, rows: Sequence[dict[str, Any]], lrs: Sequence[float], seeds: Sequence[int]
) -> tuple[ConfigDict, BestLr]:
    """(the target with the best learning rate filled in, the best of the twin's log2 LRs).

    `rows`: the trials' rows, as from `status.read_trial_rows`.
    """
    by_name = {row["name"]: row for row in rows}
    names = [[f"peak_lr={lr:.4g}-seed={seed}" for lr in lrs] for seed in seeds]
    losses = [[by_name[n]["val_loss"] if by_name[n]["status"] == "done" else np.nan for n in row] for row in names]
    best = find_best_lr(np.log2(lrs), np.array(losses, float))
    target = proxy.target.copy_and_resolve_references()
    target.optim.peak_lr = float(f"{2**best.log2_lr * proxy.lr_factor:.4g}")
    return config_lib.resolve(target), best
