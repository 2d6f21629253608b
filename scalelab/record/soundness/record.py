"""Compare a run's record with its config and logs, and describe the first value that they contradict.

Only values that every version wrote are checked, and only where no legal event can have changed them: logs of a run
underway are ahead of its record, and a run whose values changed on the way (`mixed`) has no single config.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.record.jsonfiles import Schema, describe_mismatch
from scalelab.record.jsonlines import last_line
from scalelab.record.soundness import size

# {status of a run that ended: the kind of event that its trainer writes just before}.
ENDS = {"done": "done", "diverged": "diverged", "stopped": "stopped", "stopped early": "stopped_early"}
# A record that lacks at most one of these was written by a trainer, which writes all of them.
MARKS = ("name", "identity", "flops_per_token", "versions", "device")
TRAINER_KEYS = (*MARKS, "params", "data", "status", "steps", "tokens", "flops")
CLOSE = 1e-6  # relative: products of floats in another order
METRICS_FILE, EVENTS_FILE = "metrics.jsonl", "events.jsonl"


class Logged(NamedTuple):
    """The ends of a run's logs: the last line, the last evaluation, and the last verdict.

    The verdict is None without a logbook: a folder may have been copied without it.
    """

    last: Mapping[str, Any]
    evaluated: Mapping[str, Any]
    verdict: str | None


def check_record(folder: pathlib.Path, config: Mapping[str, Any], record: Mapping[str, Any], schema: Schema) -> None:
    """Raise BadInput if the config or the logs of the run in `folder` contradict its record.

    `schema`: of lines of metrics.
    """
    ended = record.get("status") in ENDS and "identity" in record
    logged = _read_ends(folder, schema) if ended else None
    try:
        why = describe_false_size(config, record)
        why = why or (logged and describe_false_end(config, record, logged)) or describe_false_product(config, record)
    except OverflowError:
        why = "it has a number that no count can reach"
    if why:
        raise BadInput(f"{folder / 'record.json'}: {why}: was one of them edited or cut?")


def _read_ends(folder: pathlib.Path, schema: Schema) -> Logged:
    """Read the logs' ends backwards; the metrics back to the last evaluation, which is often the last line."""
    path = folder / METRICS_FILE
    last = last_line(path, lambda row: not describe_mismatch(row, schema)) or {}
    evaluated = last if "val_loss" in last else _last_evaluated(path, schema)
    verdict = last_line(folder / EVENTS_FILE, lambda row: row.get("kind") in ENDS.values()) or {}
    known = verdict.get("kind", "") if verdict or (folder / EVENTS_FILE).exists() else None
    return Logged(last, evaluated, known)


def _last_evaluated(path: pathlib.Path, schema: Schema) -> Mapping[str, Any]:
    fits = lambda row: "val_loss" in row and not describe_mismatch(row, schema)  # noqa: E731
    return last_line(path, fits, having="val_loss") or {}


