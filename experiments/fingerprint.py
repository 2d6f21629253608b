"""What made a result: commit, golden step, jax, Python (whose library is the default corpus) and code; is it still so?

A result is stale if the code of its own study or check differs from the code that made it, if jax's minor version is
newer, or, where it trained, if the golden step is another. Code is compared without comments, docstrings, imports and
layout, and without functions whose whole name says that they show something (`SHOWS`), so that prose and moves make
nothing stale. `library` is the code of scalelab that the study calls directly; a change there is named, but makes no
result stale by itself: most of it moves no number, and the golden step stands for the rest.
"""

import ast
import datetime
import functools
import hashlib
import json
import pathlib
import platform
import re
import resource
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from scalelab import git

PACKAGE = pathlib.Path(git.__file__).parent
KEY = "made_by"
SIDECAR = "made_by.json"  # {file: fingerprint} of results that are lists
OWN = {"experiments", "checks"}  # folders of studies and checks
# What all results share.
FRAME = ("shared.py", "outcome.py", "check_kinds.py", "limits.py", "fingerprint.py", "__init__.py")
FRONT = ("cli", "errors", "git", "numbers", "record", "report", "signals", "stores", "study", "untrusted", "__main__")
SHOWS = re.compile(r"_?(?:draw|plot|describe|page|panel|print|write|main|legend)|\w*_(?:page|figure)")
TRAINS = re.compile(
    r"\b(?:train_packs|train_trials|run_sweep|train_step|many_steps|load_run_dataset|api\.train|isoflop)"
)


def make_fingerprint(module: str) -> dict[str, Any]:
    """The fingerprint of what `python -m MODULE` makes now; `commit` ends with + where the checkout has changes.

    `cpu_s` are the CPU seconds of this process so far, with those of processes that it waited for.
    """
    state = git.code_state()["scalelab"]
    commit = f"{str(state['commit'])[:12]}{'+' if state.get('dirty') else ''}" if "commit" in state else None
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    facts = {"commit": commit, "date": str(datetime.date.today()), "module": module}
    spent = {"cpu_s": round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 1)}
    library = {"library": library_digest(PACKAGE.parent, module)}
    return facts | spent | _made_now() | code_digests(PACKAGE.parent, module) | library


@functools.cache
def _made_now() -> dict[str, Any]:
    return {"golden": golden_digest(PACKAGE.parent), "jax": version("jax"), "python": platform.python_version()}


def read_fingerprint(path: pathlib.Path) -> dict[str, Any] | None:
    """What made the result at `path`, a .json or the page beside it; None where that isn't known.

    It stands in the result, or in made_by.json beside it, as long as the result is the one that was meant there.
    """
    name = path.with_suffix(".json").name if path.suffix == ".md" else path.name
    file, beside = path.with_name(name), path.with_name(SIDECAR)
    content = json.loads(file.read_text()) if file.suffix == ".json" and file.exists() else None
    if isinstance(content, dict) and KEY in content:
        return content[KEY]
    known = json.loads(beside.read_text()) if beside.exists() else {}
    for each in (file, path.with_suffix(".jsonl")):
        if each.exists() and known.get(each.name, {}).get("content") == content_digest(each):
            return known[each.name]
    return None


def content_digest(path: pathlib.Path) -> str:
    """A digest of a result, by which made_by.json knows that it speaks of this one."""
    return _digest(path.read_text())


def stale_reasons(made: Mapping[str, Any] | None, root: pathlib.Path = PACKAGE.parent) -> list[str]:
    """Why a result with this fingerprint, or with none, is stale, in words; nothing if it is not."""
    if made is None:
        return ["nothing says what made it"]
    digests, reasons = code_digests(root, made["module"]), []
    if not (digests["own"] and made["own"]):
        return [f"{made['module']} is gone" if made["own"] else "its own code, which was another module then"]
    before = own_digests(made)
    names = {name for name in {*before, *digests["own"]} if before.get(name) != digests["own"].get(name)}
    if names:
        reasons.append(f"its own code ({', '.join(sorted(names))})")
    now = _made_now()
    if made["trains"] and made["golden"] != now["golden"]:
        reasons.append("the golden step")
    old, new = (tuple(map(int, text.split(".")[:2])) for text in (made["jax"] or now["jax"], now["jax"]))
    return reasons + ([f"jax {made['jax']} -> {now['jax']}"] if old < new else [])  # a newer one was asked for


