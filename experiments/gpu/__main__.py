"""python -m experiments.gpu [--workdir=DIR] [--only=A,B] [--tiny] [--compile[=CHIP]] [--json[=PATH]]

Measure first on one GPU, in at most ten minutes on an H200: doctor; the tests that make sense there; MFU of a 124M and
a 1B model in bf16 against a plan written before; attention by kernel with and without document masks; a kill and resume
under train.deterministic; 16 trials packed by vmap against one after another; the quickstart. Each part runs in a new
process. Its result is stored as soon as it is done, in DIR (runs/gpu) and in experiments/results/gpu.*: a second call
does missing parts.

--tiny runs every part with tiny models on the device that is here and writes to DIR only. --compile lowers and compiles
the programs for an absent chip (h100; needs the extra plan-cuda). Exit code: 0 all parts done, 1 some failed or are
missing, 2 no GPU here (or bad input), 75 stopped by a signal: finished parts are stored.

    scalelab study gpu --workdir=runs/gpu
"""

import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from scalelab import records
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.gpu import attention, commands, compiled, packing, page, resume, settings, utilisation
from scalelab.experiments.shared import RESULTS, command_line, describe_machine, write_result
from scalelab.hardware import chips as hardware
from scalelab.hardware import device_memory
from scalelab.train.resume.facts import package_versions

Part = Callable[[settings.Settings, pathlib.Path], dict[str, Any]]
# {part: (function, seconds at most)}, in order: first what the other parts depend on, then what is not measured yet.
PARTS: dict[str, tuple[Part, float]] = {
    "doctor": (commands.run_doctor, 60), "mfu": (utilisation.measure_mfu, 180),
    "attention": (attention.measure_attention, 60), "packing": (packing.measure_packing, 60),
    "resume": (resume.compare_resumed_run, 120), "tests": (commands.run_tests, 100),
    "quickstart": (commands.run_quickstart, 240),
}  # fmt: skip
TOTAL_S = 600.0
TINY_TIME_FACTOR = 5  # --tiny may take this many times as long: it runs on busy cores


def main(argv: Sequence[str]) -> int:
    """Run the parts; exit codes in the module's docstring."""
    return guarded("gpu", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("gpu", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where parts are kept (default: runs/gpu)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models on any device: tries the code, measures nothing"
    )
    parser.add_argument(
        "--compile", nargs="?", const="h100", metavar="CHIP", help="compile the programs for CHIP, here"
    )
    parser.add_argument(
        "--part", choices=PARTS, metavar="PART", help="this part in this process (what the others are started as)"
    )
    options = parser.parse_args(argv)
    size, folder = (
        settings.TINY_SETTINGS if options.tiny else settings.FULL_SETTINGS,
        options.workdir or pathlib.Path("runs/gpu"),
    )
    names = options.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise BadInput(f"--only={unknown[0]}: no such part{nearest_hint(unknown[0], PARTS)}")
    if options.compile:
        rows = compiled.compile_for_chip(size, options.compile)
        command, version = f"python -m experiments.gpu --compile={options.compile}", package_versions()["jax"]
        head = f"`{command}`, {datetime.date.today()}, jax {version}; run on none."
        text = "\n".join([head, "", *page.format_compiled(rows)])
        if not options.tiny:
            write_result(RESULTS, "gpu_compiled", rows, f"{text}\n")
        print(text)
        emit_json({"rows": rows}, options.json)
        return 0
    if not options.tiny:
        refuse_without_gpu()
    device_memory.reserve_gpu_memory()
    if options.part:
        run_part(options.part, size, folder)
        return 0
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # the running part ends too
    try:
        results = all_parts(names, folder, options.tiny)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not options.tiny:
        write_result(RESULTS, "gpu", results, page.format_page(results))
    if options.json != "-":
        print(page.format_page(results))
    emit_json(results, options.json)
    return 0 if all(part["status"] == "done" for part in results["parts"].values()) else 1


def refuse_without_gpu() -> None:
    """BadInput if jax sees no GPU.

    Asked in a process that ends before the parts start: they need its memory.
    """
    why = "this jax has no build for one (`make setup ACCEL=cuda12` installs it)"
    if hardware.expects_accelerator():
        command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.stdout.strip() == "gpu":
            return
        why = f"jax sees {done.stdout.strip() or (done.stderr.strip().splitlines() or ['nothing'])[-1]}"
    raise BadInput(f"no GPU is here: {why}; --tiny tries the code on any device, --compile compiles it for an H100")


def run_part(name: str, size: settings.Settings, folder: pathlib.Path) -> None:
    """Run one part in this process; its file holds the result, the chip and the date."""
    start = time.monotonic()
    try:
        result: dict[str, Any] = {"status": "done", "result": PARTS[name][0](size, folder / name)}
    except RuntimeError as failure:
        result = {"status": "failed", "why": str(failure)}
    result |= {"seconds": time.monotonic() - start, "date": str(datetime.date.today())}
    records.write_json(part_path(folder, name), result)


def part_path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The path of a part's result."""
    return folder / f"{name}.json"


def all_parts(names: list[str], folder: pathlib.Path, tiny: bool) -> dict[str, Any]:
    """Run every part that isn't done yet, each in a new process, within ten minutes; returns all results so far."""
    start = time.monotonic()
    for name in names:
        patience = TINY_TIME_FACTOR if tiny else 1
        left = patience * TOTAL_S - (time.monotonic() - start)
        if is_finished(folder, name) or left < 1:
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        _started(name, folder, tiny, min(left, patience * PARTS[name][1]))
    parts = {name: records.read_json(part_path(folder, name)) for name in PARTS if part_path(folder, name).exists()}
    missing = {name: {"status": "not started"} for name in names if name not in parts}
    doctor = parts.get("doctor", {}).get("result") or {}
    chips = [device["kind"] for device in doctor.get("devices", [])]
    return {
        "command": "make gpu", "date": str(datetime.date.today()), "machine": describe_machine(),
        "chip": chips[0] if chips else None,
        "devices": len(chips), "versions": package_versions(), "parts": parts | missing,
    }  # fmt: skip


def is_finished(folder: pathlib.Path, name: str) -> bool:
    """Whether the part was done before; parts that failed or ran out of time are tried again."""
    return part_path(folder, name).exists() and json.loads(part_path(folder, name).read_text())["status"] == "done"


def _started(name: str, folder: pathlib.Path, tiny: bool, most_s: float) -> None:
    """Run one part as a process with its output in NAME.log; if it ends without a result, write how it ended."""
    before = part_path(folder, name).stat().st_mtime_ns if part_path(folder, name).exists() else 0
    argv = [
        sys.executable,
        "-m",
        "scalelab.experiments.gpu",
        f"--part={name}",
        f"--workdir={folder}",
        *["--tiny"] * tiny,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("w") as reason:
        running = subprocess.Popen(argv, stdout=reason, stderr=reason, start_new_session=True)
    try:
        running.wait(timeout=most_s)
        why = f"exit {running.returncode}: {(log.read_text().strip().splitlines() or [''])[-1]}"
    except subprocess.TimeoutExpired:
        why = f"stopped after {most_s:.0f} s"
    finally:
        kill_part(running)
    if not part_path(folder, name).exists() or part_path(folder, name).stat().st_mtime_ns == before:
        records.write_json(
            part_path(folder, name), {"status": "failed", "why": why, "date": str(datetime.date.today())}
        )


def kill_part(running: subprocess.Popen) -> None:
    """Kill the part and all processes that it started."""
    try:
        os.killpg(running.pid, 9)
    except ProcessLookupError:
        return
    running.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
