"""Format cells and tables as text: short numbers, and rows (a dict each) as CSV."""

import csv
import io
import math
from collections.abc import Sequence

from scalelab.untrusted.text import escape_text


def csv_text(rows: Sequence[dict], columns: Sequence[str] | None = None) -> str:
    """Format a tidy table as CSV; None is an empty cell, and reading a float back gives the same bits.

    `columns`: what to write; by default every key that any row has, in order of first appearance.
    """
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return escape_text(text.getvalue(), "\r\n\t")


def format_short(value: float | None, digits: int = 3) -> str:
    """Shorten a number: 12345 -> 12.3k, 3.2e9 -> 3.2B, 1.25e17 -> 1.25e17, .0123 -> 0.0123."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else ("∞" if value > 0 else "-∞")
    if abs(value) >= 1e15 or 0 < abs(value) < 1e-3:
        return f"{value:.{digits}g}".replace("e+", "e").replace("e-0", "e-")
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 - 0.5 * 10**-digits):
            return f"{value / size:.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def format_power_of_ten(power: int) -> str:
    """Format a power of ten: 10¹²."""
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def format_scientific(value: float, digits: int = 3) -> str:
    """Format a number times a power of ten, as for FLOPs: 1.25e11 -> 1.25×10¹¹."""
    if not math.isfinite(value) or value <= 0:
        return format_short(value)
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return format_power_of_ten(int(power)) if mantissa == "1" else f"{mantissa}×{format_power_of_ten(int(power))}"
