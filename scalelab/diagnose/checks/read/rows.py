"""Judge the batches that a run read, step by step: other rows than those due, equal rows, rows without a target."""

from typing import NamedTuple

import numpy as np

from scalelab.diagnose.checks.logged.resume import RESTARTS
from scalelab.diagnose.checks.read.again.batches import (
    Counts,
    Stretch,
    count_rows,
    logged_counts,
    present,
    read_again,
    separator_of,
    unreadable,
)
from scalelab.diagnose.checks.read.again.explain import are_windows, find_elsewhere, reads_corpus_in_order
from scalelab.diagnose.checks.read.held_out import judge_evaluated, judge_held_out
from scalelab.diagnose.checks.read.order import judge_order
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

WASTED = 0.01  # share of rows without a target, from which they are a cause
SEVERAL = 3  # steps; fewer with equal rows are odd batches
LOCAL = 0.2  # share of steps; fewer that differ, within the run, are odd batches
FEW = 8  # steps that are read a second time
ROUNDING = 1e-5  # of a sum of counts in fp32


class Compared(NamedTuple):
    """A stretch with its counts: of the windows due, of the rows read again, and logged (NaN: not logged)."""

    stretch: Stretch
    due: Counts
    read: Counts
    logged: dict[str, np.ndarray]

    @property
    def digest(self) -> np.ndarray:
        """The digest of what each step read: as logged, else as read again."""
        return np.where(np.isnan(self.logged["digest"]), self.read.digest, self.logged["digest"])

    @property
    def different(self) -> np.ndarray:
        """Whether each step read other rows than those due."""
        different: np.ndarray = self.digest != self.due.digest
        return different

    @property
    def n_known(self) -> int:
        """Steps of which it is known what they read: all that were logged, or that read other rows now."""
        logged = ~np.isnan(self.logged["digest"])
        return int((logged | self.different).sum()) if logged.any() else len(logged)


def check_rows(evidence: Evidence) -> Findings:
    """Read the batches again and run all checks of them; a gap if they can't be read."""
    why = unreadable(evidence)
    if evidence.data is None and not evidence.no_data:
        return []
    if why or not evidence.rows:
        return [Gap("other_rows", why or "no step was logged", "the data, as in training", "the logbook was judged")]
    separator = separator_of(evidence)
    compared = [_compare(evidence, stretch, separator) for stretch in read_again(evidence)]
    findings: list[Verdict | Gap | Judged] = [
        Judged("rows of a batch differ"), Judged("targets in each row"), Judged("batches in the order of the data"),
    ]  # fmt: skip
    if not any("read/digest" in row for row in evidence.rows):
        how = "a run of this version"
        findings.append(Gap("equal_rows", "no read/digest in metrics.jsonl", how, "batches were read again"))
    for each in compared:
        findings += [*_other_rows(evidence, each), *_without_targets(evidence, each), *_lost_targets(evidence, each)]
        findings += judge_order(evidence, each.stretch)
        findings += judge_held_out(evidence.data, each.stretch) if evidence.data is not None else []
    return [*findings, *(judge_evaluated(evidence, evidence.data) if evidence.data is not None else [])]


def _compare(evidence: Evidence, stretch: Stretch, separator: int | None) -> Compared:
    due, read = (count_rows(rows, separator) for rows in (stretch.due, stretch.read))
    return Compared(stretch, due, read, logged_counts(evidence, stretch.steps))


def _other_rows(evidence: Evidence, each: Compared) -> Findings:
    """Judge steps that read other rows than those due, by what the rows are instead."""
    different, steps = each.different, each.stretch.steps + 1
    if not different.any():
        return []
    span = int(steps[different][0]), int(steps[different][-1])
    text = f"{different.sum()} of {each.n_known} steps compared, from {span[0]} to {span[1]},"
    text += " read other rows than those due"
    equal = np.where(np.isnan(each.logged["equal"]), each.read.equal, each.logged["equal"])
    more = different & (equal > each.due.equal)
    if more.sum() >= SEVERAL and more.sum() >= 0.5 * different.sum():
        return [_equal_rows(evidence, each, equal, more)]
    empty = np.where(np.isnan(each.logged["empty"]), each.read.empty, each.logged["empty"])
    if (different & (empty > each.due.empty)).sum() >= max(SEVERAL, 0.5 * different.sum()):
        text += f": {int((empty - each.due.empty)[different].sum())} rows have lost all their targets"
        return [_verdict("no_targets", text, "what the rows go through before the step", span)]
    if pairs := find_elsewhere(each.stretch, different, each.digest):
        return [_elsewhere(evidence, pairs, text, span)]
    if reads_corpus_in_order(each.stretch, different, each.digest):
        text += ": the windows stand in the order of the corpus, unshuffled"
        return [_verdict("not_shuffled", text, "the shuffle of data/batches/order.py", span)]
    if different.sum() < LOCAL * each.n_known and not different[-1]:
        text += ", before and after them the rows are those due"
        return [_verdict("data_outlier", text, "what the rows of these steps go through before the step", span)]
    if restart := _restart_before(evidence, span[0]):
        text = f"at the restart of step {restart} the data went on elsewhere: {text}"
        return [_verdict("bad_resume", text, "restore seed and cursor of the checkpoint", span)]
    if _changes_when_read_twice(each):
        text += "; and read twice, the same step has other rows each time: they do not follow from the step"
        return [_verdict("unstable_source", text, "make the rows a function of seed and step", span)]
    if (each.read.digest == each.digest)[different].all():
        known = are_windows(each.stretch, different)
        text += f" and still do when read again; {known:.0%} of the rows are windows of the data, due elsewhere"
    else:
        text += " in training, not when read again now; no other place of the data has these batches"
    return [_verdict("other_rows", text, "what the rows go through before the step, and the data order", span)]


