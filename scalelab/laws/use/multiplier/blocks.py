"""Blocking factors: what both sides share and what varies within a budget (a width, a data ratio), and pairs within it.

Widths at one budget are not seeds: their losses differ by design. A variant is compared with the baseline at the same
width, and what scatters is the difference, not the loss. The differences are then applied to the baseline's loss at its
best width, where a budget is spent: m is what they are worth in compute there.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from scalelab.laws.use.multiplier.cells import Cell, Pair, Surface, geometric_mean

BLOCKS_AT_RANDOM = 3  # from so many blocks on, the difference's scatter between blocks is its error
UNLIKE = 0.1  # p below which two blocks are said to differ in what the change is worth
LEAST_CELLS = 6  # of the baseline, for a law in N and D: five numbers and one to spare
LEAST_VALUES = 3  # of N and of D, each
LEAST_SPREAD = 0.1  # s.d. of log N about its line over log C: a ladder along one line tells of no surface
Losses = Mapping[str, Mapping[str, float]]  # by block and seed
Split = Mapping[str, Cell]  # the cells of one side at one budget, by block
Sides = tuple[dict[str, float], dict[str, float]]  # losses of baseline and variant at one budget, by label


def pair_blocks(name: str, one: Sequence[Split], other: Sequence[Split]) -> Pair:
    """The pair of a variant whose runs differ by a block within a budget; `one` and `other` [R]: cells by block.

    Runs are paired by block and seed where both sides have the same seeds in every block, else by block (the mean of
    its seeds).
    """
    ones, others = ([{block: cell.losses for block, cell in rung.items()} for rung in side] for side in (one, other))
    both = [(a[block], b[block]) for a, b in zip(ones, others, strict=True) for block in shared_blocks(a, b)]
    by_seed = all(a.keys() == b.keys() for a, b in both)
    levels, best = reference_levels(ones)
    blocks: dict[str, str] = {}
    cells = []
    for i, (a, b) in enumerate(zip(ones, others, strict=True)):
        folded, labels = fold_blocks(a, b, levels[i], by_seed)
        cells.append(_fold_rung(one[i], other[i], best[i], levels[i], folded))
        blocks |= labels
    baseline, variant = tuple(a for a, _ in cells), tuple(b for _, b in cells)
    p = _equal_blocks(cells, blocks)
    sampled = len(set(blocks.values())) >= BLOCKS_AT_RANDOM or p is None or p < UNLIKE
    notes = [_describe_pairs(name, baseline, ones, others, best), _describe_error(blocks, p)]
    if (surface := read_surface(one)) is not None:
        notes.append(
            f"the law of the baseline is that of E + A N^-alpha + B D^-beta through its {len(surface.losses)} cells, "
            "at the best N of each budget, unless --fix gives its alpha"
        )
    return Pair(name, baseline, variant, True, blocks, sampled, surface, notes=tuple(notes))


def shared_blocks(one: Losses, other: Losses) -> list[str]:
    """The blocks in which both sides have a finished run."""
    return [block for block in one if one[block] and other.get(block)]


def is_numeric(labels: Sequence[str]) -> bool:
    """Whether all labels `column=value, …` hold numbers: then one of them is best at a budget, and a mean is not."""
    try:
        return all(math.isfinite(float(part.rpartition("=")[2])) for label in labels for part in label.split(", "))
    except ValueError:
        return False


def reference_levels(rungs: Sequence[Losses]) -> tuple[list[float], list[str]]:
    """(the baseline's loss at each rung that its law goes through, the block that it is of; "": a mean of blocks).

    Where blocks are numbers (widths, ratios), the best block at that budget: those who train choose it. Where they are
    words (data sets), the mean over the blocks that all rungs have. nan where a rung has none.
    """
    means = [{block: _mean(losses) for block, losses in rung.items() if losses} for rung in rungs]
    ended = [each for each in means if each]
    common = set.intersection(*map(set, ended)) if ended else set()
    if common and not is_numeric([block for each in means for block in each]):
        return [_mean({b: each[b] for b in common}) if each else math.nan for each in means], ["" for _ in means]
    best = [min(each, key=lambda block, each=each: each[block]) if each else "" for each in means]  # type: ignore[misc]
    return [each[block] if each else math.nan for each, block in zip(means, best, strict=True)], best


def fold_blocks(one: Losses, other: Losses, level: float, by_seed: bool) -> tuple[Sides, dict[str, str]]:
    """(a rung's losses on both sides, the block of each label), with each block's baseline moved to `level`.

    What the sides differ by within a block stays, what blocks differ by is gone. A label is a block and a seed, or a
    block alone.
    """
    sides: Sides = ({}, {})
    labels: dict[str, str] = {}
    for block in shared_blocks(one, other):
        middle = _mean(one[block])
        for out, losses in zip(sides, (one[block], other[block]), strict=True):
            runs = losses if by_seed and len(losses) > 1 else {"": _mean(losses)}
            moved = {f"{block} / {seed}" if seed else block: level * loss / middle for seed, loss in runs.items()}
            out.update(moved)
            labels |= dict.fromkeys(moved, block)
    return sides, labels


def _fold_rung(one: Split, other: Split, best: str, level: float, folded: Sides) -> tuple[Cell, Cell]:
    """Both sides' cells at one rung: FLOPs and tokens at the baseline's best block, apart as they are within blocks."""
    both = shared_blocks(*({block: cell.losses for block, cell in side.items()} for side in (one, other)))
    bases = [one[best]] if best else list(one.values())
    flops, tokens = (_moved(one, other, both, bases, key) for key in ("flops", "tokens"))
    rates = [{block: side[block].rate for block in both} for side in (one, other)]
    known = all(rate is not None for each in rates for rate in each.values())
    # Where nothing is shared, the baseline's level still tells of its law.
    losses = (folded[0] or ({} if math.isnan(level) else {best or "mean": level}), folded[1])
    cells = [
        Cell(
            losses[i],
            sum(cell.diverged for cell in side.values()),
            flops[i] or 0.0,
            tokens[i],
            {b: float(rate) for b, rate in rates[i].items() if rate} if known else {},
            sum(cell.runs for cell in bases),
        )
        for i, side in enumerate((one, other))
    ]
    return cells[0], cells[1]


def _moved(
    one: Split, other: Split, both: Sequence[str], bases: Sequence[Cell], key: str
) -> tuple[float | None, float | None]:
    """(the baseline's mean over `bases` of FLOPs or tokens, and the variant's: as far off as within blocks)."""
    base = geometric_mean([getattr(cell, key) for cell in bases])
    sides = [geometric_mean([getattr(side[block], key) for block in both]) for side in (one, other)]
    if base is None or None in sides:
        return base, base if key == "flops" else None
    return base, base * float(sides[1] or 0) / float(sides[0] or 1)


def read_surface(rungs: Sequence[Split]) -> Surface | None:
    """The baseline's cells for a law in N and D; None where N is not known, or N and D do not vary each on its own.

    A table without tokens counts D as C / 6N.
    """
    cells = [cell for rung in rungs for cell in rung.values() if cell.losses]
    if len(cells) < LEAST_CELLS or not all(cell.params for cell in cells):
        return None
    flops, params = (np.array([getattr(cell, key) for cell in cells], float) for key in ("flops", "params"))
    counted = all(cell.tokens for cell in cells)
    tokens = np.array([cell.tokens for cell in cells], float) if counted else flops / (6 * params)
    distinct = [len({f"{value:.2g}" for value in values}) for values in (params, tokens)]
    x, y = np.log(flops), np.log(params)
    off = y - np.polyval(np.polyfit(x, y, 1), x) if np.ptp(x) > 0 else y - y.mean()
    if min(distinct) < LEAST_VALUES or off.std() < LEAST_SPREAD:
        return None
    factor = float(np.exp(np.log(flops / (params * tokens)).mean()))
    runs = np.array([cell.runs for cell in cells], float)
    return Surface(params, tokens, np.array([cell.mean for cell in cells]), runs, factor)


def _describe_pairs(
    name: str, baseline: Sequence[Cell], ones: Sequence[Losses], others: Sequence[Losses], best: Sequence[str]
) -> str:
    """Each side's best rows, which do not decide, and in how many cells the variant is better."""
    gaps = [
        _mean(other[block]) < _mean(one[block])
        for one, other in zip(ones, others, strict=True)
        for block in shared_blocks(one, other)
    ]
    rows = [
        f"at {cell.flops:.3g} {min(map(_mean, filter(None, one.values()))):.4f} and "
        f"{min(map(_mean, filter(None, other.values()))):.4f}"
        for cell, one, other in zip(baseline, ones, others, strict=True)
        if any(one.values()) and any(other.values())
    ]
    level = "the baseline's best block" if any(best) else "the mean of the blocks that all budgets have"
    return (
        f"{name} has the lower loss in {sum(gaps)} of {len(gaps)} cells; the verdict is on the mean of pairs within a "
        f"block, as a change of the loss of {level}; what does not decide, the best of each side whatever its block: "
        f"{', '.join(rows)}"
    )


def _equal_blocks(cells: Sequence[tuple[Cell, Cell]], blocks: Mapping[str, str]) -> float | None:
    """P(the change is worth so unlike amounts in the blocks of a budget | it is worth one amount): F test over seeds.

    None where no block has seeds to test it with.
    """
    between = within = 0.0
    df_between = df_within = 0
    for one, other in cells:
        gaps: dict[str, list[float]] = {}
        for label in other.losses:
            gaps.setdefault(blocks[label], []).append(math.log(other.losses[label] / one.losses[label]))
        if not gaps:
            continue
        every = np.concatenate([np.array(each) for each in gaps.values()])
        inside = sum(float(((np.array(each) - np.mean(each)) ** 2).sum()) for each in gaps.values())
        within, between = within + inside, between + float(((every - every.mean()) ** 2).sum()) - inside
        df_within, df_between = df_within + len(every) - len(gaps), df_between + len(gaps) - 1
    if not (df_within and df_between and within > 0):
        return None
    return float(special.fdtrc(df_between, df_within, max(between, 0.0) / df_between / (within / df_within)))


def _describe_error(labels: Mapping[str, str], p: float | None) -> str:
    """What the interval holds of differences between blocks; `p`: of the test that there are none beyond seeds."""
    count = len(set(labels.values()))
    tested = "" if p is None else f" (p {p:.2g} that blocks differ only as seeds do)"
    if count >= BLOCKS_AT_RANDOM or p is None:
        return f"{count} blocks: the interval holds that the change is worth more in one than in another{tested}"
    if p < UNLIKE:
        return f"{count} blocks in which the change is not worth the same: the interval holds that{tested}"
    return f"{count} blocks: the answer is for the mean of these, and the error is that of seeds within them{tested}"


def _mean(losses: Mapping[str, float]) -> float:
    """The geometric mean."""
    return math.exp(float(np.mean(np.log(list(losses.values())))))
