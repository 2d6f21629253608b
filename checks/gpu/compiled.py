"""The programs of `make gpu`, lowered and compiled for absent chips by the planner's own path (`plan --compile`)."""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from checks.gpu import page
from checks.gpu.measures import attention, packing, utilisation
from checks.gpu.measures.resume import train_command
from checks.gpu.parts import FP8
from checks.gpu.settings import FULL_SETTINGS, TOY_SETTINGS, Settings, build_config
from checks.shared import RESULTS
from scalelab import config as config_lib
from scalelab.cli.parser import emit_json, print_status
from scalelab.errors import WorkFailed
from scalelab.experiments import isoflop, ladder_runs
from scalelab.experiments.shared import write_result
from scalelab.hardware import chips
from scalelab.model.attention.kernels import step_kernel
from scalelab.plan.compiled import absent_devices
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.compiled.products import read_products
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.sharding import trace_for_platform
from scalelab.train.lineage.facts import package_versions
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import hparam_shapes
from scalelab.train.step.step import many_steps

CHILD_CODE = "import sys; from checks.gpu import compiled; compiled.child(sys.argv[1], sys.argv[2])"
RESULT = "gpu_compiled"
Row = dict[str, Any]


def write_programs(names: list[str], parts: list[str], json_path: str | None) -> int:
    """Compile the programs of these parts for each chip; rows replace earlier ones of their name when they are there.

    BadInput if a chip is not known to the compiler, or the compiler is not installed.
    """
    machines = [load_machine(name) for name in names]
    for machine in machines:
        absent_devices.check_installed(machine)
    path = RESULTS / f"{RESULT}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    rows: dict[str, Any] = stored if isinstance(stored, dict) else {}
    for machine in machines:
        print_status(f"compiling for {machine.chip.name}")
        facts = {"date": str(datetime.date.today()), "jax": package_versions()["jax"]}
        compiled = compile_for_chip(FULL_SETTINGS, machine, parts)
        new = {row["program"] for row in compiled}
        earlier = [row for row in rows.get(machine.chip.name, {"rows": []})["rows"] if row["program"] not in new]
        rows[machine.chip.name] = facts | {"rows": [*compiled, *earlier]}
        write_result(RESULTS, RESULT, rows, page.format_compiled(rows))
    print(page.format_compiled({machine.chip.name: rows[machine.chip.name] for machine in machines}))
    emit_json(rows, json_path)
    return 0


