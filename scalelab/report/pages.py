"""`write_report`: the page of a run, a sweep or a study, depending on the folder."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint, quote_path
from scalelab.index.table import read_indexed_runs
from scalelab.record import listing, records
from scalelab.report import charts, gather, html
from scalelab.report.figures import plots
from scalelab.report.parts import (
    PaperStyle,
    ReportPage,
    check_page,
    layers_section,
    logbook_section,
    metrics_section,
    origin_section,
    run_loss_figure,
)
from scalelab.report.studies import ablation, isoflop, sweep, tuning, verdict
from scalelab.sweep.live import LiveTrial

SOURCE_COLUMNS = {
    "source": "source",
    "val_loss": "val. loss (nats)",
    "bpb": "bits/byte",
    "tokens": "tokens trained on",
    "epochs": "epochs",
}


DYNAMICS_CAPTION = "Learning rate, gradient norm before clipping, and the size of each update, over the logged steps."
SPEED_CAPTION = (
    "Tokens trained on per second, and model FLOPs utilisation as the record defines it, over the logged steps."
)


def write_report(
    folder: records.Folder,
    samples: Sequence[dict] | str | None = None,
    paper: PaperStyle | None = None,
    output: pathlib.Path | None = None,
) -> dict:
    """Write `folder/report.html` and `folder/figures/`. BadInput if the folder holds no run.

    output: the page in their place, with its figures beside it; nothing is written into `folder`.
    samples: texts that the model of a run wrote (`how`, `text`), or why there are none; None: not asked for.
    paper: write figures for a paper into `folder/paper/` and no page; BadInput for the name of no figure.

    Returns `path`, `kind` (run, study or sweep), `runs`, `figures` (names), `missing` (what could not be shown, why)
    and `failures` (of a study: why its fit is not to be trusted).
    """
    folder = pathlib.Path(folder)
    runs, failures = listing.run_folders(folder), []
    target: dict[str, Any] = {"place": "paper" if paper else "figures", "paper": paper}
    if output:
        target = {"out": check_page(output), "file": output.name, "place": f"{output.stem}_figures"}
    if (folder / "config.json").exists():
        page, path = report_run(ReportPage(folder, "run", **target), samples)
    elif (folder / ablation.STUDY_FILE).exists():
        page, path = _report_study(
            ablation.report_ablation, ReportPage(folder, "ablation", **target), "scalelab ablate"
        )
    elif (folder / tuning.STUDY_FILE).exists():
        page, path = _report_study(tuning.report_tuning, ReportPage(folder, "tuning", **target), "scalelab tune")
    elif (folder / "summary.json").exists():
        page, path = isoflop.report_study(ReportPage(folder, "study", **target))
        failures = verdict.describe_failures(records.read_json(folder / "summary.json", isoflop.SUMMARY_SCHEMA))
    else:
        page, path = sweep.report_sweep(ReportPage(folder, "sweep", **target))
    if paper and paper.only not in (None, *page.figures):
        raise BadInput(
            f"no figure {paper.only!r}: there are {', '.join(page.figures)}"
            f"{nearest_hint(paper.only or '', page.figures)}"
        )
    result = {"path": str(path), "kind": page.kind, "runs": len(runs), "figures": page.figures, "missing": page.missing}
    return result | {"failures": failures}


def _report_study(
    report: Callable[[ReportPage], tuple[ReportPage, pathlib.Path]], page: ReportPage, command: str
) -> tuple[ReportPage, pathlib.Path]:
    """Call `report(page)`; BadInput if the study's files contradict each other."""
    try:
        return report(page)
    except BadInput:
        raise
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"{page.folder}: its JSON files are not as `{command}` writes them ({why})") from error


