"""Judge two rules that the state follows exactly: the average of the weights, and the loss scale of fp16.

The average of the weights with decay d is a mean of past weights, so it lies no farther from the last ones than a mean
of the way back to each, which the logged update norms bound, and hardly nearer than the part of the last update that
is not in it. A step that is taken again shows the share of the new weights. The loss scale is doubled after INTERVAL
finite steps in a row and halved by a step that is not finite.
"""

import itertools

import numpy as np

from scalelab.diagnose.checks.state.saved import restarted
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.probes.leaves.saved import SavedStep, read_saved_steps
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.precision.loss_scale import BACKOFF, GROWTH, INIT_SCALE, INTERVAL
from scalelab.precision.policy import POLICIES

AVERAGE = "the average of the weights is one of theirs"
SCALE = "the loss scale follows its rule"
FAR = 2.0  # margin over the bound of the way from the average to the weights, of logs that leave lines out
NEAR = 0.1  # of the last update that an average leaves out; the way before it can't cancel nine tenths of that
SHARE = 1.25  # ratio of a measured share of the new weights to the one due
LARGEST_SCALE = float(np.finfo(np.float32).max)


def check_average(evidence: Evidence) -> Findings:
    """Judge the saved average: it moved, is not the weights themselves, and lies near them."""
    saved, _ = read_saved_steps(evidence)
    decay = float(evidence.values["train.ema"] or 0.0)
    if not decay or not saved or not saved[-1].part("ema.mean"):
        return []
    verdict = _judge_average(evidence, saved, decay)
    return [*([verdict] if verdict else []), Judged(AVERAGE)]


def _judge_average(evidence: Evidence, saved: list[SavedStep], decay: float) -> Verdict | None:
    last, problem, over = saved[-1], "", np.inf
    mean, params = last.part("ema.mean"), last.params
    taken = int(last.arrays.get("ema.steps", last.accepted))
    same = [name for name, x in mean.items() if x.any() and np.array_equal(x, params[name].astype(np.float32))]
    if taken > 1 and len(same) == len(mean) and _moves(evidence, last.step):
        problem = f"all {len(mean)} leaves are the weights themselves, bit for bit, with train.ema={decay:g}"
    for before, after in itertools.pairwise(saved):
        old = before.part("ema.mean")
        still = [name for name, x in after.part("ema.mean").items() if np.array_equal(x, old.get(name, np.empty(0)))]
        if after.accepted > before.accepted and len(still) == len(mean) and _moves(evidence, after.step):
            problem = f"the same bits at steps {before.step} and {after.step}"
    if not evidence.values["train.branch_from"] and taken != last.accepted and not restarted(evidence, 0, last.step):
        problem = f"counts {taken} steps of {last.accepted} that were taken"
    far, bound = _way(evidence, last, decay)
    if not problem and far > bound:
        problem, over = f"lies {far:.3g} from the weights; a mean of past ones lies within {bound:.3g}", far / bound
    if not problem and far < (left_out := NEAR * _left_out(evidence, last, taken, decay)):
        problem = f"lies {far:.3g} from the weights; with train.ema={decay:g} the last update alone keeps it some "
        problem, over = f"{problem}{left_out / NEAR:.3g} away", left_out / max(far, 1e-30)
    share, due = evidence.probes.get("average_share", 0.0), evidence.probes.get("average_due", 0.0)
    if not problem and due and not due / SHARE <= share <= due * SHARE:
        problem = f"takes {share:.3g} of the new weights in a step; with train.ema={decay:g} {due:.3g} are due"
        over = max(share / due, due / max(share, 1e-30))
    if not problem:
        return None
    knob = "average the new weights after each step that is taken, with the decay train.ema"
    confirm = "scalelab eval --ema beside the weights"
    text = f"the average of the weights at step {last.step}: {problem}"
    return make_verdict("average_wrong", "test", over, text, knob, confirm, (last.step, last.step))


def _moves(evidence: Evidence, step: int) -> bool:
    """Whether the last logged updates up to `step` are above zero."""
    updates = evidence.series("update_norm").finite().until(step).values
    return bool(len(updates)) and updates[-1] > 0


def _left_out(evidence: Evidence, saved: SavedStep, taken: int, decay: float) -> float:
    """The norm of the last update times the share of it that is not in the average of so many steps."""
    updates = evidence.series("update_norm").finite().until(saved.step)
    if not len(updates.steps) or updates.steps[-1] != saved.step or taken < 2:
        return 0.0
    return float(updates.values[-1]) * (1 - (1 - decay) / (1 - decay**taken))


