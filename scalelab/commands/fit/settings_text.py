"""Format best settings and their laws for a person."""

from collections.abc import Mapping

import numpy as np

from scalelab.api.laws.shares import FittedMixture
from scalelab.cli.parser import align_columns
from scalelab.commands.fit.text import format_span
from scalelab.laws.read.points import SAME_VALUE
from scalelab.laws.use.settings import best as best_lib
from scalelab.laws.use.settings.best import BestSettings, SettingGroup
from scalelab.laws.use.settings.law import SettingLaw
from scalelab.laws.use.settings.optima import MISFIT

MOST_GROUPS_SHOWN = 40
EXPONENTS = "pqrstuvw"  # names of exponents, in the order of the law's columns


def describe_best_settings(best: BestSettings, runs: int, n_convention: str) -> list[str]:
    """Format the optimum of every group: how it was found, the table, and each group that is not used as it is."""
    size = f", N: {n_convention}" if "N" in best.per else ""
    what = f"best {' and '.join(best.best_of)} of each {', '.join(best.per)}"
    lines = [
        f"{what}: {runs} runs in {len(best.groups)} groups{size}",
        f"{_surface(best)}; {_window(best)}",
        _noise(best),
    ]
    if best.merged:
        lines.append(f"values of {' and '.join(best.merged)} less than {SAME_VALUE:.0%} apart make one group")
    low = [name for name, p in zip(best.best_of, best.noise.form_p, strict=True) if p * len(best.best_of) < MISFIT]
    if low:
        lines.append(f"WARNING: losses over {' and '.join(low)} do not follow a parabola even near their lowest point")
    return [*lines, "", *_groups(best), *_exceptions(best)]


def _surface(best: BestSettings) -> str:
    if len(best.best_of) == 1:
        return "a quartic in its log" if best.noise.share else "a parabola in its log"
    surfaces = [group.optimum.surface for group in best.groups if group.optimum.surface]
    crossed = sum(each.cross for each in surfaces)
    kind = "with a cross term" if crossed else "separable: too few settings for a cross term"
    if 0 < crossed < len(surfaces):
        kind = f"with a cross term in {crossed} groups, separable in {len(surfaces) - crossed} with too few settings"
    form = "quartic" if best.noise.share else "quadratic"
    return f"a {form} surface in their logs, {kind}"


def _window(best: BestSettings) -> str:
    """Describe which settings the surfaces are fitted to."""
    if best.noise.share:
        return (
            f"a setting counts less the more it loses (half at {1.18 * best.noise.share:.1%} of the loss): the losses "
            "follow no parabola even near their lowest point; what this surface misses is in the errors"
        )
    windows = zip(best.best_of, best.noise.window, strict=True)
    near = [f"{octaves:g} octaves of {name}" for name, octaves in windows if np.isfinite(octaves)]
    if not near:
        return "through all settings"
    return f"through settings within {' and '.join(near)} of the lowest point: farther ones do not follow it"


def _noise(best: BestSettings) -> str:
    noise = best.noise
    if not np.isfinite(noise.sd):
        return (
            "no setting is left over to tell the noise: optima have no error of their own, only scatter about the law"
        )
    source = "residuals and seeds" if any(group.optimum.seeds > 1 for group in best.groups) else "residuals"
    more = "" if noise.seeds_only else "; surfaces miss more than seeds explain, so errors are from what they miss"
    return f"noise of a run: {noise.sd:.2%} of its loss, from {source}{more}"


