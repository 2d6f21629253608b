"""Judge the decay inside a user's own optimizer: what it does to weights whose gradients are zero (`--live`)."""

import numpy as np

from scalelab.diagnose.checks.state.optimizer import DECAY_TIME, GOOD_TURNOVERS
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict

TWICE = 1.5  # times the declared decay
# Norm of what is no shrinking of the weights in its step without gradients: .6 if that is the sign of each weight, 1 if
# it has nothing to do with them (noise, on purpose).
COUPLED, UNRELATED = 0.3, 0.95


@asks("decay inside the optimizer, by its step without gradients")
def check_own_decay(evidence: Evidence) -> Findings | None:
    """Judge a decay that is applied twice, is divided by sqrt(v), or leaves the weights no memory."""
    v, p = evidence.values, evidence.probes
    name = str(v["optim.name"])
    if ":" not in name:
        return None
    if not p:
        return [Gap("decay_wrong", f"what {name} does without gradients was not measured", "--live")]
    declared, decay = float(v["optim.weight_decay"] or 0.0), float(p.get("own_decay", 0.0))
    rest = float(p.get("own_decay_rest", 1.0))
    if rest > UNRELATED or (decay <= 1.01 * declared and rest < COUPLED):
        return []
    lr = evidence.series("lr").finite()
    turnovers = float(np.mean(lr.values)) * decay * evidence.steps if len(lr.steps) else 0.0
    text = f"without gradients a step of {name} shrinks the weights by {decay:.3g} of the LR; optim.weight_decay="
    text += f"{declared:g} is declared"
    confirm = "scalelab train … with the decay left out of one of the two, and compare"
    if rest >= COUPLED:
        text += f", and {rest:.0%} of its step is no shrinking: the decay is divided by sqrt(v), as gradients are"
        knob = f"leave decay out of {name.partition(':')[2]}: optim.weight_decay is added after it"
        return [make_verdict("decay_wrong", "test", 1 + rest, text, knob, confirm)]
    if declared and decay >= TWICE * declared:
        text += f": {name.partition(':')[2]} decays too, on top of it"
        knob = f"leave decay out of {name.partition(':')[2]}, or set optim.weight_decay=0"
        return [make_verdict("decay_wrong", "test", decay / declared, text, knob, confirm)]
    if turnovers * DECAY_TIME <= 1:
        return []
    text += f"; that replaces the weights {turnovers:.3g} times in the run (mean LR x decay x steps)"
    knob = f"a decay of {decay * GOOD_TURNOVERS / turnovers:.2g} in {name.partition(':')[2]}"
    return [make_verdict("decay_wrong", "test", 2 * turnovers * DECAY_TIME, text, knob, confirm)]


CHECKS = (check_own_decay,)