def report_run(page: ReportPage, samples: Sequence[dict] | str | None = None) -> tuple[ReportPage, pathlib.Path]:
    """Write the page of one run, finished or not."""
    folder, row = page.folder, next(iter(read_indexed_runs(page.folder).values())).row
    page.parts.append(html.render_card(_state(row), _key_numbers(row)))
    page.parts.append(html.render_section("Loss", run_loss_figure(page)))
    if sources := listing.rows_by_source(row):
        page.parts.append(html.render_section("Sources", html.render_table(sources, SOURCE_COLUMNS)))
    page.parts.append(html.render_section("Optimizer", _over_steps(page, "dynamics", plots.DYNAMICS, DYNAMICS_CAPTION)))
    page.parts.append(html.render_section("Throughput", _over_steps(page, "throughput", plots.SPEED, SPEED_CAPTION)))
    page.parts.append(html.render_section("Metrics", metrics_section(page, [folder], drawn=tuple(plots.SPEED))))
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
        html.render_section("Where it comes from", origin_section([folder], [f"scalelab report {quote_path(folder)}"]))
    )
    page.parts.append(html.render_section("Samples of its text", _samples(samples)))
    return page, page.write(
        f"Run: {row['name']}", f"{LiveTrial(row).status_text} · identity {row['identity'] or 'not recorded yet'}"
    )


def _state(row: dict) -> str:
    """Describe the state of the run in one sentence."""
    if row["status"] == "done":
        return html.render_paragraph("This run is done.", "good") + _alarms(row["folder"])
    if row["status"] == "diverged":
        return html.render_paragraph("This run diverged: its last loss is not a result.", "bad")
    if row["status"] == records.STOPPED_EARLY_STATUS:
        why = next((e.get("text", "") for e in records.read_events(row["folder"]) if e["kind"] == "stopped_early"), "")
        return html.render_paragraph(
            f"This run ended early: its last loss is not that of its planned end. {why}", "bad"
        )
    status = f"This run is not finished (status: {LiveTrial(row).status_text}): numbers below are of the moment."
    return html.render_paragraph(status, "bad")


def _alarms(folder: str) -> str:
    """Say how often the guard gave an alarm, so that a run that ended is not taken for a healthy one."""
    steps = [event["step"] for event in records.read_events(folder) if event["kind"] == "guard"]
    if not steps:
        return ""
    one = len(steps) == 1
    text = f"The guard gave {len(steps)} alarm{'s' * (not one)}, {'at' if one else 'the first at'} step {steps[0]}; "
    return html.render_paragraph(f"{text}their cause: `scalelab diagnose {quote_path(folder)}`.", "bad")


def _over_steps(page: ReportPage, name: str, panels: dict[str, str], caption: str) -> str:
    """Draw `panels` {key of a training line: title} over the steps, also as one chart a panel."""
    rows = gather.read_step_rows(page.folder)
    panels = {key: title for key, title in panels.items() if any(row[key] is not None for row in rows)}
    if not panels:
        return ""
    behind = [{key: row[key] for key in ("step", *panels)} for row in rows]
    live = [
        charts.curve_chart(
            [row | {"run": page.folder.name} for row in behind],
            {key: title},
            {page.folder.name: plots.RUN_COLOURS["train_loss"]},
            title,
            "step",
        )
        for key, title in panels.items()
    ]
    return page.draw(name, functools.partial(plots.plot_steps, behind, panels), behind, caption, *live)


def _samples(samples: Sequence[dict] | str | None) -> str:
    """Render the texts that the model wrote, or the reason why there are none."""
    if samples is None or isinstance(samples, str):
        return html.render_paragraph(f"None: {samples}", "soft") if samples else ""
    return "".join(
        html.render_paragraph(each["how"], "soft") + f"<pre>{html.escape_html(each['text'])}</pre>" for each in samples
    )


def _key_numbers(row: dict) -> str:
    shown = {"validation loss (nats/token)": "val_loss", "bits per byte": "bpb", "N (total)": "N", "D (tokens)": "D",
             "N (active)": "N_active", "C (FLOPs, exact)": "C"}  # fmt: skip
    if not listing.has_inactive([row]):
        del shown["N (active)"]
    bound = {"bpb": "≥ "} if row.get("bpb_bound") == "lower" and row["bpb"] is not None else {}  # text was lost
    texts = {label: bound.get(key, "") + html.format_value(row[key], key) for label, key in shown.items()}
    return html.render_numbers(texts)


def _conventions(folder: pathlib.Path) -> dict:
    record = records.read_record(folder)
    return {
        key: record[key]
        for key in ("params", "params_by_group", "flops_per_token", "flops", "tokens", "steps")
        if key in record
    }
