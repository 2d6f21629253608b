"""Turn a config file's sweep into named, checked configs, and group them into packs that share one compiled program.

A trial is found by its identity: in a folder that holds its run it has that run's name, whatever the grid is now.
"""

import contextlib
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import files
from scalelab.errors import BadInput
from scalelab.index import grids
from scalelab.record import identity as identity_lib
from scalelab.record import records
from scalelab.sweep import grid
from scalelab.untrusted.paths import list_folders

MOST_TRIALS = 10_000  # more is surely a mistake: such a table is unreadable, and such a folder slow
# A trial's folder: its values, after an index in earlier versions, before a part of its identity where names are equal.
FOLDER_NAME = re.compile(r"(?:(?P<index>\d{3,})-)?(?P<values>.*?)(?:-[0-9a-f]{8}(?:-\d+)?)?")
Values = Mapping[str, Any]  # a config's, by `group.key`


class StoredTrial(NamedTuple):
    """A trial that a sweep's folder has: its values as far as they are known, its steps so far.

    `has_config`: the values are those of a run's whole config; keys that an earlier version did not have are at their
    defaults. Else they are what the sweep listed.
    """

    values: Values
    steps: int = 0
    has_config: bool = False


def load_trials(
    path: str | pathlib.Path, overrides: Mapping[str, Any], folder: pathlib.Path | None = None
) -> dict[str, ConfigDict]:
    """`{name: resolved config}`: the file's `get_config()` with the overrides and each trial of its `sweep(h)`.

    `folder`: the sweep's, whose runs keep their names. BadInput if the file has no sweep(h), or if sweep(h) returns
    anything but a grid of 1 to MOST_TRIALS trials.
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
    return resolve_trials(base, points, f"the sweep of {path}", folder)


def resolve_trials(
    base: ConfigDict, points: Sequence[Mapping[str, Any]], what: str = "the grid", folder: pathlib.Path | None = None
) -> dict[str, ConfigDict]:
    """`{name: resolved config}` of a grid's points, each `{"group.key": value}` on `base`.

    `what`: the grid's name in a refusal; `folder` and BadInput as for `load_trials`.
    """
    if not 0 < len(points) <= MOST_TRIALS:
        raise BadInput(f"{what} has {len(points)} trials; 1 to {MOST_TRIALS} make sense")
    configs = [config_lib.resolve(config_lib.override(base, point, set_by.SWEEP)) for point in points]
    return dict(zip(name_trials(points, configs, folder), configs, strict=True))


def trial_name(index: int, point: Mapping[str, Any]) -> str:
    """The name of a study's trial that is told by its place, e.g. `003-peak_lr=0.003-seed=1`."""
    return "-".join(filter(None, [f"{index:03d}", describe_point(point)]))[:120]


def describe_point(point: Mapping[str, Any]) -> str:
    """The values of a trial as a folder's name, e.g. `peak_lr=0.003-seed=1`."""
    parts = [
        f"{key.split('.')[-1]}={value:.4g}" if isinstance(value, float) else f"{key.split('.')[-1]}={value}"
        for key, value in point.items()
    ]
    return re.sub(r"[^\w.=+-]", "_", "-".join(parts))[:120]


def name_trials(
    points: Sequence[Mapping[str, Any]], configs: Sequence[ConfigDict], folder: pathlib.Path | None = None
) -> list[str]:
    """The folder name of each trial: that of its run in the sweep's `folder`, else its values.

    A run is a trial's own if it has its identity and its swept values, whatever its name. Failing that, a run that was
    begun under the trial's name and has its swept values: what else changed, the continuation allows or refuses. A name
    that another trial has gets a part of the identity.
    """
    stored = _read_stored_trials(folder) if folder else {}
    plain = [describe_point(point) or "base" for point in points]
    values = [config_lib.leaves(config) for config in configs] if stored else []
    named: dict[int, str] = {}
    for key in (_equal_config, _equal_identity, _equal_name) if stored else ():
        groups = _group_names(stored, set(named.values()), key)
        for i, point in enumerate(points):
            names = [] if i in named else groups.get(key(plain[i], StoredTrial(values[i], has_config=True)), [])
            if fitting := [name for name in names if _has_values(stored[name], point, values[i])]:
                named[i] = min(fitting, key=lambda name: _preference(name, stored[name], i))
                names.remove(named[i])
    used = {*stored, *named.values()}
    for i, config in enumerate(configs):
        if i not in named:
            named[i] = _free_name(plain[i], config, used)
            used.add(named[i])
    return [named[i] for i in range(len(points))]


def _read_stored_trials(folder: pathlib.Path) -> dict[str, StoredTrial]:
    """{name: trial} of all runs of a sweep's folder, and of trials that it listed and did not start.

    Of a link, and of a damaged run, only the name is known, and what the sweep listed.
    """
    defaults = config_lib.default_values()
    stored = {name: StoredTrial(values) for name, values in grids.read_listed_values(folder).items()}
    folders, links = list_folders(folder / "runs")
    for name in links:
        stored.setdefault(name, StoredTrial({}))
    for name in folders:
        stored.setdefault(name, StoredTrial({}))
        with contextlib.suppress(BadInput):
            config, record = records.read_config_and_record(folder / "runs" / name)
            values = records.flatten_keys(config)
            known = {k: v for k, v in values.items() if k in defaults or k.startswith(config_lib.USER_OPTIM_PREFIX)}
            stored[name] = StoredTrial(defaults | known, record.get("steps", 0), has_config=True)
    return stored


def _group_names(
    stored: Mapping[str, StoredTrial], used: Collection[str], key: Callable[[str, StoredTrial], str]
) -> dict[str, list[str]]:
    """{key: names} of stored trials that are nobody's yet."""
    groups: dict[str, list[str]] = {}
    for name in sorted(stored.keys() - used):
        match = FOLDER_NAME.fullmatch(name)
        groups.setdefault(key(match["values"] if match else name, stored[name]), []).append(name)
    groups.pop("", None)
    return groups


def _equal_config(name: str, trial: StoredTrial) -> str:
    """A key that trials share if their whole configs are equal, `log` aside; "" where the config is not known."""
    values = {key: value for key, value in trial.values.items() if not key.startswith("log.")}
    return json.dumps(values, sort_keys=True) if trial.has_config else ""


def _equal_identity(name: str, trial: StoredTrial) -> str:
    """A key that trials share if they compute the same; "" where the config is not known."""
    return identity_lib.identity(trial.values) if trial.has_config else ""


def _equal_name(name: str, trial: StoredTrial) -> str:
    """A key that trials share if their names have the same values."""
    return name


def _has_values(trial: StoredTrial, point: Mapping[str, Any], values: Values) -> bool:
    """Whether a stored trial has a point's values, as far as they are known."""
    return all(trial.values.get(key, values[key]) == values[key] for key in point if key in values)


def _preference(name: str, trial: StoredTrial, index: int) -> tuple[int, bool, str]:
    """The order of equal trials: the one that went furthest, with this index in an earlier version's name, by name."""
    match = FOLDER_NAME.fullmatch(name)
    return -trial.steps, not (match and match["index"] and int(match["index"]) == index), name


def _free_name(name: str, config: ConfigDict, used: Collection[str]) -> str:
    """The name if no trial has it, else with a part of the identity, else with a number too."""
    if name not in used:
        return name
    name = f"{name}-{config_lib.identity(config)[:8]}"
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(each for each in names if each not in used)


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