def compile_for_chip(settings: Settings, on: Machine, parts: list[str]) -> list[Row]:
    """One row per program of these parts: steps at their planned rows, packed trials, attention, chunks."""
    steps = [_planned_step(settings, on, *way) for part, way in list_ways(settings, on) if part in parts]
    steps += [_step(name, tree, on) for name, tree in list_runs(settings) if _part_of_run(name) in parts]
    if not {"packing", "attention", "chunks-1b"} & set(parts):
        return steps
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    size = "toy" if settings == TOY_SETTINGS else "full"
    argv = [sys.executable, "-c", CHILD_CODE, on.chip.name, size]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        raise WorkFailed(f"the compiler for {on.chip.name} failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return [*steps, *json.loads(done.stdout.splitlines()[-1])]


def _part_of_run(name: str) -> str:
    return "reference-grid" if name.startswith("fit-") else name


def list_ways(settings: Settings, on: Machine) -> list[tuple[str, tuple[str, str, tuple[str, ...]]]]:
    """(part, (model, precision, remat policies to choose from)) of timed steps; fp8 only on chips that have it."""
    everything = utilisation.REMAT_POLICIES
    forms = {"bf16": "bf16", "fp32": "fp32", "tf32": "tf32"}
    forms |= {"fp8": FP8} if chips.unit_flops(on.chip, "float8_e4m3fn") else {}
    names = [(model, form) for model in settings.models for form in forms if model == "124m" or form in ("bf16", "fp8")]
    ways = [(f"{model}-{form}", (model, forms[form], everything)) for model, form in names]
    return ways + [("remat-1b", ("1b", "bf16", (remat,))) for remat in everything]


def list_runs(settings: Settings) -> list[tuple[str, Any]]:
    """(name, config) of parts `resume`, `plan` and `reference-run`, and of the ends of part `reference-grid`."""
    runs = [("resume", load_config(train_command(settings, pathlib.Path("run"))))]
    runs += [("plan", load_config(settings.measured)), ("reference-run", load_config(settings.reference))]
    study, _ = isoflop.parse_arguments(list(settings.grid))
    rungs = sorted(ladder_runs.fit_runs(study).items(), key=lambda run: run[1].model.d_model)
    return [*runs, rungs[0], rungs[-1]]


def load_config(argv: Sequence[str]) -> Any:
    """The resolved config of a command line."""
    overrides, _ = config_lib.split_overrides(list(argv))
    (path,) = (word.partition("=")[2] for word in argv if word.startswith("--config="))
    return config_lib.load(path, overrides)


def _planned_step(settings: Settings, on: Machine, name: str, precision: str, policies: tuple[str, ...]) -> Row:
    plan = utilisation.choose_plan(settings.models[name], on, settings.rows, precision, policies)
    tree = utilisation.planned_config(settings.models[name], plan)
    return _step(f"{name}, {precision}, {plan['rows']} rows, remat {plan['remat']}", tree, on)


def _step(name: str, tree: Any, on: Machine) -> Row:
    """A config's train step, planned and compiled."""
    static = config_lib.static(tree)
    memory = step_memory(static, on)
    kernel, saved = step_kernel(static, "gpu", chips.compute_capability(on.chip)), memory.components["activations"]
    row: Row = {"program": name, "attention": kernel, "saved_bytes": saved, "planned_bytes": memory.total}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "program"
        try:
            compiled = compile_step(static, on, program=text)
        except WorkFailed as failure:
            ended = {"seconds": time.perf_counter() - start, "note": f"not compiled: {str(failure)[:200]}"}
            return row | {"platform": on.chip.name, "peak_bytes": 0, "kept_bytes": 0, "kernels": {}} | ended
        facts = read_products(text.read_text())
    return row | {
        "platform": compiled.platform,
        "seconds": compiled.seconds,
        "peak_bytes": compiled.peak_bytes,
        "kept_bytes": facts.saved_bytes,
        "kernels": utilisation.describe_kernels(facts),
        "note": compiled.oom or compiled.note,
    }


def child(chip: str, size: str) -> None:
    """Compile the programs that have no config in this process; print the rows as JSON."""
    settings, machine = TOY_SETTINGS if size == "toy" else FULL_SETTINGS, load_machine(chip)
    (device, *_), where = absent_devices.make_absent_devices(machine, 1, 1)
    alone = jax.sharding.SingleDeviceSharding(device)
    rows = []
    for name, function, arguments in list_programs(settings):
        jax.clear_caches()  # of the same functions with other chunks
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=alone), arguments)
        start = time.perf_counter()
        with trace_for_platform(absent_devices.compiler_platform(machine), chips.compute_capability(machine.chip)):
            compiled = jax.jit(function).lower(*placed).compile()
        rows.append({
            "program": name, "platform": where, "seconds": time.perf_counter() - start, "planned_bytes": 0,
            "attention": "", "saved_bytes": 0, "kept_bytes": 0,
            "peak_bytes": compiled.memory_analysis().peak_memory_in_bytes,
            "kernels": utilisation.describe_kernels(read_products(compiled.as_text())), "note": "",
        })  # fmt: skip
    print(json.dumps(rows))


def list_programs(settings: Settings) -> Iterator[tuple[str, Callable, tuple[Any, ...]]]:
    """(name, function, shapes of its arguments) of the packed trials, of attention, and of steps with other chunks."""
    static, h, state = packing.stacked_shapes(settings)
    batches = (settings.trials, settings.steps, settings.trial_rows, settings.trial["seq_len"] + 1)
    arguments = state, jax.ShapeDtypeStruct(batches, jnp.int32), jax.ShapeDtypeStruct((), jnp.int32), h
    yield f"{settings.trials} trials under vmap", packing.vmap_steps(static), arguments
    inputs = (jax.ShapeDtypeStruct(settings.attention, jnp.bfloat16),) * 3
    for kind in attention.KERNEL_KINDS:
        for masked in (False, True):
            yield f"{kind} attention{', documents masked' * masked}", attention.make_gradients(kind, masked), inputs
    for tokens in settings.chunks:
        yield f"1b, chunks of {tokens:,} tokens", *_chunked_step(settings, tokens)


def _chunked_step(settings: Settings, tokens: int) -> tuple[Callable, tuple[Any, ...]]:
    """A step of the 1B model at two rows, and the shapes of its arguments."""
    tree = build_config(settings.models["1b"], model__remat="full", train__global_batch=2)
    static = config_lib.static(tree)
    h = hparam_shapes([*config_lib.flatten_hparams(config_lib.hparams(tree)), "dataset.separator"])
    batch = jax.ShapeDtypeStruct((1, 2, static.model.seq_len + 1), jnp.int32)

    def step(*arguments: Any) -> Any:
        with utilisation.chunks_of(tokens):
            return many_steps(static, *arguments)

    return step, (state_lib.state_shapes(static), batch, jax.ShapeDtypeStruct((), jnp.int32), h)


def lower_programs(settings: Settings, platform: str = "cuda") -> dict[str, str]:
    """Each program's StableHLO for `platform`, without its compiler: tests check shapes and formats anywhere."""
    with trace_for_platform({"cuda": "gpu"}.get(platform, platform)):
        return {
            name: jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
            for name, function, arguments in list_programs(settings)
        }
