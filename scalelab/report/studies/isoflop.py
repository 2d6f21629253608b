"""The page of a scaling study: prediction and score, then the fit, its evidence and the runs behind it.

It reads `summary.json` (keys `fit`, `held_out`, `runs`, `ladder`, `lr_checks`, `batch_checks`, `isoflop`, `wall_s`,
each of which may be absent while the study runs) and the run folders. It fits only the parabolas that are drawn beside.
"""

import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, quote_path
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use.isoflop import IsoFlop, fit_isoflop, group_budgets
from scalelab.record import listing, records
from scalelab.record.jsonfiles import LIST, NUMBER, TEXT
from scalelab.report import charts, gather, html
from scalelab.report.figures import lawplots, plots
from scalelab.report.figures.style import LOSS_LABEL, value_colours
from scalelab.report.parts import (
    ReportPage,
    logbook_section,
    loss_sections,
    metrics_section,
    origin_section,
    runs_table,
)
from scalelab.report.studies import verdict
from scalelab.report.tables import format_scientific, format_short

_PARTS: tuple = ({}, None)
SUMMARY_SCHEMA = {
    "fit?": ({"params?": ({"*": (NUMBER, None)}, None), "exponents?": _PARTS}, None),
    "held_out?": _PARTS,
    "isoflop?": _PARTS,
    "ladder?": _PARTS,
    "runs?": (LIST, None),
    "lr_checks?": (LIST, None),
    "wall_s?": (NUMBER, None),
    "command?": (TEXT, None),
}


def report_study(page: ReportPage) -> tuple[ReportPage, pathlib.Path]:
    """Write the page of a study; it lists the parts that the study does not have yet."""
    folder, summary = page.folder, records.read_json(page.folder / "summary.json", SUMMARY_SCHEMA)
    folders = page.readable(listing.run_folders(folder))
    rows = sorted(listing.read_runs(folder), key=lambda row: (row["C"] or 0, row["N"] or 0))
    first = _first_metric(summary, folders)
    page.colours["N"] = _size_colours(summary, rows)
    page.parts.append(html.render_card(*verdict.summary_lines(summary, first)))
    page.parts.append(
        html.render_section(
            "Prediction and measurement",
            _held_out(page, summary, gather.entropy_rate(folders)),
            verdict.describe_caveats(summary),
        )
    )
    page.parts.append(html.render_section("IsoFLOP curves", *_isoflop(page, summary)))
    page.parts.append(html.render_section("The fitted law", *_fit(page, summary)))
    for kind, title in (("lr", "Is the learning-rate rule right?"), ("batch", "Is the batch right?")):
        page.parts.append(html.render_section(title, *_checks(page, summary, kind)))
    page.parts.append(
        html.render_section("The ladder: how each run was configured", html.render_facts(summary.get("ladder") or {}))
    )
    page.parts.append(
        html.render_section("Loss curves", *loss_sections(page, folders, "N", "N (total)", _held_name(summary)))
    )
    page.parts.append(html.render_section("Metrics", metrics_section(page, folders, "N")))
    page.parts.append(html.render_section("Runs", runs_table(rows)))
    page.parts.append(html.render_section("Logbook", logbook_section(folders)))
    quoted = quote_path(folder)
    commands = [summary.get("command") or "", f"scalelab fit {quoted}", f"scalelab report {quoted}"]
    page.parts.append(html.render_section("Where it comes from", origin_section(folders, [c for c in commands if c])))
    subtitle = f"{len(rows)} runs: {gather.describe_states(rows)}"
    if summary.get("wall_s"):
        subtitle += f" · {summary['wall_s']:.0f} s in all"
    return page, page.write(f"Scaling study: {folder.resolve().name}", subtitle)


def _size_colours(summary: dict, rows: Sequence[dict]) -> dict[Any, str]:
    """Colours by size for the whole page: sizes of runs, fitted rows and checks."""
    sizes = [row.get("N") for row in (*rows, *fitted_rows(summary))]
    sizes += [row["size"] for kind in verdict.CHECK_LABELS for row in summary.get(f"{kind}_checks") or []]
    numbers = [size for size in sizes if isinstance(size, int | float)]
    return value_colours(numbers, "size") | value_colours((s for s in sizes if s and s not in numbers), "size")


