"""The page of an ablation: the verdict in one sentence, the gap, the multiplier over scale, the tuning, the runs.

It reads `summary.json` of `scalelab ablate` and the run folders, and fits nothing.
"""

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import quote_path
from scalelab.laws.use.multiplier.result import format_factor, join_ends
from scalelab.record import listing, records
from scalelab.record.jsonfiles import FLAG, LIST, NUMBER, PAIR, TEXT, WHOLE
from scalelab.report import gather, html
from scalelab.report.parts import ReportPage, logbook_section, origin_section, runs_table
from scalelab.report.studies import ablation_figures as figures
from scalelab.report.tables import format_scientific
from scalelab.sweep.ablate.files import PREDICTION_SCHEMA, TUNED_SIDE

STUDY_FILE = "ablation.json"
STUDY_SCHEMA = {"baseline": TEXT, "variants": {"*": {"*": LIST}}, "tuned": [TEXT]}
_RUNG_SCHEMA = {
    "C": NUMBER, "baseline": (NUMBER, None), "variant": (NUMBER, None), "n_seeds": PAIR,
    "m": {"*": (NUMBER, None)}, "interval90": {"*": (PAIR, None)},
}  # fmt: skip
_POINT_SCHEMA = {"C": NUMBER, "m": (NUMBER, None), "interval90": (PAIR, None)}
_SCORE_SCHEMA = {
    "predicted": (NUMBER, None), "predicted90": (PAIR, None), "measured": (NUMBER, None), "measured90": (PAIR, None),
    "agrees": (FLAG, None),
}  # fmt: skip
_VARIANT_SCHEMA = {
    "variant": TEXT, "verdict": TEXT, "criterion": TEXT, "rungs": [_RUNG_SCHEMA], "target": _POINT_SCHEMA,
    "curve": [_POINT_SCHEMA], "scored": _SCORE_SCHEMA, "notes?": [TEXT],
}  # fmt: skip
SUMMARY_SCHEMA = {
    "study": {"tuned": [TEXT]}, "variants": [_VARIANT_SCHEMA], "prediction": PREDICTION_SCHEMA, "tuning": [TUNED_SIDE],
    "rows": [{"side": TEXT, "C": NUMBER, "seed": WHOLE, "loss": (NUMBER, None)}], "command?": (TEXT, None),
}  # fmt: skip
CURRENCIES = {"flops": "FLOPs", "tokens": "tokens", "time": "time"}
NOT_SHOWN = (
    "What this setting cannot tell: other data, depths and batches than these; scales beyond the target; and, if only "
    "the learning rate was tuned, whether another setting suits the variant better. Intervals hold the noise of seeds "
    "and of the baseline's law, not the error of the tuned values."
)


def report_ablation(page: ReportPage) -> tuple[ReportPage, pathlib.Path]:
    """Write the page of an ablation; without summary.json it shows the runs and says what is missing."""
    folder = page.folder
    study = records.read_json(folder / STUDY_FILE, STUDY_SCHEMA)
    folders = page.readable(listing.run_folders(folder))
    rows = [listing.read_run(each) for each in folders]
    path = folder / "summary.json"
    summary = records.read_json(path, SUMMARY_SCHEMA) if os.path.lexists(path) else {}
    for result in summary.get("variants", []):
        _variant(page, summary, study["baseline"], result)
    if not summary:
        page.missing.append("The verdict: the study has not ended; the same command goes on.")
    if summary.get("tuning"):
        page.parts.append(
            html.render_section("How each side was tuned", *_tuning(page, summary["tuning"], study["tuned"]))
        )
    page.parts.append(html.render_section("What each variant changes", *_changes(study)))
    page.parts.append(html.render_section("What this does not show", html.render_paragraph(NOT_SHOWN)))
    page.parts.append(html.render_section("Runs", runs_table(rows)))
    page.parts.append(html.render_section("Logbook", logbook_section(folders)))
    commands = [summary.get("command") or "", f"scalelab report {quote_path(folder)}"]
    page.parts.append(html.render_section("Where it comes from", origin_section(folders, [c for c in commands if c])))
    names = ", ".join(study["variants"])
    return page, page.write(f"Does it hold at scale? {names}", f"{len(rows)} runs: {gather.describe_states(rows)}")


