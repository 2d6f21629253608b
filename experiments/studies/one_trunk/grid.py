"""The runs of both arms: a trunk for each size with a branch for each length, and runs of their own from step 0.

Legend: a cell is (width, steps). The last fifth of every cell's steps is its decay.
"""

import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.experiments import isoflop
from scalelab.experiments.ladder_runs import size_and_tokens
from scalelab.experiments.shared import find_runs
from scalelab.record import records
from scalelab.sweep.scaling import ladder, rules

Cell = tuple[int, int]
SHORTEST = {16: 1120, 24: 640, 32: 400, 40: 280}  # steps of the smallest budget: 5.0e10 FLOPs within 3 %
DOUBLINGS = (1, 2, 4)  # budgets over the smallest one, and the lengths of the token grid over TOKEN_STEPS
TOKEN_WIDTHS, TOKEN_STEPS = (16, 24, 32), 200  # of the token grid: equal steps at three sizes
DECAY = 5  # a decay is one part in so many
EVERY = 32  # steps between checkpoints: each branch leaves at a multiple


def load_base() -> ConfigDict:
    """The quickstart's family with decays of a fifth."""
    values = {"schedule.decay_share": 1 / DECAY, "schedule.decay_steps": None, "eval.batches": 64}
    return config_lib.load(isoflop.ROOT / "configs" / "quickstart.py", values)


def list_cells(widths: Sequence[int], factors: Sequence[int] = DOUBLINGS) -> tuple[list[Cell], list[Cell]]:
    """(cells of the IsoFLOP grid, cells of the token grid); some are in both."""
    budgets = [(width, SHORTEST[width] * factor) for width in widths for factor in factors]
    tokens = [(width, TOKEN_STEPS * factor) for width in widths if width in TOKEN_WIDTHS for factor in factors]
    return budgets, tokens


def make_rung(width: int, steps: int) -> ConfigDict:
    """The run of a cell by the quickstart's rule: its LR falls with the number of steps."""
    base = load_base()
    rule = rules.find_rule("small-bytes", base)
    run = ladder.make_rung(base, width, count_flops((width, steps)), rule)
    return config_lib.override(run, {"log.role": "", "checkpoint.every_steps": steps})


def make_independent(cells: Sequence[Cell], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of runs from step 0, each with the LR and warm-up of its own length."""
    return {
        name_run(cell, seed): config_lib.resolve(config_lib.override(make_rung(*cell), {"train.seed": seed}))
        for cell in cells
        for seed in seeds
    }


def make_trunks(cells: Sequence[Cell], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of one run at a constant LR for each width: the LR of its middle length, the shortest warm-up.

    It ends where the decay of its longest cell begins.
    """
    trunks = {}
    for width in dict(cells):
        lengths = sorted(steps for each, steps in cells if each == width)
        middle, shortest = (make_rung(width, steps) for steps in (round(np.sqrt(lengths[0] * lengths[-1])), lengths[0]))
        end = branch_step(lengths[-1])
        values = {
            "train.steps": end, "schedule.name": "constant", "schedule.decay_share": None, "schedule.decay_steps": 0,
            "schedule.warmup_steps": shortest.schedule.warmup_steps, "eval.every_steps": end,
            "checkpoint.every_steps": EVERY, "checkpoint.keep_last": end // EVERY + 1,
        }  # fmt: skip
        for seed in seeds:
            changed = config_lib.override(middle, values | {"train.seed": seed})
            trunks[f"trunk-d{width}-seed{seed}"] = config_lib.resolve(changed)
    return trunks


def make_branches(
    cells: Sequence[Cell], trunks: Mapping[str, ConfigDict], places: Mapping[str, pathlib.Path]
) -> dict[str, ConfigDict]:
    """{name: config} of a decay for each cell and seed, from the trunks at `places` {name: folder}."""
    branches = {}
    for width, steps in cells:
        for name in (name for name in trunks if name.startswith(f"trunk-d{width}-")):
            values = {
                "train.branch_from": f"{places[name]}@{branch_step(steps)}", "train.steps": steps,
                "schedule.name": "wsd", "schedule.decay_steps": steps - branch_step(steps),
                "eval.every_steps": steps, "checkpoint.every_steps": steps, "checkpoint.keep_last": 1,
            }  # fmt: skip
            branch = config_lib.override(trunks[name], values)
            branches[name_run((width, steps), branch.train.seed)] = config_lib.resolve(branch)
    return branches


def branch_step(steps: int) -> int:
    """The step at which the decay of a run of `steps` begins."""
    return steps - steps // DECAY


def name_run(cell: Cell, seed: int) -> str:
    """The name of a run's folder."""
    return f"d{cell[0]}-steps{cell[1]}-seed{seed}"


def read_losses(folder: pathlib.Path, cells: Sequence[Cell], seeds: Sequence[int]) -> dict[Cell, list[float]]:
    """{cell: final validation losses by seed}."""
    losses = {name: records.read_record(place)["val_loss"] for name, place in find_runs(folder).items()}
    return {cell: [losses[name_run(cell, seed)] for seed in seeds] for cell in cells}


@functools.cache
def count_parameters(width: int) -> int:
    """All parameters of the model of this width."""
    return size_and_tokens(ladder.resize_width(load_base(), width))[0]


def count_flops(cell: Cell) -> float:
    """Exact training FLOPs of a cell, as if trained from step 0."""
    return cell[1] * _flops_per_step(cell[0])


@functools.cache
def _flops_per_step(width: int) -> float:
    return ladder.flops_per_step(ladder.resize_width(load_base(), width))


def count_saved(cells: Sequence[Cell]) -> float:
    """The share of FLOPs that trunks and branches save against a run from step 0 for each cell."""
    alone = sum(count_flops(cell) for cell in cells)
    trunks = [(width, branch_step(max(steps for each, steps in cells if each == width))) for width in dict(cells)]
    decays = [(width, steps - branch_step(steps)) for width, steps in cells]
    return 1 - sum(count_flops(part) for part in (*trunks, *decays)) / alone
