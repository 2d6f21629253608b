"""Judge the direct tests (`--live`): each measures a cause itself, not its symptoms."""

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

LEAK = 1e-3  # change of a logit / their RMS; exactly 0 without a leak (masked products are multiplied by exact zeros)
DIVIDED = 0.05  # of a ratio of K or 1/K; the same batch in fp32 has either to some 1e-6
BETWEEN = "what is done to gradients between micro-batches (a clip, a factor): they are added up, and divided once"
RATIO = 1.1  # gradient norm with micro-batches / of one batch; sums in another order differ by 1e-6
UNCORRECTED = ("rmsprop",)  # by definition (Tieleman & Hinton 2012): its squares start at zero
REDRAWN = ("apollo", "apollo_mini")  # a random projection drawn anew now and then: constant gradients don't look so
SCALING = 3.0  # growth of a block's branches for 8 times the input; with norms: at most 1.1
LATE = 1000  # steps of constant gradients, from which updates of averages no longer change
SETTLES = 0.75  # a late update over one at a quarter of its steps: of sums of squares (Adagrad, Shampoo) a half
OVERSHOOT = 1.5  # update RMS of an early step on constant gradients / of a settled optimizer
GRADIENT_OVER_V = 30.0  # gradient RMS / sqrt(v); healthy: 0.5 to 2
EDGE = 2.0  # sharpness x LR / where the optimizer becomes unstable; healthy runs: up to 1.4 (SGD), 0.3 (AdamW)
UNASKED = "the program was not asked", "--live"  # of what the probes measure
SETTLED = 50  # first steps to leave out: sqrt(v) of rare tokens' weights is near 0 there, and quotients by it are huge
EPS_SHARE = 0.5  # share of sqrt(v) below eps (stability.md 4)
SAME = 1e-4  # relative difference of a replayed loss; the same program gives the same bits


@asks("masks, targets, norms, micro-batches")
def check_model(evidence: Evidence) -> Findings | None:
    """Judge masks, targets, norms and accumulation of the code on this machine."""
    p, step = evidence.probes, evidence.probes.get("step")
    if step is None:
        return [Gap(cause, *UNASKED) for cause in ("mask_leak", "label_shift", "missing_1_over_K", "norm_missing")]
    where, findings = (step, step), []
    for name, what, knob in (
        ("future_leak", "later tokens", "the causal mask"),
        ("document_leak", "another document", "the document mask"),
    ):
        if p.get(name, 0.0) > LEAK:
            text = f"logits change by {p[name]:.3g} of their RMS when tokens of {what} change; without a leak by 0"
            findings.append(_test("mask_leak", p[name] / LEAK, text, f"{knob} (model/attention/mask.py)", where))
    if p.get("batch_leak", 0.0) > LEAK:
        text = (
            f"logits of a sequence change by {p['batch_leak']:.3g} of their RMS when the batch's other sequences change"
        )
        mend = "statistics over the batch (model.block)"
        findings.append(_test("batch_leak", p["batch_leak"] / LEAK, text, mend, where))
    if not 1 / RATIO < (repeated := p.get("term_repeated", 1.0)) < RATIO:
        text = (
            f"train.loss gives {repeated:.4g} times as much for a batch taken twice; a mean over tokens gives the same"
        )
        mend = "divide the term by its tokens in train.loss"
        findings.append(_test("code_scale", max(repeated, 1 / max(repeated, 1e-9)), text, mend, where))
    if p.get("target_shift", 1.0) != 1.0:
        text = f"targets are the inputs shifted by {p['target_shift']:.0f}, not by 1"
        findings.append(_test("label_shift", np.inf, text, "documents.split_inputs_targets", where))
    ratio, k = p.get("accumulated_ratio", 1.0), p.get("accumulate", 1.0)
    if ratio > RATIO or ratio < 1 / RATIO:
        text = f"with {k:.0f} micro-batches the gradient norm is {ratio:.4g} times that of one big batch"
        divided = min(abs(ratio / k - 1), abs(ratio * k - 1)) < DIVIDED
        cause, knob = "missing_1_over_K", "divide by all predicted tokens"
        if not divided:
            text += f", neither {k:.0f} nor 1/{k:.0f} times: what is added up is changed between them"
            cause, knob = "code_gradient", BETWEEN
        findings.append(_test(cause, max(ratio, 1 / ratio), text, knob, where))
    if p.get("branch_scaling", 1.0) > SCALING:
        text = f"a block adds {p['branch_scaling']:.3g} times as much for 8 times the input; behind a norm 1 time"
        findings.append(_test("norm_missing", p["branch_scaling"], text, "norms before attention and MLP", where))
    return findings


def _test(cause: str, over: float, text: str, knob: str, where: tuple[int, int]) -> Verdict:
    return make_verdict(cause, "test", over, text, knob, "measured on the model itself; mend it and run again", where)


