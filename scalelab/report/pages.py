"""`write_report`: the page of a run, a sweep or a study, depending on the folder."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint, quote_path
from scalelab.index import grids
from scalelab.index.table import IndexedRun, read_indexed_runs
from scalelab.record import listing, records
from scalelab.report import charts, gather, html
from scalelab.report.figures import lrplots, plots, style, sweepplots
from scalelab.report.parts import (
    PaperStyle,
    ReportPage,
    check_page,
    layers_section,
    logbook_section,
    loss_sections,
    metrics_section,
    origin_section,
    run_loss_figure,
    runs_table,
)
from scalelab.report.studies import ablation, isoflop, tuning, verdict
from scalelab.sweep.answer import rows as answer_rows
from scalelab.sweep.answer import settings, wording
from scalelab.sweep.answer.best_lr import BestLr
from scalelab.sweep.answer.ranking import LrOptimum, SweepAnswer
from scalelab.sweep.live import LiveTrial

SOURCE_COLUMNS = {
    "source": "source",
    "val_loss": "val. loss (nats)",
    "bpb": "bits/byte",
    "tokens": "tokens trained on",
    "epochs": "epochs",
}

MOST_SETTINGS = 100  # in the table of settings

DYNAMICS_CAPTION = "Learning rate, gradient norm before clipping, and the size of each update, over the logged steps."
SPEED_CAPTION = (
    "Tokens trained on per second, and model FLOPs utilisation as the record defines it, over the logged steps."
)


def write_report(
    folder: records.Folder, samples: Sequence[dict] | str | None = None, paper: PaperStyle | None = None,
    output: pathlib.Path | None = None,
) -> dict:  # fmt: skip
    """Write `folder/report.html` and `folder/figures/`. BadInput where the folder holds no run.

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
        page, path = report_sweep(ReportPage(folder, "sweep", **target))
    if paper and paper.only not in (None, *page.figures):
        raise BadInput(f"no figure {paper.only!r}: there are {', '.join(page.figures)}"
                       f"{nearest_hint(paper.only or '', page.figures)}")  # fmt: skip
    result = {"path": str(path), "kind": page.kind, "runs": len(runs), "figures": page.figures, "missing": page.missing}
    return result | {"failures": failures}


def _report_study(
    report: Callable[[ReportPage], tuple[ReportPage, pathlib.Path]], page: ReportPage, command: str
) -> tuple[ReportPage, pathlib.Path]:
    """`report(page)`; BadInput where the study's files have the right types and don't fit each other."""
    try:
        return report(page)
    except BadInput:
        raise
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"{page.folder}: its JSON files are not as `{command}` writes them ({why})") from error


def report_run(page: ReportPage, samples: Sequence[dict] | str | None = None) -> tuple[ReportPage, pathlib.Path]:
    """The page of one run, finished or not."""
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
    """One sentence on the state of the run."""
    if row["status"] == "done":
        return html.render_paragraph("This run is done.", "good")
    if row["status"] == "diverged":
        return html.render_paragraph("This run diverged: its last loss is not a result.", "bad")
    if row["status"] == records.STOPPED_EARLY_STATUS:
        why = next((e.get("text", "") for e in records.read_events(row["folder"]) if e["kind"] == "stopped_early"), "")
        return html.render_paragraph(
            f"This run ended early: its last loss is not that of its planned end. {why}", "bad"
        )
    status = f"This run is not finished (status: {LiveTrial(row).status_text}): numbers below are of the moment."
    return html.render_paragraph(status, "bad")


