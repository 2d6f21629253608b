"""Judge the decays of Adam's moments by what they average over: beside each other, and beside the run.

An update m / sqrt(v) is bounded only where old gradients leave v no sooner than m: by Cauchy-Schwarz its square is at
most sum(a^2 / b) with the weights a of m and b of v, and a^2 / b falls with age only if beta1^2 < beta2. Adam's proofs
of convergence need that too (Reddi et al. 2018, theorem 4, with beta1 < sqrt(beta2); Zhang et al. 2022).
"""

import math

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS, default_optim_values
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Verdict, asks, make_verdict

# Optimizers that divide beta1's average by the root of beta2's; lion's two betas are of one moment.
RATIOS = ("adam", "adamw", "nadamw", "adam8bit", "adalayer", "soap", "galore", "galore8bit")
LONG_SHARE = 0.25  # of the run's steps that m averages over; muon's 20 steps are an eighth of a run of 160
LONG_FACTOR = 5.0  # of the optimizer's own
CONFIRM = "scalelab train … with it, and compare the losses"


@asks("beta1 beside beta2 and the run's length")
def check_betas(evidence: Evidence) -> Findings | None:
    """Judge moments that forget the squares before the gradients, and momentum about as long as the run."""
    v, name = evidence.values, str(evidence.values["optim.name"])
    if name not in OPTIM_DEFAULTS or v["optim.beta1"] is None:
        return None
    findings = []
    if name in RATIOS and v["optim.beta2"] is not None:
        findings += _shorter_squares(evidence, name, float(v["optim.beta1"]), float(v["optim.beta2"]))
    return findings or _long_momentum(evidence, name, float(v["optim.beta1"]))


def _shorter_squares(evidence: Evidence, name: str, beta1: float, beta2: float) -> list[Verdict]:
    if not beta1 or beta1**2 < beta2:
        return []
    text = f"beta1^2 = {beta1**2:.4g} is not below beta2 = {beta2:g}: the gradients' average reaches back "
    text += f"{_memory(beta1):.3g} steps, that of their squares {_memory(beta2):.3g}, so that nothing bounds an update"
    own = default_optim_values(name, evidence.values["optim.scale"])
    swapped = beta1 >= own["beta2"][0] and beta2**2 < beta1  # then each is a usual value of the other
    good = (beta2, beta1) if swapped else (own["beta1"][0], own["beta2"][0])
    text += "; the other way round they would fit" if swapped else ""
    over = math.log(beta2) / (2 * math.log(beta1)) if beta2 > 0 and beta1 < 1 else math.inf
    knob = f"optim.beta1={good[0]:g}, optim.beta2={good[1]:g}"
    return [make_verdict("betas_wrong", "signature", over, text, knob, CONFIRM)]


def _long_momentum(evidence: Evidence, name: str, beta1: float) -> list[Verdict]:
    own = default_optim_values(name, evidence.values["optim.scale"]).get("beta1", (None, ""))[0]
    if own is None or not _memory(beta1) >= LONG_FACTOR * _memory(own) * (1 - 1e-6):
        return []
    share = _memory(beta1) / evidence.steps
    if share <= LONG_SHARE:
        return []
    text = f"beta1 = {beta1:g} averages gradients over {_memory(beta1):.4g} steps, {share:.0%} of the run's "
    text += f"{evidence.steps}; {name}'s own {own:g} over {_memory(own):.3g}"
    knob = f"optim.beta1={own:g}"
    return [make_verdict("betas_wrong", "signature", share / LONG_SHARE, text, knob, CONFIRM)]


def _memory(beta: float) -> float:
    """Steps that an average with this decay reaches back."""
    return 1 / (1 - beta) if beta < 1 else math.inf


CHECKS = (check_betas,)