def describe_false_size(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Describe a missing key, or a count of parameters that groups or config contradict; "" if there is none.

    The config implies the counts of this version's blocks. A run of edited code has another sum over its groups, and is
    compared with that sum only.
    """
    if missing := _missing_key(record):
        return f"it has no {missing!r}, which every trainer writes"
    params, groups = record.get("params", {}), record.get("params_by_group")
    if not groups:
        return ""
    total, counts = sum(groups.values()), size.count_parameters(config) or {}
    if params.get("total", total) != total:
        return f"params_by_group has {total:,} parameters, and params.total is {params['total']:,}"
    if counts.get("total") != total:
        return ""
    for name, count in counts.items():
        if params.get(name, count) != count:
            return f"params.{name} is {params[name]:,}, and the model of config.json has {count:,}"
    return ""


def _missing_key(record: Mapping[str, Any]) -> str:
    return next((key for key in TRAINER_KEYS if key not in record), "") if _is_trainers(record) else ""


def _is_trainers(record: Mapping[str, Any]) -> bool:
    return sum(mark in record for mark in MARKS) >= len(MARKS) - 1 and record.get("status") != "imported"


def describe_false_product(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Describe FLOPs or bits that do not follow from the record's parameters, tokens and loss; "" if there are none."""
    return _describe_false_rate(record) or _describe_false_flops(config, record) or _describe_false_bpb(record)


def _describe_false_rate(record: Mapping[str, Any]) -> str:
    per_token, params = record.get("flops_per_token", {}), record.get("params", {})
    name = "active" if "active" in params else "total"  # records of earlier versions have no active
    if "6N" in per_token and name in params and _differ(per_token["6N"], 6 * params[name]):
        return f"flops_per_token.6N is {per_token['6N']}, and six times params.{name} {6 * params[name]:g}"
    return ""


def _describe_false_flops(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    per_token, flops = record.get("flops_per_token", {}), record.get("flops", {})
    # C includes abandoned steps, of the guard's rewinds and of those by hand
    rewinds = config.get("guard", {}).get("policy") == "rewind" or record.get("rewinds")
    if _has_several_stretches(config, record) or "tokens" not in record:
        return ""
    for name, value in per_token.items():
        total, product = flops.get("6ND" if name == "6N" else name), (value or 0) * record["tokens"]
        if total is None or (rewinds and total > product):
            continue
        if _differ(total, product):
            times = f"{value} on each of {record['tokens']:,} tokens make {product:.6g}"
            return f"flops (C) of {name} is {total:.6g}, and {times}"
    return ""


def _has_several_stretches(config: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether the steps were counted under more than one config."""
    return bool(record.get("mixed") or config.get("log", {}).get("stretches"))


def _describe_false_bpb(record: Mapping[str, Any]) -> str:
    loss, bpb, rate = record.get("val_loss"), record.get("bpb"), record.get("data", {}).get("bytes_per_token")
    if loss is None or bpb is None or not rate or not math.isfinite(loss):
        return ""
    expected = loss / math.log(2) / rate
    return f"bpb is {bpb:g}, and val_loss gives {expected:g}" if _differ(bpb, expected) else ""


def describe_false_end(config: Mapping[str, Any], record: Mapping[str, Any], logged: Logged) -> str:
    """Describe a value that the logs of a finished run contradict; "" if there is none."""
    status, steps, loss = record["status"], record.get("steps", 0), record.get("val_loss")
    evaluated, last = logged.evaluated, logged.last
    verdict = logged.verdict
    if verdict is not None and verdict != ENDS[status] and (verdict or _is_trainers(record)):
        return f"status is {status!r}, and the last verdict in {EVENTS_FILE} is {verdict or 'none'!r}"
    if not evaluated and (loss is not None or status == "done"):
        return f"val_loss is {loss}, and {METRICS_FILE} has no evaluated line" if _is_trainers(record) else ""
    if status == "done" and evaluated["step"] != steps:
        return f"steps is {steps}, and the last evaluated line of {METRICS_FILE} is of step {evaluated['step']}"
    if evaluated and (loss is not None or status == "done") and not _same(loss, evaluated["val_loss"]):
        return f"val_loss is {loss}, and the last evaluated line of {METRICS_FILE} says {evaluated['val_loss']}"
    for name, value in record.get("by_source", {}).items():
        if name in evaluated and not _same(value, evaluated[name]):
            return f"by_source has {name}={value}, and the last evaluated line of {METRICS_FILE} {evaluated[name]}"
    return _describe_false_steps(config, record, last) if last else ""


def _describe_false_steps(config: Mapping[str, Any], record: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Describe `steps`, `tokens` or C if the last logged line contradicts them."""
    steps, tokens = record.get("steps", 0), record.get("tokens", 0)
    if last["step"] > steps:
        return f"steps is {steps}, and {METRICS_FILE} goes on to step {last['step']}"
    counted = last.get("flops") if last["step"] == steps else None  # lines of earlier versions have none
    if counted is not None and "exact" in record.get("flops", {}) and _differ(record["flops"]["exact"], counted):
        return f"flops (C) is {record['flops']['exact']:.6g}, and {METRICS_FILE} says {counted:.6g} at step {steps}"
    expected = _expect_tokens(config, record, last)
    if expected is not None and tokens != expected:
        return f"tokens (D) is {tokens:,}, and {METRICS_FILE} says {last['tokens']:,} at step {last['step']}"
    return ""


def _expect_tokens(config: Mapping[str, Any], record: Mapping[str, Any], last: Mapping[str, Any]) -> float | None:
    """Tokens at the record's step by the last line: the line's own, or steps times a constant batch."""
    if not last.get("tokens"):
        return None
    if last["step"] == record.get("steps"):
        return float(last["tokens"])
    each = config.get("train", {}).get("global_batch"), config.get("model", {}).get("seq_len")
    if _has_several_stretches(config, record) or any(type(part) is not int for part in each):
        return None
    constant = last["tokens"] == last["step"] * each[0] * each[1]
    return float(record.get("steps", 0) * each[0] * each[1]) if constant else None


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and a != a and b != b)


def _differ(a: float | None, b: float) -> bool:
    return a is None or not math.isclose(a, b, rel_tol=CLOSE)
