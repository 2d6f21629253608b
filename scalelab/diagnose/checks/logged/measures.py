"""Judge whether the logged measures agree with each other, by identities that hold in every run.

Whoever changes a norm, a loss or a measure in one place, or edits a log, breaks one of them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict

SAME = 0.01  # relative difference; those of fp32 sums over devices are below 1e-5
ROUNDED = 1e-3  # of a bound, relative; and nats
TOTALS = {"grad_norm": "grad_norm", "update_norm": "update_norm", "weight_norm": "param_norm"}  # by layer, of all
WORST = "worst/loss_1", "worst/loss_2", "worst/loss_3", "worst/loss_4"
WORST_ROWS = "worst/row_1", "worst/row_2", "worst/row_3", "worst/row_4"
THIRDS = ("embedding/frequent", "embedding/middle", "embedding/rare")
Line = Mapping[str, Any]


class Broken(NamedTuple):
    """An identity that a line breaks: the line's step, what differs, and by how many tolerances."""

    step: int
    text: str
    over: float


@asks("measures of layers agree with those of the step")
def check_layers(evidence: Evidence) -> Findings | None:
    """Judge the lines of layers.jsonl, with those of metrics.jsonl of the same step."""
    if not evidence.layers:
        return [Gap("measures_disagree", "no measures of layers", "log.layers_every=10")]
    rows = {int(row["step"]): row for row in evidence.rows}
    tests: tuple[Callable[[Evidence, Line, Line], Broken | None], ...] = (
        _totals, _logits, _entropy, _quantiles, _worst, _embeddings,
    )  # fmt: skip
    return _verdict(
        evidence,
        [
            each
            for line in evidence.layers
            for test in tests
            if (each := test(evidence, line, rows.get(int(line["step"]), {})))
        ],
        "layers.jsonl",
    )


@asks("the clip, MFU and bits a byte follow from what they are of")
def check_lines(evidence: Evidence) -> Findings | None:
    """Judge the lines of metrics.jsonl by themselves: what is derived follows from what it is derived of."""
    broken = [each for row in evidence.rows for each in (_counts(row),) if each]
    broken += [each for row in evidence.rows if _has_one_clip(evidence) and (each := _clip(evidence, row))]
    broken += [each for row in evidence.evaluations if (each := _by_source(row))]
    for name, of, lines in (("bpb", "val_loss", evidence.evaluations), ("mfu", "tokens_per_s", evidence.rows)):
        broken += [] if evidence.kinds("resume", "moved", "branch") else _one_ratio(name, of, lines)
    return _verdict(evidence, broken, "metrics.jsonl")


def _verdict(evidence: Evidence, broken: list[Broken], file: str) -> Findings:
    if not broken:
        return []
    worst = max(broken, key=lambda each: each.over)
    steps = sorted({each.step for each in broken})
    text = f"{file} contradicts itself at {len(steps)} steps: at step {worst.step} {worst.text}"
    knob = "what writes these measures (a fork's report or norms), or the file put back from a copy"
    confirm = f"scalelab checkpoint verify --all {evidence.quoted}"
    return [make_verdict("measures_disagree", "test", worst.over, text, knob, confirm, (steps[0], steps[-1]))]


def _totals(_: Evidence, line: Line, row: Line) -> Broken | None:
    """The squares of all layers' and groups' norms add up to that of the whole."""
    for name, whole in TOTALS.items():
        parts = [
            *_numbers(line.get(name)),
            *(v for key in line if key.endswith(f"/{name}") for v in _numbers(line[key])),
        ]
        if not _has_all_groups(line, name) or not _finite(row.get(whole), *parts):
            continue
        total = math.sqrt(sum(value**2 for value in parts))
        if abs(total - row[whole]) > SAME * max(total, row[whole]):
            over = abs(total - row[whole]) / max(total, row[whole]) / SAME
            return Broken(line["step"], f"{whole} is {row[whole]:.6g}, and that of all layers {total:.6g}", over)
    return None


