"""python -m checks.speed.expert_products [--only=step] [--chips=h100,v5p] [--rounds=N] [--json[=PATH]]

Ways to multiply tokens with their experts (model.expert_products), and what experts cost beside a dense block of equal
active FLOPs: 8 experts, 2 a token, d_model 256, d_expert 512, 2,048 tokens, fp32.

Here, without --chips, in five minutes on two CPU cores: CPU seconds of forward and backward and of compiling, and
memory of a layer by each way, as multiples of the dense layer's, and of a whole step (two layers, AdamW), which takes
its state's memory as the trainer's does. The rounds of all rows alternate, compilations too, and `times` is the median
of each round's.
With --only the rows of the other programs stay.

With --chips, for chips that are absent (their compilers: `pip install '.[plan-cuda]'`,
'.[plan-tpu]'): the compiled layer's memory, its largest array and FLOPs over those that are useful, of 16 experts, 4 a
token, d_model 1,024, d_expert 512, 2,048 tokens, bf16. Nothing is timed there. Rows are written to
checks/results/expert_products.*; those of other chips stay.

    python -m checks.speed.expert_products --rounds=5
"""

import datetime
import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from checks.shared import RESULTS, command_line
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, print_status
from scalelab.config import ModelShape
from scalelab.configs import base
from scalelab.experiments.shared import write_result
from scalelab.hardware.chips import compute_capability
from scalelab.model.experts.experts import Experts, expert_declarations
from scalelab.model.experts.ways import BY_PLATFORM, WAYS
from scalelab.model.layers import MLP
from scalelab.plan.compiled import absent_devices
from scalelab.plan.machine.machine import load_machine
from scalelab.precision.policy import FP32, POLICIES
from scalelab.sharding import trace_for_platform
from scalelab.train.lineage.facts import package_versions
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.step import state as state_lib
from scalelab.train.step import step as step_lib

Row = dict[str, Any]
TOKENS = 2048
HERE = {"d_model": 256, "n_experts": 8, "experts_per_token": 2, "d_expert": 512}
ABSENT = {"d_model": 1024, "n_experts": 16, "experts_per_token": 4, "d_expert": 512}
COMPILATIONS = 3
LIMITS = {"layer": 1.5, "step": 1.25, "compile": 1.5}  # goals by "loop", as multiples of the dense block's


def make_config(sizes: dict[str, int], **more: Any) -> Any:
    """A model of two layers with experts of these sizes, on sequences of 256 tokens."""
    config = base.get_config()
    config.model = base.llama(d_model=sizes["d_model"], n_layers=2, n_heads=4)
    config.model.update({**sizes, "block": "experts", "seq_len": 256, **more})
    config.train.global_batch, config.optim.peak_lr = TOKENS // 256, 1e-3
    return config_lib.resolve(config)


def make_dense(sizes: dict[str, int]) -> Any:
    """The same with a dense block of equal active FLOPs."""
    return make_config(
        {"d_model": sizes["d_model"], "d_ff": sizes["experts_per_token"] * sizes["d_expert"]}, block="sequential"
    )


def make_shape(sizes: dict[str, int], way: str) -> ModelShape:
    """The shape of the model with experts, multiplied by this way."""
    return config_lib.static(make_config(sizes, expert_products=way)).model


def layer_gradient(shape: ModelShape, precision: str) -> Callable:
    """Forward and backward of the experts' layer: (variables, x [1, T, D]) -> gradients of both."""

    def objective(params: Any, x_BSD: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(Experts(shape, POLICIES[precision]).apply({"params": params}, x_BSD)))

    return jax.grad(objective, (0, 1))


def dense_gradient(sizes: dict[str, int]) -> Callable:
    """Forward and backward of the dense MLP."""
    module = MLP("swiglu", sizes["d_model"], sizes["experts_per_token"] * sizes["d_expert"], False, FP32)
    return jax.grad(lambda params, x: jnp.sum(jnp.square(module.apply({"params": params}, x))), (0, 1))


