"""Pages, results and the table of claims agree; and each way in which they can disagree is seen."""

import json
import re
import shutil

import pytest

from scalelab.experiments import fingerprint
from tests.claims import __main__ as claims
from tests.claims import marks, written
from tests.claims.prose import measured_numbers
from tests.claims.rows import ROOT, Wrong, agree, find_text, kind_of, read_table, rewrite, source_values, write_like
from tests.quick import one_in

ROWS, MISSING = read_table()
PAGES = claims.read_pages()
KILLS = {"page": "README.md", "text": "([{} kills]", "result": "checks/results/crash.json", "values": ["r['kills']"]}


def check(readme, rows=(KILLS,)):
    """The report of rows on a small README."""
    return claims.check_claims(rows, {"README.md": readme}, 0)


def test_pages_results_and_table_agree(capsys):
    assert claims.main(["--pages-apart"]) == 0, capsys.readouterr().out
    assert re.search(r"^\d+ rows: .*\d+ result", capsys.readouterr().out, re.MULTILINE)


def test_pages_are_as_their_sources_have_them():
    """Writing them changes nothing: what is written once is stable."""
    assert claims.check_claims(ROWS, PAGES, MISSING).pages == PAGES


# Pages that once said something else than their sources: (page, what it says now, what it said)
ONCE_STALE = [
    ("README.md", "[180 kills]", "[135 kills]"),
    ("README.md", "predicted 1.4193", "predicted 1.4142"),
    ("docs/results.md", "[180 kills, 163 resumes", "[180 kills, 114 resumes"),
    ("docs/results.md", "[72 tests of", "[69 tests of"),
    ("docs/results.md", "tried by `make test`; 10 by no test", "tried by `make test`; 9 by no test"),
    ("docs/results.md", "[peaks 10 % too low", "[peaks 9 % too low"),
    ("docs/plan.md", "7 % too low to 12 % too high", "7 % too low to 13 % too high"),
    ("docs/recipes.md", "There are twenty-one optimizers", "There are twenty optimizers"),
    ("docs/plan.md", "leaves 12 % of headroom", "leaves 13 % of headroom"),
]


@pytest.mark.parametrize(("page", "now", "then"), one_in(5, ONCE_STALE), ids=lambda text: text[:30])
def test_each_stale_number_of_before_is_red_and_is_written_back(page, now, then):
    assert now in PAGES[page]
    report = claims.check_claims(ROWS, PAGES | {page: PAGES[page].replace(now, then)}, MISSING)
    assert len([fault for fault in report.faults if "in its source" in fault and fault.startswith(page)]) == 1
    assert report.pages[page] == PAGES[page]


@pytest.mark.parametrize("part", one_in(10, range(10)))
def test_pages_of_results_are_what_their_numbers_give(part):
    assert not [*written.wrong_pages(every=slice(part, None, 10))]


def test_a_page_of_a_result_that_its_numbers_do_not_give_is_red(tmp_path, monkeypatch):
    """The fp8 rows of precision.md once stood there from other numbers."""
    place = tmp_path / "experiments" / "results"
    place.mkdir(parents=True)
    for name in ("precision.json", "precision.md", "made_by.json"):
        shutil.copy(ROOT / "experiments" / "results" / name, place)
    monkeypatch.setattr(written, "FOLDERS", (place,))
    assert [page.name for page, _ in written.list_written()] == ["precision.md"] and not [*written.wrong_pages(place)]
    page = place / "precision.md"
    page.write_text(page.read_text().replace("| fp8 | 2.3893 |", "| fp8 | 2.3793 |", 1))
    (line,) = written.wrong_pages(place)
    assert line.startswith("precision.md: not what its numbers give: | fp8 | 2.3793 |")


def test_a_number_without_a_row_is_red():
    report = check("It takes 3.5 s ([180 kills](x)).")
    assert report.faults == ["README.md: no row for 3.5 in: It takes 3.5 s ([180 kills](x))."]


@pytest.mark.parametrize(
    "change", [{"text": "([{} deaths]"}, {"values": ["r['deaths']"]}, {"page": "README.md", "values": []}]
)
def test_a_row_that_fits_page_or_result_no_more_is_red(change):
    (fault,) = check("([180 kills](x)) ([1 kills]", [KILLS | change]).faults[:1]
    assert fault.startswith("README.md: '([{} ")


