"""Numbers as text, colours, thinning, and files that hold what was drawn."""

import csv
import io
import math
import re
import zlib

import numpy as np
import pytest
from fontTools.pens.recordingPen import RecordingPen
from fontTools.ttLib import TTFont
from matplotlib import font_manager

from scalelab.report import tables
from scalelab.report.figures import style
from scalelab.report.tables import csv_text


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (7, "7"),
        (999.4, "999"),
        (999.7, "1k"),
        (12_345, "12.3k"),
        (3.2e9, "3.2B"),
        (2.5e12, "2.5T"),
        (1.25e17, "1.25e17"),
        (0.0123, "0.0123"),
        (3e-4, "0.0003"),
        (1.5e-5, "1.5e-5"),
        (-12_345, "-12.3k"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
    ],
)
def test_short_numbers(value, text):
    assert tables.format_short(value) == text


@pytest.mark.parametrize(
    "value, text", [(1e12, "10¹²"), (1.25e11, "1.25×10¹¹"), (4e-3, "4×10⁻³"), (9.999e11, "10¹²"), (0, "0")]
)
def test_scientific_numbers(value, text):
    assert tables.format_scientific(value) == text


def test_shades_are_one_colour_a_value_and_ordered():
    colours = style.value_colours([4, 1, 2, 2, 1])
    assert list(colours) == [1, 2, 4] and len(set(colours.values())) == 3
    assert style.value_colours([]) == {} and len(style.value_colours(["b", "a", 3, None])) == 4


def test_thinning_keeps_ends_and_invents_nothing():
    x = np.arange(1, 5001)
    y = np.sin(x)
    kept_x, kept_y = style.thin_points(x, y)
    assert len(kept_x) <= style.MAX_POINTS and kept_x[0] == 1 and kept_x[-1] == 5000
    assert np.array_equal(kept_y, np.sin(kept_x)) and np.all(np.diff(kept_x) > 0)
    assert (kept_x < 100).sum() > 50, "early steps of a log axis are drawn densely"


def test_few_points_are_not_thinned():
    x, y = style.thin_points([0, 1, 2], [5.0, math.nan, 3.0])
    assert list(x) == [0, 1, 2] and math.isnan(y[1])


def test_csv_gives_the_same_bits_back():
    rows = [{"run": 'a,"b"', "loss": 0.1 + 0.2, "n": 3}, {"run": "c", "loss": None, "extra": 1e-300}]
    back = list(csv.DictReader(csv_text(rows).splitlines()))
    assert list(back[0]) == ["run", "loss", "n", "extra"]
    assert back[0]["run"] == 'a,"b"' and float(back[0]["loss"]) == 0.1 + 0.2
    assert back[1]["loss"] == "" and float(back[1]["extra"]) == 1e-300


def test_saved_twice_is_the_same_file(tmp_path):
    for folder in ("a", "b"):
        fig, ax = style.make_figure()
        ax.plot([1, 2], [3, 4])
        style.write_pdf_and_csv(tmp_path / folder, "line", fig, [{"x": 1, "y": 3}, {"x": 2, "y": 4}])
    for name in ("line.pdf", "line.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "line.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a" / "line.csv").read_text() == "x,y\n1,3\n2,4\n"


def test_fonts_in_a_pdf_have_the_outlines_of_their_files_and_no_tables_of_typesetting(tmp_path):
    fig, ax = style.make_figure()
    ax.set_title("AV 1.25×10¹²", fontweight="bold")
    style.write_pdf_and_csv(tmp_path, "text", fig, [])
    data = (tmp_path / "text.pdf").read_bytes()
    streams = [zlib.decompress(found[1]) for found in re.finditer(rb"stream\r?\n(x.*?)\nendstream", data, re.DOTALL)]
    embedded = [TTFont(io.BytesIO(stream)) for stream in streams if stream.startswith(b"\0\1\0\0")]
    assert len(embedded) == data.count(b"/FontFile2") == 2  # bold of the title, and of labels

    def outline(font, name):
        pen = RecordingPen()
        font.getGlyphSet()[name].draw(pen)
        return pen.value, font["hmtx"][name]

    for font, weight, letters in zip(embedded, ("bold", "normal"), ("AV.125×0¹²", "0268."), strict=True):
        assert not {"GSUB", "GPOS", "GDEF", "MATH"} & set(font.keys()) and len(font.getGlyphOrder()) < 40
        whole = TTFont(font_manager.findfont(font_manager.FontProperties(weight=weight)))
        for letter in letters:
            name = whole.getBestCmap()[ord(letter)]
            assert outline(font, name) == outline(whole, name)
