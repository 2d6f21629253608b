"""The documentation as a site: every heading, fence and anchor of the pages, without a network; read by a browser too.

`make docs` installs MkDocs; where it is not installed, nothing can be built and the tests are skipped.
"""

import html.parser
import importlib.util
import pathlib
import re

import pytest

from docs import site
from tests.report.chromium import CHROMIUM, Browser

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="MkDocs is not installed (`make docs`)"),
]
NARROW, WIDE = 390, 1280
CONTRAST = 4.5  # WCAG 2.2, 1.4.3, text of normal size
browsing = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}")


class Page(html.parser.HTMLParser):
    """What a built page holds: headings, ids, links, sources of what it loads, images, text outside of code."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.ids, self.links, self.loaded, self.images = [], set(), [], [], 0
        self.prose, self._open = "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Note an element's id, link or source; a heading collects its text from here on."""
        values = dict(attributes)
        self.ids.add(values.get("id"))
        self.images += tag == "img"
        self.links += [values["href"]] if tag == "a" and values.get("href") else []
        self.loaded += [values[key] for key in ("src", "href") if tag in ("script", "link", "img") and key in values]
        if tag in ("h1", "h2", "h3", "h4", "pre", "code"):
            self._open.append(tag)
        if re.fullmatch("h[1-4]", tag):
            self.headings.append("")

    def handle_endtag(self, tag):
        """Close a heading or code."""
        if self._open and tag == self._open[-1]:
            self._open.pop()

    def handle_data(self, data):
        """Add text to the open heading, or to the prose."""
        if self._open and self._open[0] not in ("pre", "code"):
            self.headings[-1] += data
        elif not self._open:
            self.prose += data


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, built into a folder of its own: {path in it: Page}."""
    folder = tmp_path_factory.mktemp("site")
    patch = pytest.MonkeyPatch()
    patch.setattr(site, "SITE", folder)
    assert site.main() == 0, "MkDocs warned: a dead link or anchor"
    patch.undo()
    return folder, {path.relative_to(folder): Page(path.read_text()) for path in folder.rglob("*.html")}


def source_headings(path):
    """The headings of a page of Markdown, as a reader sees them."""
    text = re.sub(r"^(```+)[^\n]*\n.*?^\1$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#{1,4} (.+?)\s*$", text, re.MULTILINE)
    return [re.sub(r"[`*_\\\s]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head)) for head in heads]


def test_headings_are_those_of_the_source_and_no_fence_is_running_text(built):
    _, pages = built
    sources = [path for pattern in site.PAGES for path in site.ROOT.glob(pattern)]
    assert len(sources) > 60
    for path in sources:
        place = path.relative_to(site.ROOT).with_suffix(".html")
        page = pages[place.with_name("index.html") if place.name == "README.html" else place]
        shown = [re.sub(r"[`*_\\\s]", "", head) for head in page.headings]
        assert [head for head in shown if head in source_headings(path)] == source_headings(path), place
        assert "```" not in page.prose, f"{place}: a fence is shown as text"


def test_no_anchor_is_dead_and_nothing_is_loaded_from_elsewhere(built):
    folder, pages = built
    dead, elsewhere = [], []
    for place, page in pages.items():
        elsewhere += [f"{place}: {each}" for each in page.loaded if re.match(r"(https?:)?//", each)]
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:|/", link) or not anchor:
                continue
            whole = (folder / place.parent / target).resolve() if target else (folder / place)
            if whole.suffix == ".html" and anchor not in pages[whole.relative_to(folder.resolve())].ids:
                dead.append(f"{place}: {link}")
    assert dead == [] and elsewhere == []


def test_the_page_of_a_notebook_has_its_figures_and_what_its_cells_import(built):
    folder, pages = built
    assert pages[pathlib.Path("docs/course/theory.html")].images >= 8
    assert (folder / "docs/course/drawing.py").exists() and (folder / "docs/course/checkers/__init__.py").exists()


LUMINANCE = """(function () {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const part = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 };
  const light = c => { const [r, g, b] = parse(c).map(part); return .2126 * r + .7152 * g + .0722 * b };
  const back = e => { while (e && /, 0\\)$|transparent/.test(getComputedStyle(e).backgroundColor)) e = e.parentElement;
    return getComputedStyle(e || document.body).backgroundColor };
  return [...document.querySelectorAll('.navbar-brand, .navbar .nav-link')].map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
    return (a + .05) / (b + .05) });
})()"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@browsing
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_page_fits_and_the_bar_can_be_read_without_script_errors(built, browser, width, dark):
    folder, pages = built
    for place in sorted(pages):
        if place.name == "404.html":
            continue
        browser.complaints.clear()
        browser.open(folder / place, width, dark)
        assert browser.complaints == [], place
        assert browser.run("document.documentElement.scrollWidth") <= width, place
        ratios = browser.run(LUMINANCE)  # of plain colours: a gradient behind the text would hide from it
        assert browser.run("getComputedStyle(document.querySelector('.navbar')).backgroundImage") == "none"
        icon = browser.run(
            "(s => s.filter + s.backgroundImage)(getComputedStyle(document.querySelector('.navbar-toggler-icon')))"
        )
        assert icon.startswith("none") and ("255, 255, 255" in icon) == dark, "light lines on a dark bar alone"
        assert len(ratios) >= 8 and min(ratios) >= CONTRAST, (place, ratios)


