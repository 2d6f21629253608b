"""Judge what a user's own optimizer keeps of gradients: averages by the declared betas, one kind beside the other."""

from collections.abc import Sequence
from typing import NamedTuple

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

CLOSE = 2e-3  # of a decay; averages in fp32 differ by 1e-6
WHOLE = 0.02  # relative difference of a share from 1 (a sum), or from 1 - decay (an average)
USUAL = 10.0  # times the LR that updates of m / sqrt(v) may be larger, or smaller, on purpose (norms, RMS matching)
WORDS = {1: "gradients", 2: "squares of gradients"}
CONFIRM = "measured on the optimizer itself: one gradient, and then none"


class Kept(NamedTuple):
    """An array of the optimizer's state: the power of the gradient that it keeps, its decay, its share at first."""

    name: str
    power: int
    decay: float
    share: float

    @property
    def is_sum(self) -> bool:
        """Whether it adds gradients up whole, and is no average whose decay is near zero."""
        return abs(self.share - 1) < WHOLE and self.decay > 2 * WHOLE

    @property
    def is_average(self) -> bool:
        """Whether it takes 1 - decay of each gradient."""
        return abs(self.share / (1 - self.decay) - 1) < WHOLE


@asks("what the optimizer keeps of gradients, by the declared betas")
def check_own_averages(evidence: Evidence) -> Findings | None:
    """Judge sums beside averages, decays that no beta declares, and updates that grow with the gradient's size."""
    name = str(evidence.values["optim.name"])
    if ":" not in name:
        return None
    if not evidence.probes:
        return [Gap("moments_wrong", f"what {name} keeps of gradients was not measured", "--live")]
    prefix = "kept/"
    kept = [Kept(k.removeprefix(prefix), *x) for k, x in evidence.probes.items() if k.startswith(prefix)]
    return _mixed(name, kept) or _undeclared(evidence, name, kept) or _answers(evidence, name, kept)


def _verdict(cause: str, over: float, text: str, knob: str) -> list[Verdict]:
    return [make_verdict(cause, "test", over, text, knob, CONFIRM)]


def _mixed(name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge a sum beside an average: their quotient is off by the root of 1 - beta, or by 1 - beta."""
    sums, averages = [k for k in kept if k.is_sum], [k for k in kept if k.is_average]
    pairs = [(s, a) for s in sums for a in averages if s.power != a.power]
    if not pairs:
        return []
    added, averaged = pairs[0]
    text = f"the {WORDS[added.power]} that {name} keeps in {added.name} are summed, not averaged: each is added whole, "
    text += f"without the factor 1 - {added.decay:.4g}, beside {averaged.name}, which is an average; updates are "
    factor = (1 - added.decay) ** 0.5 if added.power == 2 else 1 / (1 - added.decay)
    text += f"{factor:.3g} times what they should be"
    knob = f"multiply what is added to {added.name} by 1 - beta, in {name.partition(':')[2]}"
    return _verdict("moments_wrong", 1 / WHOLE, text, knob)


def _undeclared(evidence: Evidence, name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge a declared beta that no average of its kind decays by."""
    for power, key in ((1, "optim.beta1"), (2, "optim.beta2")):
        declared, same = evidence.values[key], [k for k in kept if k.power == power and k.is_average]
        if not declared or not same or any(abs(k.decay - declared) < CLOSE * max(1 - declared, 0.1) for k in same):
            continue
        text = (
            f"{key}={declared:g} is declared, and the {WORDS[power]} that {name} averages in {same[0].name} decay by "
        )
        text += f"{same[0].decay:.4g} a step: they reach back {1 / (1 - same[0].decay):.3g} steps, not "
        text += f"{1 / (1 - declared):.3g}" if declared < 1 else "for ever"
        other = evidence.values["optim.beta2" if power == 1 else "optim.beta1"]
        text += "; that is the other beta" if other and abs(same[0].decay - other) < CLOSE else ""
        knob = f"let {name.partition(':')[2]} average {WORDS[power]} by {key}, or declare the beta that it has"
        return _verdict("moments_wrong", abs(same[0].decay - declared) / CLOSE, text, knob)
    return []


def _answers(evidence: Evidence, name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge updates of an optimizer that averages gradients and squares: on a constant gradient each is about 1."""
    size, grows = (evidence.probes.get(key) for key in ("answer", "answer_power"))
    if size is None or grows is None or not all(any(k.power == p and k.is_average for k in kept) for p in (1, 2)):
        return []
    function = name.partition(":")[2]
    if abs(grows) > 0.5:
        text = f"{name} averages gradients and their squares, and its updates grow with the gradient to the power "
        text += f"{grows:.2g}; those of m / sqrt(v) do not"
        what = "divide by the root of the squares' average, not by itself" if grows < 0 else "divide by sqrt(v)"
        return _verdict("update_wrong", 1 + abs(grows), text, f"{what}, in {function}")
    if 1 / USUAL < size < USUAL:
        return []
    text = f"{name} averages gradients and their squares, and its updates are {size:.3g} times the LR on a constant "
    text += "gradient; those of m / sqrt(v) are 1"
    return _verdict("update_wrong", max(size, 1 / size) / USUAL, text, f"a factor on the update, in {function}")


CHECKS = (check_own_averages,)
