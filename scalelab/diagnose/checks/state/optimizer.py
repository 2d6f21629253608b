"""Judge the optimizer's arithmetic: bias correction, poisoned moments, eps, weight decay."""

import functools

import numpy as np

from scalelab.config.optimizer_defaults import FAR_FACTOR, OPTIM_DEFAULTS
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.probes.leaves.reference import scheduled_decay
from scalelab.diagnose.statistics import TINY
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict
from scalelab.optim.registry import find_optimizer

ADAMS = ("adamw", "adam", "adam8bit")  # optimizers whose update is m / (sqrt(v) + eps)
CODED = ("adam8bit",)  # moments in codes, of which the small ones are zero: single updates are large at any LR
BOUND_MARGIN = 1.1  # margin over Adam's largest possible update RMS; norms are rounded
BOUND_STEPS = 2000  # steps after which the bound's sums are cut: they have converged for beta2 up to 0.999
EPS_SHARE = 0.5  # share of measures in which a group's eps is above its gradients' RMS (stability.md 4)
DECAY_TIME = 0.04  # 1 / (LR x decay) in runs; Bergsma et al. 2025: best at some 0.1 to 0.3 for 20 tokens a parameter
GOOD_TURNOVERS = 5.0  # the middle of that range
COUPLED_SHARE = 1.0  # norm of a coupled decay / norm of the loss's gradient
GROWTH_WITHOUT_DECAY = 1.25  # last weight norm / first
WEAK = 0.01  # share of the optimizer's own decay that does as much as none
SHRUNK = 0.75  # least weight norm / first; healthy runs grow, decay of 100 times the usual brings configs/tiny to 0.51
VECTOR_FALL = 0.6  # last norm of the final norm's gains / its first


def is_lr_far(evidence: Evidence) -> bool:
    """Whether the peak LR is so far above the optimizer's own that `train` warns of it."""
    usual = OPTIM_DEFAULTS.get(evidence.values["optim.name"], {})
    return "peak_lr" in usual and float(evidence.values["optim.peak_lr"] or 0) >= FAR_FACTOR * usual["peak_lr"][0]


@functools.cache
def largest_update(beta1: float, beta2: float, step: int) -> float:
    """Bound Adam's |m_hat / sqrt(v_hat)| at `step` (from 1) over all gradient sequences.

    By Cauchy-Schwarz sum(a g) <= sqrt(sum(a^2 / b)) sqrt(sum(b g^2)), with a and b the corrected weights of the two
    averages; equality for g proportional to a / b. Reaches 7.27 at beta 0.9 and 0.999, 1.17 at 0.9 and 0.95.
    """
    age = np.arange(min(step, BOUND_STEPS))
    a = (1 - beta1) * beta1**age / (1 - beta1**step)
    b = (1 - beta2) * beta2**age / (1 - beta2**step)
    return float(np.sqrt(np.sum(a**2 / b)))


def update_rms(evidence: Evidence) -> Series:
    """Series of a lower bound of the RMS of Adam's direction: the update without its decay, over the LR.

    The decay acts on the weights before the update, whose norm is at most that after it plus the update's.
    """
    update, params, lr = (evidence.series(name).finite() for name in ("update_norm", "param_norm", "lr"))
    shared = functools.reduce(np.intersect1d, (update.steps, params.steps, lr.steps))
    update_norm, param_norm, rate = (s.values[np.isin(s.steps, shared)] for s in (update, params, lr))
    good = rate > 0
    before = param_norm[good] + update_norm[good]
    direction = np.maximum(update_norm[good] / rate[good] - _decay_of_lr(evidence)[0] * before, 0.0)
    return Series(shared[good], direction / max(evidence.n_parameters, 1) ** 0.5)


def _decay_of_lr(evidence: Evidence) -> tuple[float, float]:
    """(the factor on LR x weights, that factor for a weight_decay of 1): an independent decay is one of LR / peak."""
    independent = evidence.values["schedule.wd_shape"] == "independent"
    unit = 1 / max(float(evidence.values["optim.peak_lr"] or 0.0), TINY) if independent else 1.0
    return float(evidence.values["optim.weight_decay"] or 0.0) * unit, unit


