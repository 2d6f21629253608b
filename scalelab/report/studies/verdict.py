"""The sentences of a study's page: prediction against measurement, caveats, parameters, exponents, LR checks."""

import math

from scalelab.report import gather, html
from scalelab.report.tables import format_scientific, format_short
from scalelab.sweep.scaling.passes import describe_passes

PARAMETER_MEANINGS = {
    "E": "irreducible loss (nats/token)",
    "A": "size term at N = 1",
    "B": "data term at D = 1",
    "alpha": "exponent of N",
    "beta": "exponent of D",
    "a": "N_opt ∝ C^a: β / (α + β)",
    "b": "D_opt ∝ C^b: α / (α + β)",
}
# Keys of the fit block that are not shown as evidence: they stand in the table or in sentences.
KEYS_SHOWN_APART = (
    "params",
    "exponents",
    "intervals",
    "intervals_percentile",
    "standard_errors",
    "law",
    "equation",
    "n_rows",
    "n_runs",
    "n_convention",
    "warnings",
    "excluded",
    "identifiability",
    "allocation",
    "design",
    "holdout",
)


def summary_lines(summary: dict, first_metric: float | None) -> list[str]:
    """Write the head of the page: the numbers, then sentences on how good the prediction was."""
    held = summary.get("held_out") or {}
    if held.get("predicted_loss") is None or not held.get("interval90"):
        return [html.render_paragraph("No prediction yet: the study has not finished its fitted runs.", "bad")]
    point, (low, high), measured = held["predicted_loss"], held["interval90"], held.get("measured_loss")
    shown = {"predicted loss (nats/token)": f"{point:.4f}", "90 % interval": f"{low:.4f} – {high:.4f}"}
    timing = _timing(held, first_metric)
    failed = [html.render_paragraph(f"FAILED: {text}.", "bad") for text in describe_failures(summary)]
    if repeated := describe_passes(summary.get("passes")):
        failed.append(html.render_paragraph(f"Warning: {repeated}.", "bad"))
    if measured is None or not math.isfinite(measured):
        lost = "The held-out run has no finite loss" if measured is not None else "The held-out run is not measured yet"
        return [
            html.render_numbers(shown),
            html.render_paragraph(f"{lost}: the prediction is unscored.", "bad"),
            timing,
        ]
    error, inside = point / measured - 1, low <= measured <= high
    shown |= {"measured loss": f"{measured:.4f}", "error of the prediction": f"{100 * error:+.2f} %",
              "measured loss lies": "inside" if inside else "OUTSIDE"}  # fmt: skip
    sentence = (
        f"The law predicted {point:.4f} nats/token for a run of {format_scientific(held['C'])} FLOPs, "
        f"{_beyond(summary, held)}; it reached {measured:.4f}. The prediction was {100 * abs(error):.2f} % "
        f"{'too high' if error > 0 else 'too low'}, and the measured loss is {'inside' if inside else 'OUTSIDE'} the "
        f"90 % interval, which is {100 * (high - low) / point:.1f} % wide."
    )
    return [html.render_numbers(shown), html.render_paragraph(sentence, "good" if inside else "bad"), *failed, timing]


def _beyond(summary: dict, held: dict) -> str:
    fitted = [run["C"] for run in summary.get("runs") or [] if (run.get("role") or "fit") == "fit" and run.get("C")]
    return f"{held['C'] / max(fitted):.2g}× the largest fitted run" if fitted else "larger than any fitted run"


def _timing(held: dict, first_metric: float | None) -> str:
    """Describe whether the prediction was on disk before the run that scores it began."""
    at = gather.to_unix_seconds(held.get("predicted_at"))
    if at is None:
        return html.render_paragraph(
            "When the prediction was made is not recorded: it can't be shown to precede the run.", "bad"
        )
    if first_metric is None:
        return html.render_paragraph(
            f"Predicted at {gather.format_utc(at)}; the held-out run has not logged anything yet.", "soft"
        )
    text = f"Predicted at {gather.format_utc(at)}; the held-out run first logged at {gather.format_utc(first_metric)}: "
    if at < first_metric:
        return html.render_paragraph(text + "the prediction came first.", "soft")
    return html.render_paragraph(text + "the prediction came AFTER the run began, so it is no prediction.", "bad")


