"""Judge eps by the saved second moments of the blocks: where it is larger than their roots, Adam is momentum SGD.

Rows of embedding and head have small moments at any eps where their tokens hardly occur, so these count by what they
hold of the sum of the second moment. Gains and biases are left out: that of all keys has no gradient but rounding.
"""

import numpy as np

from scalelab.diagnose.checks.state.saved import find_adam_moments
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import layer_slices, parameter_kind, read_saved_steps
from scalelab.diagnose.verdict import Findings, Judged, make_verdict

ASKED = "eps is below the roots of the blocks' second moments"
SHARE = 0.5  # of a leaf's numbers whose corrected root is below eps (stability.md 4)
USUAL_EPS = 1e-8


def check_saved_eps(evidence: Evidence) -> Findings:
    """Judge eps by each layer's part of each parameter of the blocks, in the last saved step."""
    saved, _ = read_saved_steps(evidence)
    judged, worst = False, ("", 0.0, 0.0, "", "")
    for moments in find_adam_moments(evidence, saved[-1]) if saved else []:
        key = "optim.rest_eps" if ".rest." in moments.place else "optim.eps"
        eps = float(evidence.values[key] or 0.0)
        correction = 1 - moments.beta2 ** max(moments.n_updates, 1)
        for name, x in moments.nu.items():
            kind = parameter_kind(name)
            if kind == "vector" or not eps or not np.isfinite(x).all():
                continue
            judged = True
            for part, v in layer_slices(name, x):
                used = v[v > 0].astype(np.float64)
                root, weights = np.sqrt(used / correction), None if kind == "hidden" else used
                share = float(np.average(root < eps, weights=weights)) if len(root) else 0.0
                if share > worst[1]:
                    middle = np.median(root) if kind == "hidden" else np.average(root, weights=weights)
                    worst = part, share, float(middle), key, "its numbers" if kind == "hidden" else "its second moment"
    if worst[1] <= SHARE:
        return [Judged(ASKED)] if judged else []
    part, share, middle, key, what = worst
    step = saved[-1].step
    text = f"sqrt(v) of {part} is below {key}={evidence.values[key]:g} for {share:.0%} of {what}, at step {step}; "
    text += f"its {'median' if what == 'its numbers' else 'mean'} is {middle:.2g}"
    better = min(USUAL_EPS, float(f"{middle / 100:.0e}"))
    confirm = f"scalelab train … --config.{key}={better:g}, and compare update_norm"
    return [
        make_verdict("eps_dominates", "test", share / SHARE, text, f"{key}={better:g}", confirm, (step, step)),
        Judged(ASKED),
    ]


CHECKS = (check_saved_eps,)
