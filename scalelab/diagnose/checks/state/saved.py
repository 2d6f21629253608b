"""Judge the optimizer's state as saved: counts, moments that are numbers, Adam's algebra, and the logged gradients.

All rules are exact up to rounding. Of Adam's moments, m = sum of a_k g_k and v = sum of b_k g_k^2, follow for each
number |m| <= sqrt(sum of a_k^2 / b_k) sqrt(v) (Cauchy-Schwarz), and for all numbers together sum of v = sum of b_k
|g_k|^2, in which the clipped norms |g_k| are logged.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.checks.leaves.moved import join_names
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import SavedStep, read_saved_steps
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.precision.policy import POLICIES

COUNTS = "counts of updates equal the steps taken"
MOMENTS = "moments are finite, move, and agree with each other"
NORMS = "second moments agree with the logged gradient norms"
MOMENT_NAMES = ("mu", "nu", "m", "v", "m1", "m2", "trace", "momentum")
ROUNDING = 1.01  # margin of rounding over some thousand fp32 sums
SMALLEST = 1.2e-38  # squares below it are zero in fp32 on most devices
ADAMS = ("adam", "adamw", "nadamw")  # m and v of the clipped gradients themselves
TINY = 1e-30  # sums of squares below it lose some of them to zero
RESTARTING = ("branch", "back_to", "fallback", "moved")  # events after which moments may have begun anew


class AdamMoments(NamedTuple):
    """First and second moments by parameter, with their betas; `beta1` is the least and the largest of the schedule."""

    place: str
    mu: Mapping[str, np.ndarray]
    nu: Mapping[str, np.ndarray]
    n_updates: int
    beta1: tuple[float, float]
    beta2: float


def find_adam_moments(evidence: Evidence, saved: SavedStep) -> list[AdamMoments]:
    """Find moments of optimizers of this package that are averages of gradients and of their squares."""
    v, result = evidence.values, []
    if ":" in str(v["optim.name"]) or POLICIES[v["precision.name"]].moments != "float32":
        return []
    places = sorted({name.rpartition(".")[0] for name in saved.arrays if name.endswith(".count")})
    for place in places:
        mu, nu = saved.part(f"{place}.mu"), saved.part(f"{place}.nu")
        if not mu or mu.keys() != nu.keys():
            continue
        rest = ".rest." in place
        beta1 = float(v["optim.rest_beta1" if rest else "optim.beta1"] or 0.0)
        least = beta1 if rest or not v["schedule.beta1_steps"] else min(beta1, float(v["schedule.beta1_start"]))
        largest = max(beta1, float(v["schedule.beta1_start"])) if least < beta1 else beta1
        beta2 = float(v["optim.rest_beta2" if rest else "optim.beta2"] or 0.0)
        result.append(AdamMoments(place, mu, nu, int(saved.arrays[f"{place}.count"]), (least, largest), beta2))
    return result


def largest_ratio(moments: AdamMoments) -> float:
    """Bound |m| / sqrt(v) of uncorrected moments after `count` updates, whatever the gradients were."""
    (least, largest), beta2 = moments.beta1, moments.beta2
    if not 0 < beta2 < 1 or moments.n_updates < 1:
        return np.inf
    ratio = largest**2 / beta2
    terms = min(moments.n_updates, 100_000)
    total = terms if ratio == 1 else float(np.expm1(terms * np.log(max(ratio, 1e-300))) / (ratio - 1))
    return float((1 - least) * np.sqrt(total / (1 - beta2)))


def restarted(evidence: Evidence, first: int, last: int) -> bool:
    """Whether moments may have begun anew, or steps were taken twice, between two steps."""
    events = [*evidence.kinds(*RESTARTING), *(e for e in evidence.kinds("guard") if e.get("action") == "rewind")]
    ends = [(int(event.get("step") or 0), int(event.get("to") or event.get("step") or 0)) for event in events]
    return any(min(pair) <= last and max(pair) >= first for pair in ends)


def check_counts(evidence: Evidence) -> Findings:
    """Judge the optimizer's counts: each counts the steps that were taken."""
    saved, why = read_saved_steps(evidence)
    if not saved:
        return [Gap("count_wrong", why, "checkpoint.every_steps")]
    verdicts = []
    for before, after in zip([None, *saved], saved, strict=False):
        first = before.step if before else 0
        if restarted(evidence, first, after.step) or (before is None and evidence.values["train.branch_from"]):
            continue
        taken = after.accepted - (before.accepted if before else 0)
        for name, x in after.part("opt_state").items():
            was = before.arrays.get(f"opt_state.{name}", 0) if before else 0
            if _counts_updates(evidence, name, x) and int(x) - int(was) != taken:
                verdicts.append(_wrong_count(f"opt_state.{name}", int(x) - int(was), taken, (first, after.step)))
        if int(after.arrays["step"]) != after.step:
            verdicts.append(_wrong_count("step", int(after.arrays["step"]), after.step, (after.step, after.step)))
    return [*verdicts[:1], Judged(COUNTS)]