def _has_all_groups(line: Line, name: str) -> bool:
    """Whether a line has a norm of all blocks and groups: those whose weights it has."""
    groups = [
        {key.rpartition("/")[0] for key in line if key.rpartition("/")[2] == each} for each in (name, "weight_norm")
    ]
    return name in line and groups[0] == groups[1] and len(groups[0]) > 1


def _logits(evidence: Evidence, line: Line, _: Line) -> Broken | None:
    """The mean of log Z is at most the largest logit + ln V; so is the root mean square at most the largest size."""
    log_z, largest, rms = (_value(line, name) for name in ("logits/log_z", "logits/max", "logits/rms"))
    if not _finite(log_z, largest, rms):
        return None
    most = largest + evidence.ceiling
    if log_z <= most + ROUNDED * (1 + abs(most)) and rms >= 0:
        return None
    return Broken(line["step"], f"the mean of log Z is {log_z:.6g}, and the largest logit {largest:.6g}", log_z - most)


def _entropy(evidence: Evidence, line: Line, _: Line) -> Broken | None:
    """Attention over S positions has an entropy from 0 to ln S."""
    most = math.log(max(float(evidence.values["model.seq_len"]), 1.0))
    odd = [e for e in _numbers(line.get("attention_entropy")) if not -ROUNDED <= e <= most + ROUNDED]
    odd = [value for value in odd if math.isfinite(value)]
    return (
        Broken(line["step"], f"attention has an entropy of {odd[0]:.6g}, of at most {most:.4g}", 2.0) if odd else None
    )


def _quantiles(_: Evidence, line: Line, __: Line) -> Broken | None:
    """Quantiles of the tokens' losses are in order, and no sequence's mean is above the largest loss."""
    names = ("token_loss/p50", "token_loss/p99", "token_loss/max")
    values = [_value(line, name) for name in names]
    if not _finite(*values):
        return None
    highest = _value(line, WORST[0])
    if _finite(highest):
        values = [*values[:2], values[2], max(values[2], highest)]
        if highest > values[2] + ROUNDED * (1 + abs(values[2])):
            text = f"a sequence has a mean loss of {highest:.6g}, and no token more than {values[2]:.6g}"
            return Broken(line["step"], text, 2.0)
    if values == sorted(values):
        return None
    listed = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, values, strict=False))
    return Broken(line["step"], f"quantiles are out of order: {listed}", 2.0)


def _worst(evidence: Evidence, line: Line, row: Line) -> Broken | None:
    """The worst sequences are in order and of the batch, and the worst is no better than the batch's mean."""
    losses = [line[name] for name in WORST if _finite(line.get(name))]
    numbers = [line[name] for name in WORST_ROWS if line.get(name) is not None]
    if losses != sorted(losses, reverse=True):
        return Broken(line["step"], f"the worst sequences are out of order: {losses}", 2.0)
    if len(set(numbers)) < len(numbers) or any(not 0 <= n < evidence.values["train.global_batch"] for n in numbers):
        return Broken(line["step"], f"the worst sequences are rows {numbers} of the batch", 2.0)
    mean = _value(row, "train_loss")
    if evidence.values["train.loss"] or any(key.startswith("block") for key in line):
        return None  # the step's loss has a term that is not the tokens'
    if not losses or not _finite(mean) or losses[0] >= mean - ROUNDED * (1 + abs(mean)):
        return None
    text = f"the mean loss is {mean:.6g}, and that of the worst sequence {losses[0]:.6g}"
    return Broken(line["step"], text, (mean - losses[0]) / ROUNDED)


