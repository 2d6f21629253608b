"""Give results of before fingerprints the one of the commit that wrote them: `python -m tests.claims.backfill`.

A commit that wrote a result holds the code that made it. The result is followed through renames, and changes of its
command, date and machine alone, back to the commit that first held its numbers; the digests are of that commit's files.
Results that are lists, or that a program wrote line by line, are named in made_by.json beside them.
"""

import json
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from scalelab.experiments import fingerprint

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = (ROOT / "checks" / "results", ROOT / "experiments" / "results")
PROSE = {"command", "date", "machine", fingerprint.KEY}
MADE_BY = {  # results whose command doesn't name the module
    "attention": "checks.speed.attention", "benchmarks": "checks.speed.benchmarks",
    "compiled": "checks.compilers.compiled", "crash": "tests.crash.conftest",
    "decisions": "checks.statistics.decisions", "expert_products": "checks.speed.expert_products",
    "fp8_products": "checks.compilers.fp8_products", "gpu": "checks.gpu", "gpu_compiled": "checks.gpu",
    "house": "tests.house", "latest": "checks.platforms.latest", "memory": "checks.compilers.memory",
    "mutants": "checks.mutants", "oracles": "checks.numerics.oracles", "parallelism": "checks.numerics.parallelism",
    "parallelism_experts": "checks.numerics.parallelism", "precision": "experiments.precision",
    "programs": "checks.compilers.programs", "reproduce": "scalelab.commands.reproduce",
    "step_times": "checks.speed.step_times",
}  # fmt: skip


def main() -> None:
    """Write the fingerprints that are not there."""
    for folder in FOLDERS:
        beside = json.loads(_text(folder / fingerprint.SIDECAR) or "{}")
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")]):
            if path.name != fingerprint.SIDECAR and not fingerprint.read_fingerprint(path):
                made = made_at(path)
                print(path.name, made["commit"], made["date"], made["module"])
                if not _write_within(path, made):
                    beside[path.name] = made | {"content": fingerprint.content_digest(path)}
        (folder / fingerprint.SIDECAR).write_text(json.dumps(beside, indent=1) + "\n")


def made_at(path: pathlib.Path) -> dict[str, Any]:
    """The fingerprint of what made the numbers at `path`, from the oldest commit that holds them."""
    now, oldest = _numbers(path.read_text()), None
    for commit, name in _history(path):
        try:
            text = git_output("show", f"{commit}:{name}")
        except subprocess.CalledProcessError:  # the commit that moved it away
            continue
        oldest = commit if _numbers(text) == now else oldest
    if oldest is None:
        raise SystemExit(f"{path} was never committed as it is: run what makes it")
    module = _module_of(path)
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        archive = subprocess.run(["git", "archive", oldest], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", place], input=archive, check=True)
        there = module_there(root, module)
        digests = fingerprint.code_digests(root, there) | {"library": fingerprint.library_digest(root, there)}
        golden = fingerprint.golden_digest(root)
    commit = {"commit": oldest[:12], "date": git_output("log", "-1", "--format=%as", oldest).strip(), "module": module}
    versions = {"jax": _version("jax", path), "python": _version("Python", path)}
    return commit | {"golden": golden} | versions | digests


def _history(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """(commit, name there) of each change of a file, newest first, through renames."""
    log = git_output("log", "--follow", "-m", "-M30%", "--format=%H", "--name-only", "--", str(path.relative_to(ROOT)))
    yield from re.findall(r"^([0-9a-f]{40})(?: .*)?\n\n(.+)$", log, re.MULTILINE)


def _numbers(text: str) -> Any:
    """What a result holds without command, date and machine; names of modules aside."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        return text
    return {key: value for key, value in content.items() if key not in PROSE} if isinstance(content, dict) else content


def _module_of(path: pathlib.Path) -> str:
    if path.stem in MADE_BY:
        return MADE_BY[path.stem]
    return re.search(r"python -m ([\w.]+)", json.loads(path.read_text())["command"])[1]


def module_there(root: pathlib.Path, module: str) -> str:
    """The name that a module had in an older checkout: that of the file, or folder, of its last part."""
    parts = module.split(".")
    if any((root.joinpath(*parts).with_suffix(".py").exists(), (root.joinpath(*parts) / "__main__.py").exists())):
        return module
    for folder in ("checks", "experiments", "tests"):
        for path in (*(root / folder).rglob(f"{parts[-1]}.py"), *(root / folder).rglob(f"{parts[-1]}/__main__.py")):
            within = path.relative_to(root).with_suffix("").parts
            return ".".join(part for part in within if part != "__main__")
    return module


def _version(name: str, path: pathlib.Path) -> str | None:
    text = path.read_text() + _text(path.with_suffix(".md"))
    match = re.search(rf'\b{name}"?:? "?(\d+\.\d+\.\d+)', text, re.IGNORECASE)
    return match[1] if match else None


def _write_within(path: pathlib.Path, made: dict[str, Any]) -> bool:
    """Put the fingerprint into a result that says what command made it, the rest as it is."""
    text = path.read_text()
    if path.suffix != ".json" or not re.match(r'\{\s*"command"', text):
        return False
    indent = re.match(r"\{\n?( *)", text)[1]
    path.write_text(text.replace("{", f'{{\n{indent}"{fingerprint.KEY}": {json.dumps(made)},', 1))
    return True


def _text(path: pathlib.Path) -> str:
    return path.read_text() if path.exists() else ""


def git_output(*arguments: str) -> str:
    """What git prints in this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