def _groups(best: BestSettings) -> list[str]:
    titles = [title for name in best.best_of for title in (name, f"{best.level:.0%}")]
    rows = [[*best.per, "runs", "settings", *titles, "loss", "lost at 2x"]]
    for group in best.groups[:MOST_GROUPS_SHOWN]:
        optimum = group.optimum
        cells = [f"{group.values[name]:.4g}" for name in best.per] + [str(optimum.runs), str(optimum.settings)]
        for k, name in enumerate(best.best_of):
            cells += _setting_cells(best, group, k, name)
        if optimum.status == "used" and optimum.value is not None:
            costs = [cost for name in best.best_of if (cost := best.cost_of_factor(group, name)) is not None]
            cells += [f"{np.exp(optimum.value):.4f}", ", ".join(f"{cost:.2%}" for cost in costs)]
        rows.append(cells + ["-"] * (len(rows[0]) - len(cells)))
    more = len(best.groups) - MOST_GROUPS_SHOWN
    return align_columns(rows) + ([f"and {more} more groups (--json)"] if more > 0 else [])


def _setting_cells(best: BestSettings, group: SettingGroup, k: int, name: str) -> list[str]:
    """Format the best value of a group's setting with its interval, or the reason why it has none."""
    optimum = group.optimum
    if optimum.at is None or optimum.status not in ("used", "edge"):
        return ["-", "-"]
    if end := optimum.ends[k]:
        return [f"{'>' if end > 0 else '<'} {np.exp(optimum.tried[k, int(end > 0)]):.4g}", "edge"]
    return [f"{np.exp(optimum.at[k]):.4g}", format_span(best.interval(group, name), 3) or "-"]


def _exceptions(best: BestSettings) -> list[str]:
    """Name the groups at an edge and those without an optimum, with reasons."""
    lines = []
    for group in best.with_status("edge", "flat", "few"):
        name = ", ".join(f"{column} {value:.4g}" for column, value in group.values.items())
        ends = [setting for setting, end in zip(best.best_of, group.optimum.ends, strict=True) if end]
        edge = group.optimum.status == "edge"
        use = f"used as a bound of {' and '.join(ends)}" if edge else "not used"
        lines.append(f"{'edge' if edge else 'left out'}: {name}: {group.optimum.why}; {use}")
    return lines


def describe_setting_law(best: BestSettings, name: str) -> list[str]:
    """Format the law of one setting, or why there is none."""
    if name not in best.laws:
        return ["", f"no law of {name}: {best.refused[name]}"]
    law = best.laws[name]
    rows = [["", "fitted", f"{best.level:.0%}", ""]]
    for letter, column in zip(EXPONENTS, law.columns, strict=False):
        ends = law.interval(column)
        verdict = best_lib.judge_exponent(*ends)
        sure = verdict == "identified"
        value = f"{law.exponents[column]:.4g}" if sure else "-"
        rows.append([letter, value, format_span(ends, 3 if sure else 1), f"{column}: {verdict}"])
    scale, *far = law.scale()
    sure = far[1] < best_lib.FAR * far[0]
    note = "" if sure else "not identified: it is the value where every column is 1, far from all groups"
    rows.append(["c", f"{scale:.3g}" if sure else "-", format_span(far, 3 if sure else 1), note])
    return ["", _heading(best, law), *align_columns(rows), *_middle(law), *_cost(best, name), *_bounds(law)]


def _heading(best: BestSettings, law: SettingLaw) -> str:
    bounds = int((law.side != 0).sum())
    terms = " ".join(f"{column}^{letter}" for letter, column in zip(EXPONENTS, law.columns, strict=False))
    head = f"{law.setting} = c {terms}: {(law.side == 0).sum()} groups" + (
        f" and {bounds} bound{'s' * (bounds > 1)}" if bounds else ""
    )
    if fixed := [column for column in best.over[law.setting] if column not in law.columns]:
        return f"{head}; {' and '.join(fixed)} does not vary among them"
    if others := [column for column in best.per if column not in law.columns]:
        return f"{head}; not of {' and '.join(others)} (--over={law.setting}={'+'.join(best.per)})"
    return head


