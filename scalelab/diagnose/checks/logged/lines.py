"""Judge the lines of metrics.jsonl by exact relations: none lost, none twice, in order, counts and norms that agree."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.config.steps import schedule_steps, stretches
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Judged, Verdict, make_verdict
from scalelab.errors import BadInput
from scalelab.train.run.run import bits_per_byte

RESTARTS = ("resume", "branch", "fallback", "moved")
CLOSE = 1e-5  # relative: products of the same floats
CLOSE_NORM = 1e-3  # relative: a norm by layers and one of all, in fp32
CLOCK_S = 60.0  # seconds by which a clock may be set back
SYSTEMATIC = 0.5  # share of lines that contradict, from which on the program wrote them so
LINES, COUNTS = "metrics whole: no line lost, twice or out of order", "logged tokens are the batches', norms agree"
Line = Mapping[str, Any]


class Contradiction(NamedTuple):
    """A relation between logged values: what it is, the steps of lines that break it, of how many, and words."""

    what: str
    steps: list[int]
    of: int
    text: str


def check_order(evidence: Evidence) -> Findings:
    """Judge lines that are missing, stand twice, or are out of order."""
    if not evidence.lines:
        return []
    findings: list[Judged | Verdict] = [Judged(LINES)]
    confirm = f"scalelab checkpoint verify --all {evidence.quoted}"
    if missing := [*_missing_lines(evidence), *_missing_evaluations(evidence)]:
        knob = "put the file back from a copy; what the lines said is not judged"
        verdict = make_verdict("lost_log", "test", np.inf, "; ".join(missing), knob, confirm)
        findings.append(verdict._replace(score=verdict.score + 1))
    if wrong := [*_disorder(evidence)]:
        findings.append(_edited(evidence, "; ".join(wrong), confirm))
    return findings


def _edited(evidence: Evidence, text: str, confirm: str) -> Verdict:
    """A verdict on an edited log: ranked last where a manifest proves it, as what it explains was not logged."""
    knob = "put the file back from a copy; all that is judged by it is in doubt"
    verdict = make_verdict("edited_log", "test", np.inf, "; ".join([text, *evidence.edited]), knob, confirm)
    return verdict._replace(kind="symptom", score=0.1) if evidence.edited else verdict


def _kinds(evidence: Evidence) -> Iterator[tuple[str, list[Line]]]:
    for name in ("train_loss", "val_loss"):
        yield name, [line for line in evidence.lines if name in line]


def _disorder(evidence: Evidence) -> Iterator[str]:
    """Describe lines that stand twice, go back, or have an earlier time than the line before."""
    restarts = _restart_steps(evidence)
    for name, lines in _kinds(evidence):
        steps = np.array([line["step"] for line in lines], int)
        unique, counts = np.unique(steps, return_counts=True)
        if (counts > 1).any():
            yield f"{(counts > 1).sum()} lines of {name} stand twice, the first of step {unique[counts > 1][0]}"
        back = np.flatnonzero(np.diff(steps) < 0)
        if len(back):
            yield f"lines of {name} are out of order: step {steps[back[0] + 1]} after {steps[back[0]]}"
        times = np.array([float(line.get("time") or np.nan) for line in lines])
        for i in np.flatnonzero(np.diff(times) < -CLOCK_S)[:1] if not len(back) else ():
            if not _between(restarts, steps[i], steps[i + 1]):
                lag = times[i] - times[i + 1]
                yield f"the line of step {steps[i + 1]} was written {lag:.0f} s before that of {steps[i]}"


def _between(restarts: Sequence[int], first: int, last: int) -> bool:
    return any(first <= restart <= last for restart in restarts)


def _restart_steps(evidence: Evidence) -> list[int]:
    steps = {int(event["step"]) for event in evidence.kinds(*RESTARTS) if event.get("step") is not None}
    rewinds = [event for event in evidence.kinds("guard") if event.get("action") == "rewind"]
    return sorted(steps | {int(event["to"]) for event in rewinds if event.get("to")})


def _missing_lines(evidence: Evidence) -> Iterator[str]:
    """Describe steps without a line of training between those that have one; the interval may change at a restart."""
    steps = np.unique([line["step"] for line in evidence.lines if "train_loss" in line]).astype(int)
    if not len(steps):
        return
    bounds = [_first_step(evidence), *_restart_steps(evidence), int(steps[-1])]
    for begin, end in itertools.pairwise(bounds):
        here = steps[(steps > begin) & (steps <= end)]
        last = end == bounds[-1]
        if len(here) < 3 and not last:
            continue
        every = int(evidence.values["log.every_steps"]) if last else int(np.min(np.diff(here)))
        if last and len(here) > 1 and np.gcd.reduce(here) % every:
            continue  # another interval than the config's: an old one's
        due = np.arange(begin // every + 1, end // every + 1) * every
        if len(lost := np.setdiff1d(due[due <= int(steps[-1])], here)):
            yield f"{len(lost)} of {len(due)} lines of training after step {begin} are missing: {_spans(lost, every)}"


def _first_step(evidence: Evidence) -> int:
    """The step that the run began after: 0, or where it branched off."""
    branched = [int(event["step"]) for event in evidence.kinds("branch") if event.get("step") is not None]
    return min(branched, default=0)


def _missing_evaluations(evidence: Evidence) -> Iterator[str]:
    if evidence.kinds("config_change") or evidence.record.get("mixed"):
        return
    steps, every = {int(row["step"]) for row in evidence.evaluations}, int(evidence.values["eval.every_steps"])
    last, first = max(steps, default=0), _first_step(evidence)
    lost = [step for step in range((first // every + 1) * every, last, every) if step not in steps]
    if lost and not _restart_steps(evidence):
        yield f"evaluations of {len(lost)} steps are missing, the first of step {lost[0]}"


def _spans(steps: np.ndarray, every: int) -> str:
    breaks = np.flatnonzero(np.diff(steps) > every)
    firsts, lasts = steps[[0, *(breaks + 1)]], steps[[*breaks, -1]]
    pairs = [f"{a} to {b}" if b > a else f"{a}" for a, b in zip(firsts[:3], lasts[:3], strict=True)]
    return "steps " + ", ".join(pairs) + (" and more" if len(firsts) > 3 else "")


def check_counts(evidence: Evidence) -> Findings:
    """Judge logged values that contradict each other, the config or the record."""
    if not evidence.lines:
        return []
    found = [test(evidence) for test in (_tokens, _flops, _bits, _clip, *map(_norms, NORMS), _negative)]
    broken = [each for each in found if each and each.steps]
    confirm = f"scalelab checkpoint verify --all {evidence.quoted}"
    findings: list[Judged | Verdict] = [Judged(COUNTS)]
    systematic = [each for each in broken if len(each.steps) > SYSTEMATIC * each.of and not evidence.edited]
    for each in systematic:
        knob = f"what your code logs as {each.what}"
        where = each.steps[0], each.steps[-1]
        cause = "tokens_wrong" if each.what == "tokens" else "log_wrong"
        findings.append(make_verdict(cause, "test", np.inf, each.text, knob, "read the lines named", where))
    if isolated := [each for each in broken if each not in systematic]:
        findings.append(_edited(evidence, "; ".join(each.text for each in isolated), confirm))
    return findings


def _compare(
    what: str, lines: Sequence[Line], expected: Callable[[Line], float | None], close: float, words: str
) -> Contradiction | None:
    """Compare a logged value with what others imply; lines without either are left out."""
    pairs = [(line, expected(line)) for line in lines if line.get(what) is not None]
    known = [(line, value) for line, value in pairs if value is not None and np.isfinite([value, line[what]]).all()]
    broken = [(line, value) for line, value in known if abs(line[what] - value) > close * max(abs(value), 1e-12)]
    if not broken:
        return None
    line, value = broken[0]
    text = f"{what} is {line[what]:.8g} at step {line['step']}, where {words} {value:.8g}"
    factors = np.array([row[what] / v if v else np.nan for row, v in broken])
    if len(broken) > 2 and np.ptp(factors) <= CLOSE * abs(factors[0]):
        text += f"; at {len(broken)} of {len(known)} lines {factors[0]:.6g} times that"
    elif len(broken) > 2 and np.ptp(gaps := np.array([row[what] - v for row, v in broken])) <= CLOSE * abs(gaps[0]):
        text += f"; at {len(broken)} of {len(known)} lines {gaps[0]:+.6g}"
    else:
        text += f"; {len(broken)} of {len(known)} lines"
    return Contradiction(what, [int(row["step"]) for row, _ in broken], len(known), text)


def _tokens(evidence: Evidence) -> Contradiction | None:
    if not (evidence.folder / "config.json").exists():
        return None
    try:
        run_stretches = schedule_steps.run_stretches(evidence.config)
    except BadInput:
        return None
    if evidence.record.get("mixed") and len(run_stretches) < 2:
        return None  # of a version that noted no stretches
    count = stretches.tokens_before
    words = "the config's batches have"
    return _compare("tokens", evidence.lines, lambda line: count(run_stretches, int(line["step"])), 0.0, words)


def _flops(evidence: Evidence) -> Contradiction | None:
    each = evidence.record.get("flops_per_token", {}).get("exact")
    changed = evidence.record.get("mixed") or evidence.record.get("rewinds") or evidence.values["log.stretches"]
    if not each or changed or evidence.kinds("branch", "config_change"):
        return None
    product = lambda line: each * line["tokens"] if "tokens" in line else None  # noqa: E731
    return _compare("flops", evidence.lines, product, CLOSE, "its tokens make")


def _bits(evidence: Evidence) -> Contradiction | None:
    rate = evidence.record.get("data", {}).get("bytes_per_token")
    if not rate or evidence.record.get("mixed"):
        return None
    bits = lambda line: bits_per_byte(line["val_loss"], rate) if "val_loss" in line else None  # noqa: E731
    return _compare("bpb", evidence.lines, bits, CLOSE, "its val_loss makes")


def _clip(evidence: Evidence) -> Contradiction | None:
    v = evidence.values
    by_guard = v["guard.spike"] == "clip" or evidence.record.get("rewinds")
    if v["optim.clip"] != "global" or by_guard or evidence.kinds("config_change"):
        return None
    most = float(np.float32(v["optim.clip_norm"]))

    def ratio(line: Line) -> float | None:
        norm = line.get("grad_norm")
        return min(1.0, most / norm) if norm and np.isfinite(norm) else None

    return _compare("clip_ratio", evidence.lines, ratio, CLOSE, "optim.clip_norm over the gradient norm is")


NORMS = (("grad_norm", "grad_norm"), ("update_norm", "update_norm"), ("param_norm", "weight_norm"))


def _norms(names: tuple[str, str]) -> Callable[[Evidence], Contradiction | None]:
    name, by_layer = names

    def test(evidence: Evidence) -> Contradiction | None:
        """Compare the norm of all parameters with that of the groups of layers.jsonl."""
        sums = {int(line["step"]): _norm_of_groups(line, by_layer) for line in evidence.layers}
        words = "the groups of layers.jsonl make"
        return _compare(name, evidence.rows, lambda line: sums.get(int(line["step"])), CLOSE_NORM, words)

    return test


def _norm_of_groups(line: Line, name: str) -> float | None:
    keys = [key for key in line if key == name or key.endswith(f"/{name}")]
    if name not in keys or len(keys) < 2:
        return None
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(line[key], float))) for key in keys)))


def _negative(evidence: Evidence) -> Contradiction | None:
    """A mean of -ln p is never below 0, nor is a norm."""
    for name in ("train_loss", "val_loss", "grad_norm", "update_norm", "param_norm"):
        lines = [line for line in evidence.lines if line.get(name) is not None]
        if below := [int(line["step"]) for line in lines if line[name] < 0]:
            return Contradiction(name, below, len(lines), f"{name} is below 0 at step {below[0]}, which it can't be")
    return None


CHECKS = (check_order, check_counts)