def own_digests(made: Mapping[str, Any]) -> dict[str, str]:
    """{file name: digest} of a fingerprint, without files that have come to be shared by all results since."""
    return {name: digest for name, digest in made["own"].items() if name not in FRAME}


def library_changed(made: Mapping[str, Any], root: pathlib.Path = PACKAGE.parent) -> bool:
    """Whether the code of scalelab that the study calls directly is another one now."""
    return made["library"] != library_digest(root, made["module"])


def list_results() -> list[tuple[pathlib.Path, dict[str, Any] | None]]:
    """The results that are here, those of a checkout's checks/ included, each with its fingerprint."""
    folders = (PACKAGE / "experiments" / "results", PACKAGE.parent / "checks" / "results")
    paths = (path for folder in folders for path in sorted(folder.glob("*.json*")) if path.name != SIDECAR)
    return [(path, read_fingerprint(path)) for path in paths]


def golden_digest(root: pathlib.Path) -> str | None:
    """A digest of the golden step's numbers, which say whether training computes what it did."""
    for name in ("scalelab/testing/golden.py", "tests/train/step/test_step.py", "tests/train/test_step.py"):
        file = root / name
        text = file.read_text() if file.exists() else ""
        match = re.search(r"^GOLDEN = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
        if match:
            return _digest(json.dumps(ast.literal_eval(match[1]), sort_keys=True))
    return None


@functools.cache
def code_digests(root: pathlib.Path, module: str) -> dict[str, Any]:
    """Digests of the code of a study: `own` {file name: digest}, and whether it trains."""
    own, _ = source_files(root, module)
    return {
        "own": {short_name(path): _digest(outline(path)) for path in sorted(own)},
        "trains": any(TRAINS.search(path.read_text()) for path in own),
    }


def library_digest(root: pathlib.Path, module: str) -> str:
    """A digest of the code of scalelab that a study calls directly."""
    _, library = source_files(root, module)
    return _digest("\n".join(outline(path) for path in sorted(library)))


@functools.cache
def source_files(root: pathlib.Path, module: str) -> tuple[set[pathlib.Path], set[pathlib.Path]]:
    """The files of a study that it imports from its own folders, and those of scalelab that these import directly."""
    start = find_module(root, module)
    own, library, todo = set(), set(), [start] if start else []
    if start and start.name == "__main__.py":
        todo += sorted(start.parent.glob("*.py"))
    while todo:
        path = todo.pop()
        if path in own or path.name in FRAME or (path != start and SHOWS.fullmatch(path.stem)):
            continue
        own.add(path)
        for file in filter(None, (find_module(root, name) for name in _imported(path))):
            parts = file.relative_to(root).parts
            if OWN & {*parts[:2]}:
                todo.append(file)
            elif parts[0] == "scalelab" and parts[1].removesuffix(".py") not in FRONT:
                library |= {file} if file.name != "__init__.py" else set()
    return own, library


def _imported(path: pathlib.Path) -> Iterable[str]:
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_module(root: pathlib.Path, module: str) -> pathlib.Path | None:
    """The file of a module of this project; experiments stand in a checkout's root, or in the installed package."""
    parts = module.split(".")
    parts = parts[1:] if parts[:2] == ["scalelab", "experiments"] else parts
    bases = [root.joinpath(*parts), *([root.joinpath("scalelab", *parts)] if parts[0] in OWN else [])]
    files = (file for base in bases for file in (base.with_suffix(".py"), base / "__main__.py"))
    return next((file for file in files if file.is_file()), None)


def short_name(path: pathlib.Path) -> str:
    """The name under which a file stands in `own`."""
    return f"{path.parent.name}/{path.name}" if path.name == "__main__.py" else path.name


@functools.cache
def outline(path: pathlib.Path) -> str:
    """The syntax of a file without docstrings, imports, and functions that draw, describe or parse a command line."""
    return "\n".join(_write_node(node) for node in _parse(path).body if not _left_out(node))


def _left_out(node: object) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)  # a docstring
    if isinstance(node, ast.FunctionDef):
        return bool(SHOWS.fullmatch(node.name))
    return isinstance(node, ast.Import | ast.ImportFrom)


def _write_node(node: object) -> str:
    """A node in one line, equal under all Pythons: what is empty, and the numbers of lines, are left out."""
    if isinstance(node, list):
        return f"[{','.join(_write_node(each) for each in node if not _left_out(each))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    written = (f"{name}{_write_node(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({','.join(written)})"


@functools.cache
def _parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
