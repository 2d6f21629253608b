"""Pages of results that a function writes: is each as its numbers give it now?

A result's module has `format_page` or `make_page` of the result alone. A page that was written from other numbers, by
hand, or before the function changed is wrong; its line on code (tests/claims/same.py) is left out. A page that states
what the library says besides the result's numbers is held to today's library.
"""

import importlib
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from scalelab.experiments import fingerprint
from tests.claims.backfill import FOLDERS, ROOT
from tests.claims.same import PAGE_LINE

WRITER = re.compile(r"^def (format_page|make_page)\(result: [^=]*?\) -> str:", re.MULTILINE)
ALL = slice(None)
# Pages with versions of compilers that are not installed where this runs.
ELSEWHERE = {"checks.compilers.fp8_products", "checks.compilers.memory", "checks.compilers.programs"}


def list_written(every: slice = ALL) -> Iterator[tuple[pathlib.Path, Callable[[Any], str]]]:
    """Yield (page, function of its result) of those results that `every` takes and whose module writes its page."""
    paths = [path for folder in FOLDERS for path in sorted(folder.glob("*.json")) if path.with_suffix(".md").exists()]
    for path in paths[every]:
        module = (fingerprint.read_fingerprint(path) or {}).get("module")
        if module and module not in ELSEWHERE and (write := find_writer(module)):
            yield path.with_suffix(".md"), write


def find_writer(module: str) -> Callable[[Any], str] | None:
    """The function that writes a module's page from its result; None if its code has none of that kind."""
    for name in (module, f"{module}.__main__", f"{module}.page", f"{module}_page"):
        path = ROOT / (name.replace(".", "/") + ".py")
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        found = path.exists() and WRITER.search(path.read_text())
        if found:
            write: Callable[[Any], str] = getattr(importlib.import_module(name), found[1])
            return write
    return None


def wrong_pages(root: pathlib.Path = ROOT, every: slice = ALL) -> Iterator[str]:
    """Yield a line for each page that is not what its numbers give: its name below `root`, the first such line."""
    for page, write in list_written(every):
        numbers = json.loads(page.with_suffix(".json").read_text())
        stands, made = _lines(page.read_text()), _lines(write(numbers))
        if stands != made:
            pairs = zip([*stands, ""], [*made, ""], strict=False)
            line = next((a for a, b in pairs if a != b), "")
            yield f"{page.relative_to(root)}: not what its numbers give: {line[:120]}"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith(PAGE_LINE)]
