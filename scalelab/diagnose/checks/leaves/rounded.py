"""Judge leaves that stand still where weights are rounded to few bits: is it the rounding, or does no update come?

An optimizer that moves all numbers alike moves the small ones first, since their neighbours in the format are nearer. A
leaf of which no number changed, while one with larger numbers did, is not held by its format.
"""

import numpy as np

from scalelab.diagnose.checks.leaves.moved import (
    ONE_SIZE,
    Stretch,
    compare_slices,
    find_stretches,
    join_names,
    rounds_away,
)
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import layer_slices, read_saved_steps
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

ASKED = "every leaf moves, where its format does not hold it"
MOVED = 0.1  # share of changed numbers from which a leaf is not held by its format
LEAST = 16  # numbers of a leaf below which none need have changed


def check_rounded(evidence: Evidence) -> Findings:
    """Judge leaves that are bit for bit what they were, beside leaves of numbers as large that moved."""
    if not rounds_away(evidence):
        return []
    form = evidence.record.get("dtypes", {}).get("parameters", ["few bits"])[0]
    how = "a policy with fp32 weights, or --live"
    saved, _ = read_saved_steps(evidence)
    stretches = find_stretches(evidence, saved)
    if evidence.values["optim.name"] not in ONE_SIZE or not stretches:
        return [Gap("leaf_stuck", f"rounding to {form} may hold weights in their places", how)]
    stretch = stretches[-1]
    still, largest = _compare_bits(evidence, stretch)
    stuck = [part for part, rms in still.items() if rms <= largest]
    held = [part for part in still if part not in stuck]
    findings: list[Judged | Gap | Verdict] = [
        Gap("leaf_stuck", f"rounding to {form} may hold {join_names(held)} in their places", how)
        if held
        else Judged(ASKED),
        Gap("head_stuck", f"heads and rows are not told from weights that rounding to {form} holds", how),
    ]
    if stuck:
        before, after = stretch.before.step, stretch.after.step
        text = f"{join_names(stuck)}: no number changed between the saved steps {before} and {after}, though leaves of "
        text += f"numbers as large did: it is not {form} that rounds the updates away"
        knob = f"let gradient and update reach {stuck[0]}, or declare it frozen (optim.groups, --accept)"
        confirm = "scalelab diagnose RUN --live measures its gradient"
        findings.append(make_verdict("leaf_stuck", "test", np.inf, text, knob, confirm, (before, after)))
    return findings


def _compare_bits(evidence: Evidence, stretch: Stretch) -> tuple[dict[str, float], float]:
    """({part that stands still: RMS of its numbers}, the largest RMS of those of which many numbers changed)."""
    still, largest = dict[str, float](), 0.0
    for moved in compare_slices(evidence, stretch):
        old, new = (
            dict(layer_slices(moved.name, saved.params[moved.name]))[moved.part]
            for saved in (stretch.before, stretch.after)
        )
        share = float(np.mean(np.asarray(old) != np.asarray(new)))
        if share == 0 and new.size >= LEAST:
            still[moved.part] = moved.rms
        elif share >= MOVED:
            largest = max(largest, moved.rms)
    return still, largest


CHECKS = (check_rounded,)