def _first_metric(summary: dict, folders: Sequence[pathlib.Path]) -> float | None:
    """Time of the held-out run's first line, or None. The run is found by name: a study may have been moved."""
    held_out = [folder for folder in folders if folder.name == _held_name(summary)]
    lines = records.read_metrics(held_out[0]) if held_out else []
    return lines[0]["time"] if lines else None


def _held_name(summary: dict) -> str | None:
    where = (summary.get("held_out") or {}).get("folder")
    return pathlib.Path(where).name if where else None


def _params(summary: dict) -> ChinchillaParams | None:
    fit = summary.get("fit") or {}
    return (
        ChinchillaParams(**{key: fit["params"][key] for key in ChinchillaParams._fields}) if fit.get("params") else None
    )


def fitted_rows(summary: dict) -> list[dict]:
    """The study's runs, the held-out one last: `run`, `role`, `budget`, `N`, `D`, `C`, `loss`, `predicted`.

    `N` is by the fit's own convention. `predicted` is the law's loss, also for fitted runs; None without a fit.
    """
    params, held = _params(summary), summary.get("held_out") or {}
    runs = [
        run | {"role": run.get("role") or "fit"} for run in summary.get("runs") or [] if run.get("loss") is not None
    ]
    runs = [run for run in runs if run["role"] == "fit" and run.get("status", "done") == "done"]
    runs = [run for run in runs if math.isfinite(run["loss"])]
    if held.get("measured_loss") is not None:
        runs.append(held | {"name": "held-out run", "role": "holdout", "loss": held["measured_loss"]})
    rows = [{"run": run["name"]} | {k: run.get(k) for k in ("role", "budget", "N", "D", "C", "loss")} for run in runs]
    for row in rows:
        row["predicted"] = None if params is None else float(loss_at(params, row["N"], row["D"]))
    return rows


def _per_nd(rows: list[dict]) -> float:
    """Estimate k of C = k N D over the runs; exact FLOPs count more than 6 N D."""
    return float(np.median([row["C"] / (row["N"] * row["D"]) for row in rows]))


def n_axis_label(summary: dict) -> str:
    """Axis label that names the convention of N."""
    return f"N (parameters, {(summary.get('fit') or {}).get('n_convention', 'convention not recorded')})"


def _held_out(page: ReportPage, summary: dict, floor: float | None) -> str:
    held, params, rows = summary.get("held_out") or {}, _params(summary), fitted_rows(summary)
    if params is None or not held.get("interval90") or not rows:
        page.missing.append("Prediction: no fit with a held-out prediction in summary.json yet.")
        return ""
    keys = ("C", "N", "D", "predicted_loss", "measured_loss")
    low, high = held["interval90"]
    behind = [{key: row[key] for key in ("run", "role", "C", "N", "D", "loss", "predicted")} for row in rows]
    behind.append({"run": "prediction", "role": "prediction", **{key: held.get(key) for key in keys[:3]},
                   "predicted": held["predicted_loss"], "low90": low, "high90": high})  # fmt: skip
    title = "Predicted, then measured"
    args = (rows, held, params, _per_nd(rows), summary.get("frontier"), floor, title, page.colours["N"])
    caption = (
        "The fitted frontier, extrapolated to the held-out run's compute, and its 90 % interval. "
        "Points: fitted runs, by size."
    )
    return page.draw("prediction", lambda: lawplots.plot_held_out(*args), behind, caption)


