"""One run of the tests for `machines.py`: its environment, what is kept of it, what is still to be run."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput, WorkFailed
from scalelab.record import jsonfiles

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARGUMENTS = "checks/platforms/tolerances.json"  # read when the page is written: no test depends on it
CODE = (
    "scalelab",
    "configs",
    "experiments",
    "checks",
    "tests",
    "pyproject.toml",
)  # what a test's outcome may depend on
RESULTS = ("experiments/results", "checks/results")

# The kernels that OpenBLAS really uses, asked of numpy's and scipy's libraries: they don't refuse unknown names.
_KERNELS = """
import ctypes, re, numpy.linalg, scipy.linalg
names = set()
for path in sorted(set(re.findall(r"/\\S*openblas\\S*", open("/proc/self/maps").read()))):
    for symbol in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
        get = getattr(ctypes.CDLL(path), symbol, None)
        if get:
            get.restype = ctypes.c_char_p
            names.add(get().decode())
            break
print(" ".join(sorted(names)))
"""


class Run(NamedTuple):
    """OpenBLAS's core, and the instruction set that XLA compiles for ("": the machine's own)."""

    core: str
    isa: str

    @property
    def name(self) -> str:
        """The run as a title and a folder's name."""
        return f"{self.core}, {self.isa or 'own ISA'}"


def run_environment(run: Run, folder: pathlib.Path) -> dict[str, str]:
    """The environment of a run. Bytecode goes to its own folder: asserts are rewritten differently from `make test`."""
    # XLA's library of products and sums chooses its kernels by the processor, whatever the ISA asked for.
    isa = f"--xla_cpu_max_isa={run.isa} --xla_cpu_experimental_ynn_fusion_type=" if run.isa else ""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {isa}".strip()
    settings = {"OPENBLAS_CORETYPE": run.core, "XLA_FLAGS": flags, "SCALELAB_TOLERANCES": str(folder)}
    return {**os.environ, **settings, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "JAX_PLATFORMS": "cpu"}


def run_tests(
    run: Run, tests: Sequence[str], jobs: int, folder: pathlib.Path, left_out: Collection[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run what `folder` does not hold yet: (counts and failures, the plugin's line of each test)."""
    forget_changed(folder, tests)
    before = finished_tests(folder)
    passed = {name for name, lines in before.items() if lines[-1]["outcome"] != "failed"}
    jsonfiles.write_json(folder / "skip.json", sorted(passed | set(left_out)))
    print(f"{run.name}: {len(passed)} tests are done, {len(left_out)} left out", file=sys.stderr, flush=True)
    env = run_environment(run, folder)
    options = ["-p", "tests.tolerances", "-o", "enable_assertion_pass_hook=true", "-p", "no:cacheprovider"]
    options += ["-n", str(jobs), "--no-header", "--tb=line"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env=env, cwd=ROOT, stdout=sys.stderr)
    if done.returncode not in (0, 1, 5):  # all passed, some failed, none were left to run
        raise WorkFailed(f"pytest ended with {done.returncode} under {run.name}: see its last lines above")
    command = [sys.executable, "-c", _KERNELS]
    kernels = subprocess.run(command, env=env, capture_output=True, text=True).stdout.strip()
    finished = {name: lines for name, lines in finished_tests(folder).items() if name not in left_out}
    if not finished:
        raise BadInput(f"--tests={','.join(tests)}: there is not a test in them")
    return _count(run, kernels, finished, len(left_out)), [lines[-1] for lines in finished.values()]


def _count(run: Run, kernels: str, finished: dict[str, list[dict[str, Any]]], left_out: int) -> dict[str, Any]:
    outcomes = {name: [line["outcome"] for line in lines] for name, lines in finished.items()}
    counts = {key: sum(each[-1] == key for each in outcomes.values()) for key in ("passed", "failed", "skipped")}
    failures = sorted(name for name, each in outcomes.items() if each[-1] == "failed")
    again = sorted(name for name, each in outcomes.items() if each[-1] != "failed" and "failed" in each)
    seconds = round(sum(line["seconds"] for lines in finished.values() for line in lines))
    names = {"name": run.name, "core": run.core, "isa": run.isa, "kernels": kernels}
    return names | counts | {"left_out": left_out, "seconds": seconds, "failures": failures, "again": again}


def finished_tests(folder: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """{test: its lines, oldest first}, a line for each time that it was run. A line cut by a kill is left out."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for file in folder.glob("*.jsonl"):
        for text in file.read_text().splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            lines.setdefault(line["test"], []).append(line)
    return {name: sorted(each, key=lambda line: line["ended"]) for name, each in lines.items()}


def forget_changed(folder: pathlib.Path, tests: Sequence[str]) -> None:
    """Drop what `folder` holds of test files that changed since, or all of it if anything else did."""
    now = {"tests": list(tests)} | hash_code(tests)
    path = folder / "code.json"
    then = jsonfiles.read_json(path) if path.exists() else {}
    if {key: then.get(key) for key in ("tests", "rest")} != {key: now[key] for key in ("tests", "rest")}:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        changed = {name for name, digest in then["files"].items() if now["files"].get(name) != digest}
        for file in folder.glob("*.jsonl"):
            lines = [line for line in file.read_text().splitlines(keepends=True) if not _is_of(line, changed)]
            file.write_text("".join(lines))
    folder.mkdir(parents=True, exist_ok=True)
    jsonfiles.write_json(path, now)


def _is_of(line: str, files: Collection[str]) -> bool:
    return any(line.startswith(f'{{"test": "{file}::') for file in files)


def hash_code(tests: Sequence[str]) -> dict[str, Any]:
    """{"files": {test file: its hash}, "rest": one hash of everything else that the tests run}."""
    files, rest = {}, hashlib.sha256()
    tops = [ROOT / top for top in (*CODE, *(path.partition("::")[0] for path in tests))]
    for path in sorted({path for top in tops for path in [top, *top.rglob("*")]}):
        name = os.path.relpath(path, ROOT)
        if not path.is_file() or "__pycache__" in name or name.startswith((*RESULTS, ARGUMENTS)):
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name.startswith("test_") and name.startswith("tests/"):
            files[name] = digest
        else:
            rest.update(f"{name} {digest}\n".encode())
    return {"files": files, "rest": rest.hexdigest()}
