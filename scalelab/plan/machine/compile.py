"""The real training step, compiled for devices that nobody here owns, and the memory that the compiler gives it."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from scalelab import user_code
from scalelab.config import Static
from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel import rules
from scalelab.plan.machine import absent_devices
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import Memory

ARGUMENTS = ("parameters", "optimizer", "average", "batch")  # components of a `Memory` that the step is given
CHILD_PROGRAM = "from scalelab.plan.machine.aot import answer_request; answer_request()"


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """What XLA gives the step on one device. Where it refuses (`oom`), bytes are 0."""

    argument_bytes: int  # state, batches and scalars
    temp_bytes: int
    peak_bytes: int
    output_bytes: int
    alias_bytes: int  # outputs that take their arguments' memory: donation at work
    seconds: float  # of tracing, lowering and compiling
    oom: str | None  # the compiler's own text; a GPU's never says, so there it is ours
    platform: str
    note: str


def compile_step(static: Static, machine: Machine, slices: int = 0, steps: int = 1) -> CompiledMemory:
    """Lower and compile `steps` steps a dispatch of a resolved config for `static.layout.devices` of the machine.

    In a process of its own, which sees this machine's CPU only: devices and backends of this one are left alone. `slices`
    TPU slices (0: as few as hold the devices). BadInput where the compiler isn't installed or a TPU has no such slice,
    WorkFailed where it fails for anything but memory.
    """
    absent_devices.check_installed(machine)
    rules.check_layout(static, static.layout)
    slices = slices or absent_devices.count_slices(machine, static.layout.devices)
    if absent_devices.compiler_platform(machine) == "tpu":
        if static.layout.devices % slices:
            near = static.layout.devices // slices * slices
            raise BadInput(f"--compile: {static.layout.devices} devices are not {slices} equal slices; nearest: {near}")
        absent_devices.slice_shape(machine, static.layout.devices // slices)
    with tempfile.TemporaryDirectory(prefix="scalelab-plan-") as folder:
        out = pathlib.Path(folder) / "answer.json"
        asked = {
            "static": dataclasses.asdict(static), "machine": dataclasses.asdict(machine), "slices": slices,
            "steps": steps, "out": str(out), "permissions": user_code.export_permissions(),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CHILD_PROGRAM], input=json.dumps(asked), env=_child_environment(static, machine), text=True,
            capture_output=True,
        )  # fmt: skip
        if done.returncode or not out.exists():
            raise WorkFailed(
                f"--compile: the compiler for {machine.chip.name} failed ({done.returncode}): {_exception_line(done.stderr)}"
            )
        answer = json.loads(out.read_text())
    if "refused" in answer:
        raise BadInput(answer["refused"])
    return CompiledMemory(**answer)


@dataclasses.dataclass(frozen=True)
class ComponentRow:
    """One component by formula, by the step's own shapes, and as compiled, in bytes of a device; None where it has no such figure."""

    component: str
    formula_bytes: int | None
    exact_bytes: int
    compiled_bytes: int | None

    @property
    def difference_bytes(self) -> int | None:
        """Compiled less exact."""
        return None if self.compiled_bytes is None else self.compiled_bytes - self.exact_bytes


def compare_components(memory: Memory, found: CompiledMemory) -> list[ComponentRow]:
    """What was predicted, component by component, against what was compiled; sums where the compiler tells only sums.

    `temporaries` are no buffers of the compiler's one by one: it reuses memory within them, so they and the peak may be less.
    """
    compiled: dict[str, int | None] = {} if found.oom and not found.peak_bytes else {
        "arguments": found.argument_bytes, "temporaries": found.temp_bytes, "peak": found.peak_bytes,
    }  # fmt: skip
    parts = memory.components
    given = sum(size for name, size in parts.items() if name in ARGUMENTS)
    within = {name: size for name, size in parts.items() if name not in ARGUMENTS}
    exact = {name: size for name, size in parts.items() if name in ARGUMENTS} | {"arguments": given} | within
    exact |= {"temporaries": sum(within.values()), "peak": memory.total}
    formula = {"activations": memory.formula_bytes}
    return [ComponentRow(name, formula.get(name), size, compiled.get(name)) for name, size in exact.items()]


def _exception_line(stderr: str) -> str:
    """The line of a traceback that names the exception; jax adds lines of its own after it."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed): ", line)]
    return (named or lines or ["it said nothing"])[-1][:600]


def _child_environment(static: Static, machine: Machine) -> dict[str, str]:
    """Of the child: no device but the CPU, whatever is here. libtpu asks no metadata server about the machine it isn't on, and
    takes no lock for the chips it doesn't use."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if absent_devices.compiler_platform(machine) == "cpu":
        # The program is never run, and its buffers are the same: 13 s instead of 122 (tiny.py, eight devices, busy cores).
        flags = f"--xla_force_host_platform_device_count={static.layout.devices} --xla_backend_optimization_level=0"
        return env | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    return env | {
        "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }  # fmt: skip