def _over_steps(page: ReportPage, name: str, panels: dict[str, str], caption: str) -> str:
    """A figure of `panels` {key of a training line: title} over the steps; also as charts, one a panel."""
    rows = gather.read_step_rows(page.folder)
    panels = {key: title for key, title in panels.items() if any(row[key] is not None for row in rows)}
    if not panels:
        return ""
    behind = [{key: row[key] for key in ("step", *panels)} for row in rows]
    live = [
        charts.curve_chart(
            [row | {"run": page.folder.name} for row in behind],
            {key: title}, {page.folder.name: plots.RUN_COLOURS["train_loss"]}, title, "step",
        )
        for key, title in panels.items()
    ]  # fmt: skip
    return page.draw(name, functools.partial(plots.plot_steps, behind, panels), behind, caption, *live)


def _samples(samples: Sequence[dict] | str | None) -> str:
    """Texts that the model wrote, or the line that says why there are none."""
    if samples is None or isinstance(samples, str):
        return html.render_paragraph(f"None: {samples}", "soft") if samples else ""
    return "".join(
        html.render_paragraph(each["how"], "soft") + f"<pre>{html.escape_html(each['text'])}</pre>" for each in samples
    )


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


def report_sweep(page: ReportPage) -> tuple[ReportPage, pathlib.Path]:
    """The page of a folder of runs: what was swept, who won, who was lost."""
    folder, command = page.folder, f"scalelab report {quote_path(page.folder)}"
    runs, left_out = grids.split_runs(folder, read_indexed_runs(folder))
    damaged = {name: damage for name, run in runs.items() if (damage := _damage(run))}
    page.missing += [f"{name} is damaged: {damage}" for name, damage in damaged.items()]
    rows = [run.row for run in runs.values()]
    readable = [row for row in rows if row["name"] not in damaged]
    folders = [pathlib.Path(row["folder"]) for row in gather.choose_runs(readable, gather.MOST_CURVES)]
    few = _describe_choice(len(folders), len(readable))
    swept = settings.swept_keys(rows)
    answer = dataclasses.replace(answer_rows.answer_folder(folder, runs), left_out=left_out)
    page.parts.append(html.render_card(_best(answer, rows, swept)))
    if answer.settings:
        page.parts.append(html.render_section("Settings over seeds", _settings_table(answer), _lr_figure(page, answer)))
    page.parts.append(_overview(page, rows, swept, gather.entropy_rate(folders)))
    colour = swept[0] if swept else "run"
    page.parts.append(html.render_section("Loss curves", few, *loss_sections(page, folders, colour, colour)))
    page.parts.append(
        html.render_section("Metrics", few, metrics_section(page, folders, swept[0] if swept else "name"))
    )
    page.parts.append(html.render_section("Runs", runs_table(rows, swept)))
    page.parts.append(
        html.render_section("Logbook", logbook_section([pathlib.Path(row["folder"]) for row in readable]))
    )
    page.parts.append(html.render_section("Where it comes from", few, origin_section(folders, [command])))
    return page, page.write(f"Sweep: {folder.resolve().name}", f"{len(rows)} runs: {gather.describe_states(rows)}")


def _damage(run: IndexedRun) -> str:
    """Why a run can't be read; "" if it can."""
    return str(run.row.get("damage") or run.progress.get("damage") or "")


def _describe_choice(shown: int, runs: int) -> str:
    if shown == runs:
        return ""
    text = f"Of {shown:,} of {runs:,} runs, evenly by final loss from the best to the lost ones."
    return html.render_paragraph(text, "soft")


def _overview(page: ReportPage, rows: list[dict], swept: list[str], floor: float | None) -> str:
    """The final loss of every trial over what was swept."""
    if not any(map(settings.is_final, rows)):
        page.missing.append("Overview: no trial has finished with a finite loss yet.")
        return ""
    chosen = gather.choose_runs(rows, gather.MOST_ROWS)
    shown = [{"run": row["name"]} | {key: row.get(key) for key in (*swept, "status", "val_loss")} for row in chosen]
    caption = (
        "Final validation loss of every trial; the best setting has a ring at its mean over seeds, "
        "lost ones stand at the top."
    )
    plot = functools.partial(sweepplots.plot_sweep, shown, swept, floor, "Final loss over what was swept")
    drawn = page.draw("sweep", plot, shown, caption, *_point_charts(shown, swept))
    return html.render_section("Overview", _describe_choice(len(chosen), len(rows)), drawn)