def _variant(page: ReportPage, summary: Mapping[str, Any], baseline: str, result: Mapping[str, Any]) -> None:
    """Make the sections of one variant."""
    name = result["variant"]
    untuned = not summary["study"]["tuned"]
    doubtful = untuned or "before_tuning" in result
    css = "bad" if doubtful else "good" if result["verdict"].startswith("adopt") else ""
    card = [html.render_paragraph(result["verdict"], css)]
    card.append(html.render_paragraph(f"The criterion, written before the largest rung: {result['criterion']}", "soft"))
    card.append(html.render_paragraph(describe_score(summary["prediction"], result["scored"]), "soft"))
    rows = figures.loss_rows(summary["rows"], (baseline, name))
    losses = page.draw(
        f"{name}-losses",
        functools.partial(figures.plot_losses, rows, baseline, name, result),
        rows,
        "Every run, and the means of each rung. Arrows lead to the compute at which the baseline is as good.",
    )
    points = figures.multiplier_rows(result)
    multiplier = page.draw(
        f"{name}-multiplier",
        functools.partial(figures.plot_multiplier, points, result["scored"], name),
        points,
        "The compute that the baseline needs for the variant's loss, over the variant's own, with 90 % intervals.",
    )
    page.parts.append(
        html.render_section(name, html.render_card(*card), losses, multiplier, rung_table(result), *_notes(result))
    )


def describe_score(prediction: Mapping[str, Any], scored: Mapping[str, Any]) -> str:
    """Describe the multiplier that was predicted before the largest rung ran, and the measured one."""
    if scored["predicted"] is None:
        return "No multiplier was predicted for the largest rung."
    verdict = {True: "they agree within their errors", False: "they do not agree", None: "no interval to judge by"}
    return (
        f"Written at {gather.format_utc(prediction['predicted_at'])}, before the rung of "
        f"{format_scientific(prediction['C'])} FLOPs ran: {_times(scored['predicted'], scored['predicted90'])}. "
        f"Measured there: {_times(scored['measured'], scored['measured90'])}: {verdict[scored['agrees']]}."
    )


def rung_table(result: Mapping[str, Any]) -> str:
    """Make the table by rung and currency."""
    rows = []
    for rung in result["rungs"]:
        row = {
            "C": rung["C"],
            "baseline": rung["baseline"],
            "variant": rung["variant"],
            "seeds": describe_seeds(rung["n_seeds"]),
        }
        for key, label in CURRENCIES.items():
            row[label] = _times(rung["m"].get(key), (rung["interval90"] or {}).get(key))
        rows.append(row)
    columns = {"C": "FLOPs", "baseline": "baseline's loss", "variant": "variant's loss", "seeds": "seeds"}
    columns |= {label: f"multiplier in {label}" for label in CURRENCIES.values()}
    return html.render_table(rows, columns)


def describe_seeds(numbers: Sequence[int]) -> str:
    """Describe how many runs the baseline and the variant have."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{numbers[0]} and {numbers[1]}"


def _times(m: float | None, interval: Sequence[float] | None) -> str:
    if m is None:
        return "–"
    return format_factor(m) if not interval else f"{format_factor(m)} ({join_ends(interval)})"


def _notes(result: Mapping[str, Any]) -> list[str]:
    return [html.render_paragraph(note, "soft") for note in result.get("notes", [])]


def _tuning(page: ReportPage, tuned: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Draw a figure for each tuned key, and make a table of the values tried and chosen."""
    rows = figures.tuning_rows(tuned)
    parts = []
    for key in keys:
        plot = functools.partial(figures.plot_tuning, rows, tuned, key)
        caption = f"Losses of the tuning trials over {key}. Dotted: the value that each rung's runs then used."
        parts.append(page.draw(f"tuning-{key.split('.')[-1]}", plot, rows, caption))
    table = [
        {"side": side["name"], "trials": side["trials"], "diverged": side["diverged"]}
        | {"how": "; ".join(side["how"].values()), "problems": "; ".join(side["problems"]) or "none"}
        for side in tuned
    ]
    columns = {
        "side": "side",
        "trials": "trials",
        "diverged": "diverged",
        "how": "carried up by",
        "problems": "problems",
    }
    return [*parts, html.render_table(table, columns, "stack")]


def _changes(study: Mapping[str, Any]) -> list[str]:
    rows = [
        {"variant": name, "key": key, "baseline": pair[0], "value": pair[1]}
        for name, changed in study["variants"].items()
        for key, pair in changed.items()
    ]
    columns = {"variant": "variant", "key": "key", "baseline": "baseline", "value": "variant's value"}
    return [html.render_table(rows, columns, "stack")] if rows else [html.render_paragraph("Nothing.")]