def layer_arguments(shape: ModelShape) -> tuple[Any, jax.Array]:
    """The layer's variables and inputs at random."""
    random = np.random.default_rng(0)
    sizes = {name: d.shape for name, d in expert_declarations(shape).items()}
    sizes["router"] = (shape.d_model, shape.n_experts)
    params = {name: {"w": np.float32(random.normal(0, size[-2] ** -0.5, size))} for name, size in sizes.items()}
    params["bias"] = {"v": np.zeros(shape.n_experts, np.float32)}
    return params, jnp.asarray(random.normal(size=(1, TOKENS, shape.d_model)), jnp.float32)


def dense_arguments(sizes: dict[str, int]) -> tuple[Any, jax.Array]:
    """Those of the dense MLP."""
    random, d, f = np.random.default_rng(0), sizes["d_model"], sizes["experts_per_token"] * sizes["d_expert"]
    params = {name: {"w": np.float32(random.normal(0, 0.05, (d, f)))} for name in ("up", "gate")}
    params["down"] = {"w": np.float32(random.normal(0, 0.05, (f, d)))}
    return params, jnp.asarray(random.normal(size=(1, TOKENS, d)), jnp.float32)


def step_program(config: Any) -> tuple[Callable, tuple]:
    """A whole training step, and its arguments, whose first may give its memory: no two of its arrays share any."""
    spec = make_train_spec(config, {"dataset.separator": 0})
    state = state_lib.init_state(spec.static, spec.hparams)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (TOKENS // 256, 257)), jnp.int32)
    state = jax.tree.map(functools.partial(jnp.array, copy=True), state)
    return functools.partial(step_lib.train_step, spec.static), (state, tokens, spec.hparams)


def programs_here(only: str) -> dict[str, tuple[Callable, tuple]]:
    """{name: (function, arguments)} of layers and steps, or only of one of both."""
    programs: dict[str, tuple[Callable, tuple]] = {}
    if only != "step":
        programs["layer, dense"] = dense_gradient(HERE), dense_arguments(HERE)
        for way in WAYS:
            shape = make_shape(HERE, way)
            programs[f"layer, by {way}"] = layer_gradient(shape, "fp32"), layer_arguments(shape)
        capacity = config_lib.static(make_config(HERE, expert_capacity=1.25)).model
        programs["layer, capacity 1.25"] = layer_gradient(capacity, "fp32"), layer_arguments(capacity)
    if only != "layer":
        programs["step, dense"] = step_program(make_dense(HERE))
        programs[f"step, by {BY_PLATFORM['cpu']}"] = step_program(make_config(HERE))
    return programs


def compile_in_turns(programs: dict[str, tuple[Callable, tuple]]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The compiled programs, and the CPU seconds of compiling each COMPILATIONS times, in turns and nothing cached."""
    compiled: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(COMPILATIONS):
        for name in sorted(programs, reverse=turn % 2 == 1):
            function, arguments = programs[name]
            print_status(f"compiling {name}, {turn + 1} of {COMPILATIONS}")
            jax.clear_caches()
            lowered = jax.jit(function, donate_argnums=0 if name.startswith("step") else ()).lower(*arguments)
            start = time.process_time()
            compiled[name] = lowered.compile()
            seconds[name].append(time.process_time() - start)
    return compiled, seconds


def measure_here(rounds: int, only: str) -> list[Row]:
    """Rows of this machine: each program's CPU seconds, compile seconds and temporary bytes, and over the dense's."""
    jax.config.update("jax_enable_compilation_cache", False)
    programs, rows = programs_here(only), {}
    compiled, compile_s = compile_in_turns(programs)
    for name, each in compiled.items():
        temporary = each.memory_analysis().temp_size_in_bytes
        rows[name] = {"program": name, "compile_s": float(np.median(compile_s[name])), "temporary": temporary}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, (function, arguments) in programs.items():
            start = time.process_time()
            result = jax.block_until_ready(compiled[name](*arguments))
            seconds[name].append(time.process_time() - start)
            if name.startswith("step"):
                programs[name] = function, (result[0], *arguments[1:])
    for name, row in rows.items():
        row["cpu_s"], dense = float(np.median(seconds[name][1:])), f"{name.partition(',')[0]}, dense"
        row["times"] = float(np.median(np.divide(seconds[name][1:], seconds[dense][1:])))
        row["compile_times"] = float(np.median(np.divide(compile_s[name], compile_s[dense])))
    return list(rows.values())


def compile_absent(chip: str) -> list[Row]:
    """Rows of an absent chip: memory, the largest array and FLOPs of each way's compiled layer."""
    machine = load_machine(chip)
    absent_devices.check_installed(machine)
    devices, _ = absent_devices.make_absent_devices(machine, 1, 1)
    place, rows = SingleDeviceSharding(devices[0]), []
    with trace_for_platform(absent_devices.compiler_platform(machine), compute_capability(machine.chip)):
        for way in WAYS:
            print_status(f"compiling {way} for {machine.chip.name}")
            shape = make_shape(ABSENT, way)
            arguments = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), layer_arguments(shape)
            )
            compiled = jax.jit(layer_gradient(shape, "bf16")).lower(*arguments).compile()
            costs: Any = compiled.cost_analysis() or {}
            useful = 18.0 * TOKENS * shape.experts_per_token * shape.d_model * shape.d_expert
            text = compiled.as_text() or ""
            rows.append({
                "program": f"layer, by {way}", "temporary": compiled.memory_analysis().temp_size_in_bytes,
                "largest": largest_array(text), "loops": len(re.findall(r" while\(", text)),
                "flops_times": costs.get("flops", 0.0) / useful or None,
            })  # fmt: skip
    return rows


