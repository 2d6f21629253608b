"""The runs: as many tuning trials for every optimizer, drawn alike, then its best on fresh seeds."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import records
from scalelab.defaults import DEFAULTS
from scalelab.sweep import grid

LR_FACTORS = (0.3, 40.0)  # around an optimizer's own peak LR: tiny models want more than their sources' large ones
DECAY_FACTORS = (0.1, 10.0)  # around its own weight decay
LEAST_DECAY = 1e-3  # where its own is zero
ONE_MINUS_BETA = (0.003, 0.2)  # of the moment that its step is divided by; where it has none, of its momentum
WARMUP_SHARES = (0.02, 0.3)
SCHEDULES = {"schedule_free_adamw": "constant"}  # what it is made for; all others take the base's
BETAS = ("beta2", "rest_beta2", "beta1")  # the first that an optimizer has is tuned


def points(name: str, trials: int, seed: int) -> list[dict[str, Any]]:
    """Scrambled Halton points over LR, decay, beta and warm-up: the same points of the unit cube for every optimizer."""
    own = DEFAULTS[name]
    decay = max(own["weight_decay"][0], LEAST_DECAY)
    beta = next((key for key in BETAS if key in own), None)
    unit = {
        "optim.peak_lr": LR_FACTORS,
        "optim.weight_decay": DECAY_FACTORS,
        "beta": ONE_MINUS_BETA,
        "warmup": WARMUP_SHARES,
    }
    drawn = grid.sample({key: (*ends, "log") for key, ends in unit.items()}, trials, seed=seed)
    found = []
    for point in drawn:
        values = {
            "optim.peak_lr": own["peak_lr"][0] * point["optim.peak_lr"],
            "optim.weight_decay": decay * point["optim.weight_decay"],
            "schedule.warmup_share": point["warmup"],
        }
        if "rest_lr" in own:  # the AdamW beside it moves along
            values["optim.rest_lr"] = own["rest_lr"][0] * point["optim.peak_lr"]
        found.append(values | ({f"optim.{beta}": 1 - point["beta"]} if beta else {}))
    return found


def trial(base: ConfigDict, name: str, values: Mapping[str, Any], seed: int) -> ConfigDict:
    """One run of optimizer `name`; what `base` sets of `optim` is only kept where it isn't an optimizer's own."""
    unset = dict.fromkeys((f"optim.{key}" for own in DEFAULTS.values() for key in own), "none")
    told = dict.fromkeys(("schedule.warmup_steps", "schedule.warmup_tokens"), "none")
    told |= {"schedule.name": SCHEDULES.get(name, base.schedule.name)}
    return config_lib.resolve(
        config_lib.override(base, unset | told | {"optim.name": name, "train.seed": seed} | dict(values))
    )


def tuning(base: ConfigDict, names: Sequence[str], trials: int) -> dict[str, ConfigDict]:
    """{run: config}: `trials` for each optimizer, all on the base's seed."""
    seed = base.train.seed
    return {
        f"{name}-tune{i:02d}": trial(base, name, point, seed)
        for name in names
        for i, point in enumerate(points(name, trials, seed))
    }


def finals(base: ConfigDict, best: Mapping[str, Mapping[str, Any]], seeds: int) -> dict[str, ConfigDict]:
    """{run: config}: each optimizer's best values on `seeds` seeds that tuning didn't see."""
    return {
        f"{name}-seed{seed}": trial(base, name, values, seed)
        for name, values in best.items()
        for seed in range(base.train.seed + 1, base.train.seed + 1 + seeds)
    }


def results(folder: pathlib.Path, prefix: str) -> list[dict[str, Any]]:
    """Runs of `folder` whose name starts with `prefix`, in order: name, loss (inf: diverged) and curve [(step, validation loss)]."""
    found = []
    for place in sorted((folder / "runs").glob(f"{prefix}*")):
        record = records.read_json(place / "record.json")
        lines = records.read_metrics(place)
        loss = record["val_loss"] if record["status"] == "done" and record["val_loss"] is not None else math.inf
        curve = [(line["step"], line["val_loss"]) for line in lines if "val_loss" in line]
        rates = sorted(line["tokens_per_s"] for line in lines if "tokens_per_s" in line)
        found.append(
            {
                "name": place.name,
                "loss": loss,
                "curve": curve,
                "tokens_per_s": rates[len(rates) // 2] if rates else None,
            }
        )
    return found
