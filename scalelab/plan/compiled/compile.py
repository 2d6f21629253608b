"""The real training step, compiled for absent devices, and the memory that the compiler gives it."""

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
from scalelab.plan.compiled import absent_devices
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import Memory
from scalelab.untrusted.documents import read_document

ARGUMENTS = ("parameters", "optimizer", "average", "batch")  # components of a `Memory` that are arguments of the step
CHILD_PROGRAM = "from scalelab.plan.compiled.aot import answer_request; answer_request()"


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """Memory of the step on one device by XLA. Where it refuses (`oom`), bytes are 0."""

    argument_bytes: int  # state, batches and scalars
    temp_bytes: int
    peak_bytes: int
    output_bytes: int
    alias_bytes: int  # outputs that reuse their arguments' memory (donation)
    seconds: float  # for tracing, lowering and compiling
    oom: str | None  # the compiler's text; ours for a GPU, whose compiler never refuses
    platform: str
    note: str
    host_bytes: int = 0  # arguments in the host's memory (train.moments=pinned_host), not among the others


def compile_step(
    static: Static,
    machine: Machine,
    slices: int = 0,
    steps: int = 1,
    program: pathlib.Path | None = None,
    library_products: bool = False,
) -> CompiledMemory:
    """Lower and compile `steps` steps a dispatch of a resolved config for `static.layout.devices` of the machine.

    A child process does it, which sees only the CPU, so this process's devices and backends are untouched. `slices`:
    TPU slices (0: as few as hold the devices). `program`: a file for the text of the compiled program.
    `library_products`: a GPU's products are calls of cuBLAS; without a device XLA takes kernels of its own, and a
    card's autotuning chooses for each (`products.py`). BadInput where the compiler isn't installed or a TPU has no such
    slice, WorkFailed where it fails for another reason than memory.
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
        request = {
            "static": dataclasses.asdict(static), "machine": dataclasses.asdict(machine), "slices": slices,
            "steps": steps, "out": str(out), "permissions": user_code.export_permissions(),
            "program": str(program or ""), "library_products": library_products,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CHILD_PROGRAM],
            input=json.dumps(request),
            env=_child_environment(static, machine),
            text=True,
            capture_output=True,
        )
        if done.returncode or not out.exists():
            raise WorkFailed(
                f"--compile: the compiler for {machine.chip.name} failed ({done.returncode}): "
                f"{_exception_line(done.stderr)}"
            )
        answer = read_document(out)
    if "refused" in answer:
        raise BadInput(answer["refused"])
    return CompiledMemory(**answer)


@dataclasses.dataclass(frozen=True)
class ComponentRow:
    """One component by formula, by the step's shapes, and as compiled, in bytes of a device; None: no such figure."""

    component: str
    formula_bytes: int | None
    exact_bytes: int
    compiled_bytes: int | None

    @property
    def difference_bytes(self) -> int | None:
        """Compiled minus exact."""
        return None if self.compiled_bytes is None else self.compiled_bytes - self.exact_bytes


def compare_components(memory: Memory, compiled: CompiledMemory) -> list[ComponentRow]:
    """Rows of predicted against compiled memory by component; sums where the compiler reports only sums.

    The compiler reuses memory within `temporaries`, so these and the peak may be less than predicted.
    """
    reported: dict[str, int | None] = {} if compiled.oom and not compiled.peak_bytes else {
        "arguments": compiled.argument_bytes, "temporaries": compiled.temp_bytes, "peak": compiled.peak_bytes,
    }  # fmt: skip
    parts = memory.components
    arguments = sum(size for name, size in parts.items() if name in ARGUMENTS)
    within = {name: size for name, size in parts.items() if name not in ARGUMENTS}
    exact = {name: size for name, size in parts.items() if name in ARGUMENTS} | {"arguments": arguments} | within
    exact |= {"temporaries": sum(within.values()), "peak": memory.total}
    formula = {"activations": memory.formula_bytes}
    return [ComponentRow(name, formula.get(name), size, reported.get(name)) for name, size in exact.items()]


def _exception_line(stderr: str) -> str:
    """The line of a traceback that names the exception; jax prints more lines after it."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed): ", line)]
    return (named or lines or ["it said nothing"])[-1][:600]


def _child_environment(static: Static, machine: Machine) -> dict[str, str]:
    """The child's environment: only the CPU, whatever devices are here.

    libtpu must not ask a metadata server about a machine it isn't on, nor lock chips that it doesn't use.
    """
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if absent_devices.compiler_platform(machine) == "cpu":
        # The program never runs and its buffers are the same: 13 s instead of 122 (tiny.py, eight devices, busy cores).
        flags = f"--xla_force_host_platform_device_count={static.layout.devices} --xla_backend_optimization_level=0"
        return env | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    return env | {
        "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }  # fmt: skip
