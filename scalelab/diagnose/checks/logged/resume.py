"""Judge changes at a restart: loss jumps, optimizer state, LR, data cursor; weights that moved without an update."""

import numpy as np

from scalelab.config.steps import schedule_steps
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.statistics import MAD_TO_SIGMA, SIGMAS, safe_log
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict
from scalelab.train.checkpoints import copies, manifest
from scalelab.train.lineage.changes import list_changes

RESTARTS = ("resume", "branch", "fallback", "moved")
BEFORE, AFTER = 32, 10  # lines compared before and after a restart
LEAST_JUMP = 0.02  # in ln loss (stability.md 2.2)
UPDATE_JUMP = 1.8  # update RMS over the LR, after / before; healthy resumes: 0.9 to 1.1
MOVE_MARGIN = 3.0  # margin over the change of the weight norm that logged updates can cause


@asks("loss, update, weights and cursor at restarts")
def check_restarts(evidence: Evidence) -> Findings | None:
    """Judge a jump at a restart: in the loss, in the update's size, in the tokens read."""
    steps = {int(event["step"]) for event in evidence.kinds(*RESTARTS) if event.get("step")}
    steps -= {step for step, _, _ in list_changes(evidence.record)}  # where the run was changed on purpose
    if not steps:
        return None
    verdicts = [verdict for step in sorted(steps) if (verdict := _judge_restart(evidence, step))]
    return sorted(verdicts, key=lambda verdict: -verdict.score)[:1] if verdicts else []


def _judge_restart(evidence: Evidence, step: int) -> Verdict | None:
    signs = {
        "the loss": _loss_jump(evidence, step), "the update's RMS over the LR": _update_jump(evidence, step),
        "the weight norm": _norm_jump(evidence, step), "the data cursor": _cursor_jump(evidence, step),
    }  # fmt: skip
    present = {name: sign for name, sign in signs.items() if sign[0] > 1}
    if not present:
        return None
    over, _ = max(present.values())
    text = f"at the restart of step {step} " + "; ".join(f"{name} {words}" for name, (_, words) in present.items())
    moved = [str(event.get("text", "")) for event in evidence.kinds("moved") if event.get("step") == step]
    text += f"; it went on elsewhere: {'; '.join(moved)}" if moved else ""
    kind = "test" if {"the weight norm", "the data cursor"} & present.keys() else "signature"
    state = "the update's RMS over the LR" in present and "the weight norm" not in present
    knob = (
        "restore the optimizer's moments and count" if state else "restore weights, cursor and seed of the checkpoint"
    )
    knob += "; first on the mesh that it was saved on" if moved else ""
    return make_verdict(
        "bad_resume", kind, 1 + over, text, knob, f"scalelab checkpoint verify {evidence.quoted}", (step, step + AFTER)
    )


def _around(series: Series, step: int) -> tuple[np.ndarray, np.ndarray]:
    return series.until(step).values[-BEFORE:], series.after(step).values[:AFTER]


def _loss_jump(evidence: Evidence, step: int) -> tuple[float, str]:
    """Measure (jump of the mean ln loss in thresholds of SIGMAS standard errors, a description)."""
    before, after = _around(evidence.series("train_loss").finite(), step)
    if len(before) < 8 or len(after) < 3:
        return 0.0, ""
    before, after = safe_log(before), safe_log(after)
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(before - np.median(before))))
    error = sigma * (1 / len(before) + 1 / len(after)) ** 0.5
    jump = float(np.mean(after) - np.mean(before[-2 * AFTER :]))
    over = abs(jump) / max(SIGMAS * error, LEAST_JUMP)
    return over, f"jumps from {np.exp(np.mean(before[-2 * AFTER :])):.4g} to {np.exp(np.mean(after)):.4g}"


