"""Sentences on how settings were compared: the test, the noise, and sweeps that are a design."""

from scipy import special

from scalelab.numbers.gaps import LEVEL
from scalelab.numbers.shared_noise import Noise
from scalelab.sweep.answer.ranking import BEST, NOT_APART, SweepAnswer
from scalelab.sweep.answer.settings import SweptSetting
from scalelab.sweep.answer.texts import MOST_NAMED, is_number, mean_text, name_setting


def describe_design(answer: SweepAnswer) -> list[str]:
    """Say what the sweep is where runs differ in size or budget, what to run instead, and the best of each."""
    one = len(answer.design) == 1
    names = " and ".join(answer.design)
    numbers = all(is_number(ranked.setting.values[key]) for ranked in answer.settings for key in answer.design)
    mend = (
        f"`scalelab fit DIR` says how the loss falls with {'it' if one else 'them'}"
        if numbers
        else "`scalelab ablate` says whether a change is worth its compute"
    )
    lines = [
        f"{names} change{'s' * one} the size or the compute of a run: {'an axis' if one else 'axes'} of a design, on "
        f"which no value is the best setting; {mend}."
    ]
    best = answer.with_verdict(BEST)
    for setting in best[:MOST_NAMED]:
        where, what = (
            {key: v for key, v in setting.values.items() if (key in answer.design) == (side == 0)} for side in range(2)
        )
        lines.append(
            f"With {name_setting(where)}: best {name_setting(what)}, loss {mean_text(setting)}"
            f"{name_equals(answer, setting)}."
        )
    if len(best) > MOST_NAMED:
        lines.append(f"The best of {len(best) - MOST_NAMED} more are in the table.")
    return lines


def name_equals(answer: SweepAnswer, setting: SweptSetting) -> str:
    """Name the settings with the same losses as this one by the values in which they differ, for a sentence's end."""
    texts = [
        name_setting({key: value for key, value in other.values.items() if value != setting.values[key]})
        for other in answer.equals(setting)
    ]
    return f" (the same losses with {' and with '.join(texts[:MOST_NAMED])})" if texts else ""


def describe_method(answer: SweepAnswer) -> list[str]:
    """Say how the comparison was made, with which noise, and what more seeds would do."""
    noise, gaps = answer.noise, [ranked.gap for ranked in answer.settings if ranked.gap]
    if noise is None or not gaps:
        return ["One seed tells no settings apart: add h.sweep('train.seed', range(3)) to the grid."]
    where = " of its size and budget" if answer.design else ""
    together = f", all {len(gaps)} gaps together" if len(gaps) > 1 else ""
    method = (
        f"The best was picked by its loss: a setting that is as good as the best{where} is called worse in about "
        f"{100 * (1 - LEVEL):.2g} % of such sweeps{together} (closed test of the range)."
    )
    return [method, describe_noise(noise) + _seeds_text(answer)]


def describe_noise(noise: Noise) -> str:
    """The noise of one run in a sentence: how large, from how much, and whether settings are alike in it."""
    blocks = "the effect of each seed set aside" if noise.blocks else "seeds are not shared, so their effects are in it"
    alike = "" if noise.equal is None else f"; equal in all settings: p = {noise.equal:.2g}"
    drawn = "" if noise.common else ", each setting's variance drawn towards the common one"
    return (
        f"Noise of one run: {noise.sd:.2g} nats, {noise.freedom} degree{'s' * (noise.freedom > 1)} of freedom over "
        f"{len(noise.means)} settings ({blocks}{alike}{drawn})."
    )


def _seeds_text(answer: SweepAnswer) -> str:
    """Which gaps these seeds would have shown, and which twice as many would, where a gap was not told apart."""
    gaps = [ranked.gap for ranked in answer.settings if ranked.gap and ranked.verdict == NOT_APART]
    if not gaps or answer.noise is None:
        return ""
    shown = max(gap.mean - gap.low for gap in gaps)
    seeds, freedom = max(len(ranked.setting.losses) for ranked in answer.settings), answer.noise.freedom
    now, then = (special.stdtrit(dof, (1 + LEVEL) / 2) for dof in (freedom, 2 * freedom + len(answer.settings) - 1))
    return (
        f" With {seeds} seed{'s' * (seeds > 1)} a gap is shown from {shown:.2g} nats on, with {2 * seeds} from about "
        f"{shown / 2**0.5 * then / now:.2g}."
    )