def _is_plain_adam(evidence: Evidence) -> bool:
    """Whether updates follow from m and v alone, with one LR for all parameters."""
    v = evidence.values
    plain = v["parametrization.name"] == "standard" and not v["optim.groups"]
    return plain and v["optim.name"] in ADAMS and v["optim.name"] not in CODED


@asks("updates against the most that Adam's moments allow")
def check_adam_bound(evidence: Evidence) -> Findings | None:
    """Judge updates larger than Adam's bound: no bias correction, or foreign moments."""
    if not _is_plain_adam(evidence):
        return None
    rms, v = update_rms(evidence), evidence.values
    beta1, beta2 = float(v["optim.beta1"]), float(v["optim.beta2"])
    if v["schedule.beta1_steps"]:
        beta1 = min(beta1, float(v["schedule.beta1_start"]))
    bounds = np.array([largest_update(beta1, beta2, int(step)) for step in rms.steps])
    if not len(bounds) or not evidence.n_parameters:
        return [Gap("moments_poisoned", "no line with update_norm, param_norm and LR", "log.every_steps=10")]
    over = rms.values / (BOUND_MARGIN * bounds)
    if over.max() <= 1:
        return []
    i = int(np.argmax(over))
    steps = rms.steps[over > 1]
    text = (
        f"the update's RMS is {rms.values[i]:.3g} LR at step {rms.steps[i]}; with its own, corrected moments Adam "
        f"can't exceed {bounds[i]:.3g} LR there, whatever the gradients"
    )
    where = int(steps[0]), int(steps[-1])
    if steps[0] <= 1 / (1 - beta2):
        text += f" (beta2 {beta2}; optim.bias_correction={v['optim.bias_correction']})"
        confirm = "scalelab diagnose RUN --live feeds the optimizer constant gradients"
        return [make_verdict("no_bias_correction", "test", over[i], text, "optim.bias_correction=true", confirm, where)]
    knob = "train --reset=moments, or the checkpoint before"
    confirm = "scalelab diagnose RUN --live compares moments with gradients"
    return [make_verdict("moments_poisoned", "test", over[i], text, knob, confirm, where)]


def group_sizes(evidence: Evidence) -> dict[str, float]:
    """Count the parameters of each group of layers.jsonl: "" for one block, embed, head."""
    by_group, layers = evidence.record.get("params_by_group", {}), float(evidence.values["model.n_layers"])
    blocks = sum(by_group.get(name, 0) for name in ("attention", "mlp", "experts")) / layers
    return {"": blocks} | {f"{name}/": float(by_group[name]) for name in ("embed", "head") if name in by_group}


@asks("eps against the second moment")
def check_eps(evidence: Evidence) -> Findings | None:
    """Judge an eps above the gradients' RMS: Adam is then momentum SGD with an LR of peak_lr / eps."""
    v = evidence.values
    eps = float(v["optim.eps"] or 0.0)
    if v["optim.name"] not in ADAMS or eps < 1e-12:
        return None
    if not evidence.layers:
        return [Gap("eps_dominates", "no measures of layers", "log.layers_every=10")]
    if len((measured := evidence.layer_series("eps_share").finite()).steps):
        return _eps_measured(eps, measured)
    norms = evidence.series("grad_norm").finite()
    worst = ("", 0.0, 0.0)
    for prefix, size in group_sizes(evidence).items():
        measured = evidence.layer_series(f"{prefix}grad_norm").finite()
        if not len(measured.steps) or not len(norms.steps) or not size:
            continue
        clip = np.minimum(
            1.0, float(v["optim.clip_norm"]) / np.maximum(np.interp(measured.steps, norms.steps, norms.values), TINY)
        )
        rms = measured.values.reshape(len(measured.steps), -1) * clip[:, None] / size**0.5
        share = float(np.mean(rms < eps))
        if share > worst[1]:
            worst = (prefix.rstrip("/") or "blocks", share, float(np.median(rms)))
    if worst[1] <= EPS_SHARE:
        return []
    text = f"optim.eps={eps:g} is above the RMS of the gradients of {worst[0]} ({worst[2]:.2g}) in {worst[1]:.0%} of "
    text += "the measures"
    return [
        make_verdict(
            "eps_dominates",
            "signature",
            eps / worst[2],
            text,
            "optim.eps=1e-8",
            "scalelab train … --config.optim.eps=1e-8, and compare update_norm",
        )
    ]


