"""Read the rows of figures and tables from run folders."""

import datetime
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.record import records

RUN_COLUMNS = {
    "name": "run",
    "status": "status",
    "model.d_model": "d_model",
    "model.n_layers": "layers",
    "N": "N (total)",
    "N_active": "N (active)",
    "D": "D (tokens)",
    "C": "C (FLOPs)",
    "train.steps": "steps",
    "optim.peak_lr": "peak LR",
    "train.seed": "seed",
    "val_loss": "val. loss (nats)",
    "bpb": "bits/byte",
}

SHAREABLE_COLUMNS = (
    "model.d_model",
    "model.n_layers",
    "N",
    "N_active",
    "D",
    "C",
    "train.steps",
    "optim.peak_lr",
    "train.seed",
)  # columns that are shown only if runs differ
AXIS_NAMES = {"tokens": "tokens", "step": "steps"}  # for titles
DRAWN_ELSEWHERE = frozenset(("step", "tokens", "flops", "time", "train_loss", "val_loss", "bpb", "lr", "grad_norm"))
PROVENANCE_KEYS = ("data", "git", "versions", "device", "mesh", "attention", "peak_flops", "mfu")  # of the record


MOST_CURVES = 100  # most runs whose curves and origins a page shows
MOST_ROWS = 1000  # most runs in a page's table and overview


def choose_runs(rows: Sequence[dict], most: int) -> list[dict]:
    """Choose at most `most` rows, evenly by final loss from the best to the lost ones, in their order."""
    if len(rows) <= most:
        return list(rows)
    ranked = sorted(range(len(rows)), key=lambda place: final_loss(rows[place]))
    chosen = {ranked[round(rank * (len(rows) - 1) / (most - 1))] for rank in range(most)}
    return [row for place, row in enumerate(rows) if place in chosen]


def final_loss(row: Mapping[str, Any]) -> float:
    """Validation loss of a finished run; infinite for all others."""
    loss = row.get("val_loss")
    return loss if row["status"] == "done" and loss is not None and math.isfinite(loss) else math.inf


def read_curve_rows(folders: Sequence[pathlib.Path]) -> list[dict]:
    """Read a row for each logged line of every run: `run`, `step`, `tokens`, `flops`, `seconds` since the first, and
    its `train_loss` or `val_loss`, `bpb`.

    `N` is the run's total parameter count; `flops` (exact convention) and `N` are None where the record lacks them.
    A NaN or infinite loss is kept: a diverged curve shows where it ends.
    """
    rows = []
    for folder in folders:
        record = records.read_record(folder)
        per_token = record.get("flops_per_token", {}).get("exact")
        lines = records.read_metrics(folder)
        start = next((line["time"] for line in lines if line.get("time") is not None), None)
        for line in lines:
            row = {"run": folder.name, "N": record.get("params", {}).get("total"), "step": line["step"]}
            tokens = line.get("tokens")
            counted = line.get("flops")  # lines of earlier versions have none
            row |= {"tokens": tokens, "flops": per_token and tokens and (counted or per_token * tokens)}
            if start is not None and line.get("time") is not None:
                row["seconds"] = line["time"] - start
            rows.append(row | {key: line.get(key) for key in ("train_loss", "val_loss", "bpb")})
    return rows


def common_axis(rows: Sequence[dict], axes: Sequence[str]) -> str:
    """The first of these axes that every line has, else the last of them; runs of others may log no tokens."""
    return next((axis for axis in axes if all(row[axis] is not None for row in rows)), axes[-1])


def read_step_rows(folder: pathlib.Path) -> list[dict]:
    """Read the training lines of one run: `step`, `lr`, `grad_norm`, `tokens_per_s`, `mfu` and `update_ratio`.

    The last is the update norm over the parameter norm.
    """
    lines = [line for line in records.read_metrics(folder) if line.get("train_loss") is not None]
    return [
        {key: line.get(key) for key in ("step", "lr", "grad_norm", "tokens_per_s", "mfu")}
        | {
            "update_ratio": line["update_norm"] / line["param_norm"]
            if _both(line, "update_norm", "param_norm")
            else None
        }
        for line in lines
    ]


def metric_rows(folders: Sequence[pathlib.Path], drawn: Sequence[str] = ()) -> list[dict]:
    """Read rows of `run`, `step` and every metric without a figure of its own, except those `drawn`."""
    others = DRAWN_ELSEWHERE.union(drawn)
    return [
        {"run": folder.name, "step": line["step"]} | {key: value for key, value in line.items() if key not in others}
        for folder in folders
        for line in records.read_metrics(folder)
        if line.keys() - others
    ]


