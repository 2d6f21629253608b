"""A fitted law as lines for a person. No digit is printed that the data don't determine."""

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
    """Everything a fit reports, the verdicts before the numbers that depend on them."""
    block = fitted.to_json()
    said = [*_heading(fitted, block, table), "", *_parameters(fitted, block), ""]
    said += [_certificate(block["certificate"])]
    if block["bootstrap"]:
        said.append(_resamples(block["bootstrap"]))
    if fitted.excluded:
        said.append(describe_exclusions(fitted.excluded))
    if table.left_out:
        said.append(f"left out by --where {' and '.join(map(repr, where))}: {table.left_out} rows")
    said += [
        f"design: {finding.text}{_who(finding, fitted)}" for finding in fitted.design if finding.kind != "excluded"
    ]
    said += [f"WARNING: {text}" for text in block["warnings"]]
    for decision in fitted.decisions:
        said += _decision(decision, fitted)
    return said + (_holdout(fitted.holdout, fitted) if fitted.holdout else [])


def format_span(ends: Iterable[float | None] | None, digits: int = 4) -> str:
    """`0.31 to 0.36`; an open end is said in words."""
    if ends is None:
        return ""
    low, high = ends
    if low is None or high is None:
        return (
            "anything" if low is high else f"{high:.{digits}g} or less" if low is None else f"{low:.{digits}g} or more"
        )
    return f"{low:.{digits}g} to {high:.{digits}g}"


def describe_exclusions(excluded: Sequence[Mapping[str, str]]) -> str:
    """Which rows were not fitted, grouped by the reason."""
    names: dict[str, list[str]] = {}
    for entry in excluded:
        names.setdefault(entry["reason"], []).append(entry["name"])
    groups = []
    for reason, who in names.items():
        more = f", and {len(who) - MOST_NAMES_SHOWN} more" if len(who) > MOST_NAMES_SHOWN else ""
        groups.append(f"{reason}: {', '.join(who[:MOST_NAMES_SHOWN])}{more}")
    return f"not fitted, {len(excluded)} rows: {'; '.join(groups)}"


def _who(finding: Finding, fitted: Fitted) -> str:
    """Which rows a finding tells to look at, by the names that the table gives them."""
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
        sure = profile is None or profile.verdict == "identified"
        digits = 4 if sure else 1
        rows.append(
            [
                name,
                f"{value:.{_digits(value, profile)}g}" if sure else "-",
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
    """Two to five: as many as the width of the parameter's interval leaves any sense in."""
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


def _certificate(c: Mapping[str, Any]) -> str:
    gap = c["next_basin_gap"]
    basin = "no other optimum seen" if gap is None else f"next optimum {gap:.2%} higher"
    bounds = f", at bounds: {', '.join(c['at_bounds'])}" if c["at_bounds"] else ""
    return (
        f"certificate: {c['agree']} of {c['starts']} starts agree ({c['starts_converged']} converged), {basin}, "
        f"gradient {c['grad_norm']:.1e}, Hessian condition {c['condition']:.1e}{bounds}"
    )


def _resamples(b: Mapping[str, Any]) -> str:
    failed = "".join(f"; {number} failed: {reason}" for reason, number in b["failed"].items())
    return (
        f"intervals: {b['used']} of {b['requested']} resamples (seed {b['seed']}){failed}; "
        f"a row left out is missed by {b['noise_rms']:.2%} rms"
    )


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


def _holdout(held: Holdout, fitted: Fitted) -> list[str]:
    names = [str(fitted.kept[row].get("name", f"row {row + 1}")) for row in held.rows] if fitted.kept else []
    rows = [["", "measured", "predicted", "error"]]
    for i in range(min(len(held.rows), MOST_NAMES_SHOWN)):
        name = names[i] if names else f"row {held.rows[i] + 1}"
        rows.append([name, f"{held.measured[i]:.4f}", f"{held.predicted[i]:.4f}", f"{held.errors[i]:+.2%}"])
    more = [f"and {len(held.rows) - MOST_NAMES_SHOWN} more"] if len(held.rows) > MOST_NAMES_SHOWN else []
    head = (
        f"held out, the {len(held.rows)} largest rows: mean absolute error {held.mape:.2%} "
        f"(of the fitted rows {held.in_sample_mape:.2%})"
    )
    return ["", head, *align_columns(rows), *more]


def describe_predictions(found: Mapping[str, Prediction], fitted: Fitted) -> list[str]:
    """What one run of each budget is predicted to reach."""
    rows = [["C", fitted.law.target, f"{fitted.level:.0%}, one run"]]
    rows += [[C, f"{each.loss:.4g}", format_span((each.low, each.high))] for C, each in found.items()]
    return ["", *align_columns(rows)]


def describe_tournament(entries: Sequence[TournamentEntry], count: int) -> list[str]:
    """The laws in order of their error on the rows that none of them saw."""
    rows = [["law", "parameters", "held-out error", "in-sample error", ""]]
    for entry in entries:
        found = entry.result
        errors = [f"{found.mape:.2%}", f"{found.in_sample_mape:.2%}"] if found else ["-", "-"]
        rows.append([entry.law.name, str(len(entry.law.params)), *errors, entry.why])
    return [
        "",
        f"tournament: mean absolute error on the {count} largest rows, predicted from the others",
        *align_columns(rows),
    ]
