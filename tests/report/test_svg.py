"""Figures inside a page: colours that follow the scheme, text that is text, and every layout whole."""

import re

import pytest

from scalelab.report import svg
from scalelab.report.figures import style


@style.styled
def drawn(label="a line"):
    fig, ax = style.make_figure()
    ax.plot([1, 2], [3, 4], color="#440154", label=label)
    ax.plot([1, 2], [4, 3], color=style.ACCENT)
    ax.legend()
    return fig


def test_colours_are_variables_which_the_page_defines_for_both_schemes():
    text = svg.inline_svg(drawn(), "name", "wide", "what it shows")
    assert not re.search(r"(fill|stroke): #", text), "a fixed colour would not follow the scheme"
    assert "var(--c440154)" in text and "var(--accent)" in text and "var(--ink)" in text
    styles = svg.colour_styles(text)
    assert styles.count("--c440154:") == 2 and "--c440154:#440154" in styles.split("@media")[0]


def test_dark_colours_are_lighter_and_in_the_same_order():
    dark = [svg.dark_variant(colour) for colour in style.value_colours(range(6), "size").values()]
    lightness = [max(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in dark]
    assert len(set(dark)) == 6 and min(lightness) > 140
    assert svg.dark_variant("#000000") < svg.dark_variant("#808080") < svg.dark_variant("#ffffff")


def test_text_is_text_and_a_name_is_escaped():
    text = svg.inline_svg(drawn("</svg><script>x</script> $a$ $b_1$"), "n", "wide", 'a "label" <b>')
    assert "&lt;/svg&gt;&lt;script&gt;x&lt;/script&gt; $a$ $b_1$" in text and "<script" not in text
    assert 'aria-label="a &quot;label&quot; &lt;b&gt;"' in text and text.count("</svg>") == 1


def test_ids_are_of_the_figure_and_point_at_something():
    text = svg.inline_svg(drawn(), "loss", "wide", "")
    ids, links = set(re.findall(r' id="([^"]*)"', text)), set(re.findall(r'(?:href="|url\()#([^")]*)', text))
    assert links and links <= ids and all(name.startswith("loss-") for name in ids)


@pytest.mark.parametrize(("width", "columns", "across"), [(3.7, 3, 1), (6.75, 3, 2), (9.0, 3, 3), (3.25, 1, 1)])
def test_a_layout_has_its_width_and_as_many_panels_side_by_side_as_fit(width, columns, across):
    with style.use_layout(style.Layout(width)):
        fig, axes = style.make_figure(9.6, 3.0, columns)
        panels = [axes] if columns == 1 else list(axes)
        assert len(panels) == columns and fig.get_figwidth() == width
        assert panels[0].get_gridspec().ncols == across
        assert style.is_narrow() == (width < 4.8)
    assert not style.is_narrow()


@style.styled
def test_on_paper_all_text_has_one_size_and_there_is_no_title():
    with style.use_layout(style.Layout(3.25, paper=True)):
        assert style.figure_title("Loss") == ""
        fig = drawn()
        style.set_paper_type(fig)
    assert {text.get_fontsize() for text in fig.findobj(style.Text)} == {8.0} and style.figure_title("Loss") == "Loss"
