"""Parts that pages share: figures and their files, the table of runs, the logbook, and the provenance."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.report import charts, gather, html, svg
from scalelab.report.figures import metricplots, plots, style
from scalelab.untrusted.files import replace_file
from scalelab.untrusted.paths import path_below


class PaperStyle(NamedTuple):
    """Figures for a paper: their width in inches, and the name of the only one wanted (None: all)."""

    width_in: float
    only: str | None = None


@dataclasses.dataclass
class ReportPage:
    """A report under construction: `parts` of HTML, names of figures, and what is `missing` and why.

    `colours` {quantity: {value: colour}} are those of the whole page, so that a size has one colour in all figures.
    """

    folder: pathlib.Path
    kind: str
    parts: list[str] = dataclasses.field(default_factory=list)
    figures: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    colours: dict[str, dict[Any, str]] = dataclasses.field(default_factory=dict)
    file: str = "report.html"
    place: str = "figures"  # folder of PDFs and CSVs beside the page
    out: pathlib.Path | None = None  # folder of page and figures, if it is not the folder that is read
    paper: PaperStyle | None = None  # figures for a paper in place of a page

    def __post_init__(self) -> None:
        """Raise BadInput if the page or its figures can't be written, before any is drawn."""
        figures = self._path(self.place)
        if not self.paper and (page := self._path(self.file)).is_dir():
            raise BadInput(f"{page} is a folder, where the page is written: move it, or use --output=PAGE.html")
        if figures.exists() and not figures.is_dir():
            raise BadInput(f"{figures} is a file, where figures are written: move it, or use --output=PAGE.html")

    def readable(self, folders: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        """Select the runs that can be read in full; the page lists the others with the reason."""
        reasons = {folder: listing.describe_damage(folder) for folder in folders}
        self.missing += [f"{folder.name} is damaged: {reason}" for folder, reason in reasons.items() if reason]
        return [folder for folder, reason in reasons.items() if not reason]

    def draw(
        self, name: str, plot: Callable[[], Figure], rows: Sequence[dict], caption: str, *live: charts.Chart
    ) -> str:
        """Save a figure as `figures/name.pdf` with the CSV of `rows`; returns its HTML.

        `plot` is called for each layout: on a wide page and on a phone. `live`: the same numbers as charts.
        """
        self.figures.append(name)
        with svg.plain_labels():
            if self.paper:
                return self._draw_for_paper(self.paper, name, plot, rows)
            return self._draw(name, plot, rows, caption, live)

    def _draw(
        self, name: str, plot: Callable[[], Figure], rows: Sequence[dict], caption: str, live: Sequence[charts.Chart]
    ) -> str:
        fig = plot()
        style.write_pdf_and_csv(self._path(self.place), name, fig, rows)
        with style.use_layout(style.PHONE):
            narrow = svg.inline_svg(plot(), f"{name}-phone", "phone", caption)
        wide = svg.inline_svg(fig, name, "wide", caption)
        data = charts.render_charts(*live) if live else ""
        return html.render_figure(name, wide + narrow, caption, 120 * fig.get_figwidth(), data, self.place)

    def _draw_for_paper(self, paper: PaperStyle, name: str, plot: Callable[[], Figure], rows: Sequence[dict]) -> str:
        if paper.only in (None, name):
            with style.use_layout(style.Layout(paper.width_in, paper=True)):
                fig = plot()
                style.set_paper_type(fig)
                style.write_pdf_and_csv(self._path(self.place), name, fig, rows)
        return ""

    def _path(self, name: str) -> pathlib.Path:
        """Path of a file or folder that the page writes, which is never a link."""
        return path_below(self.out or self.folder, name)

    def write(self, title: str, subtitle: str) -> pathlib.Path:
        """Write the page atomically; missing parts are listed at its end. For a paper there is no page."""
        if self.paper:
            return self._path(self.place)
        gaps = "".join(html.render_paragraph(gap) for gap in self.missing)
        path = self._path(self.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(
            path, html.render_page(title, subtitle, [*self.parts, html.render_section("Not in this report", gaps)])
        )
        return path


def check_page(path: pathlib.Path) -> pathlib.Path:
    """Check the folder of a page outside its runs, which is made when it is written. BadInput if it can't be made."""
    if path.is_dir() or path.suffix != ".html":
        raise BadInput(f"{path}: the page is a file that ends in .html")
    if above := next((each for each in path.parents if each.exists() and not each.is_dir()), None):
        raise BadInput(f"{path}: {above} is not a folder; nearest: {above.parent / path.name}")
    return path.parent


_LABELS = {"train_loss": "training loss (nats/token)", "val_loss": style.LOSS_LABEL}


def loss_sections(
    page: ReportPage, folders: Sequence[pathlib.Path], colour: str, colour_title: str, held: str | None = None
) -> list[str]:
    """Make sections of training and validation curves of all runs, coloured by `colour` (a key of a row, or `run`).

    `held` names the held-out run, which stands out.
    """
    values = {row["name"]: row.get(colour, row["name"]) for row in map(listing.read_run, folders)}
    rows, events = gather.read_curve_rows(folders), gather.read_event_rows(folders)
    return curve_figures(page, rows, events, gather.entropy_rate(folders), values, (colour, colour_title), held)


def curve_figures(
    page: ReportPage,
    rows: Sequence[dict],
    events: Sequence[dict],
    floor: float | None,
    values: Mapping[str, Any],
    coloured_by: tuple[str, str],
    held: str | None = None,
) -> list[str]:
    """Draw training and validation losses coloured by `values` {run: value}; `coloured_by`: their (key, title)."""
    colour, colour_title = coloured_by
    rows = [row | {colour: values[row["run"]]} for row in rows]
    of_value = page.colours.get(colour) or style.key_colours(colour, values.values())
    shades = {run: style.INK if run == held else of_value[value] for run, value in values.items()}
    drawn = []
    for y, axes, name, title in (
        ("train_loss", ("tokens", "step"), "training_loss", "Training loss"),
        ("val_loss", ("flops", "tokens", "step"), "validation_loss", "Validation loss over compute"),
    ):
        known = [row for row in rows if row[y] is not None]
        if not known:
            page.missing.append(f"{title}: no run has logged any yet.")
            continue
        x = gather.common_axis(known, axes)
        title = title if x == axes[0] else f"{title.removesuffix(' over compute')} over {gather.AXIS_NAMES[x]}"
        behind = [{key: row[key] for key in dict.fromkeys(("run", colour, "step", x, y))} for row in known]
        names, given = (colour, colour_title), page.colours.get(colour)
        plot = functools.partial(plots.plot_loss_curves, behind, y, x, *names, events, floor, title, held, given)
        chart = charts.curve_chart(known, {y: title.lower()}, shades, _LABELS[y], x, held)
        charts.add_key(chart, of_value | ({"held-out run": style.INK} if held in shades else {}))
        charts.add_floor(chart, floor)
        charts.add_events(chart, events)
        caption = f"{title} of every run; unsmoothed. Signs are events of the logbook."
        drawn.append(page.draw(name, plot, behind, caption, chart))
    return drawn


def run_loss_figure(page: ReportPage) -> str:
    """Draw training and validation loss of one run in one figure, with its logbook."""
    rows = gather.read_curve_rows([page.folder])
    known = [row for row in rows if row["train_loss"] is not None or row["val_loss"] is not None]
    if not known:
        page.missing.append("Loss: the run has not logged any yet.")
        return ""
    events, floor = gather.read_event_rows([page.folder]), gather.entropy_rate([page.folder])
    colours = {page.folder.name: plots.RUN_COLOURS["train_loss"]}
    x = gather.common_axis(known, ("tokens", "step"))
    chart = charts.curve_chart(known, plots.LOSS_NAMES, colours, plots.BOTH_LOSSES, x)
    charts.show_spikes(chart)
    chart["key"] = []
    for line in chart["series"]:
        line["colour"] = svg.css_colour(plots.RUN_COLOURS["val_loss" if line["dash"] else "train_loss"])
        chart["key"].append((line["name"], line["colour"], line["dash"]))
    charts.add_floor(chart, floor)
    charts.add_events(chart, events)
    keys = dict.fromkeys(("run", "step", x, "train_loss", "val_loss"))
    behind = [{key: row[key] for key in keys} for row in known]
    plot = functools.partial(plots.plot_run_losses, behind, events, floor, x)
    caption = "Training and validation loss; unsmoothed. Signs are events of the logbook."
    return page.draw("loss", plot, behind, caption, chart)


def metrics_section(
    page: ReportPage, folders: Sequence[pathlib.Path], colour: str = "run", drawn: Sequence[str] = ()
) -> str:
    """Draw a panel for each metric without a figure of its own; a family `group/name` shares one panel.

    Constants are listed in words. Runs are coloured by `colour`, a key of the run's row. `drawn` is left out.
    """
    rows = gather.metric_rows(folders, drawn)
    panels, constant = metricplots.split_constant(rows)
    values = ", ".join(f"{name} {html.format_value(value)}" for name, value in constant.items())
    constants = html.render_paragraph(f"Constant over all steps: {values}.", "soft") if constant else ""
    if not panels:
        return constants
    colour_of = {row["name"]: row.get(colour, row["name"]) for row in map(listing.read_run, folders)}
    caption = "All other metrics over the steps that were logged, unsmoothed."
    colours = page.colours.get(colour) or style.key_colours(colour, colour_of.values())
    plot = functools.partial(metricplots.metric_panels, rows, panels, colour_of, colours)
    return page.draw("metrics", plot, rows, caption) + constants


EXPERTS_CAPTION = (
    "The load of experts over time: tokens of each expert at the measured steps, over the mean of its block. Blue is "
    "less than even, red is more; the scale ends at twice the mean."
)
BATCH_CAPTION = (
    "Measures of whole batches: the head's logits, quantiles of the tokens' losses, the worst sequences (their "
    "rows are in the CSV), and norms of the embedding's rows by how often the batch has them."
)


def layers_section(page: ReportPage) -> str:
    """Draw maps of layer and step from layers.jsonl, and curves of the batch's families; "" if there are none."""
    lines = records.read_layers(page.folder)
    if not lines:
        return ""
    caption = (
        "What each layer did, at the steps that log.layers_every chose; "
        "names as in scalelab/train/step/report/layers.py."
    )
    figure = page.draw("layers", lambda: metricplots.layer_maps(lines), metricplots.layer_rows(lines), caption)
    if loads := metricplots.expert_rows(lines):
        figure += page.draw("experts", lambda: metricplots.expert_maps(lines), loads, EXPERTS_CAPTION)
    rows = [
        {"run": page.folder.name, "step": line["step"]} | {key: line[key] for key in listing.batch_keys(line)}
        for line in lines
    ]
    curves = [{key: value for key, value in row.items() if not key.startswith("worst/row")} for row in rows]
    panels, _ = metricplots.split_constant(curves)
    if not panels:
        return figure
    return figure + page.draw(
        "batch", lambda: metricplots.metric_panels(curves, panels, {page.folder.name: ""}), rows, BATCH_CAPTION
    )


def runs_table(rows: Sequence[dict], more: Sequence[str] = ()) -> str:
    """Make the table of all runs; `more` names further config values. Values that all share stand once, above it."""
    columns = gather.RUN_COLUMNS | {key: key for key in more if key not in gather.RUN_COLUMNS}
    if not listing.has_inactive(rows):
        columns.pop("N_active")
    known = [key for key in gather.SHAREABLE_COLUMNS if key in columns and all(key in row for row in rows)]
    same = [key for key in known if len({row[key] for row in rows}) == 1 < len(rows)]
    shared = ", ".join(f"{columns.pop(key)} {html.format_value(rows[0][key], key)}" for key in same)
    summary = f"{len(rows)} runs: {gather.describe_states(rows)}." + (f" All with {shared}." if shared else "")
    shown = sorted(rows, key=gather.final_loss)[: gather.MOST_ROWS] if len(rows) > gather.MOST_ROWS else rows
    shown = [row | _bound_text(row) for row in shown]
    if len(shown) < len(rows):
        summary += f" Below: the {len(shown):,} with the lowest final loss."
    return html.render_paragraph(summary) + html.render_table(shown, columns)


def _bound_text(row: dict) -> dict[str, str]:
    """Bits per byte as a lower bound, where the tokenizer lost text."""
    is_bound = row.get("bpb_bound") == "lower" and row.get("bpb") is not None
    return {"bpb": f"≥ {html.format_value(row['bpb'], 'bpb')}"} if is_bound else {}


MOST_EVENTS = 300  # most events in one table; of more, equal ones share a row


def logbook_section(folders: Sequence[pathlib.Path]) -> str:
    """List every event except plain starts and ends, which only a single run's page shows; of many, equal ones once."""
    plain = ("start", "done") if len(folders) > 1 else ()
    rows = [row for row in gather.read_event_rows(folders) if row["kind"] not in plain]
    columns = {"at": "time", "run": "run", "step": "step", "kind": "event", "text": "text"}
    if len(rows) > MOST_EVENTS:
        rows, columns = gather.merge_events(rows), columns | {"at": "first", "run": "first run", "runs": "runs"}
    rows = [row | {"at": gather.format_utc(row["time"])} for row in rows]
    if not rows:
        return html.render_paragraph("Nothing happened: no skip, resume, divergence, change or note.")
    table = functools.partial(html.render_table, columns=columns, css="stack")
    chosen = [row for row in rows if len(folders) > 1 and row["kind"] == "chosen"]  # three lines a run: folded
    happened = [row for row in rows if row["kind"] != "chosen" or len(folders) == 1]
    events = table(happened) if happened else html.render_paragraph("Nothing else happened.") if chosen else ""
    return events + (
        html.render_details(f"what was chosen for the runs: {len(chosen)}", table(chosen)) if chosen else ""
    )


def origin_section(folders: Sequence[pathlib.Path], commands: Sequence[str]) -> str:
    """List data, versions, machine, and the commands that make this page again."""
    lines = "".join(f"<p><code>{html.escape_html(command)}</code></p>" for command in commands)
    return lines + html.render_facts(gather.collect_provenance(folders))
