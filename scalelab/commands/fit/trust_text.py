"""Format how far to trust a fit: certificate, groups, form, resamples, held-out rows, tournament."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.trust.form import FormTest
from scalelab.laws.trust.holdout import Holdout
from scalelab.laws.trust.tournament import TournamentEntry

MOST_ROWS_SHOWN = 12  # held-out rows


def describe_trust(fitted: Fitted, block: Mapping[str, Any]) -> list[str]:
    """Format the certificate, what rows share, the test of the form, and the resamples."""
    lines = [describe_certificate(block["certificate"]), *_form(fitted, block)]
    if block["dependence"]:
        lines.append(describe_dependence(block["dependence"]))
    if block["bootstrap"]:
        lines.append(_resamples(block["bootstrap"]))
    return lines


def describe_certificate(certificate: Mapping[str, Any], group: str = "") -> str:
    """Format the certificate in one line, with the group's name if it is of one group of rows."""
    gap = certificate["next_basin_gap"]
    basin = "no other optimum seen" if gap is None else f"next optimum {gap:.2%} higher"
    bounds = f", at bounds: {', '.join(certificate['at_bounds'])}" if certificate["at_bounds"] else ""
    open_ = certificate["starts"] - certificate["starts_converged"]
    unfinished = f", {open_} did not converge" if open_ else ""
    return (
        f"certificate{f' of {group}' if group else ''}: {certificate['agree']} of {certificate['starts']} starts agree"
        f"{unfinished}, {basin}, gradient {certificate['grad_norm']:.1e}, "
        f"Hessian condition {certificate['condition']:.1e}{bounds}"
    )


def _form(fitted: Fitted, block: Mapping[str, Any]) -> list[str]:
    """Format the test of the form, what the law may get wrong, and which law fits better if the test fails."""
    if fitted.form is None and fitted.best.value == 0:
        return []
    lines = [describe_form_test(fitted.form, fitted.law.columns, block["n_rows"])]
    if block["misfit"]:
        lines.append(describe_misfit(block["misfit"]))
    if fitted.wider:
        lines.append(
            f"      --law={fitted.wider.name} fits better: {fitted.wider.param} {fitted.wider.value:.3g}, objective "
            f"{fitted.wider.lower_by:.0%} lower"
        )
    return lines


def describe_misfit(misfit: Mapping[str, Any]) -> str:
    """Describe what the law may get wrong, which all intervals carry."""
    times = (
        f", {misfit['widened']:.2g} times what residuals allow, as {misfit['forecasts']} forecasts of larger rows ask"
    )
    return (
        f"misfit: the law may be wrong by {misfit['rms']:.2%} rms over these rows (at most {misfit['upper']:.2%})"
        f"{times if misfit['widened'] >= 1.05 else ''}; all intervals carry it"
    )


def describe_form_test(tested: FormTest | None, columns: Sequence[str], rows: int) -> str:
    """Format the test of the form in one line."""
    if tested is None:
        return f"form: {rows} rows are too few to test it"
    low, high = tested.by_chance
    head = (
        f"form: {' and '.join(columns)} explain {tested.share:.0%} of the residuals' variance "
        f"(by chance {low:.0%} to {high:.0%})"
    )
    if tested.fails:
        return f"{head}: the law misses a pattern"
    power = (
        ""
        if tested.visible is None
        else (f"; a misfit of {tested.visible:.2%} rms would have shown in 8 of 10 such tables, a smaller one may hide")
    )
    return f"{head}: nothing speaks against the law{power}"


def describe_dependence(dependence: Mapping[str, Any]) -> str:
    """Describe in one line the error that rows of a run share, and its effect on the parameter it changes most."""
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


def describe_holdout(holdout: Holdout, fitted: Fitted) -> list[str]:
    """List the held-out rows with their predictions, how many lie inside their intervals, and how wide these are."""
    names = [str(fitted.kept[row].get("name", f"row {row + 1}")) for row in holdout.rows] if fitted.kept else []
    level = f"{holdout.level:.0%}"
    rows = [
        ["", "measured", "predicted", level, "error"]
        if holdout.low is not None
        else ["", "measured", "predicted", "error"]
    ]
    for i in range(min(len(holdout.rows), MOST_ROWS_SHOWN)):
        name = names[i] if names else f"row {holdout.rows[i] + 1}"
        numbers = [f"{holdout.measured[i]:.4f}", f"{holdout.predicted[i]:.4f}"]
        if holdout.low is not None and holdout.high is not None:
            numbers.append(f"{holdout.low[i]:.4f} to {holdout.high[i]:.4f}")
        rows.append([name, *numbers, f"{holdout.errors[i]:+.2%}"])
    rest = [f"and {len(holdout.rows) - MOST_ROWS_SHOWN} more"] if len(holdout.rows) > MOST_ROWS_SHOWN else []
    asked = (
        f" ({holdout.asked} were asked for; rows of one budget go together)"
        if 0 < holdout.asked < len(holdout.rows)
        else ""
    )
    head = (
        f"held out, the {len(holdout.rows)} largest rows{asked}: mean absolute error {holdout.mape:.2%} "
        f"(of the fitted rows {holdout.in_sample_mape:.2%})"
    )
    return ["", head, *align_columns(rows), *rest, *_score_holdout(holdout)]


def _score_holdout(holdout: Holdout) -> list[str]:
    """Format how many rows lie inside, how wide the intervals are, and whether either is more than chance."""
    if holdout.inside_by_chance is None or holdout.error_by_chance is None:
        return []
    (least, most), ends = holdout.inside_by_chance, holdout.error_by_chance
    count = len(holdout.rows)
    lines = [
        f"{holdout.inside} of {count} inside their {holdout.level:.0%} intervals (by chance {least} to {most}, as rows "
        f"of one table err together); median width {holdout.width:.2%} of the target, interval score "
        f"{holdout.interval_score:.2%}"
    ]
    if holdout.verdict == "too narrow":
        lines.append("WARNING: fewer held-out rows are inside than by chance: intervals of larger runs are too narrow")
    if holdout.verdict == "too wide":
        lines.append(
            f"WARNING: the intervals are wider than errors of {holdout.mape:.2%} ask for (by chance {ends[0]:.2%} "
            f"or more): that {holdout.inside} of {count} are inside says little"
        )
    return lines


def describe_tournament(entries: Sequence[TournamentEntry], count: int) -> list[str]:
    """Format the laws in order of their score on the held-out rows."""
    rows = [["law", "parameters", "held-out error", "inside", "interval score", "in-sample error", ""]]
    for entry in entries:
        holdout, cells = entry.result, ["-"] * 4
        if holdout:
            score = holdout.interval_score
            inside = "-" if score is None else f"{holdout.inside} of {len(holdout.rows)}"
            cells = [
                f"{holdout.mape:.2%}",
                inside,
                "-" if score is None else f"{score:.2%}",
                f"{holdout.in_sample_mape:.2%}",
            ]
        rows.append([entry.law.name, str(len(entry.law.params)), *cells, entry.why])
    return [
        "",
        f"tournament: the {count} largest rows, predicted from the others; ranked by interval score: the width, and a "
        "penalty for a miss",
        *align_columns(rows),
    ]
