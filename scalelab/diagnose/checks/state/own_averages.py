"""Judge what a user's own optimizer makes of gradients: its averages by the declared betas, and its updates."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.checks.leaves.moved import declared_frozen, join_names
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves import impulse
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

CLOSE = 2e-3  # of a decay; averages in fp32 differ by 1e-6
WHOLE = 0.02  # relative difference of a share from 1 (a sum), or from 1 - decay (an average)
USUAL = 10.0  # times the LR that updates of m / sqrt(v) may be larger, or smaller, on purpose (norms, RMS matching)
UNEVEN = 100.0  # times the median parameter's update; Muon's on a matrix of 1024 x 1024 is 1/32 of AdamW's
IDLE = 0.2  # share of steps without an update
NEAR_HALF = 0.05  # of a power of one half
SHRUNK = 0.5  # share of the update that is left at 100 times eps, where 0.99 should be
WORDS = {1: "gradients", 2: "squares of gradients"}
BETAS = ((1, "optim.beta1"), (2, "optim.beta2"))  # power of the gradient, and what its average is declared by
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
        """Whether it takes 1 - decay of each gradient, and keeps something of those before."""
        return abs(self.share / (1 - self.decay) - 1) < WHOLE and self.decay > 0


@asks("what the optimizer keeps of gradients, and its updates under constant ones")
def check_own_averages(evidence: Evidence) -> Findings | None:
    """Judge sums beside averages, decays that no beta declares, and updates that are late or of other sizes."""
    name = str(evidence.values["optim.name"])
    if ":" not in name:
        return None
    if not evidence.probes:
        return [Gap("moments_wrong", f"what {name} makes of gradients was not measured", "--live")]
    prefix = "kept/"
    kept = [Kept(k.removeprefix(prefix), *x) for k, x in evidence.probes.items() if k.startswith(prefix)]
    averages = _fed(evidence, name) or _mixed(name, kept)
    averages = averages or _forgotten(evidence, name, kept) or _undeclared(evidence, name, kept)
    return [*(averages or _answers(evidence, name, kept)), *_uneven(evidence, name)]


def _is_adam(kept: Sequence[Kept]) -> bool:
    """Whether gradients and their squares are averaged."""
    return all(any(k.power == power and k.is_average for k in kept) for power in (1, 2))


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


def _fed(evidence: Evidence, name: str) -> Findings:
    """Judge an average of the squares of another one, where its name says squares of gradients, as in optax's state.

    Elsewhere it may be meant (AdaMomentum, Wang et al. 2021).
    """
    prefix = "fed/"
    for key, (source, decay) in (
        (k.removeprefix(prefix), x) for k, x in evidence.probes.items() if k.startswith(prefix)
    ):
        text = f"{key} of {name} averages the squares of {source}, by {decay:.4g} a step, and not those of gradients: "
        text += "what scatters about zero is averaged away before it is squared, so that it does not damp the updates"
        if [each.rpartition(".")[2] for each in (key, source)] != ["nu", "mu"]:
            return [Gap("moments_wrong", text, "--accept=moments_wrong says that it is meant")]
        knob = f"feed {key} with the squares of gradients in {name.partition(':')[2]}"
        return _verdict("moments_wrong", 1 / WHOLE, text, knob)
    return []


def _forgotten(evidence: Evidence, name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge an array that takes 1 - beta of each gradient, as the average by a declared beta does, and keeps another
    share than beta of those before.
    """
    for k, key in ((k, key) for k in kept for power, key in BETAS if k.power == power):
        beta = float(evidence.values[key] or 0.0)
        takes = 0 < beta < 1 and abs(k.share / (1 - beta) - 1) < WHOLE
        if not takes or k.is_average or abs(k.decay - beta) < CLOSE:
            continue
        text = f"{name} puts {k.share:.3g} of the {WORDS[k.power]} into {k.name}, the 1 - beta of {key}={beta:g}, and "
        text += (
            f"keeps {k.decay:.3g} of what stood there" if k.decay else "keeps nothing of those before: it is made anew"
        )
        text += f", not {beta:g}: that is no average, and its updates have another memory"
        knob = f"keep {key} times the old {k.name} in {name.partition(':')[2]}"
        return _verdict("moments_wrong", abs(k.decay - beta) / CLOSE, text, knob)
    return []


