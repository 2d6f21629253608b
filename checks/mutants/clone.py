"""Where the line of a mutant stands in a clone, and how it is put there."""

import json
import pathlib
from typing import Any

LIST = pathlib.Path(__file__).with_name("mutants.json")


def read_mutants(path: pathlib.Path) -> list[dict[str, Any]]:
    """A committed list: LIST, or one of its kind."""
    return json.loads(path.read_text())


def find_line(clone: pathlib.Path, mutant: dict) -> tuple[pathlib.Path, int] | None:
    """Where the line of a mutant stands in a clone: in its file, else in the one file of the package that has it."""

    def places(paths: list[pathlib.Path]) -> list[tuple[pathlib.Path, int]]:
        return [
            (path, number)
            for path in paths
            for number, line in enumerate(path.read_text().splitlines())
            if line.strip() == mutant["before"].strip()
        ]

    home = clone / mutant["file"]
    near = places([home]) if home.exists() else []
    if near:
        return min(near, key=lambda place: abs(place[1] + 1 - mutant["line"]))
    far = places([path for path in sorted((clone / "scalelab").rglob("*.py")) if "experiments" not in path.parts])
    return far[0] if len(far) == 1 else None


def write_line(path: pathlib.Path, number: int, mutant: dict, key: str) -> str:
    """Puts a mutant's line into a file, at the indentation that it has there; returns the file's text before."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + mutant[key].lstrip() + "\n"
    path.write_text("".join(lines))
    return text