def _way(evidence: Evidence, saved: SavedStep, decay: float) -> tuple[float, float]:
    """(distance of the average from the weights, its bound by the logged update norms)."""
    updates = evidence.series("update_norm").finite().until(saved.step)
    if len(updates.steps) < 2:
        return 0.0, np.inf
    mean, params = saved.part("ema.mean"), saved.params
    squares = [float(np.sum(np.square(mean[n].astype(np.float64) - params[n].astype(np.float64)))) for n in mean]
    norms = np.interp(np.arange(1, saved.step + 1), updates.steps, updates.values)
    way = np.concatenate([np.cumsum(norms[::-1])[::-1][1:], [0.0]])  # from the weights of each step to the last
    weights = decay ** np.arange(saved.step)[::-1]
    bound = float(np.sum(weights * way) / np.sum(weights))
    margin = 1.01 if len(updates.steps) == saved.step else FAR
    return sum(squares) ** 0.5, margin * bound + 1e-6


def check_loss_scale(evidence: Evidence) -> Findings:
    """Judge the loss scale: it follows its rule between lines, over all, and in the saved state."""
    if not POLICIES[evidence.values["precision.name"]].scaled_loss:
        return []
    scale, skipped = evidence.series("loss_scale").finite(), evidence.series("skipped")
    if len(scale.steps) < 2:
        return [Gap("loss_scale_dead", "no lines with loss_scale", "log.every_steps=10")]
    verdicts = [*_standing(scale, skipped), *_broken_rule(scale, skipped), *_saved_rule(evidence)]
    return [*verdicts[:1], Judged(SCALE)]


def _dead(text: str, where: tuple[int, int]) -> Verdict:
    knob = (
        "precision.name=bf16, or mend the rule of the loss scale (halved by a step that is not finite, doubled after "
    )
    confirm = "the lines' loss_scale and skipped"
    return make_verdict("loss_scale_dead", "test", np.inf, text, f"{knob}{INTERVAL} that are)", confirm, where)


def _standing(scale: Series, skipped: Series) -> list[Verdict]:
    """Judge a scale that is not doubled, though no step was skipped since long."""
    shared = np.intersect1d(scale.steps, skipped.steps)
    counts, values = (s.values[np.isin(s.steps, shared)] for s in (skipped, scale))
    if not len(shared):
        return []
    first = int(np.argmax(counts == counts[-1]))
    steps = int(shared[-1] - shared[first])
    if steps <= INTERVAL + 1 or values[-1] > values[first] or values[-1] > LARGEST_SCALE / GROWTH:
        return []
    text = (
        f"the loss scale is {values[-1]:.6g} at step {shared[-1]}, as at step {shared[first]}, and no step between was "
    )
    return [_dead(f"{text}skipped; it doubles after {INTERVAL}", (int(shared[first]), int(shared[-1])))]


def _broken_rule(scale: Series, skipped: Series) -> list[Verdict]:
    """Compare each line's scale with the bounds that the line before it and the skipped steps between allow."""
    by_step = dict(zip(skipped.steps.tolist(), skipped.values.tolist(), strict=True))
    for (first, old), (last, new) in itertools.pairwise(zip(scale.steps.tolist(), scale.values.tolist(), strict=True)):
        if first not in by_step or last not in by_step:
            continue
        falls = by_step[last] - by_step[first] + 1  # the line's own scale is that before its step
        least, most = old * BACKOFF**falls, old * GROWTH ** (1 + (last - first) // INTERVAL)
        if new < least or new > most:
            text = f"the loss scale goes from {old:.6g} at step {first} to {new:.6g} at step {last}, "
            text += f"between which {falls - 1:.0f} steps were skipped"
            return [_dead(text, (first, last))]
    return []


def _saved_rule(evidence: Evidence) -> list[Verdict]:
    """Judge the saved scale and its count of finite steps, of a run without a skipped step."""
    saved, _ = read_saved_steps(evidence)
    if not saved or evidence.values["train.branch_from"] or restarted(evidence, 0, saved[-1].step):
        return []
    for each in saved:
        scale, good = each.arrays.get("precision.scale"), each.arrays.get("precision.good")
        if scale is None or good is None or int(each.arrays["skipped"]):
            continue
        grown = each.step // INTERVAL
        right = INIT_SCALE * GROWTH**grown
        if int(good) != each.step % INTERVAL or (right < LARGEST_SCALE and float(scale) != right):
            text = f"after {each.step} finite steps in a row the loss scale is {float(scale):.6g} and has counted "
            text += f"{int(good)} since it changed; by its rule {right:.6g} and {each.step % INTERVAL}"
            return [_dead(text, (each.step, each.step))]
    return []


CHECKS = (check_average, check_loss_scale)
