"""The runs: widths x budgets of active compute x numbers of experts, a larger one, and ways to balance."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.configs import quickstart
from scalelab.model import count
from scalelab.record import records
from scalelab.sweep.scaling.rules import small_bytes_rule

PER_TOKEN = 2  # experts of a token, each half as wide as the dense MLP
EXPANSIONS = (1, 2, 4, 8)  # all experts over those of a token; 1: the dense model
WIDTHS = (16, 24, 32)
LARGER_WIDTH, LARGER_FACTOR, LARGER_EXPANSION = 40, 4.0, 8  # of the run that is predicted: compute over the largest
BUDGETS, QUICK_BUDGETS = (3e10, 6e10, 1.2e11, 2.4e11), (2e10, 4e10, 8e10)  # FLOPs of products with active parameters
SEEDS = (0, 1, 2)
RATE = 1e-2  # of the bias: runs of hundreds of steps; Wang et al. 2024 take 1e-3 for tens of thousands
# Ways to balance, at one cell: {name: values}
BALANCES = {
    "bias 1e-2": {},
    "aux 1e-2": {"model.balance_rate": 0.0, "model.balance_weight": 1e-2},
    "none": {"model.balance_rate": 0.0},
}
BALANCED_WIDTH, BALANCED_EXPANSION = 24, 4
LAST_LINES = 10  # of a run, over which its load is averaged
Cell = tuple[int, int, float]  # expansion, width, budget
RULE = small_bytes_rule(quickstart.get_config())


def build_model(expansion: int, width: int) -> ConfigDict:
    """The quickstart's model, with experts in both blocks: a token's experts are together as wide as its MLP."""
    changes: dict[str, Any] = {"model.d_model": width, "model.d_ff": 4 * width, "guard.policy": "off"}
    if expansion > 1:
        changes |= {
            "model.block": "experts", "model.n_experts": expansion * PER_TOKEN, "model.experts_per_token": PER_TOKEN,
            "model.d_expert": 4 * width // PER_TOKEN, "model.balance_rate": RATE,
        }  # fmt: skip
    return config_lib.override(quickstart.get_config(), changes)


@functools.cache
def measure_model(expansion: int, width: int) -> dict[str, float]:
    """Parameters `total` and `active`, and training FLOPs a token `flops` of the products that are useful."""
    shape = config_lib.static(config_lib.resolve(build_model(expansion, width))).model
    counts = count.count_parameters(shape)
    return {"total": counts["total"], "active": counts["active"], "flops": count.flops_per_token(shape)["exact"]}


def count_steps(cell: Cell) -> int:
    """Steps that spend the budget."""
    expansion, width, budget = cell
    base = quickstart.get_config()
    return round(budget / (measure_model(expansion, width)["flops"] * base.train.global_batch * base.model.seq_len))


def make_trial(cell: Cell, seed: int, role: str, **values: Any) -> ConfigDict:
    """A run: learning rate, warm-up and beta2 by the rule of dense models of this family."""
    expansion, width, _ = cell
    steps = count_steps(cell)
    changes = {
        "train.steps": steps, "train.seed": seed, "train.global_batch": RULE.global_batch, "optim.beta2": RULE.beta2,
        "optim.peak_lr": RULE.peak_lr(steps=steps, d_model=width),
        "schedule.warmup_steps": max(RULE.warmup_least, round(RULE.warmup_share * steps)),
        "log.every_steps": max(1, steps // 50), "log.role": role, "eval.every_steps": steps,
        "checkpoint.every_steps": steps,
    }  # fmt: skip
    return config_lib.resolve(config_lib.override(build_model(expansion, width), changes | values))


def list_cells(budgets: Sequence[float]) -> list[Cell]:
    """Every cell of the grid."""
    return [(expansion, width, budget) for expansion in EXPANSIONS for width in WIDTHS for budget in budgets]


def larger_cell(budgets: Sequence[float]) -> Cell:
    """The cell that is predicted."""
    return LARGER_EXPANSION, LARGER_WIDTH, LARGER_FACTOR * max(budgets)


def balanced_cell(budgets: Sequence[float]) -> Cell:
    """The cell of the grid at which ways to balance are compared."""
    return BALANCED_EXPANSION, BALANCED_WIDTH, max(budgets)


def name_trial(cell: Cell, seed: int, balance: str = "") -> str:
    """A run's name."""
    expansion, width, budget = cell
    return "-".join([f"x{expansion}", f"d{width}", f"{budget:g}", f"seed{seed}", *balance.split()])


def make_grid(budgets: Sequence[float]) -> dict[str, ConfigDict]:
    """The grid's runs."""
    return {name_trial(cell, s): make_trial(cell, s, "fit") for cell in list_cells(budgets) for s in SEEDS}


def make_larger(budgets: Sequence[float]) -> dict[str, ConfigDict]:
    """The larger run, of one seed."""
    cell = larger_cell(budgets)
    return {name_trial(cell, SEEDS[0]): make_trial(cell, SEEDS[0], "holdout")}


def make_balanced(budgets: Sequence[float]) -> dict[str, ConfigDict]:
    """The runs that are balanced in other ways than the grid's."""
    cell = balanced_cell(budgets)
    return {
        name_trial(cell, seed, name): make_trial(cell, seed, "", **values)
        for name, values in BALANCES.items()
        for seed in SEEDS
        if values
    }


def read_loss(run: pathlib.Path) -> float:
    """A run's last validation loss."""
    return [float(line["val_loss"]) for line in records.read_metrics(run) if line.get("val_loss") is not None][-1]


def read_load(run: pathlib.Path) -> dict[str, float]:
    """Means over a run's last lines: the most loaded expert over the mean, entropy, and idle experts."""
    lines = [line for line in records.read_metrics(run) if "experts/entropy" in line][-LAST_LINES:]
    keys = {"imbalance": "block/expert_load", "entropy": "experts/entropy", "idle": "experts/idle"}
    return {name: float(np.mean([line[key] for line in lines])) for name, key in keys.items()}
