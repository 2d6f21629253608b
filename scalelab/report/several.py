"""Pages over several folders: two runs compared, and many sweeps side by side."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.index import grids
from scalelab.index.table import read_grid
from scalelab.record import listing, records
from scalelab.report import gather, html
from scalelab.report.parts import ReportPage, check_page, curve_figures, runs_table
from scalelab.sweep.answer import rows as answer_rows
from scalelab.sweep.answer import wording

SWEEP_COLUMNS = {"sweep": "sweep", "runs": "runs", "states": "states", "setting": "best setting", "loss": "mean loss",
                 "seeds": "seeds"}  # fmt: skip
DIFFERENCE_COLUMNS = {"key": "", "a": "A", "b": "B", "note": ""}


def write_comparison(path: pathlib.Path, comparison: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """Write the page of `scalelab compare`: its `lines`, the differences, and the curves of both sides.

    comparison: as from `evaluate.compare`. Returns `path` and `figures`.
    """
    sides = {name: [pathlib.Path(run) for run in runs] for name, runs in zip("AB", comparison["runs"], strict=True)}
    table = _named_rows(sides)  # checked first: nothing is drawn of a damaged run
    page = _page(path, "comparison")
    page.parts.append(html.render_card(*(html.render_paragraph(line) for line in lines)))
    page.parts.append(html.render_section("What differs", _differences(comparison)))
    page.parts.append(html.render_section("Loss curves", *_curves(page, sides, "side")))
    page.parts.append(html.render_section("Runs", runs_table(table)))
    title = " and ".join(pathlib.Path(comparison[side]).name for side in "ab")
    subtitle = f"A = {comparison['a']}, B = {comparison['b']}"
    return _result(page, sum(map(len, sides.values())), f"Comparison: {title}", subtitle)


def _differences(comparison: Mapping[str, Any]) -> str:
    rows = [
        {"key": key, "a": each["a"], "b": each["b"], "note": "" if each["computes"] else "no effect on the computation"}
        for key, each in comparison["config"].items()
    ]
    rows += [
        {"key": f"{part}: {key}", "a": a, "b": b}
        for part in ("data", "environment")
        for key, (a, b) in comparison[part].items()
    ]
    if not rows:
        return html.render_paragraph("Nothing: config, data and environment are equal.")
    return html.render_table([{"note": ""} | row for row in rows], DIFFERENCE_COLUMNS)


def write_sweeps(path: pathlib.Path, folders: Sequence[records.Folder]) -> dict[str, Any]:
    """Write a page over several sweeps: each one's answer, curves by sweep, and all runs."""
    page = _page(path, "sweeps")
    names = _distinct_names(folders)
    answers = {name: answer_rows.answer_folder(folder) for name, folder in names.items()}
    table = []
    for name, folder in names.items():
        rows, best = read_grid(folder)[0], next((each for each in answers[name].settings if each.rank == 1), None)
        line: dict[str, Any] = {"sweep": name, "runs": len(rows), "states": gather.describe_states(rows)}
        if best:
            line["setting"] = wording.name_setting(best.setting.values)
            line |= {"loss": best.setting.mean, "seeds": len(best.setting.losses)}
        table.append(line)
    page.parts.append(html.render_card(html.render_table(table, SWEEP_COLUMNS)))
    for name, answer in answers.items():
        lines = [html.render_paragraph(line) for line in wording.describe_answer(answer)]
        page.parts.append(html.render_section(f"What {name} answers", *lines))
    sides = {name: page.readable(_grid_folders(folder)) for name, folder in names.items()}
    page.parts.append(html.render_section("Loss curves", *_curves(page, sides, "sweep")))
    page.parts.append(html.render_section("Runs", runs_table(_named_rows(sides))))
    return _result(page, sum(map(len, sides.values())), f"{len(names)} sweeps", ", ".join(names))


def _grid_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    runs, _ = grids.split_runs(folder, {path.name: path for path in listing.run_folders(folder)})
    return list(runs.values())


def _page(path: pathlib.Path, kind: str) -> ReportPage:
    """Make a page outside the folders of its runs: its figures stand beside it, under its own name."""
    return ReportPage(check_page(path), kind, file=path.name, place=f"{path.stem}_figures")


def _result(page: ReportPage, runs: int, title: str, subtitle: str) -> dict[str, Any]:
    result = {"path": str(page.write(title, subtitle)), "kind": page.kind, "runs": runs, "failures": []}
    return result | {"figures": page.figures, "missing": page.missing}


def _distinct_names(folders: Sequence[records.Folder]) -> dict[str, pathlib.Path]:
    """Name the folders {name: folder}: by their own name, or by the whole path if two names are equal."""
    paths = [pathlib.Path(folder) for folder in folders]
    names = [path.resolve().name for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def _named_rows(sides: Mapping[str, Sequence[pathlib.Path]]) -> list[dict]:
    rows = [(side, listing.read_run(run)) for side, runs in sides.items() for run in runs]
    return [row | {"name": f"{side}: {row['name']}"} for side, row in rows]


def _curves(page: ReportPage, sides: Mapping[str, Sequence[pathlib.Path]], title: str) -> list[str]:
    """Draw curves of all runs, coloured by their side; a run is called `side: its name`."""
    rows: list[dict] = []
    events: list[dict] = []
    values: dict[str, str] = {}
    for side, runs in sides.items():
        values |= {f"{side}: {run.name}": side for run in runs}
        rows += [row | {"run": f"{side}: {row['run']}"} for row in gather.read_curve_rows(runs)]
        events += [event | {"run": f"{side}: {event['run']}"} for event in gather.read_event_rows(runs)]
    floor = gather.entropy_rate([run for runs in sides.values() for run in runs])
    return curve_figures(page, rows, events, floor, values, (title, title))
