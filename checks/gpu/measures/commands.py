"""Questions that are commands of their own: doctor, plan, the tests of an accelerator, the quickstart."""

import json
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from checks.gpu.measures import utilisation
from checks.gpu.question import Context, OutOfTime, Question
from scalelab.hardware import chips

TESTS = "tests/accelerator"
POLL_S = 0.1
SAVE_S = 15.0  # before the end of a call, commands that resume are asked to save and end


def ask_doctor(doctor_s: float, step_s: float) -> list[Question]:
    """What is here, and one step of a toy model: whether anything runs at all."""
    return [Question("doctor", doctor_s, run_doctor), Question("step", step_s, run_toy_step)]


def ask_tests(cost_s: float) -> list[Question]:
    """The tests of an accelerator."""
    return [Question("tests", cost_s, run_tests)]


def ask_plan(cost_s: float) -> list[Question]:
    """`plan --measure`, and `plan --calibrate` by two runs."""
    return [Question("measure", cost_s, measure_plan), Question("calibrate", cost_s, calibrate_plan)]


def ask_quickstart(cost_s: float) -> list[Question]:
    """The README's study."""
    return [Question("quickstart", cost_s, run_quickstart)]


def run_doctor(context: Context) -> dict[str, Any]:
    """The report of `scalelab doctor`."""
    return run_command(["-m", "scalelab", "doctor"], context.folder / "doctor.json", context)


def run_toy_step(context: Context) -> dict[str, Any]:
    """A step of the model that is killed and packed, in bf16."""
    model = context.settings.trial
    plan = utilisation.make_plan(model, utilisation.present_machine()[0], "none", context.settings.trial_rows, "bf16")
    return {"planned": plan} | utilisation.time_step(model, plan, 0.0)


def run_tests(context: Context) -> dict[str, Any]:
    """Run the tests of an accelerator in one process: how many pass, and which fail."""
    report = context.folder / "tests.xml"
    env = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    env["JAX_PLATFORMS"] = "cuda" if chips.expects_accelerator() else "cpu"
    report.unlink(missing_ok=True)
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--confcutdir={TESTS}", f"--junitxml={report}", TESTS]
    done = subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"pytest: exit {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return count_junit(report.read_text())


def count_junit(junit: str) -> dict[str, Any]:
    """Counts and seconds {passed, failed, skipped, seconds, failures} of a JUnit report."""
    cases = list(ET.fromstring(junit).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    return {
        "passed": len(cases) - len(failed) - skipped, "failed": len(failed), "skipped": skipped,
        "seconds": sum(float(case.get("time", 0)) for case in cases), "failures": names,
    }  # fmt: skip


def measure_plan(context: Context) -> dict[str, Any]:
    """The measured points of `plan --measure` beside the plan's."""
    return run_command([*_plan_command(context), "--measure"], context.folder / "measured.json", context)["measured"]


def calibrate_plan(context: Context) -> dict[str, Any]:
    """`plan --calibrate` by two runs of other batches."""
    for i, batch in enumerate((8, 16)):
        run = ["-m", "scalelab", "train", *context.settings.measured, f"--config.train.global_batch={batch}"]
        run_command([*run, f"--workdir={context.folder / 'runs' / str(i)}"], context.folder / f"run{i}.json", context)
    argv = [*_plan_command(context), f"--calibrate={context.folder / 'runs'}"]
    return run_command(argv, context.folder / "calibrated.json", context)["calibration"]


def _plan_command(context: Context) -> list[str]:
    on = [] if chips.expects_accelerator() else ["--hardware=cpu"]
    return ["-m", "scalelab", "plan", *context.settings.measured, *on]


def run_quickstart(context: Context) -> dict[str, Any]:
    """Run the quickstart, or go on with it: the prediction and its score."""
    argv = ["-m", "scalelab.experiments.isoflop", "--quick", f"--workdir={context.folder / 'study'}"]
    scale = [] if context.settings.cost_share == 1.0 else ["--scale=0.1"]
    return {"report": run_command([*argv, *scale], context.folder / "quickstart.json", context)}


def run_command(argv: list[str], path: pathlib.Path, context: Context) -> dict[str, Any]:
    """Run a Python command with --json=`path` and return what it wrote. Raises as `run_until`."""
    run_until([*argv, f"--json={path}"], path.with_suffix(".log"), context)
    return json.loads(path.read_text())


def run_until(argv: list[str], log: pathlib.Path, context: Context, enough: Callable[[], bool] = lambda: False) -> None:
    """Run a Python command with its output in `log`, to its end or until `enough()`.

    Shortly before the call ends it is asked to save (SIGTERM), and OutOfTime is raised. RuntimeError with its last line
    if it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as lines:
        running = subprocess.Popen([sys.executable, *argv], stdout=lines, stderr=lines)
        try:
            while running.poll() is None and context.seconds_left > SAVE_S and not enough():
                time.sleep(POLL_S)
            stopped = running.poll() is None
            if stopped:
                running.terminate()
                running.wait(timeout=SAVE_S)
        finally:
            running.kill()
            running.wait()
    if stopped and enough():
        return
    if stopped or running.returncode == 75:
        raise OutOfTime(f"{' '.join(argv[1:3])} was stopped; the next call goes on with it")
    if running.returncode:
        last = (log.read_text().strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{' '.join(argv[1:3])}: exit {running.returncode}: {last}")
