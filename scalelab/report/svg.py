"""Put figures into a page as SVG: text stays text, and colours follow a light or a dark scheme."""

import colorsys
import contextlib
import html
import io
import re
from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text

from scalelab.report.figures.lawplots import VALUE_COLOURS
from scalelab.report.figures.style import ACCENT, INK, MUTED, styled
from scalelab.untrusted.text import escape_text

# Colours that every figure shares -> names of page.css.
SHARED_COLOURS = {INK: "ink", "#333333": "ink", "#555555": "soft", "#e4e6ea": "line", "#ffffff": "card",
                  ACCENT: "accent", MUTED: "muted", "#2b8a3e": "good"}  # fmt: skip
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_DATA_COLOUR = re.compile(r"var\(--c([0-9a-f]{6})\)")
_DECIMALS = re.compile(r"(\d+\.\d\d)\d+")

_set_text = Text.set_text
_OWN_FORMULA = re.compile(r"\$(\\times)?\\mathdefault\{[-+\u2212\d.]*(\\times\d+)?(\^\{[-+\u2212\d.]+\})?\}\$")
_DOLLAR = re.compile(r"(?<!\\)\$")


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """Within it every label of a figure is plain text: names of runs and values of configs may hold anything. Control
    characters are escaped, and a dollar sign is not markup; only matplotlib's own numbers are formulas.
    """
    setattr(Text, "set_text", _set_plain_text)  # noqa: B010 - a method can't be assigned to
    try:
        yield
    finally:
        setattr(Text, "set_text", _set_text)  # noqa: B010


def _set_plain_text(label: Text, text: Any) -> None:
    text = "" if text is None else escape_text(str(text), "\n")
    _set_text(label, text if _OWN_FORMULA.fullmatch(text) else _DOLLAR.sub(r"\\$", text))


@styled
def inline_svg(fig: Figure, name: str, css_class: str, label: str) -> str:
    """Convert a figure to an `<svg>` element; its ids begin with `name`, so that two figures can't collide."""
    file = io.StringIO()
    fig.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = re.sub(r"<(metadata|style).*?</\1>", "", text[text.index("<svg ") :], flags=re.DOTALL)
    view_box = re.search(r'viewBox="([^"]*)"', text)
    assert view_box, "matplotlib writes a viewBox"
    text = text[text.index(">") + 1 :].rstrip()
    text = re.sub(r'style="[^"]*"', lambda found: _COLOUR.sub(_variable, found[0]), text)
    text = re.sub(r' d="[^"]*"', lambda found: _DECIMALS.sub(r"\1", found[0]).replace("\n", ""), text)
    text = re.sub(r'( id="|"#|url\(#)', rf"\1{name}-", text).replace("xlink:href", "href")
    head = f'<svg class="{css_class}" viewBox="{view_box[1]}" role="img" aria-label="{html.escape(label, quote=True)}">'
    return head + re.sub(r"\n\s*", "\n", text)


def css_colour(colour: str) -> str:
    """Convert a colour of a figure to CSS: a shared colour by its name, another by its light value."""
    return f"var(--{SHARED_COLOURS.get(colour, f'c{colour[1:]}')})"


def _variable(match: re.Match[str]) -> str:
    return match[0] if match[0] in VALUE_COLOURS else css_colour(match[0])


def colour_styles(page: str) -> str:
    """CSS definitions of a page's data colours, for both schemes."""
    colours = sorted(set(_DATA_COLOUR.findall(page)))
    if not colours:
        return ""
    light = "".join(f"--c{colour}:#{colour};" for colour in colours)
    dark = "".join(f"--c{colour}:{dark_variant(f'#{colour}')};" for colour in colours)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def dark_variant(colour: str) -> str:
    """Lighten a colour for a dark page, keeping the order of colours."""
    hue, light, full = colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    rgb = colorsys.hls_to_rgb(hue, 0.45 + 0.5 * light, 0.75 * full)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
