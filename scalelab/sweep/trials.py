"""Turn a config file's sweep into named, checked configs, and group them into packs that share one compiled program."""

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import files
from scalelab.errors import BadInput
from scalelab.sweep import grid

MOST_TRIALS = 10_000  # more is surely a mistake: such a table is unreadable, and such a folder slow


def load_trials(path: str | pathlib.Path, overrides: Mapping[str, Any]) -> dict[str, ConfigDict]:
    """`{name: resolved config}`: the file's `get_config()` with the overrides and each trial of its `sweep(h)`.

    BadInput if the file has no sweep(h), or if sweep(h) returns anything but a grid of 1 to MOST_TRIALS trials.
    """
    module = config_lib.load_config_module(path)
    if not hasattr(module, "sweep"):
        raise BadInput(f"{path} defines no sweep(h): it returns the grid, e.g. h.sweep('optim.peak_lr', [1e-3, 3e-3])")
    base = config_lib.override(files.config_from_module(path, module), overrides, set_by.COMMAND_LINE)
    points = files.call_user_function(path, module.sweep, grid)
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise BadInput(
            f"{path}: sweep(h) returned {str(points)[:60]}; it must return a grid, as made by h.sweep and h.product"
        )
    return resolve_trials(base, points, f"the sweep of {path}")


def resolve_trials(
    base: ConfigDict, points: Sequence[Mapping[str, Any]], what: str = "the grid"
) -> dict[str, ConfigDict]:
    """`{name: resolved config}` of a grid's points, each `{"group.key": value}` on `base`; BadInput as there."""
    if not 0 < len(points) <= MOST_TRIALS:
        raise BadInput(f"{what} has {len(points)} trials; 1 to {MOST_TRIALS} make sense")
    return {
        trial_name(i, point): config_lib.resolve(config_lib.override(base, point, set_by.SWEEP))
        for i, point in enumerate(points)
    }


def trial_name(index: int, point: Mapping[str, Any]) -> str:
    """The folder name of a trial, e.g. `003-peak_lr=0.003-seed=1`."""
    parts = [
        f"{key.split('.')[-1]}={value:.4g}" if isinstance(value, float) else f"{key.split('.')[-1]}={value}"
        for key, value in point.items()
    ]
    return re.sub(r"[^\w.=+-]", "_", "-".join([f"{index:03d}", *parts]))[:120]


def group_into_packs(trials: Mapping[str, ConfigDict]) -> dict[str, list[str]]:
    """`{pack: [names]}`: trials of a pack differ only in traced values, and share `train.steps` and `log.role`.

    Runs with different roles in a study start at different times, so they can't share checkpoints.
    """
    packs: dict[str, list[str]] = {}
    for trial, config in trials.items():
        if config.model.remat == "auto":
            raise BadInput(
                "model.remat='auto' is chosen for one run on the devices that train it; nearest for trials: what "
                "`scalelab plan --config=F --hardware=NAME` chooses, as model.remat"
            )
        shared = {
            key: value
            for key, value in config_lib.leaves(config).items()
            if (key not in config_lib.traced_keys() or key == "train.steps")
            and not key.startswith(("log.", config_lib.USER_OPTIM_PREFIX))
        }
        # The names of a user optimizer's numbers are compiled in, their values are traced.
        if ":" in config.optim.name:
            shared |= {"own": sorted(config.optim.own), "unset": config_lib.unset_numbers(config)}
        if config.log.role:
            shared["log.role"] = config.log.role
        key = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]
        packs.setdefault(key, []).append(trial)
    return packs
