"""`write_report`: the page of a run, a sweep or a study, depending on the folder."""

import pathlib
from typing import Any

from scalelab import records
from scalelab.report import gather, html, study, verdict
from scalelab.report.figures import plots, sweepplots
from scalelab.report.parts import (
    ReportPage,
    layers_section,
    logbook_section,
    loss_sections,
    metrics_section,
    origin_section,
    runs_table,
)
from scalelab.sweep import settings

SOURCE_COLUMNS = {
    "source": "source",
    "val_loss": "val. loss (nats)",
    "bpb": "bits/byte",
    "tokens": "tokens trained on",
    "epochs": "epochs",
}


def write_report(folder: records.Folder) -> dict:
    """Write `folder/report.html` and `folder/figures/`. BadInput where the folder holds no run.

    Returns `path`, `kind` (run, study or sweep), `runs`, `figures` (names), `missing` (what could not be shown, why)
    and `failures` (of a study: why its fit is not to be trusted).
    """
    folder = pathlib.Path(folder)
    runs, failures = records.run_folders(folder), []
    if (folder / "config.json").exists():
        page, path = report_run(folder)
    elif (folder / "summary.json").exists():
        page, path = study.report_study(folder)
        failures = verdict.describe_failures(records.read_json(folder / "summary.json"))
    else:
        page, path = report_sweep(folder)
    result = {"path": str(path), "kind": page.kind, "runs": len(runs), "figures": page.figures, "missing": page.missing}
    return result | {"failures": failures}


def report_run(folder: pathlib.Path) -> tuple[ReportPage, pathlib.Path]:
    """The page of one run, finished or not."""
    page, row = ReportPage(folder, "run"), records.read_run(folder)
    page.parts.append(html.render_card(_state(row), _key_numbers(row)))
    page.parts.append(html.render_section("Loss", *loss_sections(page, [folder], "run", "")))
    if sources := records.rows_by_source(row):
        page.parts.append(html.render_section("Sources", html.render_table(sources, SOURCE_COLUMNS)))
    page.parts.append(html.render_section("Optimizer", _dynamics(page)))
    page.parts.append(html.render_section("Metrics", metrics_section(page, [folder])))
    page.parts.append(html.render_section("Layers", layers_section(page)))
    page.parts.append(html.render_section("Logbook", logbook_section([folder])))
    page.parts.append(
        html.render_section("Size and compute, by every convention", html.render_facts(_conventions(folder)))
    )
    page.parts.append(
        html.render_section(
            "Config", html.render_details("every value", html.render_facts(records.read_config(folder)))
        )
    )
    page.parts.append(
        html.render_section("Where it comes from", origin_section([folder], [f"scalelab report {folder}"]))
    )
    return page, page.write(
        f"Run: {row['name']}", f"{row['status']} · identity {row['identity'] or 'not recorded yet'}"
    )


def _state(row: dict) -> str:
    """One sentence on the state of the run."""
    if row["status"] == "done":
        return html.render_paragraph("This run is done.", "good")
    if row["status"] == "diverged":
        return html.render_paragraph("This run diverged: its last loss is not a result.", "bad")
    return html.render_paragraph(
        f"This run is not finished (status: {row['status']}): numbers below are of the moment.", "bad"
    )


def _dynamics(page: ReportPage) -> str:
    rows = gather.read_step_rows(page.folder)
    if not rows:
        return ""
    caption = (
        "Learning rate, gradient norm before clipping, and the size of each update, over the steps that were logged."
    )
    return page.draw("dynamics", plots.plot_dynamics(rows), rows, caption)


def _key_numbers(row: dict) -> str:
    shown = {"validation loss (nats/token)": "val_loss", "bits per byte": "bpb", "N (total)": "N", "D (tokens)": "D",
             "C (FLOPs, exact)": "C"}  # fmt: skip
    return html.render_numbers({label: html.format_value(row[key], key) for label, key in shown.items()})


def _conventions(folder: pathlib.Path) -> dict:
    record = records.read_record(folder)
    return {
        key: record[key]
        for key in ("params", "params_by_group", "flops_per_token", "flops", "tokens", "steps")
        if key in record
    }


def report_sweep(folder: pathlib.Path) -> tuple[ReportPage, pathlib.Path]:
    """The page of a folder of runs: what was swept, who won, who was lost."""
    page, rows = ReportPage(folder, "sweep"), records.read_runs(folder)
    folders = page.readable(records.run_folders(folder))
    swept = gather.swept_keys(rows)
    page.parts.append(html.render_card(_best(rows, swept)))
    shown = [{"run": row["name"]} | {key: row.get(key) for key in (*swept, "status", "val_loss")} for row in rows]
    if any(map(settings.is_final, rows)):
        fig = sweepplots.plot_sweep(shown, swept, gather.entropy_rate(folders), "Final loss over what was swept")
        caption = (
            "Final validation loss of every trial; the best setting has a ring at its mean over seeds, "
            "lost ones stand at the top."
        )
        page.parts.append(html.render_section("Overview", page.draw("sweep", fig, shown, caption)))
    else:
        page.missing.append("Overview: no trial has finished with a finite loss yet.")
    colour = swept[0] if swept else "run"
    page.parts.append(html.render_section("Loss curves", *loss_sections(page, folders, colour, colour)))
    page.parts.append(html.render_section("Metrics", metrics_section(page, folders, swept[0] if swept else "name")))
    page.parts.append(html.render_section("Runs", runs_table(rows, swept)))
    page.parts.append(html.render_section("Logbook", logbook_section(folders)))
    page.parts.append(
        html.render_section("Where it comes from", origin_section(folders, [f"scalelab report {folder}"]))
    )
    return page, page.write(f"Sweep: {folder.resolve().name}", f"{len(rows)} runs: {gather.describe_states(rows)}")


def _best(rows: list[dict], swept: list[str]) -> str:
    """The best setting in words, and whether its values sit at the edge of what was swept."""
    text = f"Swept: {', '.join(swept) or 'nothing (all configs are equal)'}. {gather.describe_states(rows)}."
    best = settings.find_best(settings.group_by_setting(rows, swept))
    if best is None:
        return html.render_paragraph(f"No setting has finished without a lost seed. {text}", "bad")
    values = ", ".join(f"{key} = {html.format_value(value)}" for key, value in best.values.items())
    seeds = f"seed{'s' * (len(best.seeds) > 1)} {', '.join(map(str, best.seeds))}"
    loss = f"{best.mean:.4f} nats/token with {seeds}: what of it is the seed's luck is unknown"
    if best.error is not None:
        loss = f"{best.mean:.4f} ± {best.error:.4f} nats/token, mean and standard error over {seeds}"
    missing = f"; {best.pending} of its seeds not finished" if best.pending else ""
    name = f"Best: {values}, with validation loss" if values else "Nothing but seeds was swept: validation loss"
    paragraph = html.render_paragraph(f"{name} {loss}{missing}. {text}")
    edges = [key for key in best.values if _at_edge(best.values[key], rows, key)]
    if edges:
        paragraph += html.render_paragraph(
            f"Its {' and '.join(edges)} {'sits' if len(edges) == 1 else 'sit'} at the edge of the sweep: the best may "
            "lie outside.",
            "bad",
        )
    return paragraph


def _at_edge(value: Any, rows: list[dict], key: str) -> bool:
    values = [row[key] for row in rows if isinstance(row.get(key), int | float) and not isinstance(row[key], bool)]
    return len(set(values)) > 2 and value in (min(values), max(values))
