"""A fitted law as lines for a person. Only digits that the data determine are printed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.laws.fit import Fitted
from scalelab.laws.read.table import Table
from scalelab.laws.trust.design import Finding
from scalelab.laws.trust.holdout import Holdout
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.tournament import TournamentEntry
from scalelab.laws.trust.uncertainty import Prediction
from scalelab.laws.use.decision import Decision

MOST_NAMES_SHOWN = 12  # names of rows in one line
TARGET_UNITS = {"loss": "nats/token"}
OBJECTIVE_LABELS = {
    "huber_log": "sum of Huber({delta:g}) of log {target} residuals",
    "asymmetric": "sum of Huber({delta:g}) of log {target} residuals, those below the law times {overestimate:g}",
    "mse_log": "half the sum of squared log {target} residuals",
    "mse": "half the sum of squared {target} residuals",
    "mle": "-log likelihood of Huber's density of log {target} residuals with a free scale",
}


def describe_fit(fitted: Fitted, table: Table, where: Sequence[str] = ()) -> list[str]:
    """Format everything that a fit reports, verdicts before the numbers that depend on them."""
    block = fitted.to_json()
    lines = [*table.notes, *_heading(fitted, block, table), "", *_parameters(fitted, block), ""]
    lines += [_certificate(block["certificate"])]
    if block["dependence"]:
        lines.append(_dependence(block["dependence"]))
    if block["bootstrap"]:
        lines.append(_resamples(block["bootstrap"]))
        lines.append(_quotable(block, fitted.level))
    if fitted.excluded:
        lines.append(describe_exclusions(fitted.excluded))
    if table.left_out:
        lines.append(f"left out by --where {' and '.join(map(repr, where))}: {table.left_out} rows")
    lines += [
        f"design: {finding.text}{_row_names(finding, fitted)}"
        for finding in fitted.design
        if finding.kind != "excluded"
    ]
    lines += [f"WARNING: {text}" for text in block["warnings"]]
    for decision in fitted.decisions:
        lines += _decision(decision, fitted)
    return lines + (_holdout(fitted.holdout, fitted) if fitted.holdout else [])


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
    """The names of the rows that a finding is about."""
    if finding.kind not in ("outliers", "duplicates") or not fitted.kept:
        return ""
    names = [str(fitted.kept[row].get("name", row)) for row in finding.rows]
    return f" ({', '.join(names[:MOST_NAMES_SHOWN])}{', …' if len(names) > MOST_NAMES_SHOWN else ''})"


def _heading(fitted: Fitted, block: Mapping[str, Any], table: Table) -> list[str]:
    law, objective = fitted.law, block["objective"]
    unit = f", in {TARGET_UNITS[law.target]}" if law.target in TARGET_UNITS else ""
    size = f", N: {fitted.n_convention}" if "N" in law.columns else ""
    derived = f"; {table.derived}" if table.derived else ""
    name = OBJECTIVE_LABELS[objective["name"]].format(
        target=law.target, **objective | {"delta": objective["delta"] or 0}
    )
    rms = f"{block['residual_rms']:.2%}" if fitted.problem.objective.log else f"{block['residual_rms']:.3g}"
    return [
        f"{law.equation.rstrip('.')}{unit}: {block['n_rows']} rows{size}{derived}",
        f"{name}: {objective['value']:.10g}; residual rms {rms}",
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
        identified = profile is None or profile.verdict == "identified"
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
    for name, value in block["exponents"].items():
        meaning = {"a": "N_opt ~ C^a", "b": "D_opt ~ C^b"}[name]
        rows.append([name, f"{value:.4g}", format_span(block["intervals"].get(name)), "", meaning, ""])
    return align_columns(rows if block["intervals"] else [[*row[:2], *row[4:]] for row in rows])


def _digits(value: float, profile: ParamProfile | None) -> int:
    """Number of digits to print, two to five: as many as the width of the parameter's interval supports."""
    low, high = profile.interval if profile else (value, value)
    if low is None or high is None or not value:
        return 2
    width = abs((high - low) / value)
    return 2 + (width < 1) + (width < 0.3) + (width < 0.1)


def _verdict(profile: ParamProfile | None) -> str:
    if profile is None:
        return ""
    return f"{profile.verdict}: {format_span(profile.interval, 4 if profile.verdict == 'identified' else 2)}"


def _tighten(profile: ParamProfile | None) -> str:
    run = profile.tighten if profile else None
    return f"N {run['N']:.2g}, D {run['D']:.2g}" if run else ""


