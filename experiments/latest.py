"""Try the installed versions: doctor, a training, every layout of a mesh, refusals, products in fp8, a pipeline.

    python -m experiments.latest [--workdir=DIR]

`make test-latest` runs it in an environment of the newest packages that pyproject.toml allows. Where every part passes,
`results/latest.json` and `.md` beside this file (or --workdir) say so, with versions, date and seconds;
`scalelab doctor` compares an installation with them. Exit 1 where a part fails: nothing is written.

    scalelab study latest --workdir=runs/latest
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import WorkFailed
from scalelab.experiments.shared import RESULTS, command_line, markdown_table, result_header, write_result
from scalelab.hardware.versions import installed_versions, pinned_versions
from scalelab.train.resume.facts import package_versions

_ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTPUT_LINES = 40  # of a part that failed, printed


class Part(NamedTuple):
    """A command of this Python, `-m` and on; `devices`: fake CPU devices, 0 where it makes its own."""

    name: str
    arguments: tuple[str, ...]
    devices: int = 1


def list_parts(folder: pathlib.Path) -> list[Part]:
    """The parts in the order in which they run, quick ones first; runs are trained in `folder`."""

    def train(name: str, *settings: str, steps: int = 40) -> tuple[str, ...]:
        keys = (f"train.steps={steps}", f"checkpoint.every_steps={steps // 2}", *settings)
        options = [f"--config.{key}" for key in keys]
        return ("scalelab", "train", "--config=configs/tiny.py", f"--workdir={folder / name}", *options)

    pipeline = ("parallel.stage=2", "parallel.microbatches=2", "parallel.data=1")
    return [
        Part("doctor", ("scalelab", "doctor", "--expect=cpu")),
        Part("a training", train("tiny", "schedule.name=constant")),
        Part("its resumption, longer", train("tiny", "schedule.name=constant", steps=60)),
        Part("its report", ("scalelab", "report", str(folder / "tiny"))),
        Part("a training in fp8", train("fp8", "precision.name=fp8")),
        Part("a training in a pipeline", train("pipeline", *pipeline), devices=2),
        Part("refusals", ("pytest", "tests/parallel/test_refusals.py", "-p", "no:cacheprovider")),
        Part("every layout", ("experiments.parallelism", "--quick"), devices=0),
    ]


def run_part(part: Part) -> dict[str, Any]:
    """Run a part: its command, exit code, seconds and what it printed."""
    flags = os.environ.get("XLA_FLAGS", "")
    if part.devices > 1:
        flags = f"{flags} --xla_force_host_platform_device_count={part.devices}".strip()
    command = [sys.executable, "-m", *part.arguments]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    started, cpu_before = time.monotonic(), _children_cpu_seconds()
    done = subprocess.run(command, cwd=_ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds, cpu_s = time.monotonic() - started, _children_cpu_seconds() - cpu_before
    row = {"part": part.name, "exit_code": done.returncode, "seconds": round(seconds, 1), "cpu_s": round(cpu_s, 1)}
    return row | {"output": done.stdout}


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tested_versions() -> dict[str, str]:
    """Python, scalelab and every package of requirements.txt, as installed here."""
    return package_versions() | installed_versions(tuple(pinned_versions()))


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rows = [(row["part"], f"{row['seconds']:.0f}", f"{row['cpu_s']:.0f}") for row in result["parts"]]
    lines = ["# The newest versions that pyproject.toml allows", ""]
    lines += [f"`make test-latest`, {result['date']}: {result['machine']}. Every part passed.", "", versions, ""]
    return "\n".join([*lines, *markdown_table(("part", "seconds", "CPU seconds"), rows), ""])


def main(argv: Sequence[str]) -> int:
    """Run the parts and write the result. Exit code: 0 all passed, 1 a part failed, 2 bad input."""
    return guarded("latest", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("latest", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    if not (_ROOT / "tests").is_dir():
        raise WorkFailed("the tests are not part of an installed scalelab: run this in a clone (make test-latest)")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for part in list_parts(pathlib.Path(folder)):
            row = run_part(part)
            print(f"{part.name}: {row['seconds']:.0f} s, exit code {row['exit_code']}", file=sys.stderr, flush=True)
            if row["exit_code"]:
                print("\n".join(row["output"].splitlines()[-OUTPUT_LINES:]), file=sys.stderr)
            rows.append(row)
    if failed := [row["part"] for row in rows if row["exit_code"]]:
        raise WorkFailed(f"with {_summary()}: {', '.join(failed)} failed; nothing is written")
    parts = [{key: row[key] for key in ("part", "seconds", "cpu_s")} for row in rows]
    result = result_header("latest", argv) | {"versions": tested_versions(), "parts": parts}
    write_result(options.workdir, "latest", result, format_page(result))
    print(f"every part passed with {_summary()}")
    emit_json(result, options.json)
    return 0


def _summary() -> str:
    versions = package_versions()
    return ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "flax", "numpy"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
