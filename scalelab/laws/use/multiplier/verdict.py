"""The verdict on a variant, by the interval at the target, and notes for readers."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.noise import Noise

LEAST_SLOPE_SHARE = 0.95  # of draws in which the baseline's loss must fall with compute


def judge_target(
    pair: Pair, target: Mapping[str, Any], noise: Noise, falls: float, flops: float, level: float
) -> tuple[str, str]:
    """The verdict and its criterion; `falls`: in which share of draws the baseline's loss falls with compute."""
    criterion = (
        f"adopt if the {level:.0%} interval of the multiplier at {flops:.3g} FLOPs lies above 1, reject if it lies "
        "below 1 or if every run of a rung diverges, else undecided"
    )
    lost = [cell for cell in pair.variant if cell.diverged]
    if dead := [cell for cell in lost if not cell.losses]:
        return f"reject: every run at {dead[0].flops:.3g} FLOPs diverged", criterion
    if any(cell.diverged for cell in pair.baseline):
        return "undecided: runs of the baseline diverged, so it is no ground to stand on", criterion
    if noise.difference_df == 0:
        return "undecided: no interval: one seed", criterion
    if falls < LEAST_SLOPE_SHARE:
        return (
            "undecided: the baseline's loss does not clearly fall with compute: its rungs tell no exchange rate",
            criterion,
        )
    if noise.difference == 0 and target["m"] == 1:
        return "undecided: no difference shown: both sides' losses are equal to the last digit", criterion
    low, high = target["interval90"]
    where = f"{target['m']:.3f} times the compute at {flops:.3g} FLOPs, {level:.0%} in {low:.3f} to {high:.3f}"
    if high < 1:
        return f"reject: {where}", criterion
    if lost:
        number = sum(cell.diverged for cell in lost)
        return f"undecided: {number} runs diverged; the others: {where}", criterion
    if low > 1:
        return f"adopt: {where}", criterion
    return f"undecided: no difference shown: {where}", criterion


def reader_notes(
    pair: Pair, usable: Sequence[int], noise: Noise, target: Mapping[str, Any], fix: Mapping[str, float]
) -> list[str]:
    """Notes on pairing, diverged and missing runs, extrapolation and given values."""
    notes = []
    if pair.paired and noise.correlation is not None and noise.saved is not None:
        notes.append(
            f"paired by seed: correlation {noise.correlation:.2f}; pairing "
            + (f"takes {noise.saved:.0%} off the difference's variance" if noise.saved > 0 else "saves nothing here")
        )
    elif not pair.paired and noise.difference_df:
        notes.append("unpaired: the sides do not have the same seeds at every rung, so their errors add up")
    notes += [
        f"at {cell.flops:.3g} FLOPs {cell.diverged} of {cell.diverged + cell.runs} runs of {name} diverged"
        for name, side in (("the baseline", pair.baseline), (pair.name, pair.variant))
        for cell in side
        if cell.diverged
    ]
    if len(usable) < len(pair.baseline):
        notes.append(
            f"{len(pair.baseline) - len(usable)} rungs have no finished run on one side and are not in the trend"
        )
    if target["beyond"] and target["beyond"] > 1.05:
        notes.append(f"the target is {target['beyond']:.3g} times beyond the largest rung: the trend is extrapolated")
    if len(usable) == 2:
        notes.append("two rungs: their line has nothing to check it")
    notes += [f"{name} was given as {value:g}, not fitted" for name, value in fix.items()]
    return notes
