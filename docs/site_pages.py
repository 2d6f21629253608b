"""What the site changes in a page of the repository before MkDocs reads it.

GitHub and MkDocs read Markdown differently: MkDocs takes a fence with two words for running text. A page of a notebook
shows, below each cell, what the notebook beside it holds as that cell's output.
"""

import base64
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

FENCE = re.compile(r"^(```+)([\w-]*)[^\n`]*$", re.MULTILINE)
CELL = re.compile(r"^```python[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)


def write_page(source: pathlib.Path, target: pathlib.Path) -> None:
    """Write a page as MkDocs needs it, and the figures of its notebook beside it."""
    text = source.read_text()
    notebook = source.with_suffix(".ipynb")
    if notebook.exists():
        text = add_outputs(text, notebook, target)
        for module in source.parent.rglob("*.py"):  # what its cells import
            copy = target.parent / module.relative_to(source.parent)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(module.read_text())
    target.write_text(FENCE.sub(r"\1\2", text))


def add_outputs(text: str, notebook: pathlib.Path, target: pathlib.Path) -> str:
    """Put the outputs of a notebook's code cells below the same cells of its page."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    blocks = list(CELL.finditer(text))
    if len(blocks) != len(cells):
        raise SystemExit(f"{notebook} has {len(cells)} code cells and its page {len(blocks)}: python -m docs.generate")
    parts, end = [], 0
    for number, (block, cell) in enumerate(zip(blocks, cells, strict=True)):
        parts += [text[end : block.end()], *_outputs(cell, number, target)]
        end = block.end()
    return "".join([*parts, text[end:]])


def _outputs(cell: dict[str, Any], number: int, target: pathlib.Path) -> Iterator[str]:
    """Markdown of a cell's printed text and figures; each figure becomes a file."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            name = f"{target.stem}-{number}.png"
            (target.parent / name).write_bytes(base64.b64decode("".join(data["image/png"])))
            alt = re.sub(r"^<figure: |>$", "", "".join(data.get("text/plain", "figure")))
            yield f"\n\n![{alt}]({name})"
        elif lines := "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n"):
            yield f"\n\n```text\n{lines}\n```"


def github_slug(heading: str, separator: str) -> str:
    """Name a heading's anchor as GitHub does: links of the repository's pages are written for it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
