"""Judge the order in which a run read its windows against a shuffled one, within each source and stage of a mixture."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scalelab.config import mixture_text
from scalelab.config.steps import schedule_steps
from scalelab.data.batches.batches import NO_WINDOW
from scalelab.diagnose.checks.read.again.batches import Stretch, present
from scalelab.diagnose.checks.read.again.shuffled import LEAST_VALUES, Finding, describe_rows, find_orders
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Judged, make_verdict

ORDER = "order against a shuffled null"
SAME_PLACES = 0.5  # share of windows at the same place in two epochs; of shuffled ones 1 / windows
IN_AN_EPOCH = "windows read twice or never in an epoch"
CUT = "windows that lie end to end"
CHANCE = 5.0  # standard deviations
CHECKED = 64  # steps whose size is held to the config's closed form


def judge_order(evidence: Evidence, stretch: Stretch) -> Findings:
    """Judge the order of a stretch that was read again, within an epoch and from one to the next, and steps' sizes."""
    places = _places(stretch)
    cut = judge_windows(evidence, stretch)
    return [*_order(evidence, stretch), *cut, *judge_repeats(places), *_same_order(places), *_sizes(evidence, stretch)]


def judge_windows(evidence: Evidence, stretch: Stretch) -> Findings:
    """Judge the windows of an epoch: end to end, so that each token of a shard is predicted once, but for its rest."""
    assert evidence.data is not None
    seq_len, judged = stretch.due.shape[2] - 1, Judged(CUT)
    sizes = stretch.batches.windows.sizes
    for part in evidence.data.dataset.parts:
        due = sum((len(shard) - 1) // seq_len for shard in part.train.shards)
        if part.name not in sizes or sizes[part.name] == due:
            continue
        ratio = sizes[part.name] / due
        text = f"an epoch of {part.name} has {sizes[part.name]} windows of {seq_len} tokens; end to end its "
        text += f"{part.train.n_tokens:,} tokens make {due}: "
        text += f"tokens are read {ratio:.3g} times in an epoch" if ratio > 1 else f"{1 - ratio:.0%} are never read"
        knob = "begin a window where the one before ends"
        over = max(ratio, 1 / max(ratio, 1e-9))
        cause = "repeated_batches" if ratio > 1 else "tokens_lost"
        return [judged, make_verdict(cause, "test", over, text, knob, "data/batches/batches.py")]
    return [judged]


def _order(evidence: Evidence, stretch: Stretch) -> Findings:
    assert evidence.data is not None
    exists = present(stretch.numbers)
    numbers, rows = stretch.numbers[exists], stretch.read[exists]
    step = np.broadcast_to(stretch.steps[:, None], exists.shape)[exists]
    jumps = np.concatenate([[0], np.cumsum(np.diff(stretch.steps) != 1)])  # between blocks places are not neighbours
    at = np.arange(len(numbers)) + np.repeat(jumps * 2, exists.sum(axis=1))
    stages = [stage.step for stage in mixture_text.parse_mixture(evidence.values["data.mixture"])]
    stage = np.searchsorted(stages[1:], step, side="right") if len(stages) > 1 else np.zeros(len(step), int)
    source = np.searchsorted(np.cumsum(list(stretch.batches.windows.sizes.values())), numbers, side="right")
    found: list[Finding] = []
    judged = False
    for group in np.unique(np.stack([stage, source]), axis=1).T:
        inside = (stage == group[0]) & (source == group[1])
        if len(np.unique(numbers[inside])) < LEAST_VALUES:
            continue
        whole = inside.all()
        places = at[inside] if whole else np.arange(inside.sum())
        described = {"place in the corpus": numbers[inside]}
        described |= describe_rows(rows[inside], evidence.data.dataset.separator)
        judged = True
        for name, values in described.items():
            found += find_orders(values, places, name)
    if not judged:
        return [Gap("not_shuffled", "fewer than 16 windows were read", "more data")]
    if not found:
        declared = "; a mixture's stages are declared" if len(stages) > 1 else ""
        return [Judged(ORDER + declared)]
    strongest = sorted(found, key=lambda each: -each.over)
    text = "the rows are not in a shuffled order: " + "; ".join(each.text for each in strongest[:2])
    span = int(stretch.steps[0]) + 1, int(stretch.steps[-1]) + 1
    knob = "shuffle the windows; an order that is meant is declared by the stages of data.mixture"
    confirm = f"scalelab diagnose {evidence.quoted} --batch=STEP shows the rows of a step"
    return [Judged(ORDER), make_verdict("not_shuffled", "test", 1 + strongest[0].over, text, knob, confirm, span)]


class Places(NamedTuple):
    """Windows of one source as they were read [n]: their epochs, their places within it, their numbers; and how many
    windows an epoch has.
    """

    epoch: np.ndarray
    place: np.ndarray
    number: np.ndarray
    n_windows: int

    def count_repeats(self) -> int:
        """Windows that were read before in their epoch."""
        return len(self.number) - len(np.unique(np.stack([self.epoch, self.number]), axis=1).T)

    def expected_repeats(self) -> tuple[float, float]:
        """(mean, variance) of `count_repeats` if each window were drawn from all of the epoch: of the boxes that n
        balls leave empty (Feller 1968, IV.2).
        """
        n, size = np.unique(self.epoch, return_counts=True)[1].astype(float), float(max(self.n_windows, 1))
        one, two = (1 - 1 / size) ** n, max(1 - 2 / size, 0.0) ** n
        return float(np.sum(n - size * (1 - one))), float(
            np.sum(size * (size - 1) * two + size * one - (size * one) ** 2)
        )


def _places(stretch: Stretch) -> list[Places]:
    """Where the windows of each source stand in its epochs."""
    batches, seq_len = stretch.batches, stretch.due.shape[2] - 1
    ends = np.cumsum(list(batches.windows.sizes.values()))
    names = list(batches.windows.sizes)
    epochs = {name: tokens // seq_len for name, tokens in batches.unique_tokens.items()}
    seen: dict[str, list[tuple[np.ndarray, ...]]] = {name: [] for name in names}
    for step, numbers in zip(stretch.steps.tolist(), stretch.numbers, strict=True):
        before, numbers = batches.rows_by_source(step), numbers[present(numbers)]
        source = np.searchsorted(ends, numbers, side="right")
        for i, name in enumerate(names):
            mine = numbers[source == i]
            seen[name].append((*np.divmod(before[name] + np.arange(len(mine)), max(epochs[name], 1)), mine))
    joined = {name: [np.concatenate(each) for each in zip(*parts, strict=True)] for name, parts in seen.items()}
    return [Places(epoch, place, number, epochs[name]) for name, (epoch, place, number) in joined.items()]


def judge_repeats(sources: Sequence[Places]) -> Findings:
    """Judge windows that are due twice within one epoch of their source, so that others are due never.

    Drawn with replacement, as some do on purpose, they repeat as often as chance has it: no more, no less.
    """
    total, twice = (sum(each) for each in zip(*((len(s.number), s.count_repeats()) for s in sources), strict=True))
    if not twice:
        return [Judged(IN_AN_EPOCH)]
    mean, variance = (sum(each) for each in zip(*(s.expected_repeats() for s in sources), strict=True))
    sigmas = abs(twice - mean) / max(variance, 1.0) ** 0.5
    if sigmas <= CHANCE:
        return [Judged(f"{IN_AN_EPOCH}: {twice} of {total}, as many as draws with replacement give")]
    text = f"{twice} of {total} windows read were read before in the same epoch, while others of it come never"
    text += f" (drawn by chance from all {sum(s.n_windows for s in sources)} it were {mean:.3g})"
    knob = "give each window of an epoch one place: a permutation, not draws"
    confirm = "data/batches/order.py"
    return [make_verdict("repeated_batches", "test", np.inf, text, knob, confirm)]


def _same_order(sources: Sequence[Places]) -> Findings:
    """Judge epochs of a source that come in the order of the one before: their batches are the same ones again."""
    judged = [Judged("another order in each epoch")] if any(each.epoch.any() for each in sources) else []
    for each in sources:
        at = dict(zip(zip(each.epoch.tolist(), each.place.tolist(), strict=True), each.number.tolist(), strict=True))
        pairs = [(at[key], at[key[0] + 1, key[1]]) for key in at if (key[0] + 1, key[1]) in at]
        equal = sum(first == second for first, second in pairs)
        if len({first for first, _ in pairs}) < LEAST_VALUES or equal < SAME_PLACES * len(pairs):
            continue
        text = (
            f"{equal} of {len(pairs)} windows stand at the same place in two epochs that follow each other: each pass "
        )
        text += "reads the same batches in the same order"
        knob = "shuffle each epoch anew: the number of the epoch belongs to the seed of its order"
        confirm = "data/batches/order.py"
        return [
            *judged,
            make_verdict("repeated_batches", "test", equal / (SAME_PLACES * len(pairs)), text, knob, confirm),
        ]
    return judged


def _sizes(evidence: Evidence, stretch: Stretch) -> Findings:
    """Judge the tokens of steps against the config's batch, ramp and length."""
    chosen = np.unique(np.linspace(0, len(stretch.steps) - 1, min(CHECKED, len(stretch.steps))).astype(int))
    seq_len, config = stretch.due.shape[2] - 1, evidence.config
    for i in chosen:
        step = int(stretch.steps[i])
        due = schedule_steps.tokens_before(config, step + 1) - schedule_steps.tokens_before(config, step)
        read = int((stretch.read[i] != NO_WINDOW).any(axis=1).sum()) * seq_len
        if read != due and (stretch.read[i] == stretch.due[i]).all():
            text = f"step {step + 1} reads {read:,} tokens, batch, ramp and length of the config make {due:,}"
            knob = "train.global_batch, schedule.batch_start and model.seq_len as the data are read"
            confirm = f"scalelab schedule {evidence.quoted}"
            return [make_verdict("tokens_per_step", "test", np.inf, text, knob, confirm, (step + 1, step + 1))]
    return [Judged("tokens a step")]
