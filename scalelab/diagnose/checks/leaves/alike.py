"""Judge copies: leaves of equal numbers, and layers, or experts of a layer, that began as one and are still alike.

Matrices of n numbers drawn at random have a correlation of 1 / sqrt(n), and training brings none together: healthy runs
stay below 0.25 (from a start of 0.006 too), layers that began as one are at 0.7 to 0.95 after 160 steps.
"""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from scalelab.diagnose.checks.leaves.moved import join_names
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import SavedStep, head_slices, layer_slices, parameter_kind, read_saved_steps
from scalelab.diagnose.verdict import Findings, Gap, Judged, asks, make_verdict

DISTINCT = "no two leaves are copies of each other"
COPIES = 16  # numbers of a leaf below which equal ones may be chance
ALIKE = 0.5  # correlation of two matrices
LEAST, MOST = 64, 2**16  # numbers of a matrix: of fewer a correlation says little; the first so many are compared
SHARE = 0.5  # of the kinds of matrices that two layers share: one alone may begin at zero, and grow along one gradient


@asks("no two layers or experts began as copies")
def check_alike(evidence: Evidence) -> Findings | None:
    """Judge layers whose matrices are alike at the first saved step, unless they come from other weights."""
    saved, why = read_saved_steps(evidence)
    if evidence.values["train.init_from"] or evidence.values["train.branch_from"]:
        return None  # a model that was deepened, or experts made of one MLP
    if not saved:
        return [Gap("leaves_identical", why, "checkpoint.every_steps")]
    found = {pair: sizes for pair, sizes in _correlations(saved[0]).items() if np.mean(sizes > ALIKE) >= SHARE}
    if not found:
        return []
    (one, other), sizes = max(found.items(), key=lambda item: float(np.median(item[1])))
    text = f"{one} and {other} are alike at step {saved[0].step}: the numbers of their matrices have correlations of "
    text += f"{sizes.min():.2g} to {sizes.max():.2g}, where those drawn apart have 0"
    rest = [f"{a} and {b}" for a, b in found if (a, b) != (one, other)]
    text += f"; so are {join_names(rest)}" if rest else ""
    text += ": they began as identical copies of one"
    knob = "draw the weights of each layer (expert) with a key of its own, not one key or one copied module"
    confirm = "scalelab diagnose on a run that is saved at its first steps: the correlation is then nearer to 1"
    over, where = float(np.median(sizes)) / ALIKE, (saved[0].step,) * 2
    return [make_verdict("leaves_identical", "test", over, text, knob, confirm, where)]


def _correlations(saved: SavedStep) -> dict[tuple[str, str], np.ndarray]:
    """{pair of layers, or of experts of a layer: correlations of their matrices of one kind}."""
    kinds: dict[str, dict[str, np.ndarray]] = {}
    for place, kind, x in _matrices(saved):
        kinds.setdefault(kind, {})[place] = x
    pairs: dict[tuple[str, str], list[float]] = {}
    for by_place in kinds.values():
        for (one, x), (other, y) in itertools.combinations(by_place.items(), 2):
            if x.shape == y.shape and _beside(one, other):
                size = float(np.linalg.norm(x) * np.linalg.norm(y))
                pairs.setdefault((one, other), []).append(float(x @ y) / size if size else 0.0)
    return {pair: np.array(values) for pair, values in pairs.items()}


def _beside(one: str, other: str) -> bool:
    """Whether two places are layers, or experts of the same layer."""
    return one.partition(" expert ")[0] == other.partition(" expert ")[0] if " expert " in one else True


def _matrices(saved: SavedStep) -> Iterator[tuple[str, str, np.ndarray]]:
    """(place, kind, numbers) of the hidden matrices of each layer; those of experts by expert."""
    for name, stacked in saved.params.items():
        if parameter_kind(name) != "hidden" or not name.endswith(".w"):
            continue
        for part, x in layer_slices(name, stacked):
            group, layer, *rest = part.split("/")
            kind, place = ".".join(rest), f"{group}/{layer}"
            if "experts" in rest and x.ndim == 3:
                each = [(f"{place} expert {number}", y) for number, y in enumerate(x)]
            else:
                each = [(place, x)]
            yield from ((where, kind, y.ravel()[:MOST].astype(np.float64)) for where, y in each if y.size >= LEAST)


def check_copies(evidence: Evidence) -> Findings:
    """Judge leaves, layers or heads that hold the same numbers: one of them is not trained by itself."""
    saved, why = read_saved_steps(evidence)
    if not saved:
        return [Gap("leaves_identical", why, "checkpoint.every_steps")]
    last = saved[-1]
    by_content: dict[tuple[str, tuple[int, ...], bytes], list[str]] = {}
    for part, x in _list_parts(last.params):
        if x.size >= COPIES and np.any(x != x.flat[0]):
            by_content.setdefault((_role(part), x.shape, np.ascontiguousarray(x).tobytes()), []).append(part)
    copies = [parts for parts in by_content.values() if len(parts) > 1]
    if not copies:
        return [Judged(DISTINCT)]
    text = "; ".join(f"{join_names(parts)} hold the same numbers" for parts in copies[:2]) + f" at step {last.step}"
    knob = (
        f"train {copies[0][0]} and {copies[0][1]} apart, or declare one parameter (model.tied_head, one in the block)"
    )
    confirm = "scalelab checkpoint verify, and the code that initialises or updates them"
    where = last.step, last.step
    return [make_verdict("leaves_identical", "test", np.inf, text, knob, confirm, where), Judged(DISTINCT)]


def _role(part: str) -> str:
    """Where a gain or bias stands in its layer, and "" of weights that were drawn.

    All biases begin at zero, so those that are added at one place (of attention and MLP in parallel) stay equal.
    """
    return "/".join(part.split("/")[2:]) or part if part.endswith(("/b", "/g")) else ""


def _list_parts(params: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for name, x in params.items():
        for part, y in layer_slices(name, x.T if name == "head.w" else x):
            yield part, y
            yield from head_slices(part, y)


CHECKS = (check_copies, check_alike)