def _certificate(certificate: Mapping[str, Any]) -> str:
    gap = certificate["next_basin_gap"]
    basin = "no other optimum seen" if gap is None else f"next optimum {gap:.2%} higher"
    bounds = f", at bounds: {', '.join(certificate['at_bounds'])}" if certificate["at_bounds"] else ""
    return (
        f"certificate: {certificate['agree']} of {certificate['starts']} starts agree "
        f"({certificate['starts_converged']} converged), {basin}, "
        f"gradient {certificate['grad_norm']:.1e}, Hessian condition {certificate['condition']:.1e}{bounds}"
    )


def _dependence(dependence: Mapping[str, Any]) -> str:
    name, effect = max(dependence["design_effect"].items(), key=lambda item: item[1])
    return (
        f"groups: {dependence['groups']} values of {dependence['column']!r}, whose rows share an error of "
        f"{dependence['group_sd']:.2%} (each row's own: {dependence['row_sd']:.2%}); {name} is {effect**0.5:.2g} times "
        "as uncertain as with independent rows (--cluster=none)"
    )


def _resamples(bootstrap: Mapping[str, Any]) -> str:
    failed = "".join(f"; {number} failed: {reason}" for reason, number in bootstrap["failed"].items())
    return (
        f"intervals: {bootstrap['used']} of {bootstrap['requested']} resamples (seed {bootstrap['seed']}){failed}; "
        f"a row left out is missed by {bootstrap['noise_rms']:.2%} rms"
    )


def _quotable(block: Mapping[str, Any], level: float) -> str:
    """Which interval to quote, in one line: BCa of what is identified, percentiles of exponents; as many digits as
    their widths support."""
    unsure = [name for name, each in block["identifiability"].items() if each["verdict"] != "identified"]
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


def _decision(decision: Decision, fitted: Fitted) -> list[str]:
    source = "6" if decision.k == 6 else f"{decision.k:.4g}, the median of the fitted rows"
    level = f"{decision.level:.0%}"
    rows = [["", "best", level, ""]]
    for name, interval, meaning in (
        ("N", decision.N, f"parameters, {fitted.n_convention}"),
        ("D", decision.D, "tokens"),
        ("D/N", decision.tokens_per_param, "tokens a parameter"),
        ("loss", decision.loss, "nats/token; the interval is for one run"),
    ):
        rows.append([name, f"{interval.value:.4g}", format_span(interval[1:]), meaning])
    value, low, high = decision.waste
    rows.append(
        ["wasted", f"{value:.2%}", f"{low:.2%} to {high:.2%}", "of the FLOPs, if a resampled law is the true one"]
    )
    return ["", f"best use of {decision.C:.4g} FLOPs where C = k N D, k = {source}:", *align_columns(rows)]


def _holdout(holdout: Holdout, fitted: Fitted) -> list[str]:
    names = [str(fitted.kept[row].get("name", f"row {row + 1}")) for row in holdout.rows] if fitted.kept else []
    rows = [["", "measured", "predicted", "error"]]
    for i in range(min(len(holdout.rows), MOST_NAMES_SHOWN)):
        name = names[i] if names else f"row {holdout.rows[i] + 1}"
        rows.append([name, f"{holdout.measured[i]:.4f}", f"{holdout.predicted[i]:.4f}", f"{holdout.errors[i]:+.2%}"])
    rest = [f"and {len(holdout.rows) - MOST_NAMES_SHOWN} more"] if len(holdout.rows) > MOST_NAMES_SHOWN else []
    head = (
        f"held out, the {len(holdout.rows)} largest rows: mean absolute error {holdout.mape:.2%} "
        f"(of the fitted rows {holdout.in_sample_mape:.2%})"
    )
    return ["", head, *align_columns(rows), *rest]


def describe_predictions(predictions: Mapping[str, Prediction], fitted: Fitted) -> list[str]:
    """Format what one run of each budget is predicted to reach."""
    rows = [["C", fitted.law.target, f"{fitted.level:.0%}, one run"]]
    rows += [[C, f"{p.loss:.4g}", format_span((p.low, p.high))] for C, p in predictions.items()]
    return ["", *align_columns(rows)]


def describe_tournament(entries: Sequence[TournamentEntry], count: int) -> list[str]:
    """Format the laws in order of their error on the held-out rows."""
    rows = [["law", "parameters", "held-out error", "in-sample error", ""]]
    for entry in entries:
        holdout = entry.result
        errors = [f"{holdout.mape:.2%}", f"{holdout.in_sample_mape:.2%}"] if holdout else ["-", "-"]
        rows.append([entry.law.name, str(len(entry.law.params)), *errors, entry.why])
    return [
        "",
        f"tournament: mean absolute error on the {count} largest rows, predicted from the others",
        *align_columns(rows),
    ]