def _eps_measured(eps: float, share: Series) -> Findings:
    """Judge eps by the logged share of second moments below it, block by block."""
    by_layer = np.median(share.values.reshape(len(share.steps), -1), axis=0)
    layer = int(np.argmax(by_layer))
    if by_layer[layer] <= EPS_SHARE:
        return []
    text = (
        f"sqrt(v) is below optim.eps={eps:g} for {by_layer[layer]:.0%} of the numbers of block {layer} (median measure)"
    )
    return [
        make_verdict(
            "eps_dominates",
            "test",
            float(by_layer[layer]) / EPS_SHARE,
            text,
            "optim.eps=1e-8",
            "scalelab train … --config.optim.eps=1e-8, and compare update_norm",
        )
    ]


@asks("weight decay")
def check_decay(evidence: Evidence) -> Findings | None:
    """Judge weight decay: too strong, coupled to the gradient of an adaptive optimizer, or on gains; note none."""
    v = evidence.values
    decay, lr = float(v["optim.weight_decay"] or 0.0), evidence.series("lr").finite()
    params = evidence.series("param_norm").finite()
    if len(lr.steps) < 10 or len(params.steps) < 10:
        return [Gap("decay_wrong", "fewer than ten lines", "log.every_steps=1")]
    strong = _grown(evidence, lr, params) or _strong(evidence, lr, params)
    return [*strong, *_coupled(evidence, decay, params), *_none(evidence, decay, params), *_vectors(evidence)]


def _grown(evidence: Evidence, lr: Series, params: Series) -> Findings:
    """Judge a decay that its schedule raises until the weights have no memory, or far above the optimizer's own."""
    v, optimizer = evidence.values, evidence.values["optim.name"]
    share = float(v["schedule.wd_final_share"])
    if v["schedule.wd_shape"] != "cosine" or share <= 1:
        return []
    decays = np.array([scheduled_decay(v, int(step) - 1, rate) for step, rate in zip(lr.steps, lr.values, strict=True)])
    turnovers, most = float(np.mean(decays * lr.values)) * evidence.steps, float(decays.max())
    usual = float(OPTIM_DEFAULTS.get(optimizer, {}).get("weight_decay", (0.0, ""))[0])
    fall = float(params.values[-1] / max(params.values.max(), TINY))
    far = usual and most >= FAR_FACTOR * usual and fall < SHRUNK
    if turnovers * DECAY_TIME <= 1 and not far:
        return []
    text = (
        f"schedule.wd_final_share={share:g} raises the weight decay from {float(v['optim.weight_decay'] or 0.0):g} to "
    )
    text += f"{most:.3g}: it replaces the weights {turnovers:.3g} times in the run (mean of LR x decay, x steps), and "
    text += f"their norm fell to {fall:.2g} of its largest"
    over = max(2 * turnovers * DECAY_TIME, SHRUNK / fall if far else 0.0)
    knob, confirm = "schedule.wd_final_share=1", "scalelab schedule --config=… draws the decay"
    return [make_verdict("decay_wrong", "signature", over, text, knob, confirm)]


