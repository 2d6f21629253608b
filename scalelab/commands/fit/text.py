"""Format a fitted law for a person. Only digits that the data determine are printed."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.commands.fit import trust_text
from scalelab.errors import BadInput
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.weights import describe_weights
from scalelab.laws.read import units
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.table import Table
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.uncertainty import Prediction
from scalelab.laws.use.decision import Decision

MOST_NAMES_SHOWN = 12  # most names of rows in one line
OBJECTIVE_LABELS = {
    "huber_log": "sum of Huber({delta:g}) of log {target} residuals",
    "huber": "sum of Huber({delta:g}) of {target} residuals",
    "asymmetric": "sum of Huber({delta:g}) of log {target} residuals",
    "mse_log": "half the sum of squared log {target} residuals",
    "mse": "half the sum of squared {target} residuals",
    "mle": "-log likelihood of Huber's density of log {target} residuals with a free scale",
}


def describe_fit(fitted: Fitted, table: Table, where: Sequence[str] = ()) -> list[str]:
    """Format the whole report of a fit, with verdicts before the numbers that depend on them."""
    block = fitted.to_json()
    lines = [*table.notes, *_heading(fitted, block, table), "", *_parameters(fitted, block), ""]
    lines += trust_text.describe_trust(fitted, block)
    if block["bootstrap"]:
        lines.append(_quotable(block, fitted.level))
    if fitted.excluded:
        lines.append(describe_exclusions(fitted.excluded))
    if table.left_out:
        lines.append(f"left out by --where {' and '.join(map(repr, where))}: {table.left_out} rows")
    lines += [f"{finding.line}{_row_names(finding, fitted)}" for finding in fitted.design if finding.kind != "excluded"]
    lines += [f"WARNING: {text}" for text in block["warnings"]]
    for decision in fitted.decisions:
        lines += _decision(decision, fitted, units.loss_unit(table.columns))
    return lines + (trust_text.describe_holdout(fitted.holdout, fitted) if fitted.holdout else [])


def format_span(ends: Iterable[float | None] | None, digits: int = 4) -> str:
    """Format an interval as `0.31 to 0.36`; with an open end as `0.31 or more`, `0.36 or less` or `anything`."""
    if ends is None:
        return ""
    low, high = ends
    if low is None or high is None:
        return (
            "anything" if low is high else f"{high:.{digits}g} or less" if low is None else f"{low:.{digits}g} or more"
        )
    return f"{low:.{digits}g} to {high:.{digits}g}"


@contextlib.contextmanager
def tell_reading(notes: Sequence[str]) -> Iterator[None]:
    """Add notes on the reading to a refusal of the rows: the reading may be the cause."""
    try:
        yield
    except BadInput as refusal:
        raise BadInput("; ".join([str(refusal), *(f"as read: {note}" for note in notes)])) from None
    except FitError as failure:
        raise FitError("; ".join([str(failure), *(f"as read: {note}" for note in notes)])) from None


def describe_exclusions(excluded: Sequence[Mapping[str, str]]) -> str:
    """List the rows that were not fitted, grouped by the reason."""
    names: dict[str, list[str]] = {}
    for entry in excluded:
        names.setdefault(entry["reason"], []).append(entry["name"])
    groups = []
    for reason, group in names.items():
        more = f", and {len(group) - MOST_NAMES_SHOWN} more" if len(group) > MOST_NAMES_SHOWN else ""
        groups.append(f"{reason}: {', '.join(group[:MOST_NAMES_SHOWN])}{more}")
    return f"not fitted, {len(excluded)} rows: {'; '.join(groups)}"


def _row_names(finding: Finding, fitted: Fitted) -> str:
    """Names of the rows that a finding concerns."""
    if finding.kind not in ("outliers", "duplicates") or not fitted.kept:
        return ""
    names = [str(fitted.kept[row].get("name", row)) for row in finding.rows]
    return f" ({', '.join(names[:MOST_NAMES_SHOWN])}{', …' if len(names) > MOST_NAMES_SHOWN else ''})"


def _heading(fitted: Fitted, block: Mapping[str, Any], table: Table) -> list[str]:
    law, objective = fitted.law, block["objective"]
    unit = f", in {units.loss_unit(table.columns)}" if law.target == "loss" else ""
    size = f", N: {fitted.n_convention}" if "N" in law.columns else ""
    derived = f"; {table.derived}" if table.derived else ""
    name = OBJECTIVE_LABELS[objective["name"]].format(
        target=law.target, **objective | {"delta": objective["delta"] or 0}
    )
    if objective["overestimate"] != 1:
        name += f", those below the law times {objective['overestimate']:g}"
    rms = f"{block['residual_rms']:.2%}" if fitted.problem.objective.log else f"{block['residual_rms']:.3g}"
    return [
        f"{law.equation.rstrip('.')}{unit}: {block['n_rows']} rows{size}{derived}",
        f"{name}: {objective['value']:.10g}; residual rms {rms}",
        *([describe_weights(fitted.weights)] if fitted.weights else []),
    ]


def _parameters(fitted: Fitted, block: Mapping[str, Any]) -> list[str]:
    level = f"{fitted.level:.0%}"
    rows = [
        [
            "",
            "fitted",
            f"{level} percentile",
            f"{level} BCa",
            f"identified? {level} of the profile",
            "tightened most by",
        ]
    ]
    for name, value in fitted.params.items():
        profile = fitted.identifiability.get(name)
        identified = _is_identified(fitted, name)
        digits = 4 if identified else 1
        rows.append(
            [
                name,
                f"{value:.{_digits(value, profile)}g}" if identified else "-",
                format_span(block["intervals_percentile"].get(name), digits),
                format_span(block["intervals"].get(name), digits),
                _verdict(profile),
                _tighten(profile),
            ]
        )
    unsure = [name for name in ("alpha", "beta") if not _is_identified(fitted, name)]
    for name, value in block["exponents"].items():
        meaning = {"a": "N_opt ~ C^a", "b": "D_opt ~ C^b"}[name]
        if unsure:
            meaning += f"; not identified, as {' and '.join(unsure)}"
            rows.append([name, "-", format_span(block["intervals"].get(name), 1), "", meaning, ""])
        else:
            rows.append([name, f"{value:.4g}", format_span(block["intervals"].get(name)), "", meaning, ""])
    return align_columns(rows if block["intervals"] else [[*row[:2], *row[4:]] for row in rows])


def _is_identified(fitted: Fitted, name: str) -> bool:
    profile = fitted.identifiability.get(name)
    return profile is None or profile.verdict == "identified"


def _digits(value: float, profile: ParamProfile | None) -> int:
    """Number of digits to print (two to five) that the width of the parameter's interval supports."""
    low, high = profile.interval if profile else (value, value)
    if low is None or high is None or not value:
        return 2
    width = abs((high - low) / value)
    return 2 + (width < 1) + (width < 0.3) + (width < 0.1)