def _equal_rows(evidence: Evidence, each: Compared, equal: np.ndarray, more: np.ndarray) -> Verdict:
    i = int(np.flatnonzero(more)[np.argmax((equal - each.due.equal)[more])])
    rows, steps = int(present(each.stretch.numbers)[i].sum()), each.stretch.steps + 1
    text = (
        f"in {more.sum()} of {each.n_known} steps rows of a batch are equal though their windows differ: at step "
        f"{steps[i]} {int(equal[i])} of {rows} equal an earlier one ({int(each.due.equal[i])} are due)"
    )
    mesh = evidence.record.get("mesh", {})
    ranks = int(mesh.get("data", 1) or 1) * int(mesh.get("fsdp", 1) or 1)
    if ranks > 1 and equal[i] >= rows - rows // ranks:
        text += f": all {ranks} data ranks read the rows of one"
    knob = "give each row, and each data rank, rows of its own"
    span = int(steps[more][0]), int(steps[more][-1])
    return _verdict("equal_rows", text, knob, span)


def _elsewhere(evidence: Evidence, pairs: list[tuple[int, int]], text: str, span: tuple[int, int]) -> Verdict:
    """The verdict on steps that read what was due at others: after a restart, or anywhere."""
    step, source = pairs[0]
    offsets = {source - step for step, source in pairs}
    again = "again" if source < step else "ahead of its time"
    text += f": step {step + 1} reads what was due at step {source + 1}, {again}"
    text += f", and so on, {abs(source - step)} steps {'back' if source < step else 'ahead'}" * (len(offsets) == 1)
    if restart := _restart_before(evidence, span[0]):
        text = f"at the restart of step {restart} the data cursor is wrong: {text}"
        return _verdict("bad_resume", text, "restore the cursor of the checkpoint", span)
    if len(offsets) > 1 and len({source for _, source in pairs}) > 0.9 * len(pairs):
        return _verdict("not_shuffled", f"{text}: in another order than the shuffled one", "the order of batches", span)
    return _verdict("repeated_batches", text, "the cursor of the data: each step's batch follows the last", span)


def _restart_before(evidence: Evidence, step: int) -> int:
    """The restart that `step` is the first compared step after; 0: there is none."""
    restarts = [int(event["step"]) for event in evidence.kinds(*RESTARTS) if event.get("step")]
    every = int(evidence.values["log.every_steps"])
    return max((restart for restart in restarts if restart < step <= restart + every), default=0)


def _changes_when_read_twice(each: Compared) -> bool:
    chosen = np.flatnonzero(each.different)[:FEW]
    again = each.stretch.batches.numbered(each.stretch.steps[chosen].tolist())
    return bool((np.asarray(again) != each.stretch.read[chosen]).any())


def _without_targets(evidence: Evidence, each: Compared) -> Findings:
    """Judge rows of the data in which nothing is predicted."""
    rows = present(each.stretch.numbers)
    empty = each.due.empty - (~rows).sum(axis=1)
    share, steps = float(empty.sum() / max(rows.sum(), 1)), each.stretch.steps + 1
    whole = (each.due.targets == 0).sum()
    if share <= WASTED:
        return []
    text = f"{share:.1%} of the sequences have no token to predict" + f", and {whole} steps none at all" * bool(whole)
    is_chat = bool(evidence.record.get("data", {}).get("chat"))
    text += ": nothing but " + "parts of chats outside of the assistant's turns" * is_chat
    text += "separators, behind which no token is a target" * (not is_chat)
    at = int(steps[np.argmax(empty)])
    knob = "a longer model.seq_len, which holds questions with their answers" if is_chat else ""
    knob = knob or "leave such documents out of the data"
    confirm = f"scalelab diagnose RUN --batch={at} shows the rows of a step"
    return [make_verdict("no_targets", "test", share / WASTED, text, knob, confirm)]


def _lost_targets(evidence: Evidence, each: Compared) -> Findings:
    """Judge the number of tokens that the loss was taken over against that of the batch's targets."""
    targets = each.logged["targets"]
    steps = each.stretch.steps + 1
    left_out = [event for event in evidence.kinds("guard") if event.get("action") == "skip_micro_batch"]
    known = ~np.isnan(targets) & ~each.different
    for event in left_out:
        known &= (steps < event["from"]) | (steps > event["to"])
    wrong = known & (np.abs(targets - each.due.targets) > ROUNDING * each.due.targets)
    if not wrong.any():
        return []
    i = int(np.flatnonzero(wrong)[0])
    text = f"the loss of step {steps[i]} is taken over {targets[i]:,.0f} targets, its batch has {each.due.targets[i]:,}"
    text += f"; so in {wrong.sum()} of {known.sum()} steps"
    span = int(steps[wrong][0]), int(steps[wrong][-1])
    return [_verdict("tokens_lost", text, "which targets the step masks", span)]


def _verdict(cause: str, text: str, knob: str, span: tuple[int, int]) -> Verdict:
    confirm = f"scalelab diagnose RUN --batch={span[0]} shows the rows due at that step"
    return make_verdict(cause, "test", np.inf, text, knob, confirm, span)


CHECKS = (check_rows,)