def _update_jump(evidence: Evidence, step: int) -> tuple[float, str]:
    """Judge the update's size: a fresh optimizer takes larger first steps than one that has seen gradients."""
    update, lr = (evidence.series(name).finite() for name in ("update_norm", "lr"))
    shared = np.intersect1d(update.steps, lr.steps[lr.values > 0])
    ratio = update.values[np.isin(update.steps, shared)] / lr.values[np.isin(lr.steps, shared)]
    before, after = _around(Series(shared, ratio), step)
    if len(before) < 8 or not len(after) or not np.median(before):
        return 0.0, ""
    factor = float(np.max(after[:3]) / np.median(before))
    return (
        factor / UPDATE_JUMP,
        f"goes from {np.median(before):.3g} to {np.max(after[:3]):.3g}, as at a run's first steps",
    )


def _norm_jump(evidence: Evidence, step: int) -> tuple[float, str]:
    moved = norm_jumps(evidence)
    near = moved.until(step + AFTER * evidence.values["log.every_steps"]).after(step - 1)
    if not len(near.steps):
        return 0.0, ""
    return float(near.values.max()), f"moves {MOVE_MARGIN * near.values.max():.3g} times what its updates can"


def _cursor_jump(evidence: Evidence, step: int) -> tuple[float, str]:
    """Judge the logged number of tokens against the config's closed form."""
    tokens = evidence.series("tokens")
    after = tokens.after(step)
    if not len(after.steps) or not (evidence.folder / "config.json").exists():
        return 0.0, ""
    planned, logged = schedule_steps.tokens_before(evidence.config, int(after.steps[0])), float(after.values[0])
    return (2.0, f"is at {logged:,.0f} tokens, {planned:,} are due") if logged != planned else (0.0, "")


def norm_jumps(evidence: Evidence) -> Series:
    """Find changes of the weight norm between logged lines above MOVE_MARGIN times the most that updates can cause.

    | |p'| - |p| | <= the sum of the updates' norms (triangle inequality), of which only the logged ones are known: the
    larger of both ends counts for all steps between them.
    """
    params, update = (evidence.series(name).finite() for name in ("param_norm", "update_norm"))
    shared = np.intersect1d(params.steps, update.steps)
    norms, moves = (each.values[np.isin(each.steps, shared)] for each in (params, update))
    if len(shared) < 2:
        return Series(shared[:0], norms[:0])
    reach = np.diff(shared) * np.maximum(moves[1:], moves[:-1]) + 1e-5 * norms[1:]
    return Series(shared[1:], np.abs(np.diff(norms)) / (MOVE_MARGIN * reach))


@asks("weights move by their updates alone")
def check_bit_flip(evidence: Evidence) -> Findings | None:
    """Judge weights that moved farther than their updates, away from any restart."""
    moved = norm_jumps(evidence)
    if not len(moved.steps):
        return [Gap("bit_flip", "fewer than two lines with update_norm and param_norm", "log.every_steps=1")]
    if moved.values.max() <= 1:
        return []
    i = int(np.argmax(moved.values))
    step, params = int(moved.steps[i]), evidence.series("param_norm")
    restarts = [int(event["step"]) for event in evidence.kinds(*RESTARTS) if event.get("step")]
    if any(0 <= step - restart <= AFTER * evidence.values["log.every_steps"] for restart in restarts):
        return []
    at = int(np.flatnonzero(params.steps == step)[0])
    text = (
        f"the weight norm goes from {params.values[at - 1]:.6g} to {params.values[at]:.6g} at step {step}, "
        f"{MOVE_MARGIN * moved.values[i]:.3g} times what the updates logged there can cause"
    )
    knob = "the checkpoint before; drain the host"
    confirm = f"scalelab diagnose {evidence.quoted} --live replays the steps before it"
    return [make_verdict("bit_flip", "test", float(moved.values[i]), text, knob, confirm, (step, step))]


@asks("files of checkpoints")
def check_files(evidence: Evidence) -> Findings | None:
    """Judge checkpoints with missing or cut files, and those saved under suspicion."""
    if evidence.damage:
        text = f"{len(evidence.damage)} files differ from their manifest: {evidence.damage[0]}"
        knob = "checkpoint.fallback=true, or another copy"
        confirm = f"scalelab checkpoint verify {evidence.quoted}"
        return [make_verdict("damaged_checkpoint", "test", np.inf, text, knob, confirm)]
    return [] if evidence.manifests else None


@asks("metrics are whole")
def check_logs(evidence: Evidence) -> Findings | None:
    """Judge lost lines of logs, which rank first, and edited logs, which rank last."""
    confirm = f"scalelab checkpoint verify --all {evidence.quoted}"
    knob = "put the file back from a copy; what it said is not judged"
    findings = list[Verdict | Gap]()
    if not evidence.record and not evidence.manifests and not (evidence.lost or evidence.edited):
        return [Gap("lost_log", "no record and no checkpoint count the lines", "record.json")]
    if evidence.lost:
        text = "; ".join(evidence.lost)
        verdict = make_verdict("lost_log", "test", np.inf, text, knob, confirm)
        findings.append(verdict._replace(score=verdict.score + 1))  # first
    if evidence.edited:
        knob = "put the file back from a copy; all that is judged by it is in doubt"
        verdict = make_verdict("edited_log", "symptom", 1.0, "; ".join(evidence.edited), knob, confirm)
        findings.append(verdict._replace(score=verdict.score - 1))  # ranked last: it explains nothing that was logged
    return findings


@asks("copies of weights are equal")
def check_copies(evidence: Evidence) -> Findings | None:
    """Judge copies of one array that differed between devices at a save: a bit flipped on the device named."""
    seen = {
        step: verdict.partition(": ")[2]
        for step, content in sorted(evidence.manifests.items())
        for verdict in content.get("health", {}).values()
        if copies.DIFFERS in verdict
    }
    warned = [event for event in evidence.kinds("warning") if copies.DIFFERS in event.get("text", "")]
    for event in warned if not seen else ():  # the manifests may be gone: suspect steps are deleted early
        seen.setdefault(int(event.get("step") or 0), str(event["text"]).partition(": a bit")[0])
    if not seen:
        return [] if evidence.manifests else None
    first, last = min(seen), max(seen)
    healthy = [
        step
        for step, content in evidence.manifests.items()
        if (not first or step < first) and set(content.get("health", {}).values()) <= {manifest.HEALTHY}
    ]
    text = f"{seen[first]}" + (f", as saved at step {first}" if first else "")
    knob = "leave that device and its host out"
    knob += (
        f"; go on from step {max(healthy)}, the last healthy one before" if healthy else "; go on from a step before"
    )
    confirm = f"scalelab diagnose {evidence.quoted} --live runs steps again: it stays, or it passes"
    return [make_verdict("bit_flip", "test", np.inf, text, knob, confirm, (first, last) if first else None)]


@asks("how the run ended")
def check_end(evidence: Evidence) -> Findings | None:
    """Judge a run that a disk, a peer or a hang ended: it did not diverge."""
    if not evidence.record and not evidence.events:
        return [Gap("failed", "no logbook", "events.jsonl")]
    findings = []
    for kind in ("stalled", "failed"):
        for event in evidence.kinds(kind)[-1:]:
            step = int(event.get("step") or 0)
            after = [other for other in evidence.kinds("resume", "done") if (other.get("step") or 0) >= step]
            if after and after[-1]["time"] >= event["time"]:
                continue  # it went on
            text = f"the run {kind} at step {step}: {event.get('text', '')}"
            knob = "mend what is named; the same command goes on"
            confirm = f"scalelab checkpoint verify {evidence.quoted}"
            findings.append(make_verdict(kind, "test", np.inf, text, knob, confirm, (step, step)))
    return findings


CHECKS = (check_logs, check_restarts, check_bit_flip, check_copies, check_files, check_end)
