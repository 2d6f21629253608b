"""Small tasks for small models, made by rule: what a byte model learns from Python's sources or the synthetic language.

    python -m experiments.tasks.make [--items=150] [--out=experiments/tasks]

Write brackets, keywords, indentation and spelling (Python) and bigrams (the synthetic language of vocabulary 256 and
language_seed 0) in the format of docs/tasks.md. The command always writes the same bytes. In brackets, keywords and
indentation the right choice is drawn like the wrong ones: judged without the context, the accuracy is `chance`,
whichever choice is likely by itself. Every text is made from the words below.

    python -m experiments.tasks.make --items=20 --out=runs/tasks
"""

import functools
import itertools
import json
import pathlib
import random
import sys
from collections.abc import Sequence

import numpy as np

from scalelab.__main__ import guarded
from scalelab.cli.parser import Parser, emit_json, folder_path
from scalelab.data.sources.language import Language, make_language
from scalelab.errors import BadInput

TASKS_FOLDER = pathlib.Path(__file__).parent

VARIABLE_NAMES = [
    "value", "index", "count", "total", "name", "path", "item", "size", "key", "data", "line", "node", "text",
    "start", "end", "width", "depth", "result", "width", "level",
]  # fmt: skip
BUILTIN_CALLS = [
    "len", "max", "min", "sum", "sorted", "list", "dict", "set", "tuple", "str", "int", "abs", "open", "print",
    "range",
]  # fmt: skip
KEYWORDS = {
    "ret": "urn", "imp": "ort", "fro": "m", "cla": "ss", "whi": "le", "rai": "se", "exce": "pt", "asse": "rt",
    "yie": "ld", "lamb": "da", "brea": "k", "cont": "inue", "fina": "lly", "glob": "al", "eli": "f",
}  # fmt: skip
MISSING_SPACES = (0, 1, 2, 4)  # spaces
SPELLED_WORDS = [
    "self.", "None", "True", "False", "return ", "import ", "isinstance(", "ValueError", "__init__(self", "raise ",
]  # fmt: skip


def brackets(chance: random.Random) -> dict:
    """Close the open brackets, innermost first.

    Each choice except one of a single kind is right as often as wrong.
    """
    depth = chance.choice([2, 2, 3])
    closings = ["".join(each) for each in itertools.product(")]}", repeat=depth) if len(set(each)) > 1]
    right, *wrong = chance.sample(closings, 4)
    opened = [{")": "(", "]": "[", "}": "{"}[b] for b in reversed(right)]
    words = [
        chance.choice(BUILTIN_CALLS) if b == "(" else chance.choice(VARIABLE_NAMES) if b == "[" else "" for b in opened
    ]
    context = (
        f"    {chance.choice(VARIABLE_NAMES)} = "
        + "".join(w + b for w, b in zip(words, opened, strict=True))
        + chance.choice(VARIABLE_NAMES)
    )
    return _choice(chance, context, right + "\n", [text + "\n" for text in wrong])


def keywords(chance: random.Random) -> dict:
    """Complete a keyword; the wrong choices complete others."""
    beginning = chance.choice(list(KEYWORDS))
    others = chance.sample([rest for rest in KEYWORDS.values() if rest != KEYWORDS[beginning]], 3)
    indent = "    " * chance.randint(1, 2)
    target, call, argument = (chance.choice(names) for names in (VARIABLE_NAMES, BUILTIN_CALLS, VARIABLE_NAMES))
    context = f"{indent}{target} = {call}({argument})\n{indent}{beginning}"
    return _choice(chance, context, KEYWORDS[beginning], others)


def indentation(chance: random.Random) -> dict:
    """Indent the line after a colon: how many more spaces are needed?

    Each choice is right as often as wrong, and all have one length.
    """
    depth, wanting = chance.randint(0, 2), chance.choice(MISSING_SPACES)
    a, b = chance.sample(VARIABLE_NAMES, 2)
    heads = (f"if {a} is None:", f"for {a} in {b}:", f"while {a} < {b}:", f"if not {a}:", f"with open({a}) as {b}:")
    context = "    " * depth + f"{b} = {a}\n" + "    " * depth + chance.choice(heads) + "\n"
    context += " " * (4 * depth + 4 - wanting)
    verb = chance.choice(["return", "yield ", "raise "])
    of = {spaces: (" " * spaces + verb)[: len(verb)] for spaces in MISSING_SPACES}
    return _choice(chance, context, of[wanting], [text for spaces, text in of.items() if spaces != wanting])


def spelling(chance: random.Random) -> dict:
    """A cloze: the last two or three characters of a word that every Python file has."""
    word = chance.choice(SPELLED_WORDS)
    cut = chance.randint(2, 3)
    context = f"        {chance.choice(VARIABLE_NAMES)} = {chance.choice(VARIABLE_NAMES)}\n        "
    context += {"import ": "\n\n", "__init__(self": "    def ", "None": "x = ", "True": "x = ", "False": "x = "}.get(
        word, ""
    )
    context += "raise " * (word == "ValueError") + "if " * (word == "isinstance(")
    return {"context": context + word[:-cut], "completion": word[-cut:]}


def bigrams(chance: random.Random) -> dict:
    """Continue the synthetic language: eight words drawn by its rules, or eight by their frequency alone.

    The context is not needed in full: knowing which word follows which within a choice is better than chance.
    """
    language, draws = _language(), np.random.RandomState(chance.getrandbits(32))
    words = [draws.choice(len(language.start), p=language.start)]
    for _ in range(39):
        words.append(draws.choice(len(language.start), p=language.follow[words[-1]]))
    wrong = [draws.choice(len(language.start), 8, p=language.start) + 1 for _ in range(3)]
    text = (np.array(words) + 1).tolist()  # word i has id i + 1
    return _choice(chance, text[:32], text[32:], [each.tolist() for each in wrong])


@functools.cache
def _language() -> Language:
    return make_language(256, 0)


def _choice(chance: random.Random, context: str | list, right: str | list, wrong: list) -> dict:
    at = chance.randrange(len(wrong) + 1)
    return {"context": context, "choices": [*wrong[:at], right, *wrong[at:]], "answer": at}


TASKS = {made.__name__: made for made in (brackets, keywords, indentation, spelling, bigrams)}


def task_lines(name: str, items: int, seed: int = 0) -> str:
    """The lines of a task's file: `items` different ones."""
    chance = random.Random(f"{name} {seed}")
    rows: dict[str, None] = {}
    while len(rows) < items:
        rows[json.dumps(TASKS[name](chance))] = None
    return "\n".join(rows) + "\n"


def main(argv: Sequence[str]) -> int:
    """Write all task files; exit code 0, 2 for bad input."""
    return guarded("tasks", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = Parser("study", __doc__)
    parser.prog = "python -m experiments.tasks.make"
    parser.add_argument("--items", type=int, default=150, metavar="N", help="items of each task (default: 150)")
    parser.add_argument(
        "--out", type=folder_path, default=TASKS_FOLDER, metavar="DIR", help="where to (default: experiments/tasks)"
    )
    options = parser.parse_args(argv)
    if options.items < 1:
        raise BadInput(f"--items={options.items}: at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    written = [options.out / f"{name}.jsonl" for name in TASKS]
    for path in written:
        path.write_text(task_lines(path.stem, options.items))
        print(f"wrote {path}", file=sys.stderr)
    emit_json({"written": [str(path) for path in written]}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
