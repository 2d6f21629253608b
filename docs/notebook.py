"""Notebooks from pages of Markdown, run without Jupyter: cells go through `exec`, outputs are those of nbformat.

The blocks of Python of a page are its code cells; a block that begins with "```python slow" has the tag "slow".
Jupyter's own executor would bring a kernel and thirty packages for what these two functions do.
"""

import ast
import base64
import contextlib
import io
import json
import pathlib
import re
import sys
from collections.abc import Collection, Iterator
from typing import Any

SLOW = "slow"


def make_notebook(page: str) -> dict[str, Any]:
    """A page of Markdown as a notebook (nbformat 4.5), not run yet."""
    parts = re.split(r"^```python *(\w*)\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)
    cells = []
    for i in range(0, len(parts), 3):
        if parts[i].strip():
            cells.append(_cell("markdown", f"{len(cells)}", parts[i]))
        if i + 2 < len(parts):
            cells.append(_cell("code", f"{len(cells)}", parts[i + 2], parts[i + 1]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def _cell(kind: str, name: str, text: str, tag: str = "") -> dict[str, Any]:
    metadata = {"tags": [tag]} if tag else {}
    cell = {"cell_type": kind, "id": name, "metadata": metadata, "source": text.strip().splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def notebook_text(notebook: dict[str, Any]) -> str:
    """The text of the notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def run_notebook(notebook: dict[str, Any], folder: pathlib.Path, skip: Collection[str] = ()) -> dict[str, Any]:
    """A copy of the notebook with the outputs of its code cells, run in order; modules of `folder` can be imported.

    Cells with a tag of `skip` are left as they are. What a cell raises is raised here.
    """
    done: dict[str, Any] = json.loads(json.dumps(notebook))
    names: dict[str, Any] = {"__name__": "__main__"}
    with _importing_from(folder):
        code = [cell for cell in done["cells"] if cell["cell_type"] == "code"]
        for count, cell in enumerate(code, 1):
            if not {*cell["metadata"].get("tags", ())} & {*skip}:
                cell |= {"execution_count": count, "outputs": _run_cell("".join(cell["source"]), names, count)}
    return done


@contextlib.contextmanager
def _importing_from(folder: pathlib.Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The outputs of a cell: what it printed, and the value of its last line."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue()
    outputs = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []
    if value is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _shown(value)}
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """What a notebook shows of a value: its text, and its picture if it has one (IPython's `_repr_png_`)."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode() + "\n"
    return data
