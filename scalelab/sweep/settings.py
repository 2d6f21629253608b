"""Settings of a sweep: trials that differ in their seed only are one setting, with the mean of their losses."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SEED_KEY = "train.seed"
LOST_STATUSES = ("diverged", "failed", "damaged")  # these seeds will not have a loss


@dataclasses.dataclass(frozen=True)
class SweptSetting:
    """Swept `values` without the seed; `seeds` and `losses` (nats/token) of finished trials.

    `lost`: number of trials without a loss (diverged, failed, damaged); `pending`: number of trials not finished yet.
    """

    values: dict[str, Any]
    seeds: tuple[Any, ...]
    losses: tuple[float, ...]
    lost: int
    pending: int

    @property
    def mean(self) -> float:
        """Mean loss over seeds; infinite if a seed was lost, nan before the first seed is finished."""
        if self.lost:
            return math.inf
        return float(np.mean(self.losses)) if self.losses else math.nan

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for fewer than two seeds."""
        n = len(self.losses)
        return float(np.std(self.losses, ddof=1)) / n**0.5 if n > 1 else None


def is_final(row: Mapping[str, Any]) -> bool:
    """Whether the row's `val_loss` is the result of a finished run (else it is the last value before a stop)."""
    loss = row.get("val_loss")
    return row["status"] == "done" and loss is not None and math.isfinite(loss)


def group_by_setting(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> list[SweptSetting]:
    """Group a sweep's rows into settings, in the order of first trials; `swept`: the keys in which trials differ."""
    keys = [key for key in swept if key != SEED_KEY]
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(repr(row.get(key)) for key in keys), []).append(row)
    return [_setting({key: members[0].get(key) for key in keys}, members) for members in groups.values()]


def _setting(values: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> SweptSetting:
    final = [row for row in rows if is_final(row)]
    lost = sum(row["status"] in LOST_STATUSES or (row["status"] == "done" and not is_final(row)) for row in rows)
    seeds, losses = tuple(row.get(SEED_KEY) for row in final), tuple(row["val_loss"] for row in final)
    return SweptSetting(values, seeds, losses, lost, len(rows) - len(final) - lost)


def find_best(settings: Sequence[SweptSetting]) -> SweptSetting | None:
    """The setting with the least mean loss; None if no setting qualifies.

    Settings with all seeds finished are preferred to those with some. A setting that lost a seed never qualifies: the
    losses of its other seeds would be luck.
    """
    usable = [setting for setting in settings if setting.losses and not setting.lost]
    complete = [setting for setting in usable if not setting.pending]
    return min(complete or usable, key=lambda setting: setting.mean, default=None)