def _middle(law: SettingLaw) -> list[str]:
    """Describe the law's value in the middle of its groups, where it is known best, and the scatter about it."""
    centre = dict(zip(law.columns, np.exp(law.centre).tolist(), strict=True))
    value, *ends = law.predict(centre, new=False)
    place = ", ".join(f"{column} {each:.3g}" for column, each in centre.items())
    return [
        f"in the middle of the groups, {place}: {value:.3g} ({format_span(ends, 3)})",
        f"optima scatter by {np.expm1(law.scatter):.1%} about the law, beyond their own errors",
    ]


def _cost(best: BestSettings, name: str) -> list[str]:
    """Describe the loss that a deviation from the best setting costs."""
    costs = [cost for g in best.with_status("used") if (cost := best.cost_of_factor(g, name)) is not None]
    if not costs:
        return []
    spread = f" ({min(costs):.2%} to {max(costs):.2%})" if max(costs) > 1.005 * min(costs) else ""
    return [f"twice or half the best {name} costs {np.median(costs):.2%} of the loss{spread}"]


def _bounds(law: SettingLaw) -> list[str]:
    """Describe whether the law agrees with groups whose optimum lies outside the settings tried."""
    beyond = law.side != 0
    if not beyond.any():
        return []
    agree = int(np.sum((law.residuals * law.side)[beyond] <= 0))
    return [f"bounds that the law keeps: {agree} of {beyond.sum()}"]


def describe_prediction(best: BestSettings, at: Mapping[str, float]) -> list[str]:
    """Format the best settings of a new group, and what the ends of their intervals cost."""
    rows = [["", "best", f"{best.level:.0%}", "loss lost at its ends"]]
    for name, (setting, low, high) in best.predict(at).items():
        cost = np.median([best.cost_of_factor(g, name, (high / low) ** 0.5) or 0.0 for g in best.with_status("used")])
        rows.append([name, f"{setting:.4g}", format_span((low, high), 3), f"{cost:.2%}"])
    place = ", ".join(f"{name} {value:.4g}" for name, value in at.items())
    return ["", f"a new group at {place}:", *align_columns(rows)] if best.laws else []


def describe_shares(fitted: FittedMixture) -> list[str]:
    """Format the best shares with intervals, the losses there, and what they gain over the best mixture tried."""
    best, level = fitted.best, f"{fitted.level:.0%}"
    tried = fitted.tried[best.tried]
    rows = [
        [name, f"{share:.3f}", f"{low:.3f} to {high:.3f}", f"{low_tried:.3g} to {high_tried:.3g}", f"{one:.3f}"]
        for name, share, (low, high), low_tried, high_tried, one in zip(
            fitted.domains, best.shares, best.intervals, fitted.tried.min(0), fitted.tried.max(0), tried, strict=True
        )
    ]
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in fitted.weights.items())
    lines = [
        *fitted.notes,
        f"{len(fitted.tried)} runs; one law c + exp(sum t_j r_j) for each loss; weights: {weights}",
        "",
    ]
    lines += align_columns([("domain", "best share", level, "tried", "best tried"), *rows])
    (low, high), (least, most) = best.loss_interval, best.gain_interval
    lines += [
        "",
        f"weighted loss there: {best.loss:.4f} ({level}: {low:.4f} to {high:.4f}), "
        + ", ".join(f"{name} {loss:.4f}" for name, loss in zip(fitted.weights, best.losses, strict=True)),
        f"gain over the best mixture tried, by the laws: {best.gain:.4f} ({level}: {least:.4f} to {most:.4f})"
        + ("" if least > 0 else ": no gain is shown"),
        f"intervals: refits to {best.draws} resamples; the shares lose at most {best.gap:.1g} to the best of the laws",
    ]
    lines += [
        f"{fitted.domains[i]}: held at {best.shares[i]:.3g}, an end of what was tried; the laws alone go to {share:.3g}"
        for i, share in best.held.items()
    ]
    if len(fitted.weights) == 1:
        lines.append("a law of one loss is best at one domain alone: --losses=A,B weighs several validation domains")
    return lines + [f"{name}: {warning}" for name, law in fitted.laws.items() for warning in law.warnings()]
