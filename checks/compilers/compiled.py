"""python -m checks.compilers.compiled [--quick] [--rows="NAME; NAME"] [--json[=PATH]]

Compare the memory that `scalelab plan` predicts for published recipes with XLA's, compiled for TPUs and GPUs that are
not here. Needs the extras plan-tpu and plan-cuda (a row whose compiler is missing is left out, with a message); ten
minutes on two CPU cores. Writes checks/results/compiled.json and .md if every row was compiled.

    python -m checks.compilers.compiled --quick
"""

import datetime
import importlib.metadata
import pathlib
import sys
from typing import Any

from checks.shared import RESULTS, add_rows_options, command_line, measure_rows
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.config import Static
from scalelab.experiments.shared import write_result
from scalelab.plan.compiled.compile import compare_components, compile_step
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.memory import step_memory

RECIPES = pathlib.Path(__file__).parents[2] / "configs" / "recipes"
# {name: (recipe, hardware, slices or 0, changes to the recipe)}
CASES: dict[str, tuple[str, str, int, str]] = {
    "7B, FSDP": ("llama2_7b", "v5e", 0, "parallel.fsdp=16 train.global_batch=16"),
    "7B, FSDP, too little memory": ("llama2_7b", "v5e", 0, "parallel.fsdp=4 train.global_batch=16"),
    "7B, two slices": ("olmo2_7b", "v5e", 2, "parallel.data=2 parallel.fsdp=32 train.global_batch=64 model.remat=full"),
    "3B, FSDP": ("smollm3_3b", "v6e", 0, "parallel.fsdp=32 train.global_batch=32 model.remat=full"),
    "8B, FSDP x TP": ("qwen3_8b", "v4", 0, "parallel.fsdp=32 parallel.tensor=2 train.global_batch=64 model.remat=full"),
    "8B, FSDP": ("llama3_8b", "v5p", 0, "parallel.fsdp=64 train.global_batch=64 model.remat=full"),
    "70B, FSDP x TP": ("llama3_70b", "v5p", 0,
        "parallel.fsdp=128 parallel.tensor=8 train.global_batch=128 model.remat=full"),
    "405B, FSDP x TP": ("llama3_405b", "v5p", 0,
        "parallel.fsdp=128 parallel.tensor=8 train.global_batch=128 model.remat=full schedule.batch_stages="),
    "8B, FSDP x TP x SP": (
        "llama3_8b", "h100", 0,
        "parallel.fsdp=8 parallel.tensor=8 parallel.sequence=true train.global_batch=16 model.remat=dots",
    ),
    "7B, FSDP, H200": ("qwen2_5_7b", "h200", 0, "parallel.fsdp=8 train.global_batch=8 model.remat=full"),
    "70B, pipeline, TPU": (
        "llama2_70b", "v5p", 0,
        "parallel.stage=8 parallel.fsdp=8 parallel.tensor=8 parallel.microbatches=16 train.global_batch=128",
    ),
    "70B, pipeline": (
        "llama2_70b", "h100", 0,
        "parallel.stage=8 parallel.fsdp=8 parallel.tensor=8 parallel.microbatches=16 train.global_batch=128",
    ),
    "Mixtral, experts, TPU": ("mixtral_8x7b", "v5p", 0,
        "parallel.fsdp=8 parallel.expert=8 train.global_batch=64 model.seq_len=4096 model.remat=full"),
    "OLMoE, experts": ("olmoe_1b_7b", "h100", 0,
        "parallel.fsdp=4 parallel.expert=8 parallel.expert_buffer=2 train.global_batch=32 model.remat=full"),
}  # fmt: skip


def load_case(name: str) -> tuple[Static, Machine]:
    """The static config that a row compiles, and the machine it compiles for."""
    recipe, hardware, _, changes = CASES[name]
    overrides = dict(change.split("=", 1) for change in changes.split())
    overrides |= {} if "accumulate" in changes else {"train.accumulate": 1}
    return config_lib.static(config_lib.load(RECIPES / f"{recipe}.py", overrides)), load_machine(hardware)


def compare_memory(name: str) -> dict[str, Any]:
    """Make one row: predicted and compiled bytes of a device. BadInput if its compiler isn't installed."""
    (static, machine), (recipe, _, slices, changes) = load_case(name), CASES[name]
    predicted, compiled = step_memory(static, machine), compile_step(static, machine, slices)
    rows = {row.component: row for row in compare_components(predicted, compiled)}
    return {
        "name": name, "recipe": recipe, "devices": static.layout.devices, "platform": compiled.platform,
        "changes": changes,
        "argument_bytes": [rows["arguments"].exact_bytes, compiled.argument_bytes], "temp_bytes": compiled.temp_bytes,
        "peak_bytes": [predicted.total, compiled.peak_bytes], "fits": [predicted.fits, compiled.oom is None],
        "seconds": compiled.seconds, "oom": compiled.oom, "note": compiled.note,
    }  # fmt: skip


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows in Markdown: GB, predicted and compiled."""
    lines = [
        "| step | device | arguments GB | compiled | peak GB | compiled | off by | fits | compiled | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        (arguments, compiled_arguments), (peak, compiled_peak) = row["argument_bytes"], row["peak_bytes"]
        sizes = [
            f"{arguments / 1e9:.3f}",
            f"{compiled_arguments / 1e9:.3f}" if compiled_peak else "",
            f"{peak / 1e9:.2f}",
        ]
        sizes += [f"{compiled_peak / 1e9:.2f}", f"{peak / compiled_peak - 1:+.0%}"] if compiled_peak else ["", ""]
        fits = ["yes" if fits else "no" for fits in row["fits"]]
        cells = [f"{row['recipe']}: {row['name']}", row["platform"], *sizes, *fits, f"{row['seconds']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_versions() -> str:
    """The versions of jax and of the compilers."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu", "jax-cuda12-pjrt"))


def format_heading() -> str:
    """The text above the table."""
    return (
        f"`python -m checks.compilers.compiled`, {datetime.date.today()}, {format_versions()}: a device's memory as "
        "`scalelab plan` predicts it and as XLA compiles the step, on no device. Arguments are exact, and so is what "
        "the forward saves in the step's own terms; the peak adds estimates of what comes and goes "
        "(scalelab/plan/memory/memory.py), read off the buffers that XLA assigns."
    )


def main(argv: list[str]) -> int:
    """Compile and compare; exit code 0, 2 for bad input."""
    return guarded("compiled", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("compilers.compiled", __doc__, {"--only": "--rows"})
    add_rows_options(parser, CASES)
    options = parser.parse_args(argv)
    rows = measure_rows(options, CASES, compare_memory, lambda row: f"{row['peak_bytes']}, {row['oom'] or 'fits'}")
    if options.json != "-":
        print(format_table(rows))
    if len(rows) == len(CASES):
        write_result(RESULTS, "compiled", rows, f"{format_heading()}\n\n{format_table(rows)}\n")
    emit_json({"rows": rows}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
