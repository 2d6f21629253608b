"""python -m tests.claims.same [NAME --why=TEXT | NAME --runs OLD.json NEW.json]

A stale result whose numbers are still true: its study's code changed, but not what it computes. Without a name, each
stale result is compared with the commit that made it, definition by definition (tests/claims/reach.py); where those
that its `main` reaches are the same, its fingerprint says so and it is stale no more. The others are listed with what
changed. NAME --why=TEXT records that somebody read these changes and why they move no number; NAME --runs compares the
results of a small run (`--quick`) by the old code and by the new, number by number. Both stand in the fingerprint as
`same`, with the definitions, on the result's page, and in `scalelab study --stale`. A later change is stale again.
"""

import argparse
import datetime
import functools
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.experiments import fingerprint
from tests.claims.backfill import ROOT, git_output, module_there
from tests.claims.reach import find_reached

TOLERANCE = 1e-6  # relative, of a number of two runs
ASIDE = re.compile(r"command|date|machine|limits|made_by|\w*_s|\w*seconds|time|checks|finding|versions|predicted_at")
PAGE_LINE = "Code: "


def definitions(root: pathlib.Path, module: str) -> dict[str, str]:
    """{"FILE:NAME": syntax} of what a study's `main` reaches in its own files."""
    own, _ = fingerprint.source_files(root, module)
    if not own:
        return {}
    start = fingerprint.find_module(root, module)
    reached = find_reached(start, own, functools.partial(fingerprint.find_module, root))
    return {f"{fingerprint.short_name(path)}:{name}": text for (path, name), text in reached.items()}


def changed_definitions(made: Mapping[str, Any]) -> list[str]:
    """Definitions that differ from those that made a result. ValueError where its commit isn't what made it."""
    base = made["same"][-1]["commit"] if made.get("same") else made["commit"]
    with tempfile.TemporaryDirectory() as place:
        old = pathlib.Path(place)
        archive = subprocess.run(["git", "archive", base.rstrip("+")], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", place], input=archive, check=True)
        module = module_there(old, made["module"])
        if fingerprint.code_digests(old, module)["own"] != fingerprint.own_digests(made):
            raise ValueError(f"commit {base} does not hold the code that made it")
        before, now = definitions(old, module), definitions(ROOT, made["module"])
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def differing_numbers(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield a line for each number, text or entry in which two results differ; what says how they ran is left out."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if not ASIDE.fullmatch(key):
                missing = [side for side, each in (("the old", old), ("the new", new)) if key not in each]
                yield from (
                    [f"{name}.{key} is not in {missing[0]}"]
                    if missing
                    else differing_numbers(old[key], new[key], f"{name}.{key}")
                )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differing_numbers(a, b, f"{name}[{i}]")
    elif isinstance(old, int | float) and isinstance(new, int | float):
        if not (math.isclose(old, new, rel_tol=TOLERANCE) or (math.isnan(old) and math.isnan(new))):
            yield f"{name}: {old!r} by the old code, {new!r} by the new"
    elif old != new:
        yield f"{name}: {old!r} by the old code, {new!r} by the new"


def count_numbers(result: Any) -> int:
    """How many numbers `differing_numbers` compares."""
    if isinstance(result, dict):
        return sum(count_numbers(value) for key, value in result.items() if not ASIDE.fullmatch(key))
    return sum(map(count_numbers, result)) if isinstance(result, list) else isinstance(result, int | float)


def mark_same(path: pathlib.Path, by: str, why: str, changed: Sequence[str]) -> None:
    """Write into the fingerprint of a result, and on its page, that the present code gives the same numbers."""
    made = fingerprint.read_fingerprint(path)
    assert made
    note = {"commit": git_output("rev-parse", "HEAD").strip()[:12], "date": str(datetime.date.today()),
            "by": by, "why": why, "changed": list(changed)}  # fmt: skip
    new = made | fingerprint.code_digests(ROOT, made["module"]) | {"same": [*made.get("same", []), note]}
    beside = path.with_name(fingerprint.SIDECAR)
    if f'"{fingerprint.KEY}"' in path.read_text():
        _replace_fingerprint(path, new)
    else:
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {path.name: new}, indent=1) + "\n")
    write_line(path.with_suffix(".md"), new)


def write_line(page: pathlib.Path, made: Mapping[str, Any]) -> None:
    """Say on a result's page, if it has one, what is known of its code; nothing else on the page changes."""
    if not page.exists():
        return
    kept = [line for line in page.read_text().rstrip().splitlines() if not line.startswith(PAGE_LINE)]
    note = made["same"][-1]
    text = f"{PAGE_LINE}made at {made['commit']}; at {note['commit']} its own files compute the same: {note['why']}."
    if fingerprint.library_changed(made):
        text += " What it calls of the library changed too" + (
            "; the golden step of training did not." if made["trains"] else "."
        )
    page.write_text("\n".join([*kept, *([""] if kept[-1] else []), text]) + "\n")


def _replace_fingerprint(path: pathlib.Path, made: Mapping[str, Any]) -> None:
    """Put another fingerprint into a result's file, the rest as it is."""
    text = path.read_text()
    start = re.search(rf'"{fingerprint.KEY}": ', text).end()
    _, length = json.JSONDecoder().raw_decode(text[start:])
    path.write_text(text[:start] + json.dumps(made) + text[start + length :])


def main(argv: Sequence[str]) -> int:
    """List, mark or compare; 1 if a result that was named is not the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.claims.same", description=__doc__)
    parser.add_argument("name", nargs="?", help="a result: the name of its file")
    parser.add_argument("--why", help="what changed, and why it moves no number")
    parser.add_argument("--runs", nargs=2, type=pathlib.Path, metavar=("OLD", "NEW"))
    options = parser.parse_args(argv)
    if git_output("status", "--porcelain", "--", "*.py").strip():
        print("commit the code first: a mark names the commit that it is about")
        return 1
    failed = 0
    for path, made in fingerprint.list_results():
        reasons = fingerprint.stale_reasons(made)
        if not reasons or not made or options.name not in (None, path.stem):
            continue
        failed += _judge(path, made, reasons, options)
    return int(bool(failed and options.name))


def _judge(path: pathlib.Path, made: Mapping[str, Any], reasons: Sequence[str], options: argparse.Namespace) -> bool:
    """Mark one stale result if it is the same, or print why not; whether it is still stale."""
    try:
        changed = changed_definitions(made)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"{path.stem}: {error}")
        return True
    if other := [reason for reason in reasons if not reason.startswith("its own code")]:
        print(f"{path.stem}: {'; '.join(other)}")
        return True
    if not changed:
        mark_same(path, "definitions", "all that it computes with is written as it was", ())
    elif options.runs:
        old, new = (json.loads(each.read_text()) for each in options.runs)
        if lines := list(differing_numbers(old, new)):
            print(f"{path.stem}: {len(lines)} differences", *lines[:20], sep="\n    ")
            return True
        why = f"`--quick` by both gives the same {count_numbers(new)} numbers" + (
            f"; {options.why}" if options.why else ""
        )
        mark_same(path, "run", why, changed)
    elif options.why:
        mark_same(path, "reading", options.why, changed)
    else:
        print(f"{path.stem}: {len(changed)} definitions changed: {', '.join(changed)}")
        return True
    print(f"{path.stem}: the same")
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
