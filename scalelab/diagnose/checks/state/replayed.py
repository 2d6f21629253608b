"""Judge saved states and logged lines by a replay from the saved step before (`--live`)."""

from typing import Any

import numpy as np

from scalelab.diagnose.checks.leaves.moved import join_names
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.again import DIFFERS
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

ASKED = "moments, weights and averages are those of the replayed steps"
SAME = 1e-4  # relative difference of a logged number
ALIKE = 0.01  # relative difference of leaves' changes over the next steps, up to which two states do the same


def check_states(evidence: Evidence) -> Findings:
    """Judge each saved state by the replay that reached it, and the first line on the way that differs."""
    states: dict[int, dict[str, float]] = {}
    for key, difference in evidence.probes.items():
        if key.startswith("replay_state/"):
            step, _, name = key.removeprefix("replay_state/").partition("/")
            states.setdefault(int(step), {})[name] = difference
    if not states and "unasked/bit_flip" in evidence.probes:
        return []
    if not states:
        why = "no saved step was reached from the one before by a replay on the run's kind of device"
        return [Gap("state_changed", why, "--live" if not evidence.probes else "two saves that are near")]
    verdicts = [verdict for step, state in sorted(states.items()) if (verdict := _judge(evidence, step, state))]
    return [*verdicts[:1], *_by_rounding(evidence), Judged(ASKED)]


def _by_rounding(evidence: Evidence) -> list[Gap]:
    """Name the arrays that differ no more than rounding makes them differ, or whose difference does nothing."""
    prefix, alike = "replay_rounded/", "replay_alike/"
    parts = [key.removeprefix(prefix).partition("/") for key in evidence.probes if key.startswith(prefix)]
    names = list(dict.fromkeys(name or "train_loss" for _, _, name in parts))
    gaps = []
    if names:
        text = f"{join_names(names)}: rounding alone changes them as much as they differ from those of a replay"
        gaps.append(Gap("state_changed", text, "a replay of the same program gives the same bits (log.layers_every=0)"))
    same = [key.removeprefix(alike) for key, x in evidence.probes.items() if key.startswith(alike) and x <= ALIKE]
    if same:
        text = (
            f"the optimizer's state of step {', '.join(same)} has other numbers than a replay's and does the same: the "
        )
        text += "next steps from both agree (bases in another order, or of other signs)"
        gaps.append(Gap("moments_poisoned", text, "a replay of the same program gives the same bits"))
    return gaps


def _judge(evidence: Evidence, step: int, state: dict[str, float]) -> Verdict | None:
    """Judge one saved step: what differs where no line before it does, or what differs first."""
    line = evidence.probes.get(f"replay_line/{step}")
    rounded = [name for name in state if f"replay_rounded/{step}/{name}" in evidence.probes]
    wrong = {name: x for name, x in state.items() if not x <= DIFFERS and name not in rounded}
    if evidence.probes.get(f"replay_alike/{step}", np.inf) <= ALIKE:
        wrong = {name: x for name, x in wrong.items() if not name.startswith("opt_state.")}
    if line is None and not wrong:
        return None
    if line is not None:
        return _judge_line(evidence, step, line)
    moments = [name for name in wrong if name.startswith("opt_state.")]
    weights = [name for name in wrong if name.startswith("params.")]
    worst = max(wrong, key=lambda name: wrong[name])
    cause = "state_changed" if weights else "moments_poisoned" if moments else "average_wrong"
    text = (
        f"every line up to step {step} is that of the replay, and the saved state is not: {join_names(list(wrong))}; "
    )
    text += f"{worst} differs by {wrong[worst]:.2g} of its norm"
    knob = "go on from the saved step before, or with fresh moments (train --reset=moments)" if not weights else ""
    knob = knob or "go on from the saved step before"
    return make_verdict(cause, "test", wrong[worst] / DIFFERS, text, knob, "measured by a replay", (step, step))


def _judge_line(evidence: Evidence, step: int, line: dict[str, Any]) -> Verdict | None:
    """Judge the first line that differs: an update that is other though loss and gradient are not."""
    at = line["step"]
    pairs = {name: pair for name, pair in line.items() if name != "step"}
    other = [name for name, (ours, theirs) in pairs.items() if not abs(ours - theirs) <= SAME * abs(ours)]
    if {"train_loss", "grad_norm", "lr"} & set(other) or "update_norm" not in other:
        return None  # weights, batches, LR: other checks
    ours, theirs = pairs["update_norm"]
    text = f"step {at}, run again from the saved state before it, has the same loss and gradient norm and an update "
    text += f"norm of {ours:.4g}; logged is {theirs:.4g}: its moments were others"
    resumed = [int(e["step"]) for e in evidence.kinds("resume") if e.get("step") is not None and int(e["step"]) < at]
    text += f"; the run was restarted at step {resumed[-1]}" if resumed else ""
    knob = "go on from the saved step before, or with fresh moments (train --reset=moments)"
    return make_verdict("moments_poisoned", "test", 2.0, text, knob, "measured by a replay", (at, step))


CHECKS = (check_states,)