def _verdict(profile: ParamProfile | None) -> str:
    if profile is None:
        return ""
    if profile.verdict == "identified":
        return f"identified if the law holds: {format_span(profile.interval)}"
    return f"{profile.verdict}: {format_span(profile.interval, 2)}"


def _tighten(profile: ParamProfile | None) -> str:
    run = profile.tighten if profile else None
    return f"N {run['N']:.2g}, D {run['D']:.2g}" if run else ""


def _quotable(block: Mapping[str, Any], level: float) -> str:
    """Describe in one line which interval to quote: BCa of identified parameters, percentiles of exponents."""
    unsure = [name for name, each in block["identifiability"].items() if each["verdict"] != "identified"]
    unsure += list(block["exponents"]) if {"alpha", "beta"} & set(unsure) else []
    parts = []
    for name, value in {**block["params"], **block["exponents"]}.items():
        ends = block["intervals"].get(name)
        if ends and None not in ends and name not in unsure:
            parts.append(f"{name} {_round_to_width(value, ends)}")
    of = f"to quote, {level:.0%} BCa" + (" (a and b: percentile)" if block["exponents"] else "")
    left = f"; not {' and '.join(unsure)}: the data do not bound them" if unsure else ""
    return f"{of}: {'; '.join(parts) or 'nothing'}{left}; all conditional on the law's form"


def _round_to_width(value: float, ends: Sequence[float]) -> str:
    """`0.61 (0.38 to 0.81)`: the interval's width to two digits decides about decimals."""
    width = ends[1] - ends[0]
    decimals = max(0, 1 - math.floor(math.log10(width))) if width > 0 else 4
    if max(map(abs, (value, *ends))) >= 1e5 or decimals > 6:
        return f"{value:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"
    return f"{value:.{decimals}f} ({ends[0]:.{decimals}f} to {ends[1]:.{decimals}f})"


def _decision(decision: Decision, fitted: Fitted, unit: str) -> list[str]:
    source = "6" if decision.k == 6 else f"{decision.k:.4g}, the median of the fitted rows"
    level = f"{decision.level:.0%}"
    rows = [["", "best", level, ""]]
    for name, interval, meaning in (
        ("N", decision.N, f"parameters, {fitted.n_convention}"),
        ("D", decision.D, "tokens"),
        ("D/N", decision.tokens_per_param, "tokens a parameter"),
        ("loss", decision.loss, f"{unit}; the interval is for one run"),
    ):
        rows.append([name, f"{interval.value:.4g}", format_span(interval[1:]), meaning])
    value, low, high = decision.waste
    rows.append(
        ["wasted", f"{value:.2%}", f"{low:.2%} to {high:.2%}", "of the FLOPs, if a resampled law is the true one"]
    )
    return ["", f"best use of {decision.C:.4g} FLOPs where C = k N D, k = {source}:", *align_columns(rows)]


def describe_predictions(predictions: Mapping[str, Prediction], fitted: Fitted) -> list[str]:
    """Format the predicted loss of one run at each budget."""
    rows = [["C", fitted.law.target, f"{fitted.level:.0%}, one run"]]
    rows += [[C, f"{p.loss:.4g}", format_span((p.low, p.high))] for C, p in predictions.items()]
    return ["", *align_columns(rows)]