def _point_charts(rows: list[dict], swept: Sequence[str]) -> list[charts.Chart]:
    """Final losses over each swept number, coloured by what else was swept; hovering names the trial."""
    live = []
    for key in [key for key in swept if key != settings.SEED_KEY][:4]:
        other = next((name for name in swept if name != key), None) if len(swept) == 2 else None
        known = [row for row in rows if settings.is_final(row) and isinstance(row[key], int | float)]
        groups: dict[str, list] = {}
        for row in known:
            groups.setdefault(f"{other} = {row[other]}" if other else "trial", []).append(row)
        shades = style.key_colours(other, (row[other] if other else "" for row in known))
        colours = {name: shades[group[0][other] if other else ""] for name, group in groups.items()}
        points = {name: [(row[key], row["val_loss"], row["run"]) for row in group] for name, group in groups.items()}
        logx = bool(known) and min(row[key] for row in known) > 0
        live += [charts.point_chart(points, colours, key, style.LOSS_LABEL, logx)] if known else []
    return live


def _best(answer: SweepAnswer, rows: list[dict], swept: list[str]) -> str:
    """The answer in sentences: the best setting over seeds, what is not told apart from it, and the best LR."""
    text = f"Swept: {', '.join(swept) or 'nothing (all configs are equal)'}. {gather.describe_states(rows)}."
    warnings = wording.list_warnings(answer)
    lines = wording.describe_answer(answer)
    shown = [html.render_paragraph(line, "bad" if line in warnings else "") for line in lines]
    return "".join([*shown, html.render_paragraph(text, "soft")])


def _settings_table(answer: SweepAnswer) -> str:
    """Settings with their seeds, mean loss, gap to the best and verdict; of many, the best ones by rank."""
    few, note = answer, ""
    if len(answer.settings) > MOST_SETTINGS:
        ranked = sorted(answer.settings, key=lambda each: each.rank or math.inf)[:MOST_SETTINGS]
        few = dataclasses.replace(answer, settings=tuple(ranked))
        note = html.render_paragraph(f"The best {MOST_SETTINGS} of {len(answer.settings):,} settings.", "soft")
    return note + html.render_table(wording.answer_cells(few), wording.answer_columns(few))


def _lr_figure(page: ReportPage, answer: SweepAnswer) -> str:
    """Losses over learning rates with the parabola's minimum; "" without a curve of three learning rates."""
    rows = [_lr_row(optimum, optimum.best) for optimum in answer.optima if optimum.best]
    if not rows:
        return ""
    behind = [
        {"setting": row["label"], "peak_lr": lr, "seed": seed, "loss": loss}
        for optimum, row in zip((o for o in answer.optima if o.best), rows, strict=True)
        for seed, losses in zip(optimum.seeds, optimum.losses, strict=True)
        for lr, loss in zip(optimum.lrs, losses, strict=True)
    ]
    caption = (
        "Lines: mean over seeds; dots: single seeds; star: minimum of a parabola in log LR, with its 90 % interval if "
        "it has one. No star: the lowest mean is at the edge. A lost seed leaves a gap."
    )
    plot = functools.partial(lrplots.plot_lr_optima, rows, "Loss over learning rate")
    return page.draw("lr_optimum", plot, behind, caption)


def _lr_row(optimum: LrOptimum, best: BestLr) -> dict:
    """One curve as `lrplots` takes it."""
    return {
        "label": wording.name_setting(optimum.values) or "loss",
        "log2_lrs": [math.log2(lr) for lr in optimum.lrs],
        "losses": optimum.losses,
        "log2_lr": best.log2_lr,
        "interval90": best.interval,
        "interior": best.interior,
        "loss": best.loss,
    }
