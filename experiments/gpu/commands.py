"""Parts that are commands of their own: doctor, plan, the tests that make sense on a GPU, the quickstart, isoflop."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from typing import Any

from scalelab.experiments.gpu.settings import TINY_SETTINGS, Settings
from scalelab.hardware import chips, device_memory

# Kernels against plain attention, formats of products, update rules in float64, and the facts of a device.
TESTS = (
    "tests/hardware/test_chips.py",
    "tests/model/attention/test_kernels.py",
    "tests/precision/test_formats.py",
    "tests/train/step/test_step.py",
)


def run_doctor(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """The report of `scalelab doctor`."""
    return _json(["-m", "scalelab", "doctor"], folder / "doctor.json")


def run_tests(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """Run the tests for GPUs: how many pass, and which fail."""
    wanted, report = TESTS[: 1 if settings == TINY_SETTINGS else None], folder / "tests.xml"
    # Test on the GPU, with XLA's default optimization level, and leave memory for processes that tests start.
    env = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    env |= {"JAX_PLATFORMS": "cuda" if chips.expects_accelerator() else "cpu", device_memory.SHARE_VARIABLE: "0.5"}
    env["XLA_FLAGS"] = "--xla_backend_optimization_level=3"
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *wanted]
    done = subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"pytest: exit {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return count_junit(report.read_text()) | {"files": list(wanted)}


def count_junit(junit: str) -> dict[str, Any]:
    """Counts {passed, failed, skipped, failures} of a JUnit report."""
    cases = list(ET.fromstring(junit).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    return {"passed": len(cases) - len(failed) - skipped, "failed": len(failed), "skipped": skipped, "failures": names}


def run_quickstart(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """Run the quickstart: its exit code and seconds. After a stop, the next call resumes it."""
    start = time.monotonic()
    argv = ["-m", "scalelab.experiments.isoflop", "--quick", f"--workdir={folder / 'study'}"]
    report = _json(argv, folder / "quickstart.json")
    return {"seconds": time.monotonic() - start, "report": report}


def run_plan(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """`plan --measure` of a config, two runs of it, and `plan --calibrate` by them: (measured, calibration)."""
    on = ["--hardware=cpu"] if jax_platform() == "cpu" else []
    argv = ["-m", "scalelab", "plan", *settings.measured, *on]
    measured = _json([*argv, "--measure"], folder / "measured.json")["measured"]
    for i, batch in enumerate((8, 16)):
        run = ["-m", "scalelab", "train", *settings.measured, f"--config.train.global_batch={batch}"]
        _json([*run, f"--workdir={folder / 'runs' / str(i)}"], folder / f"run{i}.json")
    calibration = _json([*argv, f"--calibrate={folder / 'runs'}"], folder / "calibrated.json")["calibration"]
    return {"measured": measured, "calibration": calibration}


def run_isoflop(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
    """The study until its prediction for the larger run is written; the larger run is started and then stopped.

    It would take hours. `command` goes on with it: nothing is repeated, and the prediction is never written again.
    """
    study, start = folder / "study", time.monotonic()
    command = ["-m", "scalelab.experiments.isoflop", *settings.rung, f"--workdir={study}"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "study.log").open("w") as log:
        running = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
    try:
        while running.poll() is None and not (study / "prediction.json").exists():
            time.sleep(0.2)
        running.terminate()  # it saves, and ends with 75
        code = running.wait()
    finally:
        running.kill()
    if not (study / "prediction.json").exists():
        raise RuntimeError(f"isoflop: exit {code}: {(folder / 'study.log').read_text().strip().splitlines()[-1:]}")
    prediction = json.loads((study / "prediction.json").read_text())
    return {
        "seconds": time.monotonic() - start, "prediction": prediction,
        "command": shlex.join(["python", *command]), "holdout_exit": code,
    }  # fmt: skip


def jax_platform() -> str:
    """The backend of processes started here, without starting jax in this one."""
    return "gpu" if chips.expects_accelerator() else "cpu"


def _json(argv: list[str], path: pathlib.Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, *argv, f"--json={path}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(path.read_text())