MARK = """(() => { const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
  .filter(e => e.tabIndex >= 0 && e.checkVisibility({visibilityProperty: true}));
  all.forEach((e, i) => { e.dataset.control = i }); return all.length })()"""
FOCUS = """(() => { const e = document.activeElement, box = e.getBoundingClientRect();
  return { control: e.dataset.control ?? null, html: e.outerHTML.slice(0, 200),
    ring: getComputedStyle(e).outlineStyle != 'none',
    inside: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth } })()"""


@browsing
@pytest.mark.slow
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_keyboard_alone_reaches_every_control_of_every_page_in_sight(built, browser, width):
    folder, pages = built
    for place in sorted(pages):
        browser.open(folder / place, width)
        for menu in ("#navbar-collapse", "#toc-collapse") if width == NARROW else ():
            browser.run(f"document.querySelector('[data-bs-target=\"{menu}\"]')?.focus()")
            browser.press("Enter", 13)
            browser.run("new Promise(done => setTimeout(done, 20))")
            assert browser.run(f"document.querySelector('{menu}')?.checkVisibility() ?? true"), (place, menu)
        number, seen = browser.run(MARK), set()
        for _ in range(number + 300):  # tables and code that scroll take the focus too
            browser.press("Tab", 9)
            focus = browser.run(FOCUS)
            seen |= {focus["control"]} - {None}
            assert focus["html"].startswith("<body") or (focus["ring"] and focus["inside"]), (place, focus)
            if len(seen) == number:
                break
        assert len(seen) == number > 3, place


@browsing
@pytest.mark.slow
def test_the_search_finds_a_page_in_a_file(built, browser):
    folder, _ = built
    browser.complaints.clear()
    browser.open(folder / "docs/fork.html", WIDE)
    asked = """(async () => { const box = document.getElementById('mkdocs-search-query');
        box.value = 'loss spike'; box.dispatchEvent(new Event('input'));
        for (let i = 0; i < 300 && !document.querySelector('#mkdocs-search-results a'); i++)
            await new Promise(done => setTimeout(done, 100));
        return [...document.querySelectorAll('#mkdocs-search-results a')].map(a => a.href) })()"""
    links = browser.run(asked)
    assert any("stability" in link or "diagnos" in link for link in links) and browser.complaints == []
    assert all((folder / link.partition(folder.as_posix())[2].lstrip("/").partition("#")[0]).exists() for link in links)
