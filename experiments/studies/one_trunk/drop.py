"""Why a decay lowers the loss: the drop against the fall of the learning rate, for several rates and partial decays.

The drop is the loss of the trunk that goes on at its rate, less that of its branch, at one step and on one seed's data.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.experiments.shared import find_runs
from scalelab.experiments.studies.one_trunk import grid
from scalelab.experiments.studies.one_trunk.compare import mean_and_error
from scalelab.record import records

WIDTH, STEPS = 32, 700
LRS = (0.002, 0.004, 0.008)
FINAL_SHARES = (0.0, 1 / 3, 2 / 3)  # of the LR that is left at the end of the decay
LEAST_DROP = 1e-4  # nats: a drop below zero has no logarithm


def make_trunks(lrs: Sequence[float], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of the trunks, which go on to the end of the decays."""
    base = grid.make_rung(WIDTH, STEPS)
    values = {
        "schedule.name": "constant", "schedule.decay_share": None, "schedule.decay_steps": 0,
        "eval.every_steps": STEPS, "checkpoint.every_steps": STEPS // grid.DECAY, "checkpoint.keep_last": grid.DECAY,
    }  # fmt: skip
    return {
        f"trunk-lr{lr:g}-seed{seed}": config_lib.resolve(
            config_lib.override(base, values | {"optim.peak_lr": lr, "train.seed": seed})
        )
        for lr in lrs
        for seed in seeds
    }


def make_branches(
    trunks: Mapping[str, ConfigDict], places: Mapping[str, pathlib.Path], shares: Sequence[float]
) -> dict[str, ConfigDict]:
    """{name: config} of a decay to each share of the LR."""
    branches = {}
    for name, trunk in trunks.items():
        for share in shares:
            values = {
                "train.branch_from": f"{places[name]}@{grid.branch_step(STEPS)}", "schedule.name": "wsd",
                "schedule.decay_steps": STEPS // grid.DECAY, "schedule.final_share": share,
                "checkpoint.every_steps": STEPS, "checkpoint.keep_last": 1,
            }  # fmt: skip
            branch = config_lib.resolve(config_lib.override(trunk, values))
            branches[name.replace("trunk", f"to{share:.2f}")] = branch
    return branches


def read_drops(
    folder: pathlib.Path, lrs: Sequence[float], shares: Sequence[float], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each LR and share: the LR's fall, and the drop by seed."""
    places = {name: place for part in ("drop_trunks", "drops") for name, place in find_runs(folder / part).items()}
    loss = {name: records.read_record(place)["val_loss"] for name, place in places.items()}
    return [
        {
            "lr": lr,
            "fall": lr * (1 - share),
            "drops": [
                loss[f"trunk-lr{lr:g}-seed{seed}"] - loss[f"to{share:.2f}-lr{lr:g}-seed{seed}"] for seed in seeds
            ],
        }
        for lr in lrs
        for share in shares
    ]


def fit_exponents(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """p of drop ~ fall^p by seed, with 90 % intervals: `within` partial decays of one LR, `across` full decays."""
    within, across = [], []
    groups = [[row for row in rows if row["lr"] == lr] for lr in sorted({row["lr"] for row in rows})]
    for seed in range(len(rows[0]["drops"])):
        within.append(float(np.mean([_slope(group, seed) for group in groups])))
        across.append(_slope([max(group, key=lambda row: row["fall"]) for group in groups], seed))
    return {"within": mean_and_error(within), "across": mean_and_error(across)}


def _slope(rows: Sequence[Mapping[str, Any]], seed: int) -> float:
    drops = np.maximum([row["drops"][seed] for row in rows], LEAST_DROP)
    return float(np.polyfit(np.log([row["fall"] for row in rows]), np.log(drops), 1)[0])
