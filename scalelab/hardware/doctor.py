"""Check whether this machine is ready: tested versions, the driver, jax's devices, one timed product."""

import contextlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.hardware import chips
from scalelab.hardware.measured import measured_matmul_flops
from scalelab.hardware.versions import installed_versions, missing_packages, tested_versions, version_warnings

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "scipy")
BUILDS = {"jax-cuda12-plugin": "gpu", "jax-cuda13-plugin": "gpu", "libtpu": "tpu"}  # package -> platform
PLATFORMS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}  # name in JAX_PLATFORMS -> platform


def examine_installation(expect: str | None = None) -> dict[str, Any]:
    """Examine the installation and return the whole report; `failure` is None or one line.

    expect: 'cpu', 'gpu' or 'tpu', the platform that must be seen; None: the one of JAX_PLATFORMS or the installed
    build. Keys: `versions`, `tested`, `missing`, `builds`, `driver`, `platform`, `devices`, `matmul`, `expected`,
    `warnings`, `failure`.
    """
    versions, tested, builds = installed_versions(PACKAGES), tested_versions(), installed_versions(tuple(BUILDS))
    expected, asked_by = expected_platform(expect, os.environ.get("JAX_PLATFORMS", ""), builds)
    report: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | versions,
        "tested": tested,
        "missing": missing_packages(),
        "builds": builds,
        "driver": list_nvidia_gpus(),
    }
    devices, why = local_devices()
    report |= _examine_devices(devices) | {"expected": expected}
    report["warnings"] = version_warnings(versions, tested) + _unused_gpu(report)
    missing = report["platform"] is None or expected not in (None, report["platform"])
    failure = f"{expected or 'a device'} was asked for by {asked_by} and none is seen: {why}"
    return report | {"failure": failure if missing else None}


def _examine_devices(devices: list[Any]) -> dict[str, Any]:
    if not devices:
        return {"platform": None, "devices": [], "matmul": None}
    summaries = [summarise_device(device) for device in devices]
    matmul = check_matmul() | measure_matmul(devices[0])
    return {"platform": devices[0].platform, "devices": summaries, "matmul": matmul}


def expected_platform(expect: str | None, jax_platforms: str, builds: dict[str, str]) -> tuple[str | None, str]:
    """(platform that must be seen or None, what asks for it): --expect, else JAX_PLATFORMS, else the build of jax."""
    if expect:
        return expect, f"--expect={expect}"
    if jax_platforms:
        first = jax_platforms.split(",")[0].strip().lower()
        return PLATFORMS.get(first), f"JAX_PLATFORMS={jax_platforms}"
    return next(((BUILDS[package], f"the installed {package}") for package in builds), (None, "nobody"))


def list_nvidia_gpus() -> list[str]:
    """List one line per GPU from nvidia-smi: name, driver version, memory; [] without an NVIDIA driver."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def _unused_gpu(report: dict[str, Any]) -> list[str]:
    if report["driver"] and report["platform"] == "cpu" and "gpu" not in [BUILDS[p] for p in report["builds"]]:
        return [f"a GPU is here ({report['driver'][0]}) and this jax is built for CPU: `make setup ACCEL=cuda12`"]
    return []


def local_devices() -> tuple[list[Any], str]:
    """Return (jax's devices in this process, jax's message); [] if jax can't start the platform of JAX_PLATFORMS."""
    import jax

    with _capture_warnings("jax._src.xla_bridge") as warnings:
        try:
            devices = jax.local_devices()
        except RuntimeError as error:
            return [], str(error).split("\n")[0]
        except AssertionError:  # jax 0.10 fails this way, without a message, if the platform's plugin is not installed
            return [], "this jax has no build for it (`make setup ACCEL=cuda12|cuda13|tpu` installs one)"
    return devices, f"jax sees only {devices[0].platform}" + "".join(f" ({line})" for line in warnings)


@contextlib.contextmanager
def _capture_warnings(logger_name: str) -> Iterator[list[str]]:
    """Collect a logger's warnings, one line each, instead of printing their tracebacks."""
    lines: list[str] = []
    logger, listener = logging.getLogger(logger_name), logging.Handler(logging.WARNING)

    def collect(record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        lines.append(str(cause or record.getMessage()).split("\n")[0])

    listener.emit = collect  # type: ignore[method-assign]
    logger.addHandler(listener)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield lines
    finally:
        logger.propagate = propagate
        logger.removeHandler(listener)


def summarise_device(device: Any) -> dict[str, Any]:
    """Summarise a device: `id`, `kind`, `chip` in our table or None, `memory_bytes` for jax (None on CPU)."""
    chip = chips.find_chip(device.device_kind)
    memory = device.memory_stats() or {}
    return {
        "id": device.id,
        "kind": device.device_kind,
        "chip": chip.name if chip else None,
        "memory_bytes": memory.get("bytes_limit"),
    }


def check_matmul(n: int = 256) -> dict[str, Any]:
    """Check a jitted float32 product at highest precision against numpy's in float64.

    `error` is relative to the largest entry. Rounding gives about 1e-6; `right` is error < 1e-5, which one wrong bit in
    an exponent or one bf16 pass (3e-3) fails.
    """
    import jax
    import jax.numpy as jnp

    a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    got = jax.jit(lambda a, b: jnp.dot(a, b, precision="highest"))(a, b)
    truth = a.astype(np.float64) @ b.astype(np.float64)
    error = float(np.abs(np.asarray(got, np.float64) - truth).max() / np.abs(truth).max())
    return {"error": error, "right": error < 1e-5}


def measure_matmul(device: Any) -> dict[str, Any]:
    """Measure FLOP/s of a large product on one device (float32 on CPU, else bfloat16), beside the table's peak."""
    n, dtype = (1024, "float32") if device.platform == "cpu" else (8192, "bfloat16")
    peak = chips.table_flops(device.device_kind, dtype)
    return {
        "dtype": dtype,
        "n": n,
        "flops": measured_matmul_flops(n, dtype, device=device),
        "table_flops": peak[0] if peak else None,
    }