def _both(line: dict, *keys: str) -> bool:
    return all(line.get(key) for key in keys)


def read_event_rows(folders: Sequence[pathlib.Path]) -> list[dict]:
    """Read the logbooks of all runs in order of time: `run`, `time`, `step`, `kind`, `text`.

    An event without a step (a config change, before training starts) gets the last step logged then. With more than
    MOST_CURVES runs it gets none, since that would read all their metrics.
    """
    rows = []
    for folder in folders:
        events = records.read_events(folder)
        times = [event["time"] for event in events if event["step"] is None]
        steps = _last_steps(folder, times) if times and len(folders) <= MOST_CURVES else {}
        for event in events:
            step = steps.get(event["time"]) if event["step"] is None else event["step"]
            rows.append(event | {"run": folder.name, "step": step})
    return sorted(rows, key=lambda row: row["time"])


def _last_steps(folder: pathlib.Path, times: Sequence[float]) -> dict[float, int]:
    """Look up {time: the last step logged until then}; most times precede the first line, which settles them."""
    start = records.first_metrics_time(folder)
    lines = records.read_metrics(folder) if start is None or max(times) >= start else []
    logged = [(line.get("time") or 0, line["step"]) for line in lines]
    return {time: max((step for at, step in logged if at <= time), default=0) for time in times}


def merge_events(rows: Sequence[dict]) -> list[dict]:
    """Merge events of equal kind and text into the first one, with the number of `runs`, in order of time."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row.get("text", "")), []).append(row)
    return [group[0] | {"runs": len({row["run"] for row in group})} for group in groups.values()]


def collect_provenance(folders: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Collect PROVENANCE_KEYS of the runs' records; if runs differ, each value with the number of its runs."""
    origins = [{key: records.read_record(f).get(key) for key in PROVENANCE_KEYS} for f in folders]
    flat: dict[str, dict[str, int]] = {}
    for record in origins:
        for key, value in records.flatten_keys({k: v for k, v in record.items() if v is not None}).items():
            counts = flat.setdefault(key, {})
            counts[str(value)] = counts.get(str(value), 0) + 1
    return {
        key: next(iter(counts)) if len(counts) == 1 else ", ".join(f"{v} ({n} runs)" for v, n in counts.items())
        for key, counts in flat.items()
    }


def entropy_rate(folders: Sequence[pathlib.Path]) -> float | None:
    """Entropy rate shared by all runs' corpora (nats/token); None if it isn't known."""
    rates = {records.read_record(folder).get("data", {}).get("entropy_rate") for folder in folders}
    return rates.pop() if len(rates) == 1 else None


def describe_states(rows: Sequence[dict]) -> str:
    """Describe the number of runs in each state: `18 done, 1 diverged`."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def check_verdicts(rows: Sequence[dict], scatter: float = 0.0) -> list[dict]:
    """Judge for every size of a check (`size`, `factor`, `loss`; a lost run: None) whether its optimum is bracketed.

    Runs of one size and factor are seeds: their mean counts, and one lost seed loses the factor. Returns `size`,
    `best_factor`, `loss`, `edge`, `seeds` (the fewest of any factor), and `cost`: how much worse the rule's own value
    is, as a share of the loss. An optimum is at the `edge` if its loss is lower than the rule's own by more than
    `scatter`, a share of the loss.
    """
    verdicts = []
    for size in sorted({row["size"] for row in rows}):
        seeds: dict[float, list[float]] = {}
        for row in rows:
            if row["size"] == size:
                seeds.setdefault(row["factor"], []).append(math.nan if row["loss"] is None else row["loss"])
        losses = {factor: sum(each) / len(each) for factor, each in seeds.items()}
        finite = {factor: loss for factor, loss in losses.items() if math.isfinite(loss)}
        best = min(finite, key=lambda factor: finite[factor], default=None)
        known = best is not None and 1 in finite
        cost = finite[1] / finite[best] - 1 if known and best is not None else None
        verdicts.append(
            {
                "size": size,
                "best_factor": best,
                "loss": finite.get(best) if best is not None else None,
                "edge": best is None or (best in (min(losses), max(losses)) and (cost is None or cost > scatter)),
                "cost": cost,
                "seeds": min(map(len, seeds.values())),
            }
        )
    return verdicts


def to_unix_seconds(value: float | str | None) -> float | None:
    """Convert a time, a number or ISO 8601, to Unix seconds."""
    if isinstance(value, str):
        return datetime.datetime.fromisoformat(value).timestamp()
    return value


def format_utc(value: float | str | None) -> str:
    """Format a time for people, in UTC."""
    seconds = to_unix_seconds(value)
    if seconds is None:
        return "–"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
