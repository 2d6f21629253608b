"""Functions that build one self-contained HTML page: nothing is fetched, and every value is escaped.

The page is complete without scripts; those of `web/` make charts and tables interactive.

Functions return HTML text. Texts of a run (names, notes, config values) enter a page through `escape_html` only.
"""

import html
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.record.records import flatten_keys
from scalelab.report import svg
from scalelab.report.tables import format_scientific, format_short
from scalelab.untrusted.text import escape_text

_WEB = pathlib.Path(__file__).parent / "web"
_OWN_STYLE = "page.css"
_CHART_FILES = ("vendor/uPlot.min.css", "vendor/uPlot.iife.min.js", "numbers.js", "charts.js")  # in pages with charts
_TABLE_FILES = ("tables.js",)


def escape_html(value: Any) -> str:
    """Escape text so that it is safe inside an element or a quoted attribute, without control characters."""
    return html.escape(escape_text(str(value), "\n\t"), quote=True)


def format_value(value: Any, name: str = "") -> str:
    """Format a value for a reader (plain text): short numbers, a dash for None, yes and no, lists in brackets.

    FLOPs, known by their `name`, are powers of ten: 172B would read as parameters.
    """
    if value is None:
        return "–"
    if isinstance(value, int | float) and (name in ("C", "budget") or "flops" in name.lower()):
        return format_scientific(value, 4)
    if isinstance(value, float) and math.isfinite(value) and name in ("loss", "val_loss", "bpb"):
        return f"{value:.4f}"  # all digits, since losses are compared
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) < 10_000_000:
        return f"{value:,}"  # all digits, so that a column reads alike
    if isinstance(value, float) and math.isfinite(value) and 1e-2 <= abs(value) < 1e3:
        return f"{value:.4g}"
    if isinstance(value, int | float):
        return format_short(value, 4)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return str(value)


def render_paragraph(text: str, css: str = "") -> str:
    """Render escaped text as one paragraph."""
    return f'<p class="{css}">{escape_html(text)}</p>' if css else f"<p>{escape_html(text)}</p>"


def render_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], css: str = "") -> str:
    """Render a table of `rows` with `columns` {key: heading}; numbers are aligned right.

    css: `stack` writes the cells of a row below each other on a phone.
    """
    numeric = {key for key in columns if all(_is_number(row.get(key)) for row in rows)}
    head = "".join(f"<th{_css(key, numeric)}>{escape_html(heading)}</th>" for key, heading in columns.items())
    body = "".join("<tr>" + "".join(_cell(row.get(key), key, numeric) for key in columns) + "</tr>" for row in rows)
    table = f'<table class="{css}" data-sortable><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _cell(value: Any, key: str, numeric: set[str]) -> str:
    """Render one cell; a number carries its full value for sorting."""
    exact = f' data-v="{"" if value is None else value}"' if key in numeric else ""
    return f"<td{_css(key, numeric)}{exact}>{escape_html(format_value(value, key))}</td>"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _css(key: str, numeric: set[str]) -> str:
    return ' class="number"' if key in numeric else ' class="name"' if key == "name" else ""


def render_facts(content: Mapping[str, Any]) -> str:
    """Render keys and values, nested ones as `outer.inner`."""
    rows = "".join(
        f"<tr><th>{escape_html(key)}</th><td>{escape_html(format_value(value, key))}</td></tr>"
        for key, value in flatten_keys(content).items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def render_numbers(values: Mapping[str, str]) -> str:
    """Render a row of large figures, {label: number as text}."""
    return (
        '<div class="numbers">'
        + "".join(
            f"<div><b>{escape_html(number)}</b><span>{escape_html(label)}</span></div>"
            for label, number in values.items()
        )
        + "</div>"
    )


def render_card(*parts: str) -> str:
    """Render parts in a highlighted box."""
    return f'<div class="card">{"".join(parts)}</div>'


def render_figure(
    name: str, drawing: str, caption: str, width_px: float, charts: str = "", place: str = "figures"
) -> str:
    """Render a figure inline, with the JSON of its `charts`; links lead to its PDF and CSV in `place`."""
    files = {end: f"{escape_html(place)}/{escape_html(name)}.{end}" for end in ("pdf", "csv")}
    links = " · ".join(f'<a href="{file}">{end.upper()}</a>' for end, file in files.items())
    label = f"<figcaption>{escape_html(caption)} {links}</figcaption>"
    return f'<figure id="{escape_html(name)}" style="--width:{width_px:.0f}px">{drawing}{charts}{label}</figure>'


def render_section(title: str, *parts: str) -> str:
    """Render a heading and its content; "" without content."""
    body = "".join(parts)
    return f"<section><h2>{escape_html(title)}</h2>{body}</section>" if body else ""


def render_details(title: str, body: str) -> str:
    """Render long content that opens at a click, without a script."""
    return f"<details><summary>{escape_html(title)}</summary>{body}</details>"


def web_files(*names: str) -> str:
    """Read the text of files of `web/`, to be written into a page."""
    return "\n".join((_WEB / name).read_text() for name in names)


def render_page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """Render the whole document."""
    body = "\n".join(parts)
    files = _CHART_FILES * ('class="charts"' in body) + _TABLE_FILES * ("data-sortable" in body)
    styles = web_files(*(name for name in files if name.endswith(".css")))
    scripts = "".join(f"<script>{web_files(name)}</script>" for name in files if name.endswith(".js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape_html(title)}</title><style>{web_files(_OWN_STYLE)}{svg.colour_styles(body)}{styles}</style></head>\n"
        "<body><main>"
        f'<h1>{escape_html(title)}</h1><p class="soft">{escape_html(subtitle)}</p>\n'
        + body
        + f"\n</main>{scripts}</body></html>\n"
    )
