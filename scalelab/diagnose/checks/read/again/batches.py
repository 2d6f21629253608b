"""Read again what a run read: its batches, through the feed it used, beside the windows that are due.

Three readings of a step are compared: `due`, the windows by the closed form of the order, cut from the corpus here;
`read`, what the feed gives now; and the metrics `read/…` that the step itself logged (`train/step/report/read.py`).
"""

from typing import Any, NamedTuple

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, TrainBatches
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.diagnose.evidence import Evidence

MOST_TOKENS = 2_000_000  # tokens read again; a run with fewer is read again from end to end
BLOCKS = 16  # of consecutive steps, spread over a longer run
LEAST_STEPS = 4
FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # of the hash, as in train/step/report/read.py


class Stretch(NamedTuple):
    """Steps (from 0) [n] of one stretch of a run, the windows due [n, B], and rows [n, B, S+1] of both readings."""

    batches: TrainBatches
    steps: np.ndarray
    numbers: np.ndarray
    due: np.ndarray
    read: np.ndarray


def last_step(evidence: Evidence) -> int:
    """The number of steps that the run has logged."""
    return min(int(evidence.rows[-1]["step"]), evidence.steps) if evidence.rows else 0


def unreadable(evidence: Evidence) -> str:
    """Why the batches can't be read again; "" if they can."""
    if evidence.data is None:
        return evidence.no_data or "the data were not read"
    fingerprint = evidence.record.get("data", {}).get("fingerprint")
    if fingerprint not in (None, evidence.data.dataset.fingerprint):
        return "the data here are not those of the run"
    if evidence.record.get("rewinds") or evidence.record.get("changes_by_hand"):
        return "the run went back, and passed over batches"
    return ""


def read_again(evidence: Evidence) -> list[Stretch]:
    """Read the run's batches again, or blocks of them; by stretches, as a run may go on under another batch."""
    assert evidence.data is not None
    batches, end = evidence.data.batches, last_step(evidence)
    seq_len = batches.windows.views[0].shape[1]
    logged = np.array([row["step"] - 1 for row in evidence.rows if "read/digest" in row], int)
    steps = choose_steps(end, batches.global_batch * seq_len, logged[logged < end])
    by_owner: dict[int, list[int]] = {}
    for step in steps.tolist():
        owner = batches.at(step)
        if owner.begin.batch <= step:  # else the stretch's own data are not here
            by_owner.setdefault(id(owner), []).append(step)
    return [_read_stretch(batches.at(chosen[0]), np.array(chosen)) for chosen in by_owner.values()]


def choose_steps(end: int, tokens: int, logged: np.ndarray) -> np.ndarray:
    """Choose the steps below `end` to read again, of `tokens` each: all, or blocks and as many that were logged."""
    most = max(LEAST_STEPS, MOST_TOKENS // max(tokens, 1))
    if end <= most:
        return np.arange(end)
    length = max(1, most // 2 // BLOCKS)
    starts = np.linspace(0, end - length, BLOCKS).astype(int)[: max(1, most // 2 // length)]
    blocks = (starts[:, None] + np.arange(length)).ravel()
    spread = logged[np.linspace(0, len(logged) - 1, min(len(logged), most // 2)).astype(int)] if len(logged) else logged
    return np.unique(np.concatenate([blocks, spread]))


def _read_stretch(batches: TrainBatches, steps: np.ndarray) -> Stretch:
    numbers = np.stack([batches.window_numbers(int(step)) for step in steps])
    due = batches.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)
    return Stretch(batches, steps, numbers, due, np.asarray(batches.numbered(steps.tolist())))


def hash_rows(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """The hash of each row [..., S] that the step takes, uint32 [...]."""
    at = np.arange(rows.shape[-1], dtype=np.uint32) * np.uint32(FACTORS[1]) + np.uint32(seed)
    mixed = _mix(rows.astype(np.int32).view(np.uint32) * np.uint32(FACTORS[0]) + at)
    return _mix(np.asarray(np.sum(mixed, axis=-1, dtype=np.uint32)))


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(FACTORS[2])
    mixed: np.ndarray = x ^ (x >> np.uint32(15))
    return mixed


class Counts(NamedTuple):
    """Of each step [n]: the digest of its rows, rows equal to an earlier one, rows without a target, targets."""

    digest: np.ndarray
    equal: np.ndarray
    empty: np.ndarray
    targets: np.ndarray


def count_rows(rows: np.ndarray, separator: int | None) -> Counts:
    """Count rows [n, B, S+1] as the step does; `separator`: the id after which nothing is predicted, if any."""
    hashes = hash_rows(rows)
    pairs = np.sort(hashes.astype(np.uint64) << np.uint64(32) | hash_rows(rows, 1), axis=1)
    absent = (rows == NO_WINDOW).all(axis=2)
    equal = (pairs[:, 1:] == pairs[:, :-1]).sum(axis=1) - np.maximum(absent.sum(axis=1) - 1, 0)
    predicted = rows[:, :, 1:] >= 0
    if separator is not None:
        inputs = unmask_ids(rows[:, :, :-1])
        predicted &= (inputs >= 0) & (inputs != separator)
    by_row = predicted.sum(axis=2)
    return Counts(hashes.sum(axis=1, dtype=np.uint32), equal, (by_row == 0).sum(axis=1), by_row.sum(axis=1))


def separator_of(evidence: Evidence) -> int | None:
    """The id after which nothing is predicted; None: documents are read across."""
    assert evidence.data is not None
    return evidence.data.dataset.separator if evidence.values["data.documents"] == "mask" else None


def logged_counts(evidence: Evidence, steps: np.ndarray) -> dict[str, np.ndarray]:
    """{name: values [n]} of the metrics `read/…` of these steps (from 0); NaN where they were not logged."""
    by_step = {row["step"] - 1: row for row in evidence.rows if "read/digest" in row}
    rows: list[Any] = [by_step.get(step, {}) for step in steps.tolist()]
    names = {
        "digest": "read/digest", "equal": "read/equal_rows", "empty": "read/empty_rows", "targets": "read/targets",
    }  # fmt: skip
    return {name: np.array([float(row.get(metric, np.nan)) for row in rows]) for name, metric in names.items()}


def present(numbers: np.ndarray) -> np.ndarray:
    """Whether each row has a window."""
    return numbers != NO_WINDOW