def _embeddings(evidence: Evidence, line: Line, _: Line) -> Broken | None:
    """The mean of the rows' norms is at most their root mean square, which the whole norm gives."""
    thirds, whole = [_value(line, name) for name in THIRDS], _value(line, "embed/weight_norm")
    if not _finite(whole, *thirds):
        return None
    size = int(evidence.values["model.vocab_size"])
    edges = [k * size // len(THIRDS) for k in range(len(THIRDS) + 1)]
    mean = sum(t * (b - a) for t, a, b in zip(thirds, edges[:-1], edges[1:], strict=True) if b > a) / size
    most = whole / size**0.5
    if mean <= most * (1 + SAME):
        return None
    return Broken(
        line["step"], f"embedding rows have a mean norm of {mean:.6g}, at most {most:.6g}", mean / most / SAME
    )


def _clip(evidence: Evidence, row: Line) -> Broken | None:
    """Clipped together, the gradient keeps min(1, clip_norm / norm) of its norm."""
    ratio, norm, most = _value(row, "clip_ratio"), _value(row, "grad_norm"), float(evidence.values["optim.clip_norm"])
    if not _finite(ratio, norm) or not norm:
        return None
    due = min(1.0, most / norm)
    if abs(ratio - due) <= SAME * due:
        return None
    text = f"the clip left {ratio:.4g} of a norm of {norm:.4g}, and optim.clip_norm={most:g} leaves {due:.4g}"
    return Broken(row["step"], text, abs(ratio - due) / due / SAME)


def _has_one_clip(evidence: Evidence) -> bool:
    """Whether all gradients were clipped together at the config's norm: no other rule, no change on the way."""
    values = {str(evidence.values[key]) for key in ("optim.clip", "guard.spike")}
    changed = evidence.kinds("config_change", "branch", "resume") or evidence.record.get("changes_by_hand")
    rewound = any(event.get("action") == "rewind" for event in evidence.kinds("guard"))
    return values == {"global", "skip"} and not changed and not rewound


def _counts(row: Line) -> Broken | None:
    """A streak of flagged steps, and steps skipped, are no longer than the run; FLOPs are spent on tokens."""
    for name in ("streak", "skipped"):
        if _finite(row.get(name)) and not 0 <= row[name] <= row["step"]:
            return Broken(row["step"], f"{name} is {row[name]:g}", 2.0)
    if _finite(row.get("flops"), row.get("tokens")) and (row["flops"] > 0) != (row["tokens"] > 0):
        return Broken(row["step"], f"{row['flops']:.3g} FLOPs were spent on {row['tokens']:g} tokens", 2.0)
    return None


def _by_source(row: Line) -> Broken | None:
    """A loss over several sources lies among theirs."""
    each = [value for key, value in row.items() if key.startswith("val_loss/") and _finite(value)]
    loss = _value(row, "val_loss")
    if len(each) < 2 or not _finite(loss):
        return None
    low, high = min(each) - ROUNDED, max(each) + ROUNDED
    if low <= loss <= high:
        return None
    text = f"the validation loss is {loss:.6g}, and those of its sources {min(each):.6g} to {max(each):.6g}"
    return Broken(row["step"], text, 1 + abs(loss - float(np.clip(loss, low, high))) / ROUNDED)


def _one_ratio(name: str, of: str, lines: Any) -> list[Broken]:
    """The ratio of two metrics is the same in every line."""
    chosen = [line for line in lines if _finite(line.get(name), line.get(of)) and line[of]]
    if len(chosen) < 2:
        return []
    usual = float(np.median([line[name] / line[of] for line in chosen]))
    odd = [line for line in chosen if abs(line[name] / line[of] - usual) > SAME * abs(usual)]
    return [
        Broken(line["step"], f"{name} is {line[name] / line[of] / usual:.4g} times what its {of} gives", 2.0)
        for line in odd
    ]


def _value(line: Line, name: str) -> float:
    """The number of that name; NaN without one."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _numbers(value: Any) -> list[float]:
    return [float(x) for x in np.ravel(value)] if value is not None else []


def _finite(*values: Any) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


CHECKS = (check_layers, check_lines)
