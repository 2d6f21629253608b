"""The page of a folder of runs: the swept values, the best setting, and the lost runs."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence

from scalelab.errors import quote_path
from scalelab.index import grids
from scalelab.index.table import IndexedRun, read_indexed_runs
from scalelab.report import charts, gather, html
from scalelab.report.figures import lrplots, style, sweepplots
from scalelab.report.parts import (
    ReportPage,
    logbook_section,
    loss_sections,
    metrics_section,
    origin_section,
    runs_table,
)
from scalelab.sweep.answer import rows as answer_rows
from scalelab.sweep.answer import settings, wording
from scalelab.sweep.answer.best_lr import BestLr
from scalelab.sweep.answer.ranking import LrOptimum, SweepAnswer

MOST_SETTINGS = 100  # most rows in the table of settings


def report_sweep(page: ReportPage) -> tuple[ReportPage, pathlib.Path]:
    """Write the page of a folder of runs: the swept values, the best settings, all runs, and the lost ones."""
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
    page.parts.append(_overview(page, rows, swept, gather.entropy_rate(folders), not answer.design))
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
    """Explain why a run can't be read; "" if it can."""
    return str(run.row.get("damage") or run.progress.get("damage") or "")


def _describe_choice(shown: int, runs: int) -> str:
    if shown == runs:
        return ""
    text = f"Of {shown:,} of {runs:,} runs, evenly by final loss from the best to the lost ones."
    return html.render_paragraph(text, "soft")


def _overview(page: ReportPage, rows: list[dict], swept: list[str], floor: float | None, ring: bool) -> str:
    """Draw the final loss of every trial over the swept values; with a `ring` around the best one."""
    if not any(map(settings.is_final, rows)):
        page.missing.append("Overview: no trial has finished with a finite loss yet.")
        return ""
    chosen = gather.choose_runs(rows, gather.MOST_ROWS)
    shown = [{"run": row["name"]} | {key: row.get(key) for key in (*swept, "status", "val_loss")} for row in chosen]
    best = "the best setting has a ring at its mean over seeds, " if ring else ""
    caption = f"Final validation loss of every trial; {best}lost ones stand at the top."
    plot = functools.partial(sweepplots.plot_sweep, shown, swept, floor, "Final loss over what was swept", ring)
    drawn = page.draw("sweep", plot, shown, caption, *_point_charts(shown, swept, ring))
    return html.render_section("Overview", _describe_choice(len(chosen), len(rows)), drawn)


def _point_charts(rows: list[dict], swept: Sequence[str], ring: bool) -> list[charts.Chart]:
    """Chart final losses over each swept number, coloured by the other swept value; hovering names the trial.

    With a `ring` around the best setting's mean, as in the figure.
    """
    live: list[charts.Chart] = []
    best = settings.find_best(settings.group_by_setting(rows, swept)) if ring else None
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
        if known:
            live.append(charts.point_chart(points, colours, key, style.LOSS_LABEL, logx))
            if best:
                charts.add_ring(live[-1], "the best setting's mean over seeds", (best.values[key], best.mean))
    return live


def _best(answer: SweepAnswer, rows: list[dict], swept: list[str]) -> str:
    """Describe the answer: the best setting over seeds, settings that may be as good, the best LR."""
    text = f"Swept: {', '.join(swept) or 'nothing (all configs are equal)'}. {gather.describe_states(rows)}."
    warnings = wording.list_warnings(answer)
    lines = wording.describe_answer(answer)
    shown = [html.render_paragraph(line, "bad" if line in warnings else "") for line in lines]
    return "".join([*shown, html.render_paragraph(text, "soft")])


def _settings_table(answer: SweepAnswer) -> str:
    """Make the table of settings with seeds, mean loss, gap to the best and verdict; of many, the best ones."""
    few, note = answer, ""
    if len(answer.settings) > MOST_SETTINGS:
        ranked = sorted(answer.settings, key=lambda each: each.rank or math.inf)[:MOST_SETTINGS]
        few = dataclasses.replace(answer, settings=tuple(ranked))
        note = html.render_paragraph(f"The best {MOST_SETTINGS} of {len(answer.settings):,} settings.", "soft")
    return note + html.render_table(wording.answer_cells(few), wording.answer_columns(few), "stack")


def _lr_figure(page: ReportPage, answer: SweepAnswer) -> str:
    """Draw losses over learning rates with the parabola's minimum; "" without a curve of three learning rates."""
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
    """Make a row of `plot_lr_optima`: losses over learning rates with the best one."""
    return {
        "label": wording.name_setting(optimum.values) or "loss",
        "log2_lrs": [math.log2(lr) for lr in optimum.lrs],
        "losses": optimum.losses,
        "log2_lr": best.log2_lr,
        "interval90": best.interval,
        "interior": best.interior,
        "loss": best.loss,
    }
