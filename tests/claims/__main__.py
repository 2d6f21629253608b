"""python -m tests.claims [--write | --draft PAGE | --run[=WORD]] [--table=PATH]

Compare each number that a page states with the source that claims.toml names for it; prints the rows by kind, and what
is wrong; exit code 1 if anything is. A number of a page that no row covers is wrong too (tests/claims/prose.py says
which numbers count), and so is a page of a result that is not what its numbers give (tests/claims/written.py).
`--write` puts the sources' numbers into the pages, and marks results in docs/results.md that are stale; `--draft PAGE`
prints rows for the numbers that have none; `--run` runs the commands of rows with `printed`, with WORD those that
contain it.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.experiments.fingerprint import KEY, make_fingerprint
from tests.claims import marks
from tests.claims.prose import measured_numbers
from tests.claims.rows import PRINTED, ROOT, TABLE, Wrong, compare, find_text, kind_of, read_table, rewrite
from tests.claims.written import wrong_pages

ASIDE = {"docs/gallery.md"}  # written from results by docs/gallery.py, and held to them by tests/test_docs.py


class Report(NamedTuple):
    """What was found: rows by kind, one line for each fault, and the pages as their sources would have them."""

    kinds: Counter[str]
    faults: list[str]
    pages: dict[str, str]


def read_pages(root: pathlib.Path = ROOT) -> dict[str, str]:
    """{path: text} of README, docs and the course, and CHANGELOG's newest page."""
    paths = [root / "README.md", *sorted(root.glob("docs/*.md")), *sorted(root.glob("docs/course/*.md"))]
    pages = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    return {name: text for name, text in pages.items() if name not in ASIDE} | {"CHANGELOG.md": _newest_page(root)}


def _newest_page(root: pathlib.Path) -> str:
    """The page of the newest release in CHANGELOG; what comes after it is checked when it becomes one."""
    return re.split(r"^(?=## )", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[2]


def check_claims(rows: Sequence[Mapping[str, Any]], pages: Mapping[str, str], missing_at_most: int) -> Report:
    """Compare all rows with pages and sources, and look for numbers without a row."""
    kinds, faults, changes = Counter[str](), [], defaultdict(list)
    covered: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        try:
            kinds[kind_of(row)] += 1
            page = pages[row["page"]]
            span = find_text(page, row["text"])
            covered[row["page"]] += [(span.start, span.end)]
            differ = compare(row, page, span)
        except Wrong as reason:
            faults.append(f"{row['page']}: {row['text']!r} {reason}")
            continue
        changes[row["page"]] += differ
        faults += [
            f"{row['page']}: {page[slice(*place)]} is {value:.6g} in its source: {row['text']!r}"
            for place, value in differ
        ]
    faults += [f"{name}: no row for {number.text} in: {number.line}" for name, number in uncovered(pages, covered)]
    if kinds["missing"] != missing_at_most:
        faults.append(f"{kinds['missing']} rows are missing a source; missing_at_most says {missing_at_most}")
    return Report(kinds, faults, {name: rewrite(text, changes[name]) for name, text in pages.items()})


def uncovered(pages: Mapping[str, str], covered: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[tuple[str, Any]]:
    """Yield (page, number) of the numbers that stand in no row's text."""
    for name, text in pages.items():
        for number in measured_numbers(text):
            if not any(start <= number.start and number.end <= end for start, end in covered.get(name, ())):
                yield name, number


def draft_rows(name: str, rows: Sequence[Mapping[str, Any]], pages: Mapping[str, str]) -> str:
    """Rows for the numbers of a page that have none: one a line of the page, its source to be filled in."""
    covered = [find_text(pages[name], row["text"]) for row in rows if row["page"] == name]
    spans = {name: [(span.start, span.end) for span in covered]}
    lines: dict[str, list[Any]] = defaultdict(list)
    for _, number in uncovered({name: pages[name]}, spans):
        lines[number.line].append(number)
    parts = []
    for line, numbers in lines.items():
        start = pages[name].rfind("\n", 0, numbers[0].start) + 1
        text = pages[name][start:].partition("\n")[0]
        for number in reversed(numbers):
            text = text[: number.start - start] + "{}" + text[number.end - start :]
        row = f"page = {json.dumps(name)}\ntext = {json.dumps(text.strip())}"
        parts.append(f'[[claim]]\n{row}\nmissing = "?"\n# {line}\n')
    return "\n".join(parts)


def run_commands(rows: Sequence[Mapping[str, Any]], word: str = "") -> None:
    """Run the commands of `printed` rows that contain `word`, and keep what they print; the others' output stays."""
    commands = sorted({row["printed"] for row in rows if "printed" in row})
    chosen = [command for command in commands if word in command]
    facts = json.loads(PRINTED.read_text())
    outputs = {key: text for key, text in facts.pop("outputs").items() if key in commands}
    for command in chosen:
        words = shlex.split(command)
        words = [sys.executable, "-m", *words] if words[0] == "scalelab" else [sys.executable, *words[1:]]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        outputs[command] = done.stdout + done.stderr
        print(f"exit code {done.returncode}: {command}")
    if any("experiments." in command for command in chosen):
        facts[KEY] = make_fingerprint("experiments.isoflop")
    PRINTED.write_text(json.dumps(facts | {"outputs": outputs}, indent=1) + "\n")


def main(argv: Sequence[str]) -> int:
    """Check, write, draft or run; the module's docstring has the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.claims", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draft", metavar="PAGE")
    parser.add_argument("--run", nargs="?", const="", metavar="WORD")
    parser.add_argument("--pages-apart", action="store_true")  # for pytest, which asks them in parts
    parser.add_argument("--table", type=pathlib.Path, default=TABLE)
    options = parser.parse_args(argv)
    (rows, missing), pages = read_table(options.table), read_pages()
    if options.run is not None:
        run_commands(rows, options.run)
    if options.draft:
        print(draft_rows(options.draft, rows, pages))
        return 0
    report = check_claims(rows, pages, missing)
    written = report.pages | {marks.PAGE: marks.mark_stale(marks.correct_dates(report.pages[marks.PAGE]))}
    if options.write:
        for name, text in written.items():
            whole = (ROOT / name).read_text()
            (ROOT / name).write_text(whole.replace(pages[name], text, 1))
        return main([f"--table={options.table}"])
    dates = marks.wrong_dates(pages[marks.PAGE])
    faults = [*report.faults, *(f"{marks.PAGE}: its result is of {date}: {row}" for row, date in dates)]
    if marks.mark_stale(pages[marks.PAGE]) != pages[marks.PAGE]:
        faults.append(f"{marks.PAGE}: marks of stale results are out of date: --write")
    faults += [] if options.pages_apart else wrong_pages()
    counts = ", ".join(f"{n} {kind}" for kind, n in report.kinds.most_common())
    print("\n".join([*faults, f"{len(rows)} rows: {counts}"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
