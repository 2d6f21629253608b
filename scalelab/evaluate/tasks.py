"""Read tasks: one JSON-lines file each (docs/tasks.md). Items that can't be scored are refused by file and line."""

import hashlib
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput, nearest_hint
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_bytes

MOST_TASK_BYTES = 2**29
TASKS_KEY = "eval.tasks"  # names task files in a config

TextOrIds = str | list[int]  # token ids for data without text
ITEM_KEYS = ("context", "choices", "answer", "completion", "id")


class TaskItem(NamedTuple):
    """A context, the choices that may follow, and the right one's index. A cloze has one choice: its completion."""

    context: TextOrIds
    choices: list[TextOrIds]
    answer: int
    line: int


class Task(NamedTuple):
    """A task's items. `kind` is choice or cloze; `fingerprint` is a hash of the file's bytes."""

    name: str
    kind: str
    items: list[TaskItem]
    fingerprint: str
    path: str


def make_slug(text: str) -> str:
    """Make a column name from a text: letters, digits and underscores."""
    return re.sub(r"\W+", "_", text).strip("_").lower() or "task"


def read_task(path: str | pathlib.Path, key: str = "--tasks") -> Task:
    """Read the task in a file. BadInput for a line that is not an item (with its number), or a file without items.

    `key`: what named the file, for the message of one that is not there.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        beside = [str(p) for p in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
        raise BadInput(f"{key}: no file {str(path)!r}{nearest_hint(str(path), beside)}")
    content = read_bytes(path, MOST_TASK_BYTES, follow=True)
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}, line {line} is not UTF-8 (byte {error.start} of the file)") from None
    items = [
        _parse_item(text, number, f"{path}, line {number}") for number, text in enumerate(lines, 1) if text.strip()
    ]
    if not items:
        raise BadInput(f"{path} holds no item: a task is a JSON object a line (docs/tasks.md)")
    kind = items[0][0]
    for other, item in items:
        if other != kind:
            raise BadInput(f"{path}, line {item.line} is a {other}, those before it a {kind}: put them into two files")
    fingerprint = hashlib.sha256(content).hexdigest()[:16]
    return Task(make_slug(path.stem), kind, [item for _, item in items], fingerprint, str(path))


def check_names(tasks: Sequence[Task], key: str = "--tasks") -> None:
    """Raise BadInput for two tasks of one name; `key` names their files."""
    names = [task.name for task in tasks]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{key}: two files of the name {double!r}: columns of the same name would hold both")


def _parse_item(text: str, line: int, where: str) -> tuple[str, TaskItem]:
    try:
        row = parse_json(text)
    except ValueError as error:
        raise BadInput(f"{where} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(row, dict):
        raise BadInput(f"{where} is not an object but {text.strip()[:40]!r}")
    for key in row:
        if key not in ITEM_KEYS:
            raise BadInput(f"{where}: unknown key {key!r}{nearest_hint(key, ITEM_KEYS)}")
    context = _text(row.get("context", ""), f"{where}: context", empty=True)
    if "completion" in row:
        if "choices" in row or "answer" in row:
            raise BadInput(f"{where} has a completion and choices: a cloze has the one, a choice the others")
        return "cloze", TaskItem(context, [_text(row["completion"], f"{where}: completion")], 0, line)
    choices, answer = row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or len(choices) < 2:
        raise BadInput(f"{where} needs a completion, or choices (two or more) and the answer's number")
    texts = [_text(choice, f"{where}: choice {i}") for i, choice in enumerate(choices)]
    if type(answer) is not int or not 0 <= answer < len(texts):
        raise BadInput(f"{where}: answer={answer!r} is not a choice's number; 0 to {len(texts) - 1}")
    if len({json.dumps(t) for t in texts}) < len(texts):
        raise BadInput(f"{where}: two choices are the same")
    return "choice", TaskItem(context, texts, answer, line)


def _text(value: Any, where: str, empty: bool = False) -> TextOrIds:
    ids = isinstance(value, list) and all(type(i) is int for i in value)
    if not (isinstance(value, str) or ids):
        raise BadInput(f"{where} is neither text nor a list of token ids: {str(value)[:40]!r}")
    if not value and not empty:
        raise BadInput(f"{where} is empty: nothing can be scored")
    return value
