"""The pages of docs/reference and docs/gallery.md, from code and committed results; a test holds them to it.

python -m docs.generate
"""

import ast
import pathlib
import sys

import scalelab.commands
from docs.gallery import gallery_page
from docs.notebook import make_notebook, notebook_text
from scalelab.__main__ import COMMANDS
from scalelab.config import key_records
from scalelab.config.keys import Key, Range

PYTHON_PAGE = pathlib.Path(__file__).parent / "python.md"
FOLDER = pathlib.Path(__file__).parent / "reference"
UNBOUNDED = 2**31 - 1  # a bound from here on only keeps a number within its type
NOTE = "<!-- Written by `python -m docs.generate`: change the code, not this page. -->\n"


def main() -> int:
    """Write the pages; exit code 0."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in reference_pages().items():
        (FOLDER / name).write_text(text)
    return 0


def reference_pages() -> dict[str, str]:
    """{file name: text} of every page."""
    return {
        "commands.md": _commands_page(),
        "keys.md": _keys_page(),
        "python.ipynb": notebook_text(make_notebook(PYTHON_PAGE.read_text())),
        "../gallery.md": NOTE + gallery_page(),
    }


def _commands_page() -> str:
    """Every command with the text of its help."""
    parts = [NOTE, "# Commands, in full", "", "`scalelab COMMAND --help` also lists each option.", ""]
    for name, summary in COMMANDS.items():
        text = command_text(name)
        parts += [
            f"## scalelab {name}",
            "",
            f"{summary[0].upper()}{summary[1:]}.",
            "",
            "```text",
            text.strip(),
            "```",
            "",
        ]
    return "\n".join(parts)


def command_text(name: str) -> str:
    """The docstring of a command's module."""
    file = {"import": "import_hf", "fit": "fit/fit", "plan": "plan/plan", "ablate": "ablate/ablate"}.get(name, name)
    path = pathlib.Path(scalelab.commands.__path__[0]) / f"{file}.py"
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def _keys_page() -> str:
    """Every config key, by group."""
    parts = [
        NOTE,
        "# Config keys",
        "",
        "Set in a config file, or as `--config.group.key=value`. `scalelab config KEY` prints one.",
        "",
    ]
    group = ""
    for key, record in key_records().items():
        if key.split(".")[0] != group:
            group = key.split(".")[0]
            parts += ["", f"## {group}", "", "| key | default | values | what it is |", "|---|---|---|---|"]
        parts.append(_key_row(key, record))
    return "\n".join([*parts, ""])


def _key_row(key: str, record: Key) -> str:
    default = "derived" if record.default is None else f"`{record.default!r}`"
    values = ", ".join(record.choices) or (_bounds(record.range) if record.range else "")
    notes = [record.meaning, record.unit and f"unit: {record.unit}", record.source and f"source: {record.source}"]
    notes += ["traced: trials that differ in it share a program"] if record.traced else []
    text = "; ".join(note for note in notes if note).replace("|", "\\|").replace("\n", " ")
    return f"| `{key}` | {default} | {values} | {text} |"


def _bounds(allowed: Range) -> str:
    low = f"{'above' if allowed.above_low else 'from'} {allowed.low:g}"
    return low if allowed.high >= UNBOUNDED else f"{low} to {allowed.high:g}"


if __name__ == "__main__":
    sys.exit(main())