def _isoflop(page: ReportPage, summary: dict) -> list[str]:
    rows = [row for row in fitted_rows(summary) if row["role"] == "fit"]
    isoflop = summary.get("isoflop") or {}
    if not rows or not isoflop.get("budgets"):
        page.missing.append("IsoFLOP curves: no IsoFLOP fit in summary.json yet.")
        return []
    for row, budget in zip(rows, group_budgets([row["C"] for row in rows]), strict=True):
        row["budget"] = float(budget)
    fits = isoflop["budgets"]
    behind = [{key: row[key] for key in ("run", "budget", "N", "D", "C", "loss")} for row in rows]
    behind += [{"run": "minimum", "budget": fit["budget"], "N": fit["N"], "loss": fit["loss"]} for fit in fits]
    label = n_axis_label(summary)
    caption = f"Loss over size at equal compute; lines: {isoflop['method']} in log N, dashed: parabolas; minima marked."
    shades = value_colours((row["budget"] for row in rows), "budget")
    parabolas = _fit_parabolas(rows)
    beside = [each.to_json() for each in parabolas.profiles] if parabolas else []
    points = {format_scientific(c): [(r["N"], r["loss"], r["run"]) for r in rows if r["budget"] == c] for c in shades}
    colours = {format_scientific(budget): colour for budget, colour in shades.items()}
    chart = charts.point_chart(points, colours, label, LOSS_LABEL, True)
    for each, method in ((fits, isoflop["method"]), (beside, "parabola")):
        for fit in each:
            shade = shades[min(shades, key=lambda budget: abs(budget / fit["budget"] - 1))]
            name = f"{method}, {format_scientific(fit['budget'])} FLOPs, minimum at N = {format_short(fit['N'])}"
            charts.add_curve(chart, name, shade, fit["curve"], dash=method == "parabola" and each is beside)
    charts.add_points(chart, "minimum", "var(--ink)", [(fit["N"], fit["loss"], isoflop["method"]) for fit in fits])
    plot = functools.partial(lawplots.plot_isoflops, rows, fits, label, "IsoFLOP curves", beside)
    return [
        page.draw("isoflop", plot, behind, caption, chart),
        *verdict.isoflop_lines(isoflop, parabolas.a if parabolas else None, summary.get("fit") or {}),
    ]


def _fit_parabolas(rows: list[dict]) -> IsoFlop | None:
    """Fit parabolas through the IsoFLOP rows of each budget; None if the rows do not suffice."""
    try:
        C, N, loss = ([row[key] for row in rows] for key in ("C", "N", "loss"))
        return fit_isoflop(C, N, loss, "parabola")
    except (BadInput, FitError):
        return None


def _fit(page: ReportPage, summary: dict) -> list[str]:
    params, rows = _params(summary), fitted_rows(summary)
    if params is None or not rows:
        page.missing.append("The fitted law: no fit in summary.json yet.")
        return []
    behind = [row | {"residual": row["loss"] / row["predicted"] - 1} for row in rows]
    label, per_nd = n_axis_label(summary), _per_nd(rows)
    return [
        verdict.fit_table(summary["fit"]),
        page.draw(
            "surface",
            lambda: lawplots.plot_surface(rows, params, per_nd, label, "Fitted loss L(N, D)"),
            behind,
            "Contours of the fitted law; runs coloured by measured over predicted loss.",
        ),
        page.draw(
            "residuals",
            lambda: lawplots.plot_residuals(rows, label, "Residuals of the law", page.colours["N"]),
            behind,
            "What the law leaves over, coloured by size. A pattern here is a misfit of its form.",
        ),
    ]


def _checks(page: ReportPage, summary: dict, kind: str) -> list[str]:
    rows: list[dict[str, Any]] = summary.get(f"{kind}_checks") or []
    name = verdict.CHECK_LABELS[kind]
    if not rows:
        page.missing.append(f"Checks of the {name}: none in summary.json, so the rule's {name} is untested here.")
        return []
    shown = [{key: row.get(key) for key in ("size", "factor", "loss")} for row in rows]
    verdicts = verdict.study_verdicts(summary, kind)
    figure = page.draw(
        f"{kind}_checks",
        lambda: plots.plot_checks(shown, name, verdicts, page.colours["N"]),
        shown,
        f"Check runs at multiples of the ladder's own {name}.",
    )
    return [*verdict.check_lines(summary, kind), figure]
