"""Functions that build one self-contained HTML page: no scripts, no remote assets, every value escaped.

Functions return HTML text. What comes from a run (names, notes, config values) passes through `escape_html` and nothing
else.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.records import flatten_keys
from scalelab.report.figures.style import format_scientific, format_short

STYLESHEET = """
:root { --ink:#1d2129; --soft:#5c6370; --line:#e1e4e9; --back:#f7f8fa; --card:#ffffff;
  --accent:#b3224a; --good:#1f7a33; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6e8ec; --soft:#a0a6b1; --line:#343a45; --back:#15181d; --card:#1d2128;
    --accent:#ff7d9c; --good:#6fd08c; }
}
* { box-sizing: border-box; }
body { margin:0; background:var(--back); color:var(--ink);
  font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif; }
main { max-width:1060px; margin:0 auto; padding:28px 20px 60px; }
h1 { font-size:1.65rem; margin:0 0 .1rem; overflow-wrap:anywhere; }
h2 { font-size:1.12rem; margin:2.2rem 0 .5rem; padding-top:.9rem; border-top:1px solid var(--line); }
p { margin:.45rem 0; max-width:78ch; }
.soft, figcaption { color:var(--soft); font-size:.88rem; }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:16px 20px; margin:16px 0; }
.good { color:var(--good); } .bad { color:var(--accent); font-weight:600; }
.numbers { display:flex; flex-wrap:wrap; gap:8px 34px; margin:.2rem 0 .6rem; }
.numbers div { min-width:7.5rem; }
.numbers b { display:block; font-size:1.5rem; font-weight:650; line-height:1.25; font-variant-numeric:tabular-nums; }
.numbers span { color:var(--soft); font-size:.82rem; }
figure { margin:14px 0; padding:12px; overflow-x:auto; background:#ffffff;
  border:1px solid var(--line); border-radius:10px; }
figure img { display:block; width:100%; min-width:36rem; height:auto; margin:0 auto; }
figcaption { color:#5c6370; padding:8px 4px 0; } figcaption a { color:#2455a4; }
summary { cursor:pointer; color:var(--soft); }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; font-size:.86rem; font-variant-numeric:tabular-nums; margin:.5rem 0; }
th, td { text-align:left; padding:4px 14px 4px 0; border-bottom:1px solid var(--line); vertical-align:top; }
th { color:var(--soft); font-weight:600; white-space:nowrap; } td.number, th.number { text-align:right; }
td { min-width:5.5rem; max-width:34rem; overflow-wrap:anywhere; }
td.number { white-space:nowrap; } td.name { min-width:11rem; }
code { font:13px/1.5 ui-monospace,Menlo,Consolas,monospace; background:var(--back);
  padding:2px 5px; border-radius:4px; overflow-wrap:anywhere; }
.card code { background:none; padding:0; }
"""


def escape_html(value: Any) -> str:
    """Text that is safe inside an element or a quoted attribute."""
    return html.escape(str(value), quote=True)


def format_value(value: Any, name: str = "") -> str:
    """A value as a reader wants it (plain text): short numbers, a dash for None, yes and no, lists in brackets.

    FLOPs, known by their `name`, are powers of ten: 172B would read as parameters.
    """
    if value is None:
        return "–"
    if isinstance(value, int | float) and (name in ("C", "budget") or "flops" in name.lower()):
        return format_scientific(value, 4)
    if isinstance(value, float) and math.isfinite(value) and name in ("loss", "val_loss", "bpb"):
        return f"{value:.4f}"  # losses are compared digit by digit
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) < 10_000_000:
        return f"{value:,}"  # whole, so that a column of them reads alike
    if isinstance(value, float) and math.isfinite(value) and 1e-2 <= abs(value) < 1e3:
        return f"{value:.4g}"
    if isinstance(value, int | float):
        return format_short(value, 4)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return str(value)


def render_paragraph(text: str, css: str = "") -> str:
    """Escaped text as one paragraph."""
    return f'<p class="{css}">{escape_html(text)}</p>' if css else f"<p>{escape_html(text)}</p>"


def render_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """A table of `rows` with `columns` {key: heading}; numbers stand to the right."""
    numeric = {key for key in columns if all(_is_number(row.get(key)) for row in rows)}
    head = "".join(f"<th{_css(key, numeric)}>{escape_html(heading)}</th>" for key, heading in columns.items())
    body = "".join(
        "<tr>"
        + "".join(f"<td{_css(key, numeric)}>{escape_html(format_value(row.get(key), key))}</td>" for key in columns)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _css(key: str, numeric: set[str]) -> str:
    return ' class="number"' if key in numeric else ' class="name"' if key == "name" else ""


def render_facts(content: Mapping[str, Any]) -> str:
    """Keys and values, nested ones as `outer.inner`."""
    rows = "".join(
        f"<tr><th>{escape_html(key)}</th><td>{escape_html(format_value(value, key))}</td></tr>"
        for key, value in flatten_keys(content).items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def render_numbers(values: Mapping[str, str]) -> str:
    """A row of large figures, {what it is: number as text}."""
    return '<div class="numbers">' + "".join(
        f"<div><b>{escape_html(number)}</b><span>{escape_html(label)}</span></div>" for label, number in values.items()
    ) + "</div>"  # fmt: skip


def render_card(*parts: str) -> str:
    """Parts in a box that stands out."""
    return f'<div class="card">{"".join(parts)}</div>'


def render_picture(name: str, data_uri: str, caption: str, width_px: float) -> str:
    """A figure drawn inline; its PDF and CSV are linked where they lie beside the page (`figures/`)."""
    links = " · ".join(f'<a href="figures/{escape_html(name)}.{end}">{end.upper()}</a>' for end in ("pdf", "csv"))
    image = f'<img src="{data_uri}" alt="{escape_html(caption)}" style="max-width:{width_px:.0f}px">'
    return f'<figure id="{escape_html(name)}">{image}<figcaption>{escape_html(caption)} {links}</figcaption></figure>'


def render_section(title: str, *parts: str) -> str:
    """A heading with what follows it; nothing where there is nothing to say."""
    body = "".join(parts)
    return f"<section><h2>{escape_html(title)}</h2>{body}</section>" if body else ""


def render_details(title: str, body: str) -> str:
    """Something long that opens at a click, without a script."""
    return f"<details><summary>{escape_html(title)}</summary>{body}</details>"


def render_page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape_html(title)}</title><style>{STYLESHEET}</style></head>\n<body><main>"
        f'<h1>{escape_html(title)}</h1><p class="soft">{escape_html(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )
