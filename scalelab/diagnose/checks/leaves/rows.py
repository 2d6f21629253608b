"""Judge rows of matrices by the weights of two saved steps: does each feature of the residual stream have an update?

A feature that a matrix of attention or of the MLP reads is a row of it, one that it writes is a column. Units inside an
MLP may be off for good (ReLU), so that their own rows and columns are judged only where a step showed their gradient.
"""

from collections.abc import Iterator

import numpy as np

from scalelab.diagnose.checks.leaves.moved import (
    SLOW,
    Stretch,
    declared_frozen,
    find_stretches,
    join_names,
    rounds_away,
)
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import layer_slices, movements, read_saved_steps, unit_rows
from scalelab.diagnose.verdict import Findings, Verdict, asks, make_verdict

MOVING = 0.75  # quantile of hidden units that has to move: a shard of two may stand still
WRITES = ("o", "out", "down")  # matrices whose last axis is the residual stream; of the others it is the first


@asks("each feature that a matrix reads or writes has an update")
def check_features(evidence: Evidence) -> Findings | None:
    """Judge features whose rows or columns stand still while others of the same matrix move."""
    saved, _ = read_saved_steps(evidence)
    stretches = find_stretches(evidence, saved)
    if not stretches or rounds_away(evidence):
        return None  # moved.py and rounded.py say so
    stretch = stretches[-1]
    still = {part: numbers for part, numbers in _stand_still(evidence, stretch) if len(numbers)}
    if still:
        return [_verdict(stretch, still)]
    measured = [each for each in stretches if each.before.step == evidence.probes.get("leaf_step")]
    units = {part: numbers for each in measured for part, numbers in _idle_units(evidence, each) if len(numbers)}
    return [_idle_verdict(measured[0], units)] if units else []


def _stand_still(evidence: Evidence, stretch: Stretch) -> Iterator[tuple[str, np.ndarray]]:
    """(part of a parameter, numbers of its features that did not move but for decay)."""
    width, old, new = int(evidence.values["model.d_model"]), stretch.before.params, stretch.after.params
    for name, after in new.items():
        parts = name.split(".")
        known = parts[-1] == "w" and len(parts) > 2 and parts[-3] in ("attention", "mlp")
        if not known or name not in old or declared_frozen(evidence, name):
            continue
        for (part, x), (_, y) in zip(layer_slices(name, old[name]), layer_slices(name, after), strict=True):
            axis = x.ndim - 1 if parts[-2] in WRITES else 0
            if x.ndim < 2 or x.shape[axis] != width:
                continue
            before, now = (np.moveaxis(each, axis, 0).reshape(width, -1) for each in (x, y))
            distance = movements(before, now, decays=True)
            if np.median(distance) > SLOW * stretch.rounding:
                yield part, np.flatnonzero(distance <= stretch.rounding)


def _idle_units(evidence: Evidence, stretch: Stretch) -> Iterator[tuple[str, np.ndarray]]:
    """(part of an MLP, its hidden units that had a gradient and did not move but for decay, while others moved)."""
    old, new = stretch.before.params, stretch.after.params
    for name in (name for name in new if name in old and not declared_frozen(evidence, name)):
        for (part, x), (_, y) in zip(layer_slices(name, old[name]), layer_slices(name, new[name]), strict=True):
            reached = np.array(evidence.probes.get(f"unit_gradient/{part}", []), int)
            for before, now in zip(unit_rows(part, x), unit_rows(part, y), strict=True):
                distance = movements(before, now, decays=True)
                if len(reached) and np.quantile(distance, MOVING) > SLOW * stretch.rounding:
                    yield part, reached[distance[reached] <= stretch.rounding]


def _idle_verdict(stretch: Stretch, units: dict[str, np.ndarray]) -> Verdict:
    first, numbers = next(iter(units.items()))
    shown, where = ", ".join(map(str, numbers[:4])), (stretch.before.step, stretch.after.step)
    text = f"{join_names(list(units))}: unchanged but for decay between the saved steps {where[0]} and {where[1]} in "
    text += f"{len(numbers)} hidden units of {first} ({shown}, …), with a gradient like others' at step {where[0]}"
    knob = f"let the optimizer's update reach hidden units {shown} of {first} (a mask, a shard that is left out)"
    return make_verdict("rows_stuck", "test", np.inf, text, knob, "measured on a step and two saved ones", where)


def _verdict(stretch: Stretch, still: dict[str, np.ndarray]) -> Verdict:
    first, numbers = next(iter(still.items()))
    text = f"{join_names(list(still))}: unchanged but for decay between the saved steps {stretch.before.step} and "
    text += f"{stretch.after.step} in {len(numbers)} features of {first} ({', '.join(map(str, numbers[:4]))}, …), "
    text += "while its others moved: what they read or write is always zero, or gets no gradient"
    knob = f"let features {', '.join(map(str, numbers[:4]))} reach {first} (a fixed mask, a slice that leaves them out)"
    where = stretch.before.step, stretch.after.step
    confirm = "scalelab diagnose RUN --live measures the gradient"
    return make_verdict("rows_stuck", "test", np.inf, text, knob, confirm, where)


CHECKS = (check_features,)
