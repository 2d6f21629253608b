"""Pages in a real browser: nothing complains, nothing is wider than the window, and what a reader asks is answered."""

import json
import math
import threading

import pytest

from scalelab.record import listing, records
from scalelab.record.identity import identity
from scalelab.report import serve
from scalelab.report.pages import write_report
from tests.report import synthetic
from tests.report.chromium import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}"),
]
TRIALS = 1000


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{kind: page} of a run with a hostile name, a sweep and a study."""
    place = tmp_path_factory.mktemp("pages")
    name = "<∕script><b>x"
    synthetic.write_run(place / name, lines=60)
    records.write_event(place / name, "note", 300, "</script><b id=broken>")
    synthetic.write_sweep(place / "sweep")
    synthetic.write_study(place / "study", lines=60)
    folders = {"run": place / name, "sweep": place / "sweep", "study": place / "study"}
    for folder in folders.values():
        write_report(folder)
    return {kind: folder / "report.html" for kind, folder in folders.items()}


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["run", "sweep", "study"])
def test_a_page_fits_its_window_without_complaint(browser, pages, kind, width, dark, scripts):
    browser.complaints.clear()
    browser.open(pages[kind], width, dark, scripts)
    overflow = browser.run("[document.documentElement.scrollWidth, innerWidth]")
    assert overflow[0] <= overflow[1] == width and not browser.complaints
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(21, 24, 29)") == dark
    drawings = browser.run(
        "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll(':scope > svg, "
        ".chart')].filter(e => e.getBoundingClientRect().height > 100).length)"
    )
    assert drawings and all(count >= 1 for count in drawings), "every figure shows a drawing"
    cut = browser.run(
        "[...document.querySelectorAll('.chart')].filter(box => box.firstElementChild "
        "&& box.firstElementChild.offsetWidth > box.clientWidth).length"
    )
    assert cut == 0, "no chart is wider than its box, which would hide its end"
    assert not browser.run("document.getElementById('broken')")


def test_pointing_at_a_line_names_run_and_value(browser, pages):
    browser.open(pages["sweep"])
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    box = browser.run(
        "(() => { const figure = document.getElementById('training_loss'); figure.scrollIntoView();"
        "const r = figure.querySelector('.u-over').getBoundingClientRect();"
        "return [r.left + r.width * 0.7, r.top, r.height] })()"
    )
    seen = ""
    for step in range(5, 100, 5):
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1] + box[2] * step / 100)
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seen = browser.run("document.querySelector('#training_loss .readout').textContent")
        if "·" in seen:
            break
    run = seen.split(" · ")[0]
    assert run in {row["name"] for row in listing.read_runs(pages["sweep"].parent)} and "tokens" in seen


def test_what_a_reader_asks_is_answered(browser, pages):
    browser.open(pages["sweep"])
    shown = "document.querySelectorAll('#training_loss .runs button:not(.off)').length"
    browser.run("document.querySelector('#training_loss details').open = true")
    browser.run("new Promise(done => setTimeout(done, 50))")
    assert browser.run(shown) == 12
    browser.run(
        "(() => { const filter = document.querySelector('#training_loss input[type=search]');"
        "filter.value = '-s0'; filter.oninput() })()"
    )
    assert browser.run(shown) == 6
    table = "[...document.querySelectorAll('table')].find(t => t.tHead && t.tHead.textContent.includes('val. loss'))"
    column = f"[...{table}.tHead.rows[0].cells].findIndex(c => c.textContent.includes('val. loss'))"
    for order in (1, -1):
        browser.run(f"{table}.tHead.rows[0].cells[{column}].click()")
        values = browser.run(f"[...{table}.tBodies[0].rows].map(r => r.cells[{column}].dataset.v)")
        numbers = [order * float(value) for value in values if value]
        assert numbers == sorted(numbers) and values[-1] == ""  # runs without a loss come last
    for axis in ("step", "flops", "seconds"):
        browser.run(
            "(axis => { const choice = document.querySelector('#training_loss select');"
            f"choice.value = axis; choice.onchange() }})('{axis}')"
        )
    browser.run(
        "(() => { const slider = document.querySelector('#training_loss input[type=range]');"
        "slider.value = 0.9; slider.oninput() })()"
    )
    assert not browser.complaints


CONTROLS = (
    "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]"
    ".filter(e => e.tabIndex >= 0 && e.checkVisibility())"
)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["run", "sweep", "study"])
def test_the_keyboard_alone_reaches_every_control_and_shows_where_it_is(browser, pages, kind, dark):
    browser.open(pages[kind], dark=dark)
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    browser.run("new Promise(done => setTimeout(done, 50))")
    browser.run(f"{CONTROLS}.forEach((each, i) => {{ each.dataset.control = i }})")
    number = browser.run(f"{CONTROLS}.length")
    seen = set()
    for _ in range(2 * number + 20):  # areas that scroll take the focus too
        browser.press("Tab", 9)
        place, outline = browser.run(
            "(e => [e.dataset.control, getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if place is not None:
            seen.add(int(place))
            assert outline != "none", browser.run("document.activeElement.outerHTML")[:200]
    assert seen == set(range(number)) and number > 5


def test_a_heading_sorts_by_the_enter_key(browser, pages):
    browser.open(pages["sweep"])
    browser.run("document.querySelector('table[data-sortable] th').focus()")
    for order in ("ascending", "descending"):
        browser.press("Enter", 13)
        assert browser.run("document.activeElement.ariaSort") == order


def test_a_live_page_draws_its_charts_and_loads_itself_again(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "LEAST_REST_S", 0.0)
    monkeypatch.setattr(serve, "REST_SHARE", 0.0)
    run = tmp_path / "run"
    synthetic.write_run(run, status="running", lines=20)
    browser.complaints.clear()
    with serve.LiveServer(run, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open(server.url)
        assert browser.run("document.querySelectorAll('.chart canvas').length") >= 3
        synthetic.finish_run(run)
        while browser.read()["method"] != "Page.loadEventFired":
            pass
        assert browser.run("document.body.textContent.includes('This run is done.')") and not browser.complaints
        server.shutdown()


def test_a_thousand_trials_are_drawn(browser, tmp_path, capsys):
    """The time is printed for people, and not asserted: a busy machine is slower."""
    synthetic.write_run(tmp_path / "first", lines=40)
    template = {name: (tmp_path / "first" / name).read_text() for name in ("config.json", "metrics.jsonl")}
    record = records.read_json(tmp_path / "first" / "record.json")
    *lines, last = template["metrics.jsonl"].splitlines()
    for i in range(TRIALS):
        folder = tmp_path / "sweep" / "runs" / f"trial-{i:04}"
        folder.mkdir(parents=True)
        config, loss = json.loads(template["config.json"]), 2 + 0.001 * i
        config["optim"]["peak_lr"] = 1e-4 * math.exp(5 * i / TRIALS)
        evaluated = json.loads(last) | {"val_loss": loss, "bpb": loss / math.log(2)}
        (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(evaluated), ""]))
        records.write_event(folder, "done", evaluated["step"])
        records.write_json(folder / "config.json", config)
        of_its_own = {"name": folder.name, "identity": identity(records.flatten_keys(config)), "val_loss": loss}
        records.write_json(folder / "record.json", record | of_its_own | {"bpb": loss / math.log(2)})
    write_report(tmp_path / "sweep")
    page = tmp_path / "sweep" / "report.html"
    browser.complaints.clear()
    browser.open(page)
    ready = browser.run("performance.now()")
    rows, charts = browser.run("['tr', '.chart canvas'].map(what => document.querySelectorAll(what).length)")
    assert rows > TRIALS and charts >= 3 and not browser.complaints
    with capsys.disabled():
        print(f"\n{TRIALS} trials: {page.stat().st_size / 1e6:.1f} MB, drawn {ready:.0f} ms after navigation")