def _counts_updates(evidence: Evidence, name: str, x: np.ndarray) -> bool:
    last = name.rpartition(".")[2]
    names = ("count",) if ":" in str(evidence.values["optim.name"]) else ("count", "count_m2", "step", "steps")
    return x.shape == () and np.issubdtype(x.dtype, np.integer) and last in names


def _wrong_count(name: str, counted: int, taken: int, where: tuple[int, int]) -> Verdict:
    text = f"{name} counts {counted} updates between steps {where[0]} and {where[1]}, in which {taken} were taken"
    knob = "count each update that is taken once, in the optimizer's state"
    confirm = "bias correction and schedules of the optimizer read this count"
    return make_verdict("count_wrong", "test", np.inf, text, knob, confirm, where)


def check_moments(evidence: Evidence) -> Findings:
    """Judge moments: finite, second ones not negative, moved between two saves, within Adam's algebra."""
    saved, why = read_saved_steps(evidence)
    if not saved:
        return [Gap("moments_poisoned", why, "checkpoint.every_steps")]
    last, problems = saved[-1], list[tuple[str, str]]()
    for name, x in last.part("opt_state").items():
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            problems.append((name, "holds numbers that are not finite"))
        elif name.split(".")[-1] != "codes" and ".nu." in name and (x < 0).any():
            problems.append((name, "is a mean of squares and holds negative numbers"))
    problems += list(_outside_algebra(evidence, last))
    verdicts = [_poisoned(problems, (last.step, last.step))] if problems else []
    return [*verdicts, *_standing(evidence, saved), Judged(MOMENTS)]


def _poisoned(problems: list[tuple[str, str]], where: tuple[int, int]) -> Verdict:
    names = [name for name, text in problems if text == problems[0][1]]
    text = f"opt_state {join_names(names)} {problems[0][1]}, at step {where[1]}"
    knob = "go on with fresh moments (train --reset=moments), or from the checkpoint before"
    confirm = "scalelab diagnose RUN --live compares moments with those of replayed steps"
    return make_verdict("moments_poisoned", "test", np.inf, text, knob, confirm, where)


def _outside_algebra(evidence: Evidence, saved: SavedStep) -> Iterator[tuple[str, str]]:
    for moments in find_adam_moments(evidence, saved):
        bound = largest_ratio(moments)
        smallest = np.sqrt(SMALLEST / max(1 - moments.beta2, 1e-9))  # roots of what squares lose to zero
        for name, m in moments.mu.items():
            size, root = np.abs(m.astype(np.float64)), np.sqrt(np.maximum(moments.nu[name].astype(np.float64), 0))
            if np.isfinite(bound) and (size > ROUNDING * bound * (root + 4 * smallest)).any():
                share = float(np.mean(size > ROUNDING * bound * (root + 4 * smallest)))
                yield name, f"has |m| / sqrt(v) above {bound:.3g}, Adam's bound, in {share:.2g} of its numbers"
            elif not m.any() and moments.beta1[1] > 0 and (root > smallest).any() and moments.n_updates:
                yield name, "has first moments of zero beside second ones that are not"


