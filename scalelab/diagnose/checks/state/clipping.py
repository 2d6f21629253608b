"""Judge the clip: one that scales down nearly every step by a large factor, and one that never acts."""

import numpy as np

from scalelab.diagnose.checks.state.optimizer import is_lr_far
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.statistics import flag_above, safe_log
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict
from scalelab.optim.registry import find_optimizer

CLIPPED = 0.95  # share of lines above clip_norm (stability.md 4)
CLIP_FACTOR = 5.0  # median gradient norm / clip_norm; healthy runs here: at most 1.5 (adafactor), GPT-3: below 1
NEVER = 3.0  # clip_norm over the largest norm of the run, from which it is no bound
LOOSE = 10.0  # clip_norm below which it is one that others use: ten times GPT-3's
OUTLIER = 10.0  # gradient norm over its median before, which a usual clip would have cut
SOON = 8  # lines after such a norm in which the loss that it brought about jumps


@asks("the clip")
def check_clipping(evidence: Evidence) -> Findings | None:
    """Judge a clip that scales down nearly every step by a large factor: the gradient's size is lost."""
    clip, norms = float(evidence.values["optim.clip_norm"]), evidence.series("grad_norm").finite()
    norms = norms.after(0.05 * evidence.steps)
    if len(norms.steps) < 10:
        return [Gap("over_clipping", "fewer than ten lines", "log.every_steps=1")]
    if is_lr_far(evidence):  # then gradients are large because the loss is
        return []
    share, factor = float(np.mean(norms.values > clip)), float(np.median(norms.values)) / clip
    if share < CLIPPED or factor < CLIP_FACTOR:
        return _never_acts(evidence, clip, norms)
    text = f"{share:.0%} of the steps from {norms.steps[0]} on are clipped, the median one {factor:.3g}-fold"
    text += f"; optim.clip_norm={clip:g}"
    high = float(np.quantile(norms.values, 0.9))
    knob = f"optim.clip_norm={high:.2g} (the 90th percentile of the norm)"
    confirm = "scalelab train … with it, and compare"
    steps, kind = (int(norms.steps[0]), int(norms.steps[-1])), "signature"
    if ":" not in (name := evidence.values["optim.name"]) and find_optimizer(name).like == "sgd":
        text += f": {name}'s updates shrink with it, so its LR acts like {factor:.3g} times less"
        kind = "test"
    return [make_verdict("over_clipping", kind, factor / CLIP_FACTOR, text, knob, confirm, steps)]


def _never_acts(evidence: Evidence, clip: float, norms: Series) -> Findings:
    """Judge a clip above all norms: a cause where outliers of the norm threw the loss up, else a note."""
    name = evidence.values["optim.name"]
    if clip < max(LOOSE, NEVER * norms.values.max()) or ":" in name or find_optimizer(name).like not in ("adam", "sgd"):
        return []  # others' updates have a size of their own
    text = f"optim.clip_norm={clip:g} never acts: the largest gradient norm is {norms.values.max():.3g}"
    loss = evidence.series("train_loss").finite().after(int(norms.steps[0]) - 1)
    large, high = flag_above(safe_log(norms.values), np.log(OUTLIER)), flag_above(safe_log(loss.values))
    soon = SOON * int(evidence.values["log.every_steps"])
    steps = [int(step) for step in norms.steps[large.flagged]]
    jumps = [step for step in steps if high.flagged[(loss.steps > step) & (loss.steps <= step + soon)].any()]
    usual = float(f"{max(np.quantile(norms.values, 0.9), 1e-6):.2g}")
    if not jumps:
        cost = f"{text}; what a clip would have spared, only a run with one can tell"
        return [Gap("clip_missing", cost, f"a run beside it with optim.clip_norm={usual:g}")]
    text += (
        f", {norms.values.max() / np.median(norms.values):.3g} times the median one; the loss jumps after such norms"
    )
    text += f", first at step {jumps[0]}"
    knob = f"optim.clip_norm={usual:g} (the 90th percentile of the norm)"
    where = jumps[0], jumps[-1]
    confirm = "scalelab diagnose RUN --try trains these steps with it"
    return [make_verdict("clip_missing", "signature", 1.0 + len(jumps), text, knob, confirm, where)]


CHECKS = (check_clipping,)
