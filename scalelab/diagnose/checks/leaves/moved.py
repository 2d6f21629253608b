"""Judge by the weights of two saved steps whether each leaf, head and row of the embedding moved between them.

What the optimizer does without a gradient, decay, multiplies a whole leaf by one number, so `saved.movement` leaves
that out.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import (
    SavedStep,
    head_slices,
    layer_slices,
    movement,
    movements,
    parameter_kind,
    read_saved_steps,
)
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.precision.policy import POLICIES

ASKED = "every leaf, head and row of the embedding moves"
HALF_ULP = 2.0**-24  # relative rounding error of a number in fp32
SLOW = 300.0  # a leaf may move by so much less than the one that moves most; it is judged if rounding hides no more
OCCURRENCES = 8  # of a token between two saved steps, below which its row is not judged
MOST_BATCHES = 64  # batches before the second step that are read for tokens that occur
# Optimizers whose updates have one size for all matrices, whatever the gradients: here within a factor of 4 of the
# median over 60 steps; a sum of steps in one direction is sqrt(steps) times that of as many at random.
ONE_SIZE = ("adam", "adamw", "nadamw", "ademamix", "adam8bit", "lion", "muon")
SCALE = 50.0
LARGE_EPS = 1e-6
FEW_MATRICES = 6
VANISHED = 0.01  # of optim.eps: a leaf whose gradient has a smaller norm is hardly moved by it
LISTED = 4  # names in a line of evidence


class Moved(NamedTuple):
    """One layer's part of a parameter: its movement (`movements`), and the RMS of its numbers."""

    name: str
    part: str
    distance: float
    rms: float

    @property
    def size(self) -> float:
        """RMS of the movement."""
        return self.distance * self.rms


class Stretch(NamedTuple):
    """Two saved steps with updates between them, and the relative error that rounding leaves after so many."""

    before: SavedStep
    after: SavedStep
    rounding: float


def check_moved(evidence: Evidence) -> Findings:
    """Judge leaves, heads and rows that are what they were, though the run took steps at an LR above zero."""
    saved, why = read_saved_steps(evidence)
    stretches = find_stretches(evidence, saved)
    if not stretches:
        why = why or "fewer than two saved steps with an LR above zero between them"
        return [Gap("leaf_stuck", why, "checkpoint.keep_last=2 and two saves, or --live")]
    if rounds_away(evidence):
        return []  # rounded.py
    verdicts = [verdict for stretch in stretches for verdict in _judge_stretch(evidence, stretch)]
    return [*verdicts, Judged(ASKED)]


def rounds_away(evidence: Evidence) -> bool:
    """Whether weights are stored in a format that rounds small updates away."""
    policy = POLICIES[evidence.values["precision.name"]]
    return policy.parameters != "float32" and policy.rounding == "nearest"


def find_stretches(evidence: Evidence, saved: list[SavedStep]) -> list[Stretch]:
    """Find pairs of saved steps, one after the other, with updates at an LR above zero between them."""
    lr, stretches = evidence.series("lr").finite(), []
    for before, after in itertools.pairwise(saved):
        steps, rates = after.accepted - before.accepted, lr.after(before.step).until(after.step).values
        if steps > 0 and len(rates) and rates.max() > 0:
            stretches.append(Stretch(before, after, 2 * HALF_ULP * (2 + 3 * steps**0.5)))
    return stretches


def declared_frozen(evidence: Evidence, name: str) -> bool:
    """Whether the config says that a parameter stands still: its group's LR multiplier is 0."""
    return parse_group_multipliers(str(evidence.values["optim.groups"])).get(parameter_kind(name), 1.0) == 0.0


def _has_no_gradient(evidence: Evidence, name: str) -> bool:
    """Whether a parameter's gradient is zero by mathematics: a bias of all keys adds the same to each logit of a row.

    Under RoPE it does not.
    """
    return name.endswith("attention.k.b") and evidence.values["model.position"] != "rope"


def compare_slices(evidence: Evidence, stretch: Stretch) -> Iterator[Moved]:
    """Compare each layer's part of each parameter that may move."""
    old, new = stretch.before.params, stretch.after.params
    for name in new:
        if name not in old or declared_frozen(evidence, name) or _has_no_gradient(evidence, name):
            continue
        for (part, x), (_, y) in zip(layer_slices(name, old[name]), layer_slices(name, new[name]), strict=True):
            yield Moved(name, part, movement(name, x, y), float(np.sqrt(np.mean(np.square(y, dtype=np.float64)))))


def find_stuck(moved: Sequence[Moved], rounding: float) -> list[Moved]:
    """Find those that moved by no more than rounding, where rounding is below 1 / SLOW of the largest movement."""
    largest = max((m.size for m in moved), default=0.0)
    return [m for m in moved if m.distance <= rounding and rounding * m.rms < largest / SLOW]