def test_sources_that_are_none_count_as_missing(monkeypatch):
    assert kind_of(KILLS) == "result"
    monkeypatch.setattr("tests.claims.rows.read_fingerprint", lambda path: None)
    assert kind_of(KILLS) == "missing"
    assert kind_of({"page": "a", "text": "{} s", "code": "docs/plan.md"}) == "missing"  # another sentence
    assert kind_of({"page": "a", "text": "{} s", "published": "as measured"}) == "missing"
    itself = {"page": "a", "text": "{} %", "formula": "the nominal level", "values": ["90"]}
    assert kind_of(itself) == "missing" and kind_of(itself | {"values": ["100*.9"]}) == "formula"
    assert check("([180 kills](x))").faults == ["1 rows are missing a source; missing_at_most says 0"]
    with pytest.raises(Wrong, match="names"):
        kind_of({"page": "a", "text": "{} s", "code": "a.py", "result": "b.json"})


COUNTS = "It took 3.5 s, 12 GB and 40 % (0.2 ± .1), in 5 of 6 runs, 17 kills, of twenty-one optimizers; +3.5 to 4 nats."
IGNORED = """# 1.5 times
Names: H100, 8B, bf16, GPT-2, Llama 3.2, 10x. Python 3.11, 3.12 or 3.13, jax 0.10.2, 2026-11-27, Hoffmann et al. 2022,
table 3.1, equations 17 to 20, arXiv 2408.15664. `0.5 s` [x](a-0.5.md) N = 1.5, p < .1, 2.5e3, a batch of 8 at width 64.
```
0.5 s
```

    0.5 s

1. a mark
"""


def test_the_rule_of_what_counts():
    counted = [number.text for number in measured_numbers(COUNTS)]
    assert counted == ["3.5", "12", "40", "0.2", ".1", "5", "6", "17", "twenty-one", "+3.5", "4"]
    assert [number.text for number in measured_numbers(IGNORED)] == []


@pytest.mark.parametrize(("text", "value", "written"), [
    ("143", 135.4, "135"), ("1.15", 1.2345, "1.23"), (".83", 0.8251, ".83"), ("4,976", 12345.2, "12,345"),
    ("+3.0", 2.5, "+2.5"), ("twenty", 21, "twenty-one"), ("Thirteen", 14, "Fourteen"),
])  # fmt: skip
def test_a_number_is_written_like_the_one_before(text, value, written):
    assert write_like(text, value) == written and agree(written, value)
    assert rewrite(f"of {text} x", [((3, 3 + len(text)), value)]) == f"of {written} x"


def test_half_a_unit_of_the_last_digit_is_allowed_and_no_more():
    assert agree("1.4", 1.4499) and not agree("1.4", 1.4501) and agree("1.4", 1.5, tolerance=0.2)


def test_a_text_stands_in_its_page_once_over_line_ends():
    assert find_text("a b\nc 12 d", "b c {} d").numbers == [(6, 8)]
    with pytest.raises(Wrong, match="2 times"):
        find_text("1 s, 2 s", "{} s")


def test_every_result_says_what_made_it():
    """Its commit, module and code; a result without is one that no row may name."""
    unknown = [path.name for path, made in fingerprint.list_results() if not made or not made["commit"]]
    assert unknown == []


def test_a_row_of_the_page_of_results_with_another_date_is_red():
    page = PAGES[marks.PAGE]
    line = next(line for line in page.splitlines() if "`make test-crash`" in line)
    broken = page.replace(line, line.replace(marks.date_of(ROOT / "checks/results/crash.md"), "2026-11-01"))
    assert [date for _, date in marks.wrong_dates(broken)] == [marks.date_of(ROOT / "checks/results/crash.md")]
    assert marks.correct_dates(broken) == page
    assert marks.mark_stale(page) == page and marks.mark_stale(page.replace(" (stale)", "")) == page


def test_a_draft_is_a_row_for_each_line(capsys):
    assert claims.main(["--draft", "docs/index.md"]) == 0
    pages = PAGES | {"docs/index.md": "It takes 3.5 s and 4 GB."}
    assert 'text = "It takes {} s and {} GB."' in claims.draft_rows("docs/index.md", ROWS, pages)


def test_kept_outputs_are_of_commands_that_rows_name():
    outputs = json.loads((ROOT / "checks/results/printed.json").read_text())["outputs"]
    assert outputs.keys() == {row["printed"] for row in ROWS if "printed" in row}
    assert source_values(next(row for row in ROWS if "printed" in row))