def _is_moment(name: str, saved: SavedStep) -> bool:
    """Whether an array of the optimizer's state is a moment of a parameter: `1.mu.embed.w`."""
    return any(name.endswith(f".{tree}.{parameter}") for tree in MOMENT_NAMES for parameter in saved.params)


def _standing(evidence: Evidence, saved: list[SavedStep]) -> list[Verdict]:
    """Judge moments that are bit for bit those of the save before, though steps were taken."""
    for before, after in itertools.pairwise(saved):
        if after.accepted <= before.accepted or POLICIES[evidence.values["precision.name"]].moments != "float32":
            continue
        names = [
            name
            for name, x in after.part("opt_state").items()
            if _is_moment(name, after)
            and np.issubdtype(x.dtype, np.floating)
            and x.any()
            and np.array_equal(x, before.arrays.get(f"opt_state.{name}", np.empty(0)))
        ]
        if names:
            text = f"opt_state {join_names(names)}: the same bits at steps {before.step} and {after.step}"
            knob = "write the optimizer's new moments into its state"
            confirm = "scalelab diagnose RUN --live computes the moments of a step by hand"
            return [make_verdict("moments_stuck", "test", np.inf, text, knob, confirm, (before.step, after.step))]
    return []


def check_norms(evidence: Evidence) -> Findings:
    """Judge the sum of all second moments by the logged norms of the clipped gradients."""
    saved, _ = read_saved_steps(evidence)
    v = evidence.values
    plain = v["parametrization.name"] == "standard" and v["optim.clip"] == "global"
    coupled = v["optim.name"] == "adam" and float(v["optim.weight_decay"] or 0.0) > 0
    own = [m for m in (find_adam_moments(evidence, saved[-1]) if saved else []) if ".rest." not in m.place]
    if not own or not plain or coupled or v["optim.name"] not in ADAMS or own[0].mu.keys() != saved[-1].params.keys():
        return []
    if evidence.edited or evidence.lost or int(saved[-1].arrays["skipped"]) or restarted(evidence, 1, saved[-1].step):
        return []
    return [*_judge_sum(evidence, saved[-1], own[0]), Judged(NORMS)]


def _judge_sum(evidence: Evidence, saved: SavedStep, moments: AdamMoments) -> list[Verdict]:
    rows = [row for row in evidence.rows if row["step"] <= saved.step and row.get("grad_norm") is not None]
    clip = float(evidence.values["optim.clip_norm"])
    steps = np.array([row["step"] for row in rows], int)
    norms = np.array([float(row["grad_norm"]) for row in rows])
    ratio = np.array([float(row.get("clip_ratio") or np.nan) for row in rows])
    clipped = np.where(np.isfinite(ratio), norms * ratio, np.minimum(norms, clip))
    if not len(steps) or not np.isfinite(clipped).all() or moments.n_updates != saved.step:
        return []
    weights = (1 - moments.beta2) * moments.beta2 ** (saved.step - steps)
    known = float(np.sum(weights * clipped**2))
    unknown = max(0.0, 1 - moments.beta2**saved.step - float(np.sum(weights)))
    most = known + unknown * (clip**2 if evidence.values["guard.policy"] in ("off", "watch") else np.inf)
    total = float(sum(np.sum(x.astype(np.float64)) for x in moments.nu.values()))
    if known / ROUNDING <= total <= most * ROUNDING or not np.isfinite(total) or known < TINY:
        return []
    text = f"the second moments of step {saved.step} add up to {total:.4g}; by the logged, clipped gradient norms to "
    text += f"{known:.4g}" + (f" to {most:.4g}" if most > 1.001 * known else "")
    over = max(known / max(total, 1e-300), total / max(most, 1e-300))
    knob = "go on with fresh moments (train --reset=moments), or mend what writes them"
    confirm = "scalelab diagnose RUN --live compares moments with those of replayed steps"
    where = int(steps[0]), saved.step
    return [make_verdict("moments_poisoned", "test", over, text, knob, confirm, where)]


CHECKS = (check_counts, check_moments, check_norms)