def describe_caveats(summary: dict) -> str:
    """Describe what the interval covers, and what it does not."""
    fit = summary.get("fit") or {}
    if not fit:
        return ""
    text = (
        f"The interval rests on {fit['n_runs']} runs ({fit['interval_method']}). It is conditional on the form of the "
        "law: "
        "if the true loss does not follow E + A/N^α + B/D^β, the interval of E above all can exclude the truth, and "
        "more "
        "runs of the same kind do not repair that. One held-out run inside its interval is no evidence of 90 % "
        "coverage."
    )
    return html.render_paragraph(text, "soft")


def fit_table(fit: dict) -> str:
    """Make the table of parameters and exponents with intervals, warnings, runs left out, and the certificate."""
    rows = []
    for name, value in (fit["params"] | fit["exponents"]).items():
        low, high = fit["intervals"][name]
        cells = {key: f"{x:.4g}" for key, x in (("value", value), ("low", low), ("high", high))}
        cells["verdict"] = fit["identifiability"].get(name, {}).get("verdict", "")
        loose = [each for each in ("alpha", "beta") if name in fit["exponents"] and _is_loose(fit, each)]
        cells["verdict"] += f"not identified, as {' and '.join(loose)}" if loose else ""
        if loose or _is_loose(fit, name):
            cells["value"] = "–"
        rows.append({"name": name, "meaning": PARAMETER_MEANINGS[name]} | cells)
    level = f"{100 * fit['interval_level']:.0f} %"
    columns = {"name": "", "value": "fitted", "low": f"{level} low", "high": f"{level} high",
               "verdict": "by its profile likelihood", "meaning": "meaning"}  # fmt: skip
    counted = f"L(N, D) = E + A/N^α + B/D^β, fitted to {fit['n_runs']} runs; N is counted as: {fit['n_convention']}."
    convention = html.render_paragraph(counted)
    evidence = html.render_facts(
        {key: value for key, value in _leave_out_draws(fit).items() if key not in KEYS_SHOWN_APART}
    )
    proof = html.render_details("how it was found, and the certificate that it is the optimum", evidence)
    if not fit["certificate"]["converged"]:
        proof = html.render_paragraph("The fit did NOT converge: its numbers are not to be used.", "bad") + proof
    warnings = "".join(html.render_paragraph(f"Warning: {warning}.", "bad") for warning in fit["warnings"])
    warnings += "".join(html.render_paragraph(f"Design: {finding['text']}.", "soft") for finding in fit["design"])
    left_out, excluded = fit["excluded"], ""
    if left_out:
        excluded = html.render_details(
            f"runs not fitted: {len(left_out)}", html.render_table(left_out, {"name": "run", "reason": "reason"})
        )
    return convention + warnings + html.render_table(rows, columns) + excluded + proof


def _is_loose(fit: dict, name: str) -> bool:
    """Whether the data do not bound a parameter: then its fitted value is not shown, as in `scalelab fit`."""
    return str(fit["identifiability"].get(name, {}).get("verdict", "")).startswith("not identified")


def _leave_out_draws(fit: dict) -> dict:
    """The fit without the parameters of each resample: hundreds of numbers, which stand in summary.json."""
    bootstrap = fit.get("bootstrap")
    if not isinstance(bootstrap, dict):
        return fit
    return fit | {"bootstrap": {key: value for key, value in bootstrap.items() if key != "draws"}}


CHECK_LABELS = {"lr": "LR", "batch": "batch"}  # {quantity varied by a study's checks: its name}


def study_verdicts(summary: dict, kind: str) -> list[dict]:
    """Judge a study's checks of one kind (`gather.check_verdicts`), tolerating the runs' scatter about the fit."""
    scatter = (summary.get("fit") or {}).get("residual_rms") or 0.0
    return gather.check_verdicts(summary.get(f"{kind}_checks") or [], scatter)


def describe_failures(summary: dict) -> list[str]:
    """Explain why a study's fit can't be trusted: one sentence for each check with an optimum at the edge."""
    return [
        f"N = {_size(verdict)}: the best {name} tried is {_factor(verdict)} the rule's, the last one tried"
        + (f", and better by {100 * verdict['cost']:.2f} %" if verdict["cost"] else "")
        + "; the fitted exponents hang on this (another --rule, or its checks)"
        for kind, name in CHECK_LABELS.items()
        for verdict in study_verdicts(summary, kind)
        if verdict["edge"]
    ]


