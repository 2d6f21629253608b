"""Names in backticks of docstrings and comments, read off the source: what is gone from the code is gone from there."""

import ast
import bisect
import builtins
import functools
import pathlib
import re

from scalelab.config import default_values
from tests.folders import parse_text, walk_statements

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(path for room in ("scalelab", "experiments", "checks") for path in (ROOT / room).rglob("*.py"))
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`")
# A comment, or a text with its prefix. Python's own tokenizer takes ten times as long.
TOKEN = re.compile(
    r"""#[^\n]*|[rRbBfF]{0,2}(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL,
)
TEXT = re.compile(r"""[rbf]*(["']{1,3})(.*)\1""", re.DOTALL)
# Of other packages, of Python and of JSON files, and placeholders.
OTHERS = {
    *("DelayedScaling", "GetGpuHostAllocator", "GpuTargetConfigProto", "global_parameter_scale", "grad_accu_steps"),
    *("auto_axes", "nn", "dot_product_attention", "merge_ocdbt_per_process_files", "as_text", "eval_shape"),
    *("logsumexp", "device_kind", "pandas", "DataFrame", "serve_forever", "subprocess", "yield", "transformers"),
    *("batch_checks", "pkg", "mod", "fn"),
}


@functools.cache
def read_file(text):
    """(words of the code and its texts, names it defines, whole texts, [(line, docstring or comment)]) of a file."""
    words, defined, texts, prose, places = set(), set(), set(), [], set()
    for node in walk_statements(parse_text(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            prose.append((node.body[0].lineno, node.body[0].value.value))
            places.add((node.body[0].value.lineno, node.body[0].value.col_offset))
        if isinstance(node, ast.Module | ast.ClassDef):
            targets = [t for each in node.body for t in getattr(each, "targets", [getattr(each, "target", None)]) if t]
            defined |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    code = []
    after = 0
    for token in TOKEN.finditer(text):
        line = bisect.bisect_right(line_starts, token.start())
        code.append(text[after : token.start()])
        after = token.end()
        if token[0].startswith("#"):
            prose.append((line, token[0]))
        elif (line, token.start() - line_starts[line - 1]) not in places:
            words |= set(re.findall(r"\w+", token[0]))
            texts.add(TEXT.fullmatch(token[0])[2])
    words |= set(re.findall(r"\w+", " ".join([*code, text[after:]])))
    return words, defined, texts, prose


@functools.cache
def known_names():
    """What any file may name: modules, definitions and whole texts of all files, config keys, and others' names."""
    names = {*OTHERS, *dir(builtins), *(part for key in default_values() for part in key.split(".")), "py"}
    for path in FILES:
        _, defined, texts, _ = read_file(path.read_text())
        names |= {*defined, *texts, *path.relative_to(ROOT).with_suffix("").parts}
    return names


def missing_names(text, known):
    """[(line, name)] of the names in backticks of which a part is nowhere in the file's code and not known."""
    words, _, _, prose = read_file(text)
    names = ((line, name) for line, each in prose for name in NAME.findall(each))
    return [(line, name) for line, name in names if any(p not in words and p not in known for p in name.split("."))]


def test_every_name_in_backticks_exists():
    missing = {path.relative_to(ROOT).as_posix(): missing_names(path.read_text(), known_names()) for path in FILES}
    assert {path: names for path, names in missing.items() if names} == {}


def test_a_name_that_is_gone_is_seen():
    code = 'def f(x):\n    """As `g` of `x`, `here.g()` and `model.there`; `a thing`."""\n    return x  # like `h`\n'
    assert missing_names(code, {"here", "model"}) == [(2, "g"), (2, "here.g"), (2, "model.there"), (3, "h")]