def _judge_stretch(evidence: Evidence, stretch: Stretch) -> list[Verdict | Gap]:
    moved = list(compare_slices(evidence, stretch))
    if moved and not any(m.distance for m in moved):
        return [_stuck(stretch, "leaf_stuck", ["all leaves"], "let the update reach the weights")]
    still = find_stuck(moved, stretch.rounding)
    faint = {m.part: norm for m in still if (norm := _faint_gradient(evidence, stretch, m))}
    stuck = [m for m in still if m.part not in faint]
    names = {m.part for m in stuck}
    verdicts: list[Verdict | Gap] = [_stuck_leaves(stretch, stuck)] if stuck else []
    if faint:
        verdicts.append(
            gap_of_faint_gradients(faint, f"between the saved steps {stretch.before.step} and {stretch.after.step}")
        )
    heads = [head for head in _stuck_heads(stretch) if head.partition("[")[0] not in names]
    if heads:
        verdicts.append(_stuck(stretch, "head_stuck", heads, "let gradient and update reach every head"))
    if stuck:
        return verdicts
    return [*verdicts, *_stuck_rows(evidence, stretch), *_out_of_scale(evidence, stretch, moved)]


def _out_of_scale(evidence: Evidence, stretch: Stretch, moved: Sequence[Moved]) -> list[Verdict]:
    """Judge matrices of layers that moved far less or more than the median one, under updates of one size for all."""
    v = evidence.values
    one_size = v["optim.name"] in ONE_SIZE and v["parametrization.name"] == "standard" and not v["optim.groups"]
    matrices = [m for m in moved if parameter_kind(m.name) == "hidden" and m.name.endswith(".w")]
    if not one_size or float(v["optim.eps"] or 0.0) > LARGE_EPS or len(matrices) < FEW_MATRICES:
        return []
    usual = float(np.median([m.size for m in matrices]))
    unlike = [m for m in matrices if not usual / SCALE < m.size < usual * SCALE]
    if not unlike:
        return []
    worst = max(unlike, key=lambda m: abs(np.log(m.size / usual)))
    text = f"{join_names([m.part for m in unlike])}: between steps {stretch.before.step} and {stretch.after.step} the "
    text += f"numbers of {worst.part} moved by {worst.size:.2g} (RMS), those of the median matrix by {usual:.2g}; "
    text += f"{v['optim.name']} moves all by about its LR"
    knob = f"give {worst.part} the LR of the others (a factor in the optimizer's chain), or declare it (optim.groups)"
    confirm = "scalelab diagnose RUN --live compares a step with the optimizer by hand"
    over, where = max(worst.size / usual, usual / worst.size) / SCALE, (stretch.before.step, stretch.after.step)
    return [make_verdict("leaf_out_of_scale", "signature", over, text, knob, confirm, where)]


def _stuck(stretch: Stretch, cause: str, names: list[str], knob: str, more: str = "") -> Verdict:
    before, after = stretch.before.step, stretch.after.step
    text = f"{join_names(names)}: unchanged but for decay between the saved steps {before} and {after}{more}"
    confirm = "scalelab diagnose RUN --live measures its gradient and its update"
    return make_verdict(cause, "test", np.inf, text, knob, confirm, (before, after))


def join_names(names: list[str]) -> str:
    """Join some names, and say how many more there are."""
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _stuck_leaves(stretch: Stretch, stuck: list[Moved]) -> Verdict:
    part, moments = stuck[0].part, find_moments(stretch.after, stuck[0].name, stuck[0].part)
    if not moments:
        more, knob = "", f"let gradient and update reach {part}, or declare it frozen (optim.groups, --accept)"
    elif any(np.any(x) for x in moments.values()):
        more = "; its moments are not zero, so it has a gradient, and the update is left out"
        knob = f"let the optimizer's update reach {part} (a mask, or a factor of 0), or declare it frozen"
    else:
        more = "; its moments are zero, so its gradient is"
        knob = f"let the gradient reach {part} (a stop_gradient, or it is not used), or declare it frozen"
    return _stuck(stretch, "leaf_stuck", [m.part for m in stuck], knob, more)


def find_moments(saved: SavedStep, name: str, part: str) -> dict[str, np.ndarray]:
    """The arrays of the optimizer's state that belong to one layer's part of a parameter, by their own names."""
    shape, result = saved.params[name].shape, {}
    for key, x in saved.part("opt_state").items():
        if key.endswith(f".{name}") and x.shape == shape:
            result[key] = dict(layer_slices(name, x))[part]
    return result


