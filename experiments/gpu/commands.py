"""Parts that are commands of their own: doctor, the tests that make sense on a GPU, the quickstart."""

import json
import os
import pathlib
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


def _json(argv: list[str], path: pathlib.Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, *argv, f"--json={path}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(path.read_text())