def _undeclared(evidence: Evidence, name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge a declared beta that no average of its kind decays by; of other optimizers a beta means something else."""
    if not _is_adam(kept):
        return []
    for power, key in BETAS:
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
    """Judge updates under constant gradients: at each step, whatever their size; of m / sqrt(v) they are about 1."""
    p, function = evidence.probes, name.partition(":")[2]
    size, grows = p.get("answer_usual"), p.get("answer_power")
    if size is None or grows is None:
        return []
    if (idle := p["idle_steps"]) >= IDLE:
        text = f"under constant gradients {name} changes nothing at {idle:.0%} of the steps: one update in "
        text += f"{1 / max(1 - idle, 1e-9):.3g}, while the schedule counts them all"
        knob = f"update at each step in {function}; train.accumulate collects the gradients of micro-batches already"
        return _verdict("update_wrong", 2 * idle / IDLE, text, knob)
    now, following = p.get("answer_late", (1.0, 1.0))
    if now == 0 and following > 0:
        text = f"a gradient that is turned round and {impulse.LARGE:.0f} times as large changes nothing in the update "
        text += f"of its own step, and the next one's by {following:.2g} times the LR: {name} is a step late"
        knob = f"take the step's gradient into the averages before {function} makes its update of them"
        return _verdict("update_wrong", 1 / WHOLE, text, knob)
    is_adam = _is_adam(kept)
    if is_adam and abs(grows) > 0.5:
        text = f"{name} averages gradients and their squares, and its updates grow with the gradient to the power "
        text += f"{grows:.2g}; those of m / sqrt(v) do not"
        what = "divide by the root of the squares' average, not by itself" if grows < 0 else "divide by sqrt(v)"
        return _verdict("update_wrong", 1 + abs(grows), text, f"{what}, in {function}")
    if is_adam and not 1 / USUAL < size < USUAL:
        text = (
            f"{name} averages gradients and their squares, and its updates are {size:.3g} times the LR on a constant "
        )
        text += "gradient; those of m / sqrt(v) are 1"
        return _verdict("update_wrong", max(size, 1 / size) / USUAL, text, f"a factor on the update, in {function}")
    if is_adam:
        return _early_eps(evidence, name) if abs(grows) < 0.1 else []
    return _of_magnitudes(evidence, name, kept) if abs(grows - 0.5) < NEAR_HALF else []


def _of_magnitudes(evidence: Evidence, name: str, kept: Sequence[Kept]) -> list[Verdict]:
    """Judge an average by beta2 that grows as gradients do, beside one by beta1: under a root, of magnitudes."""
    betas = [float(evidence.values[key] or 0.0) for _, key in BETAS]
    by_beta = [[k for k in kept if k.power == 1 and k.is_average and abs(k.decay - beta) < CLOSE] for beta in betas]
    if not all(by_beta) or abs(betas[0] - betas[1]) < CLOSE:
        return []
    text = f"{by_beta[1][0].name} of {name} averages magnitudes of gradients by beta2, not their squares, and updates "
    text += "grow with the root of the gradient: m / sqrt(v) with such a v depends on the gradient's size"
    knob = f"feed {by_beta[1][0].name} with squares of gradients in {name.partition(':')[2]}"
    return _verdict("moments_wrong", 1 / WHOLE, text, knob)


def _early_eps(evidence: Evidence, name: str) -> list[Verdict]:
    """Judge an eps that acts at gradients far above it: it stands under the root, or is another number."""
    share, eps = evidence.probes.get("answer_small", 1.0), float(evidence.values["optim.eps"] or 0.0)
    if not 0 < share < SHRUNK:
        return []
    acts = impulse.SMALL * eps * (1 / share - 1)
    text = f"optim.eps={eps:g} is declared, and under constant gradients of {impulse.SMALL * eps:.2g} the updates of "
    text += f"{name} are {share:.2g} of their size under large ones: its eps acts like one of {acts:.2g}"
    text += ", the root of what is declared: it was added before the root was taken" if acts > 10 * eps else ""
    knob = f"add eps to the root of the second moment, not under it, in {name.partition(':')[2]}"
    return _verdict("eps_dominates", SHRUNK / share, text, knob)


def _uneven(evidence: Evidence, name: str) -> list[Verdict]:
    """Judge parameters whose updates are far smaller, or larger, than the others' though the gradients are as large."""
    prefix, p = "answer/", evidence.probes
    sizes = {k.removeprefix(prefix): x for k, x in p.items() if k.startswith(prefix)}
    if not sizes or abs(p["answer_power"]) > 0.1:
        return []
    open_leaves = {k: x for k, x in sizes.items() if not declared_frozen(evidence, k)}
    usual = float(np.median(list(open_leaves.values() or [0.0])))
    unlike = {k: x for k, x in open_leaves.items() if not usual / UNEVEN < x < usual * UNEVEN}
    if not usual or not unlike:
        return []
    worst = min(unlike, key=lambda k: -abs(np.log(max(unlike[k], 1e-30) / usual)))
    text = (
        f"under constant gradients, equal for all, {name} moves {join_names(list(unlike))} by {unlike[worst]:.2g} of "
    )
    text += f"the LR, the median parameter by {usual:.2g}"
    stuck = unlike[worst] == 0
    knob = f"let the update reach {worst}" if stuck else f"take the factor on {worst} out"
    knob += f" in {name.partition(':')[2]}, or declare it (optim.groups)"
    over = UNEVEN if stuck else max(unlike[worst] / usual, usual / unlike[worst]) / UNEVEN
    return _verdict("leaf_stuck" if stuck else "leaf_out_of_scale", over, text, knob)


CHECKS = (check_own_averages,)