def _faint_gradient(evidence: Evidence, stretch: Stretch, moved: Moved) -> float:
    """The norm of a leaf's average gradient if it is so far below eps that no update comes of it; else 0."""
    moments = find_moments(stretch.after, moved.name, moved.part)
    first = [float(np.linalg.norm(x.astype(np.float64))) for key, x in moments.items() if ".mu." in f".{key}"]
    least = VANISHED * float(evidence.values["optim.eps"] or 0.0)
    return next((norm for norm in first if norm < least), 0.0)


def gap_of_faint_gradients(norms: Mapping[str, float], when: str) -> Gap:
    """Say which leaves stood still since hardly any gradient reached them, as behind weights that decayed away."""
    least = min(norms.values())
    why = f"{join_names(list(norms))}: the gradient (norm {least:.2g}) is far below optim.eps, and does not move it "
    return Gap("leaf_stuck", why + when, "an earlier checkpoint")


def _stuck_heads(stretch: Stretch) -> list[str]:
    old, new, stuck = stretch.before.params, stretch.after.params, []
    for name in new:
        if name not in old:
            continue
        for (part, x), (_, y) in zip(layer_slices(name, old[name]), layer_slices(name, new[name]), strict=True):
            pairs = zip(head_slices(part, x), head_slices(part, y), strict=True)
            moves = {head: movement(name, a, b) for (head, a), (_, b) in pairs}
            if max(moves.values(), default=0.0) > SLOW * stretch.rounding:
                stuck += [head for head, distance in moves.items() if distance <= stretch.rounding]
    return stuck


def _stuck_rows(evidence: Evidence, stretch: Stretch) -> list[Verdict]:
    """Judge rows of embedding and learned positions that occur as inputs, and columns of the head."""
    old, new, verdicts = stretch.before.params, stretch.after.params, []
    tables: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, str]] = {
        "embed.w": (lambda x: x, "rows", "token"),
        "positions.w": (lambda x: x, "rows", "position"),
        "head.w": (np.transpose, "columns", "token"),
    }
    for name, (rows, what, of) in tables.items():
        if name not in new or declared_frozen(evidence, name):
            continue
        distance = movements(rows(old[name]), rows(new[name]), decays=True)
        count = _count_tokens if of == "token" else _count_positions
        times = count(evidence, stretch, len(distance), targets=name == "head.w")
        judged = times >= OCCURRENCES
        if judged.sum() < 2 or distance[judged].max() <= SLOW * stretch.rounding:
            continue
        still = np.flatnonzero(judged & (distance <= stretch.rounding))
        if len(still):
            part = name.replace(".", "/")
            names = [f"{part}[{of} {number}]" for number in still]
            more = f"; {len(still)} of the {judged.sum()} {what} whose {of} occurs {OCCURRENCES} times or more"
            verdicts.append(_stuck(stretch, "rows_stuck", names, f"let the update reach all {what} of {part}", more))
    return verdicts


def _count_positions(evidence: Evidence, stretch: Stretch, rows: int, targets: bool) -> np.ndarray:
    """How often each position occurs between two saved steps: in each row of each batch; zeros where that varies."""
    v = evidence.values
    if v["schedule.seq_start"] or v["data.documents"] == "mask" or targets:
        return np.zeros(rows, np.int64)
    steps = stretch.after.accepted - stretch.before.accepted
    return np.full(rows, steps * int(v["train.global_batch"]), np.int64)


def _count_tokens(evidence: Evidence, stretch: Stretch, rows: int, targets: bool) -> np.ndarray:
    """How often each token was an input (or a target) in the last batches before the second step; zeros if unknown.

    A separator's successor is not predicted where documents are masked, so its own row has no gradient.
    """
    times, data = np.zeros(rows, np.int64), evidence.data
    if data is None or evidence.values["schedule.seq_start"] or evidence.values["log.stretches"]:
        return times
    memory = stretch.after.part("guard")
    if np.any(memory.get("data_shift", 0)) or np.any(memory.get("jumps", -1) >= 0):
        return times
    first = max(stretch.before.step, stretch.after.step - MOST_BATCHES)
    for step in range(first, stretch.after.step):
        batch = np.asarray(data.batches.batch(step))
        tokens = batch[:, 1:] if targets else unmask_ids(batch[:, :-1][batch[:, 1:] >= 0])
        times += np.bincount(tokens[(tokens >= 0) & (tokens < rows)].ravel(), minlength=rows)
    if evidence.values["data.documents"] == "mask":
        separator = int(data.dataset.separator) if data.dataset.separator is not None else -1
        times[separator : separator + 1] = 0
    return times


CHECKS = (check_moved,)