def largest_array(text: str) -> list[int]:
    """The shape of the array with most numbers in a program's text."""
    shapes = [[int(n) for n in match.split(",")] for match in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)]
    return max(shapes, key=math.prod)


def format_page(results: dict[str, Any]) -> str:
    """The page of the stored rows."""
    lines = [
        "# Ways to multiply tokens with their experts",
        "",
        "By `python -m checks.speed.expert_products`, whose docstring",
    ]
    goals = ", ".join(f"{name} {most:g}" for name, most in LIMITS.items())
    lines += [f"says what is measured. `times`: over a dense block of equal active FLOPs; goals: {goals}.", ""]
    for chip, part in results.items():
        lines += [f"## {chip}", "", f"{part['date']}, jax {part['jax']}", ""]
        timed = "cpu_s" in part["rows"][0]
        heads = ("times", "CPU ms", "compile times", "MiB")
        if not timed:
            heads = ("MiB", "largest array", "loops", "FLOPs times")
        lines += [f"| program | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
        for row in part["rows"]:
            mebibytes = f"{row['temporary'] / 2**20:,.0f}"
            if timed:
                cells = [f"{row['times']:.2f}", f"{1e3 * row['cpu_s']:.0f}", f"{row['compile_times']:.1f}", mebibytes]
            else:
                flops = f"{row['flops_times']:.2f}" if row["flops_times"] and not row["loops"] else "not counted"
                cells = [mebibytes, " x ".join(map(str, row["largest"])), str(row["loops"]), flops]
            lines.append(f"| {row['program']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Measure here or compile for absent chips; write rows and page. Exit code 0, 2 for bad input."""
    return guarded("expert_products", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.expert_products", __doc__)
    parser.add_argument("--chips", default="", metavar="A,B", help="absent chips to compile for, such as h100,v5p")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds of each program, the first left out")
    parser.add_argument("--only", default="", choices=("layer", "step"), help="measure layers or steps alone here")
    options = parser.parse_args(argv)
    path = RESULTS / "expert_products.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    facts = {"date": str(datetime.date.today()), "jax": package_versions()["jax"]}
    if not options.chips:
        rows = measure_here(options.rounds, options.only)
        known = results.get("cpu", {}).get("rows", []) if options.only else []
        stay = [row for row in known if not row["program"].startswith(options.only)]
        results["cpu"] = facts | {"rows": rows + stay if options.only == "layer" else stay + rows}
    for chip in filter(None, options.chips.split(",")):
        results[chip] = facts | {"rows": compile_absent(chip)}
    write_result(RESULTS, "expert_products", results, format_page(results))
    print(format_page(results))
    emit_json(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
