"""Try the installed versions: doctor, a training, every layout of a mesh, refusals, products in fp8, a pipeline.

    python -m checks.platforms.latest [--workdir=DIR]

`make test-latest` runs it in an environment of the newest packages that pyproject.toml allows. Where every part passes,
`checks/results/latest.json` and `.md` (or --workdir) say so, with versions, date and seconds; `scalelab doctor`
compares an installation with them. Exit 1 where a part fails: nothing is written.

    python -m checks.platforms.latest --workdir=runs/latest
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from checks.numerics.parallelism.layouts import LAYOUTS
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import WorkFailed
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.hardware.versions import installed_versions, pinned_versions
from scalelab.train.lineage.facts import package_versions

_ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTPUT_LINES = 40  # of a part that failed, printed


class Part(NamedTuple):
    """A command of this Python, `-m` and on; `devices`: fake CPU devices, 0 where it makes its own."""

    name: str
    arguments: tuple[str, ...]
    devices: int = 1


def list_parts(folder: pathlib.Path) -> list[list[Part]]:
    """The parts in the order in which they run, two at once of those in one list; runs are trained in `folder`."""

    def train(name: str, *settings: str, steps: int = 40) -> tuple[str, ...]:
        keys = (f"train.steps={steps}", f"checkpoint.every_steps={steps // 2}", *settings)
        options = [f"--config.{key}" for key in keys]
        return ("scalelab", "train", "--config=configs/tiny.py", f"--workdir={folder / name}", *options)

    pipeline = ("parallel.stage=2", "parallel.microbatches=2", "parallel.data=1")
    layouts = [("checks.numerics.parallelism", "--quick", f"--only={','.join([*LAYOUTS][i::2])}") for i in (0, 1)]
    return [
        [Part("doctor", ("scalelab", "doctor", "--expect=cpu"))],
        [Part("a training", train("tiny", "schedule.name=constant"))],
        [Part("its resumption, longer", train("tiny", "schedule.name=constant", steps=60))],
        [
            Part("its report", ("scalelab", "report", str(folder / "tiny"))),
            Part("a training in fp8", train("fp8", "precision.name=fp8")),
            Part("a training in a pipeline", train("pipeline", *pipeline), devices=2),
            Part("refusals", ("pytest", "tests/parallel/test_refusals.py", "-p", "no:cacheprovider")),
            Part("every other layout", layouts[0], devices=0),
            Part("the layouts between", layouts[1], devices=0),
        ],
    ]


def run_part(part: Part) -> dict[str, Any]:
    """Run a part and print how it ended, and the last lines of one that failed."""
    flags = os.environ.get("XLA_FLAGS", "")
    if part.devices > 1:
        flags = f"{flags} --xla_force_host_platform_device_count={part.devices}".strip()
    command = [sys.executable, "-m", *part.arguments]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=_ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)  # the CPU seconds of this child and its own
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    seconds, cpu_s = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    print(f"{part.name}: {seconds:.0f} s, exit code {process.returncode}", file=sys.stderr, flush=True)
    if process.returncode:
        print("\n".join(text.splitlines()[-OUTPUT_LINES:]), file=sys.stderr)
    return {
        "part": part.name,
        "exit_code": process.returncode,
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
    }


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
    parser = command_line("platforms.latest", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    if not (_ROOT / "tests").is_dir():
        raise WorkFailed("the tests are not part of an installed scalelab: run this in a clone (make test-latest)")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        rows = [row for parts in list_parts(pathlib.Path(folder)) for row in pool.map(run_part, parts)]
    if failed := [row["part"] for row in rows if row["exit_code"]]:
        raise WorkFailed(f"with {_summary()}: {', '.join(failed)} failed; nothing is written")
    parts = [{key: row[key] for key in ("part", "seconds", "cpu_s")} for row in rows]
    result = result_header("platforms.latest", argv) | {"versions": tested_versions(), "parts": parts}
    write_result(options.workdir, "latest", result, format_page(result))
    print(f"every part passed with {_summary()}")
    emit_json(result, options.json)
    return 0


def _summary() -> str:
    versions = package_versions()
    return ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "flax", "numpy"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