@asks("updates on constant gradients; moments against gradients")
def check_optimizer(evidence: Evidence) -> Findings | None:
    """Judge updates on constant gradients, and moments against the gradients of the last state."""
    p, findings = evidence.probes, list[Verdict | Gap]()
    if not p:
        return [Gap(cause, *UNASKED) for cause in ("no_bias_correction", "moments_poisoned")]
    sizes = {int(name.partition("/")[2]): value for name, value in p.items() if name.startswith("update_rms/")}
    if sizes and (settled := sizes[max(sizes)]) > 0:
        largest = max(sizes, key=lambda step: sizes[step])
        over = sizes[largest] / settled / OVERSHOOT
        name = str(evidence.values["optim.name"])
        late = [sizes[step] for step in sorted(sizes)[:-1] if step >= LATE]
        settles = not late or SETTLES * late[-1] <= settled <= late[-1] / SETTLES
        if over > 1 and (not settles or name in REDRAWN):
            why = f"late updates of {name} on constant gradients are of no one size"
            why += ": its projection is drawn anew" if name in REDRAWN else ", as those of sums of squares"
            findings.append(Gap("no_bias_correction", why, "an optimizer of averages, which settles"))
        elif over > 1 and name not in UNCORRECTED:
            text = f"on constant gradients update {largest} is {sizes[largest] / settled:.3g} times a late one"
            knob = "optim.bias_correction=true"
            if ":" in name:
                text += f": {name} divides one of its averages by another's correction, or by none"
                knob = f"divide each average in {name.partition(':')[2]} by 1 - beta**t of its own beta"
            findings.append(_test("no_bias_correction", over, text, knob, (1, largest)))
    where = (p.get("step", 0),) * 2
    if (ratio := p.get("gradient_over_v", 1.0)) > GRADIENT_OVER_V:
        text = f"the gradient's RMS is {ratio:.3g} times sqrt(v) at step {where[0]}"
        findings.append(_test("moments_poisoned", ratio / GRADIENT_OVER_V, text, "train --reset=moments", where))
    if (share := p.get("eps_share", 0.0)) > EPS_SHARE:
        text = f"sqrt(v) is below eps for {share:.0%} of the parameters at step {where[0]}"
        findings.append(_test("eps_dominates", share / EPS_SHARE, text, "optim.eps=1e-8", where))
    return findings


@asks("curvature against the LR")
def check_sharpness(evidence: Evidence) -> Findings | None:
    """Judge a loss too curved for the LR: training at the edge of stability, or beyond it.

    Sharpness settles at the edge in many runs that are healthy (Cohen et al. 2021), so the verdict begins above it.
    """
    p = evidence.probes
    limit, product = p.get("sharpness_limit"), p.get("sharpness_lr", 0.0)
    if not p:
        return [Gap("edge_of_stability", *UNASKED)]
    if limit is None:
        return None
    if not product > EDGE * limit:
        return []
    if p["sharpness_step"] < SETTLED:
        return [
            Gap(
                "edge_of_stability",
                f"second moments of {p['sharpness_step']} steps are not settled",
                f"a checkpoint after step {SETTLED}",
            )
        ]
    step, lr = int(p["sharpness_step"]), float(evidence.values["optim.peak_lr"])
    kind = "preconditioned as Adam does it, " if limit > 2 else ""
    text = f"the largest eigenvalue of the Hessian at step {step}, {kind}times the LR is {product:.3g}; "
    text += f"the optimizer is stable below {limit:.3g}"
    return [
        make_verdict(
            "edge_of_stability",
            "signature",
            product / limit / EDGE,
            text,
            f"optim.peak_lr={lr / 3:.2g}",
            f"scalelab sweep over optim.peak_lr={lr / 10:.2g}, {lr / 3:.2g}, {lr:.2g}",
            (step, step),
        )
    ]


@asks("steps run again")
def check_replay(evidence: Evidence) -> Findings | None:
    """Judge steps run again from saved states: a differing line is the run's fault, unless two replays differ too.
    After a restart with right weights but wrong batches or LR, all lines differ. After a flipped bit, the next saved
    state holds it, so later replays agree again.
    """
    p = evidence.probes
    replays = {int(name.partition("/")[2]): value for name, value in p.items() if name.startswith("replay/")}
    if not replays and "unasked/bit_flip" in p:
        return None
    if not replays:
        return [Gap("bit_flip", *(UNASKED if not p else ("no line after a saved step", "checkpoint.keep_last=3")))]
    differ = sorted(step for step, x in replays.items() if x > SAME and f"replay_rounded/{step}" not in p)
    if not differ:
        return []
    first = differ[0]
    restarts = [int(e["step"]) for e in evidence.kinds("resume", "branch", "fallback") if e.get("step") is not None]
    restart = max((step for step in restarts if step < first), default=None)
    agreed_since = any(step not in differ and restart is not None and step > restart for step in replays)
    resumed = restart is not None and not agreed_since
    text = f"step {first}, run again from the saved state before it, has another loss, by {replays[first]:.3g} of it"
    unsteady = p.get(f"replay_twice/{first}", 0.0) > SAME
    text += (
        "; two replays differ too: this machine does not repeat itself, a persistent fault"
        if unsteady
        else ("; two replays agree: what happened in the run was transient")
    )
    text += f"; the run was restarted at step {restart}: other batches, seed or LR since then" if resumed else ""
    cause = "bad_resume" if resumed and not unsteady else "bit_flip"
    knob = "restore weights, cursor, seed" if resumed else "drain the host; go on from the step before"
    over = min(replays[first] / SAME, 1e6)
    confirm = f"scalelab diagnose {evidence.quoted} --live on another machine"
    return [make_verdict(cause, "test", over, text, knob, confirm, (first, first))]


def check_unasked(evidence: Evidence) -> Findings:
    """List what the program was not asked though it was asked other things, and why."""
    prefix = "unasked/"
    return [Gap(k.removeprefix(prefix), *why) for k, why in evidence.probes.items() if k.startswith(prefix)]


CHECKS = (check_unasked, check_model, check_optimizer, check_sharpness, check_replay)
