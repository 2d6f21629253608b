"""Gather the evidence on a run once for all checks: its folder, its data, and the probes' measurements.

A run that others trained is judged by what it has (`checks/foreign.py`). A check that asks for a config value that is
not known raises `Missing`, which `rank.diagnose` turns into a gap.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.keys import Key, default_values, key_records
from scalelab.diagnose.sample import DataSample, sample_data
from scalelab.errors import BadInput, WorkFailed, quote_path
from scalelab.optim import schedules
from scalelab.record import records
from scalelab.record.jsonlines import last_line
from scalelab.train.checkpoints import logs, manifest
from scalelab.train.lineage.changes import present_events
from scalelab.train.lineage.facts import config_from_facts

NO_CONFIG = "the run has no config"
CHANGED_KEY = re.compile(r"(?:^|, )([a-z]\w*\.\w+): (.*?) -> (.*?)(?=, [a-z]\w*\.\w+: |$)")  # in a logbook's line
OUTSIDE_A_STEP = ("log.", "eval.", "checkpoint.")
SHORT_PATH = 1.0  # `path_length` of a run that may not have learned what it could; on configs/tiny 2.7 at the good LR


class Missing(BadInput):
    """Something that a check asks for and this run does not have."""


class KnownValues(Mapping[str, Any]):
    """The part of a config that is known; `Missing` for any other key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_known = dict(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self.values_known:
            raise Missing(f"the run does not tell {key}" if self.values_known else NO_CONFIG)
        return self.values_known[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        return self.values_known.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.values_known

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_known)

    def __len__(self) -> int:
        return len(self.values_known)


class Series(NamedTuple):
    """Logged values [n] or [n, L] and the steps [n] after which they were written."""

    steps: np.ndarray
    values: np.ndarray

    def after(self, step: float) -> "Series":
        """The part of the series after `step`."""
        return Series(self.steps[self.steps > step], self.values[self.steps > step])

    def until(self, step: float) -> "Series":
        """The part of the series up to `step`."""
        return Series(self.steps[self.steps <= step], self.values[self.steps <= step])

    def finite(self) -> "Series":
        """The part of the series with finite values."""
        good = np.isfinite(self.values).all(axis=tuple(range(1, self.values.ndim)))
        return Series(self.steps[good], self.values[good])


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The evidence on a run. `values`: config by `group.key`, with defaults for keys that older runs lack.

    `rows`: lines of training, `evaluations`: lines with `val_loss`, `layers`, `events`: their files. `manifests`: of
    the saved steps; `damage`: files that differ from them. `lost`: lines of metrics that a save or the record counted
    and that are gone; `edited`: logged values that contradict them. `lines`: of metrics.jsonl, in its order. `data`: a
    sample of the data; None if `no_data` says why not. `probes`: measurements of `probes/` by name, {} without --live.
    """

    folder: pathlib.Path
    values: Mapping[str, Any]
    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    layers: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    manifests: Mapping[int, Mapping[str, Any]]
    damage: Sequence[str] = ()
    data: DataSample | None = None
    no_data: str = ""
    probes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lost: Sequence[str] = ()
    edited: Sequence[str] = ()
    lines: Sequence[Mapping[str, Any]] = ()

    @property
    def quoted(self) -> str:
        """The folder as a word of a printed command."""
        return quote_path(self.folder)

    @property
    def config(self) -> ConfigDict:
        """The resolved config."""
        if isinstance(self.values, KnownValues):
            raise Missing(NO_CONFIG)
        return config_from_facts({"config": records.read_config(self.folder)})

    @property
    def steps(self) -> int:
        """Number of steps in the config."""
        return int(self.values["train.steps"])

    @property
    def n_parameters(self) -> int:
        """All parameters; 0 if the run has no record yet."""
        return int(self.record.get("params", {}).get("total", 0))

    @property
    def ceiling(self) -> float:
        """The loss of a uniform guess, ln V."""
        return float(np.log(self.values["model.vocab_size"]))

    def series(self, name: str) -> Series:
        """Series of a metric over the logged steps, with values that are not finite; lines without it are left out."""
        return read_series(self.rows, name)

    def layer_series(self, name: str) -> Series:
        """Series of a measure of layers.jsonl: [n, L], or [n] for a group or the logits."""
        return read_series(self.layers, name)

    def kinds(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Select the events of these kinds."""
        return [event for event in self.events if event["kind"] in kinds]

    @property
    def replayable(self) -> list[int]:
        """Saved steps since the config last changed what a step does: before it the run went another way."""
        changed = [0]
        for event in self.kinds("config_change"):
            keys = [key for key, _, _ in CHANGED_KEY.findall(str(event.get("text", "")))]
            if any(not key.startswith(OUTSIDE_A_STEP) for key in keys):
                changed.append(int(event.get("step") or 0))
        return [step for step in sorted(self.manifests) if step >= max(changed)]

    @functools.cached_property
    def scheduled_lr(self) -> Series:
        """LR by the config's schedule at the logged steps. BadInput for a user's schedule that is not trusted."""
        steps = self.series("lr").steps
        if not len(steps):
            return Series(steps, steps.astype(float))
        curves = schedules.schedule_curves(self.config, [int(step) - 1 for step in steps])
        return Series(steps, np.asarray(curves["lr"], float))


def read_series(lines: Sequence[Mapping[str, Any]], name: str) -> Series:
    """Read the series of a metric from lines with a step each; lines without it are left out."""
    chosen = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return Series(np.array([step for step, _ in chosen], int), np.array([value for _, value in chosen], float))


def gather_evidence(folder: pathlib.Path) -> Evidence:
    """Gather the evidence on a run's folder, without probes. BadInput if it is not a run, or is damaged."""
    if not (folder / "config.json").exists():
        raise BadInput(f"{str(folder)!r} is not a run folder: it has no config.json")
    if records.is_imported(records.read_record(folder)):
        raise BadInput(f"{folder} holds logs of a run that another program trained, neither its data nor its weights")
    values, mistyped = _typed_values(records.flatten_keys(records.read_config(folder)))
    record, lines = records.read_record(folder), records.read_metrics(folder)
    data, no_data = _data(folder)
    manifests, damage = _manifests(folder)
    lost, edited = _describe_lost_lines(folder, values, record, lines)
    return Evidence(
        folder,
        values,
        record,
        one_a_step(line for line in lines if "train_loss" in line),
        one_a_step(line for line in lines if "val_loss" in line),
        one_a_step(records.read_layers(folder)),
        present_events(records.read_events(folder)),
        manifests,
        damage,
        data,
        no_data,
        lost=lost,
        edited=[*mistyped, *edited],
        lines=lines,
    )


def _typed_values(stored: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read (a config by `group.key`, with defaults for values of a wrong type; a line for each of these)."""
    keys = key_records()
    mistyped = {key for key, record in keys.items() if not _fits(stored.get(key, record.default), record)}
    lines = [f"config.json: {key} is {stored[key]!r}; taken as {keys[key].default!r}" for key in sorted(mistyped)]
    return default_values() | {key: value for key, value in stored.items() if key not in mistyped}, lines


def _fits(value: Any, record: Key) -> bool:
    """Whether a value has the type of its key, or of an older version's key; null is one that is derived later."""
    if value is None:
        return record.default is None
    types: dict[type, Any] = {bool: int, float: (int, float)}
    return isinstance(value, types.get(record.kind, record.kind))


def one_a_step(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Keep the last line of each step, in order of steps, so that series of several metrics match."""
    by_step = {line["step"]: line for line in lines}
    return [by_step[step] for step in sorted(by_step)]


def update_ratio(evidence: Evidence) -> Series:
    """Series of update norm / parameter norm at the logged steps."""
    update, params = evidence.series("update_norm"), evidence.series("param_norm")
    shared = np.intersect1d(update.steps, params.steps)
    chosen = [np.isin(each.steps, shared) for each in (update, params)]
    ratio = update.values[chosen[0]] / np.maximum(params.values[chosen[1]], 1e-30)
    return Series(shared, ratio).finite()


def path_length(ratio: Series) -> float:
    """Bound how far the weights have moved from their start, in units of their norm, by the triangle inequality.

    Between logged lines the larger of both ends counts.
    """
    steps, larger = np.diff(ratio.steps, prepend=0), np.maximum(ratio.values, np.roll(ratio.values, 1))
    larger[0] = ratio.values[0]
    return float(np.sum(steps * larger))


def _data(folder: pathlib.Path) -> tuple[DataSample | None, str]:
    try:
        return sample_data(
            config_lib.resolve(config_from_facts({"config": records.read_config(folder)}), stored=True)
        ), ""
    except (BadInput, WorkFailed, OSError) as error:
        return None, str(error)


def _describe_lost_lines(
    folder: pathlib.Path, values: Mapping[str, Any], record: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Describe (lost lines, edited values) of metrics, by the counts of the newest checkpoint and the record."""
    saved, lost, edited = manifest.find_saved_steps(folder), list[str](), list[str]()
    for step in sorted(saved, reverse=True):
        place, _ = saved[step]
        try:
            problems = logs.find_lost_logs(place, manifest.read_manifest(place / str(step)))
        except WorkFailed:  # a damaged file is described by `damage`
            continue
        for path, text in problems:
            if path.parent.resolve() != folder.resolve():
                continue
            if path.name == "metrics.jsonl" and _last_step(path) + values["log.every_steps"] <= step:
                lost.append(text)
            elif path.exists():  # checks that need layers.jsonl report its absence
                edited.append(text)
        break
    try:
        records.read_sound_record(folder)
    except BadInput as error:
        (edited if lines or not record else lost).append(str(error))
    return lost, edited


def _last_step(log: pathlib.Path) -> int:
    """Step of a log's last line; 0 without a line."""
    line = last_line(log, lambda row: isinstance(row.get("step"), int)) or {}
    return int(line.get("step", 0))


def _manifests(folder: pathlib.Path) -> tuple[dict[int, Mapping[str, Any]], list[str]]:
    """Read the manifests of the saved steps, and what is wrong with their files by name and size."""
    manifests: dict[int, Mapping[str, Any]] = {}
    damage: list[str] = []
    for step, (place, _) in sorted(manifest.find_saved_steps(folder).items()):
        problems = manifest.find_step_problems(place / str(step), contents=False)
        damage += problems
        if not problems:
            manifests[step] = manifest.read_manifest(place / str(step))
    return manifests, damage