def _size(verdict: dict) -> str:
    return verdict["size"] if isinstance(verdict["size"], str) else format_short(verdict["size"])


def _factor(verdict: dict) -> str:
    return "not known (all diverged), not" if verdict["best_factor"] is None else f"{verdict['best_factor']:g}×"


def check_lines(summary: dict, kind: str) -> list[str]:
    """Write a sentence for each size; an optimum at the edge is marked, because the fitted exponents depend on it."""
    lines, name = [], CHECK_LABELS[kind]
    for verdict in study_verdicts(summary, kind):
        if verdict["best_factor"] is None:
            lines.append(html.render_paragraph(f"N = {_size(verdict)}: no check run has a finite loss.", "bad"))
            continue
        cost = (
            "" if verdict["cost"] is None else f" The rule's own costs {100 * verdict['cost']:.2f} % of the loss there."
        )
        if verdict["edge"]:
            text = (
                f"N = {_size(verdict)}: OPTIMUM AT THE EDGE. The best {name} is {_factor(verdict)} the rule's, the "
                "last "
                f"one tried, so the best may lie beyond; the fitted exponents hang on this."
            )
            lines.append(html.render_paragraph(text + cost, "bad"))
        else:
            text = f"N = {_size(verdict)}: the best {name} tried is {_factor(verdict)} the rule's"
            beside = "." if verdict["cost"] else ", with worse ones on both sides."
            lines.append(html.render_paragraph(text + beside + cost, "good"))
    if any(verdict["seeds"] == 1 for verdict in study_verdicts(summary, kind)):
        lines.append(html.render_paragraph(f"One seed at each {name}: no interval, so small differences may be luck."))
    return lines


def isoflop_lines(isoflop: dict, parabola: float | None, fit: dict) -> list[str]:
    """Describe the minima: a table, their exponent, the exponent to believe, and a warning for minima at the edge."""
    rows = [each | {"edge": "AT THE EDGE" if each["edge"] else "inside"} for each in isoflop["budgets"]]
    columns = {"budget": "budget (FLOPs)", "N": "best N", "loss": "loss there (nats/token)", "sizes": "sizes tried",
               "edge": "minimum"}  # fmt: skip
    lines = [html.render_table(rows, columns)]
    text = f"Through the minima inside their sizes: N_opt = {isoflop['coefficient']:.3g} × C^{isoflop['a']:.3f} by "
    other = "" if parabola is None else f", C^{parabola:.3f} by parabolas"
    lines.append(html.render_paragraph(f"{text}{isoflop['method']}{other}."))
    if fit.get("exponents", {}).get("a") is not None and fit.get("intervals", {}).get("a"):
        lines.append(html.render_paragraph(exponent_to_believe(isoflop, fit)))
    edges = [format_scientific(fit["budget"]) for fit in isoflop["budgets"] if fit["edge"]]
    if edges:
        lines.append(
            html.render_paragraph(
                f"MINIMUM AT THE EDGE at {', '.join(edges)} FLOPs: the best size may lie outside those tried; "
                "left out of the exponent.",
                "bad",
            )
        )
    return lines


def exponent_to_believe(isoflop: dict, fit: dict) -> str:
    """Choose which exponent of the best size to quote, the law's or that of the IsoFLOP minima, and say why."""
    a, (low, high), read = fit["exponents"]["a"], fit["intervals"]["a"], isoflop["a"]
    inside = sum(not each["edge"] for each in isoflop["budgets"])
    unsure = [
        name
        for name in ("alpha", "beta")
        if fit["identifiability"].get(name, {}).get("verdict", "identified") != "identified"
    ]
    if unsure or not fit["certificate"]["converged"]:
        verb = "is" if len(unsure) == 1 else "are"
        why = f"{' and '.join(unsure)} of the law {verb} not identified" if unsure else "the law's fit did not converge"
        return f"Which to believe: neither alone. {why}, and a line through {inside} minima has no interval."
    law = (
        f"Which to believe: the fitted law's, N_opt ∝ C^{a:.3f} ({100 * fit['interval_level']:.0f} % interval "
        f"{low:.3f} to {high:.3f}): it uses all {fit['n_runs']} runs, the other {inside} minima without an interval."
    )
    if low <= read <= high:
        return f"{law} The two agree: {read:.3f} is inside."
    return f"{law} The two disagree: {read:.3f} is outside, so the law's form or the grid of sizes may be at fault."
