"""Trackers' words for the end of a run: which column holds them, and whether a run of that word has a final loss.

W&B, MLflow, Optuna, Ray Tune, ClearML, Slurm and scalelab's own records, without case, blanks, hyphens and underscores.
A word that is in neither list is asked about.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput
from scalelab.laws.read.columns import plain_name, without_prefix
from scalelab.laws.read.readers import shorten_text

STATUS_NAMES = (
    "status", "state", "runstatus", "runstate", "trialstatus", "trialstate", "jobstatus", "jobstate", "taskstatus",
)  # fmt: skip
FINISHED = frozenset(
    [
        "done",
        "finished",
        "finish",
        "complete",
        "completed",
        "success",
        "successful",
        "succeeded",
        "ok",
        "okay",
        "published",
        "closed",
        "ended",
        "passed",
        "converged",
        "final",
    ]
)
UNFINISHED = frozenset(
    [
        "starting",
        "started",
        "running",
        "inprogress",
        "active",
        "waiting",
        "queued",
        "pending",
        "scheduled",
        "submitted",
        "created",
        "new",
        "initializing",
        "paused",
        "suspended",
        "requeued",
        "resumed",
        "resuming",
        "unfinished",
        "incomplete",
        "notfinished",
        "stopped",
        "stopping",
        "stoppedearly",
        "earlystopped",
        "interrupted",
        "preempted",
        "preempting",
        "killed",
        "aborted",
        "cancelled",
        "canceled",
        "cancelling",
        "canceling",
        "revoked",
        "deleted",
        "dead",
        "lost",
        "timeout",
        "timedout",
        "deadline",
        "nodefail",
        "bootfail",
        "outofmemory",
        "oom",
        "crashed",
        "crash",
        "failed",
        "fail",
        "failure",
        "error",
        "errored",
        "exception",
        "broken",
        "damaged",
        "invalid",
        "diverged",
        "divergent",
        "nan",
        "inf",
        "unstable",
        "exploded",
        "pruned",
    ]
)
# Columns of true and false: whether a true one means a finished run.
FLAGS = {
    **dict.fromkeys(("finished", "isfinished", "completed", "iscompleted", "isdone", "succeeded"), True),
    **dict.fromkeys(("crashed", "iscrashed", "diverged", "isdiverged", "hasdiverged", "failed", "isfailed"), False),
}
TRUTHS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}


def read_statuses(
    rows: Iterable[Mapping[str, Any]],
    header: Sequence[str],
    table: str,
    finished: Iterable[str] = (),
    advice: str = "",
) -> list[str | None]:
    """The status of each row: "done", the plain word of an unfinished run, or None where the table does not tell.

    `finished`: further words that mean a finished run. BadInput for a word that is in no list, with `advice` (default:
    the options of `scalelab fit`).
    """
    rows = list(rows)
    wanted = {_plain_word(word) for word in finished}
    if names := find_status_columns(header):
        return [_read_word(row.get(names[0]), names[0], rows, table, wanted, advice) for row in rows]
    if wanted:
        raise BadInput(f"--finished={','.join(finished)}: {table} has no column status or state that could hold it")
    flags = {name: FLAGS[plain] for name in header for plain in _plain_names(name) if plain in FLAGS}
    return [_read_flags(row, flags) for row in rows]


def find_status_columns(header: Sequence[str]) -> list[str]:
    """The columns that hold the status of a run by their names, the likeliest first."""
    return [name for place in STATUS_NAMES for name in header if place in _plain_names(name)]


def _read_word(
    value: Any, column: str, rows: Sequence[Mapping[str, Any]], table: str, finished: set[str], advice: str
) -> str | None:
    if value is None or not str(value).strip():
        return None
    word = _plain_word(value)
    if word in FINISHED or word in finished:
        return "done"
    if word in UNFINISHED:
        return " ".join(str(value).split()).casefold()
    count = sum(_plain_word(row.get(column)) == word for row in rows)
    text = shorten_text(value)
    raise BadInput(
        f"{table}: {shorten_text(column)!r} is {text!r} in {count} rows: did these runs finish? "
        + (advice or f'If so, --finished={text!r}; if not, leave them out: --where="{_as_name(column)} != {text!r}"')
    )


def _read_flags(row: Mapping[str, Any], flags: Mapping[str, bool]) -> str | None:
    """The status that columns of true and false tell; other values tell nothing."""
    for name, means_done in flags.items():
        truth = TRUTHS.get(str(row.get(name)).strip().casefold())
        if truth is not None and truth is not means_done:
            return f"not {plain_name(name).removeprefix('is')}" if means_done else plain_name(name)
    return None


def _plain_names(name: str) -> tuple[str, str]:
    return plain_name(name), plain_name(without_prefix(name))


def _plain_word(value: Any) -> str:
    """A status without case and marks, and without what enumerations write before it: TrialState.COMPLETE."""
    word = re.sub(r"^(?:\w+\.|job_state_)", "", str(value).strip(), flags=re.IGNORECASE)
    return re.sub(r"[\s_\-.:]+", "", word).casefold()


def _as_name(column: str) -> str:
    """A column as an expression of --where names it."""
    return column if re.fullmatch(r"[A-Za-z_][\w.]*", column) else "status"
