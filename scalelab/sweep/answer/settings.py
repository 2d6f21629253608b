"""Settings of a sweep: trials that differ in their seed only are one setting, with the mean of their losses."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.config.keys import default_values
from scalelab.index.table import all_columns
from scalelab.record.records import DAMAGED_STATUS, STOPPED_EARLY_STATUS

SEED_KEY = "train.seed"
LOST_STATUSES = ("diverged", "failed", DAMAGED_STATUS, STOPPED_EARLY_STATUS)  # these seeds will not have a loss
NOT_FINITE, UNSCORED, MIXED = "not finite", "no validation loss", "changed midway"  # done, without a loss of it


@dataclasses.dataclass(frozen=True)
class SweptSetting:
    """Swept `values` without the seed; `seeds` and `losses` (nats/token) of finished trials.

    `lost`: {seed: why it will have no loss} (diverged, failed, damaged, stopped early, not finite,
    changed midway). `pending`: number
    of trials not finished yet. `repeated`: number of trials left out because their seed was here already.
    """

    values: dict[str, Any]
    seeds: tuple[Any, ...]
    losses: tuple[float, ...]
    lost: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    pending: int = 0
    repeated: int = 0

    @property
    def trials(self) -> int:
        """Number of seeds, with or without a loss."""
        return len(self.losses) + len(self.lost) + self.pending

    @property
    def mean(self) -> float:
        """Mean loss over seeds; infinite if a seed was lost, nan before the first seed is finished."""
        if self.lost:
            return math.inf
        return float(np.mean(self.losses)) if self.losses else math.nan

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for fewer than two seeds, or if a seed was lost."""
        n = len(self.losses)
        return float(np.std(self.losses, ddof=1)) / n**0.5 if n > 1 and not self.lost else None

    @property
    def by_seed(self) -> dict[Any, float]:
        """{seed: loss} of finished trials."""
        return dict(zip(self.seeds, self.losses, strict=True))


def is_final(row: Mapping[str, Any]) -> bool:
    """Whether the row's `val_loss` is the result of a finished run (else it is the last value before a stop)."""
    loss = row.get("val_loss")
    return row["status"] == "done" and loss is not None and math.isfinite(loss)


def lost_reason(row: Mapping[str, Any]) -> str:
    """Why a trial will never have a loss of its setting; "" if it has one or may still get it."""
    if row["status"] in LOST_STATUSES:
        return row["status"]
    if row.get("mixed"):
        return MIXED
    if row["status"] != "done" or is_final(row):
        return ""
    return UNSCORED if row.get("val_loss") is None else NOT_FINITE


def group_rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[list[Mapping[str, Any]]]:
    """Group rows that are equal in `keys`, in the order of first rows."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(repr(row.get(key)) for key in keys), []).append(row)
    return list(groups.values())


def group_by_setting(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> list[SweptSetting]:
    """Group a sweep's rows into settings, in the order of first trials; `swept`: the keys in which trials differ."""
    keys = [key for key in swept if key != SEED_KEY]
    return [_make_setting({key: members[0].get(key) for key in keys}, members) for members in group_rows(rows, keys)]


def _make_setting(values: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> SweptSetting:
    once = _first_of_each_seed(rows)
    lost = {seed: reason for seed, row in once.items() if (reason := lost_reason(row))}
    final = {seed: row["val_loss"] for seed, row in once.items() if seed not in lost and is_final(row)}
    pending = len(once) - len(final) - len(lost)
    return SweptSetting(values, tuple(final), tuple(final.values()), lost, pending, len(rows) - len(once))


def _first_of_each_seed(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    """One row for each seed, a finished one if there is any: a repeated run tells nothing about the spread of seeds."""
    by_seed: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        seed = row.get(SEED_KEY)
        if seed not in by_seed or (is_final(row) and not is_final(by_seed[seed])):
            by_seed[seed] = row
    return by_seed


def find_best(settings: Sequence[SweptSetting]) -> SweptSetting | None:
    """The setting with the least mean loss; None if no setting qualifies.

    Settings with all seeds finished are preferred to those with some. A setting that lost a seed never qualifies: the
    losses of its other seeds would be luck.
    """
    return min(rankable(settings), key=lambda setting: setting.mean, default=None)


def rankable(settings: Sequence[SweptSetting]) -> list[SweptSetting]:
    """Settings that can be ranked by their means: those with every seed finished, else those with some."""
    usable = [setting for setting in settings if setting.losses and not setting.lost]
    return [setting for setting in usable if not setting.pending] or usable


def swept_keys(rows: Sequence[Mapping[str, Any]], aside: Collection[str] = ()) -> list[str]:
    """The config values in which runs differ, but those `aside`. What only follows from another one (d_ff from
    d_model) is left out."""
    groupings: list[list[int]] = []
    names: list[str] = []
    rows = [row for row in rows if row.get("status") != DAMAGED_STATUS]
    for name in sorted(varying_columns(rows), key=_may_follow):
        # Config values are named by full keys; what has a slash was measured: of a source, on a task.
        if "." not in name or "/" in name or name.startswith("log.") or name in aside:
            continue
        firsts = first_places([row.get(name) for row in rows])
        if firsts not in groupings:
            groupings.append(firsts)
            names.append(name)
    return names


def varying_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of columns in which any rows differ."""
    others: set[str] = set()  # row by row, which is much faster than column by column
    for row in rows:
        if row.keys() == rows[0].keys():  # runs of an index share the objects of equal values
            others.update([name for name, value in row.items() if value is not rows[0][name]])
        else:
            others.update(rows[0], row)
    return [name for name in all_columns(rows) if name in others and any(first_places([r.get(name) for r in rows]))]


def _may_follow(key: str) -> bool:
    """Whether a value may be derived from others, as when to validate is from the steps; a learning rate never is."""
    derived = key.startswith("eval.") or default_values().get(key, key) is None
    return key != "optim.peak_lr" and derived


def setting_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Like `swept_keys`, without the seed, which makes replications of a setting and not another one."""
    return swept_keys(rows, aside=(SEED_KEY,))


def first_places(values: Sequence[Any]) -> list[int]:
    """Where each value stands first: which rows share a value, whatever the value is (also a list)."""
    first: dict[str, int] = {}
    return [first.setdefault(repr(value), i) for i, value in enumerate(values)]