def _strong(evidence: Evidence, lr: Series, params: Series) -> Findings:
    """Judge a decay that leaves the weights no memory, or one far above the optimizer's own under which they shrink."""
    if evidence.values["optim.name"] == "adam":
        return []
    decay, unit = _decay_of_lr(evidence)
    turnovers = float(np.mean(lr.values)) * decay * evidence.steps  # of the weights by decay alone over the run
    optimizer = evidence.values["optim.name"]
    usual = float(OPTIM_DEFAULTS.get(optimizer, {}).get("weight_decay", (0.0, ""))[0])
    if is_lr_far(evidence) and decay <= usual:
        return []  # it is the LR that replaces them
    over, better = 2 * turnovers * DECAY_TIME, decay * GOOD_TURNOVERS / max(turnovers, TINY)
    if usual and better >= FAR_FACTOR * usual:
        better = usual  # this very check may call a value so far above the optimizer's own wrong
    text = (
        f"weight decay {decay / unit:g} replaces the weights {turnovers:.3g} times in the run (mean LR x decay x steps"
    )
    text += f"; independent of the LR, it is {decay:.3g} times the LR)" if unit != 1.0 else ")"
    fall = float(params.values.min() / max(params.values[0], TINY))
    if usual and decay >= FAR_FACTOR * usual and fall < SHRUNK:
        text += f"; it is {decay / usual:.3g} times {optimizer}'s own {usual:g}, and the weights' norm fell to "
        text += f"{fall:.2g} of its first"
        over, better = max(over, SHRUNK / fall), min(better, usual)
    elif turnovers * DECAY_TIME <= 1:
        return []
    knob = f"optim.weight_decay={better / unit:.2g}"
    return [make_verdict("decay_wrong", "signature", over, text, knob, "scalelab sweep over optim.weight_decay")]


def _coupled(evidence: Evidence, decay: float, params: Series) -> Findings:
    """Judge L2 in an adaptive optimizer's gradient, where it is divided by sqrt(v) too (Loshchilov & Hutter)."""
    optimizer = evidence.values["optim.name"]
    if (
        ":" in optimizer
        or not find_optimizer(optimizer).coupled
        or find_optimizer(optimizer).like != "adam"
        or not decay
    ):
        return []
    norms = evidence.series("grad_norm").finite()
    share = decay * float(np.median(params.values)) / max(float(np.median(norms.values)), 1e-30)
    if share <= COUPLED_SHARE:
        return []
    text = (
        f"{optimizer} adds weight_decay={decay:g} x weights to the gradient before it divides by sqrt(v): that term is "
        f"{share:.2g} times the gradient of the loss; the weight norm went from {params.values[0]:.3g} to "
        f"{params.values[-1]:.3g}"
    )
    knob = "optim.name=adamw"
    confirm = "scalelab train … --config.optim.name=adamw, and compare"
    return [make_verdict("decay_wrong", "signature", 1 + share / COUPLED_SHARE, text, knob, confirm)]


def _none(evidence: Evidence, decay: float, params: Series) -> Findings:
    """Note a growing norm where hardly any decay is declared: what that costs only a run with decay can tell."""
    optimizer = evidence.values["optim.name"]
    usual = OPTIM_DEFAULTS.get(optimizer, {}).get("weight_decay", (0.0, ""))[0]
    growth = float(params.values[-1] / max(params.values[0], 1e-30))
    if decay > WEAK * usual or usual < 0.01 or growth < GROWTH_WITHOUT_DECAY:
        return []
    text = f"optim.weight_decay={decay:g} is declared, and the weight norm grew {growth:.3g}-fold"
    return [Gap("decay_wrong", text, f"a run beside it with {optimizer}'s own optim.weight_decay={usual:g}")]


def _vectors(evidence: Evidence) -> Findings:
    """Judge gains of norms that shrink by decay: every layer's scale shrinks with them."""
    gains = evidence.layer_series("final_norm/weight_norm").finite()
    if len(gains.steps) < 5 or not evidence.values["optim.decay_vectors"]:
        return []
    fall = float(gains.values[-1] / max(gains.values[0], 1e-30))
    if fall >= VECTOR_FALL:
        return []
    text = f"gains decay (optim.decay_vectors=true): the final norm's fell to {fall:.2g} of their first size"
    knob = "optim.decay_vectors=false"
    confirm = "scalelab optim --config=… lists what decays"
    return [make_verdict("decay_wrong", "signature", VECTOR_FALL / max(fall, 1e-3), text, knob, confirm)]


CHECKS = (check_adam_bound, check_eps, check_decay)
