"""python -m checks.compilers.programs [--rows="NAME; NAME"] [--quick] [--json[=PATH]]

Read what the compiler makes of the training step for devices that are not here: every collective with its bytes, its
number format and whether computation runs beside it, products by what multiplies, attention's kernel, large copies,
transfers to the host, and the peak of memory. Some rows are compiled a second time with cuBLAS for all products, to
bound what autotuning on a card may change. Needs the extras plan-tpu and plan-cuda (a row whose compiler is missing is
left out, with a message); half an hour on two CPU cores. Writes checks/results/programs.json and .md; rows that were
not compiled stay there as they were, with their date.

    python -m checks.compilers.programs --quick
"""

import collections
import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from checks.compilers.compiled import RECIPES
from checks.compilers.programs_page import format_page
from checks.shared import RESULTS, add_rows_options, command_line, measure_rows
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.config import Static
from scalelab.experiments.shared import write_result
from scalelab.model.count import count_parameters
from scalelab.plan.compiled import absent_devices, products, program, timeline
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.machine.machine import Machine, load_machine

COMPILERS = {"gpu": "jax-cuda12-pjrt", "tpu": "libtpu"}  # package of a platform's compiler
LEAST_SHARE = 0.01  # of the peak: smaller copies are not listed
# {name: (recipe, hardware, changes to the recipe)}
CASES: dict[str, tuple[str, str, str]] = {
    "8B, FSDP": ("llama3_8b", "h100", "parallel.fsdp=8 train.global_batch=16 train.accumulate=2"),
    "8B, ZeRO-1": ("llama3_8b", "h100", "parallel.fsdp=8 parallel.zero=1 train.global_batch=16 train.accumulate=2"),
    "8B, FSDP x TP": (
        "llama3_8b", "h100",
        "parallel.fsdp=8 parallel.tensor=8 parallel.sequence=true train.global_batch=16 train.accumulate=2 "
        "model.remat=none",
    ),
    "8B, FSDP, TPU": ("llama3_8b", "v5p", "parallel.fsdp=8 train.global_batch=16 train.accumulate=2"),
    "8B, pipeline": (
        "llama3_8b", "h100",
        "parallel.stage=4 parallel.data=2 parallel.microbatches=16 train.global_batch=32 train.accumulate=1",
    ),
    "70B, FSDP x TP": (
        "llama3_70b", "h100",
        "parallel.fsdp=32 parallel.tensor=8 parallel.sequence=true train.global_batch=64 train.accumulate=2",
    ),
}  # fmt: skip
BOTH_WAYS = ("8B, FSDP", "8B, FSDP x TP")  # compiled with cuBLAS for all products too


def load_step(name: str) -> Static:
    """The static config that a row compiles: the recipe with its changes, recomputing everything unless they say so."""
    recipe, _, changes = CASES[name]
    overrides = {"model.remat": "full"} | dict(change.split("=", 1) for change in changes.split())
    return config_lib.static(config_lib.load(RECIPES / f"{recipe}.py", overrides | {"schedule.batch_stages": ""}))


def textbook_bytes(static: Static) -> float:
    """What a device has to send a step, by ring algorithms, with bf16 weights and sums and fp32 gradients.

    FSDP: weights gathered twice and gradients scattered once a micro-batch (whole gradients need not fit); ZeRO-1:
    gradients scattered and weights gathered once a step; tensor parallel: per layer and micro-batch four sums of bf16
    activations, each as a scatter and a gather, and where blocks are recomputed three eighths more: a recomputed
    forward needs all of its own but the last scatter. A pipeline without FSDP: activations sent on and gradients sent
    back, a stage's gradients added up by its replicas, embedding's and head's by all devices.
    """
    layout, shape = static.layout, static.model
    if layout.stage > 1:
        return _pipeline_bytes(static)
    weights = count_parameters(shape)["total"] / layout.tensor
    ways = layout.batch_parts
    each_step = (2 * 2 + 4) * static.accumulate if layout.zero == 3 else 2 + 4
    total = each_step * weights * (ways - 1) / ways
    if layout.tensor > 1:
        tokens = static.global_batch * shape.seq_len / ways
        sums = 4 if shape.remat == "none" else 5.5
        total += sums * shape.n_layers * 2 * 2 * tokens * shape.d_model * (layout.tensor - 1) / layout.tensor
    return total


def _pipeline_bytes(static: Static) -> float:
    layout, shape = static.layout, static.model
    everything = count_parameters(shape)["total"]
    ends = count_parameters(dataclasses.replace(shape, n_layers=0))["total"]
    tokens = static.global_batch * shape.seq_len / layout.data
    in_stage, on_all = 1 - 1 / layout.data, 1 - 1 / layout.devices
    gradients = 2 * 4 * ((everything - ends) / layout.stage * in_stage + ends * on_all)
    return 2 * 2 * tokens * shape.d_model + gradients


def read_program(name: str) -> dict[str, Any]:
    """Compile a row, and what its program does. BadInput if its compiler isn't installed."""
    row = _compile_row(name)
    if name in BOTH_WAYS:
        compared = ("peak_bytes", "sent_bytes", "overlapped_bytes", "timeline", "products")
        library = _compile_row(name, library_products=True)
        row["with_cublas"] = {key: library[key] for key in compared}
    return row


def _compile_row(name: str, library_products: bool = False) -> dict[str, Any]:
    static, machine = load_step(name), load_machine(CASES[name][1])
    with tempfile.TemporaryDirectory(prefix="scalelab-programs-") as folder:
        path = pathlib.Path(folder) / "program.txt"
        compiled = compile_step(static, machine, program=path, library_products=library_products)
        text = path.read_text() if path.exists() else ""
    rows, on_gpu = program.read_collectives(text), absent_devices.compiler_platform(machine) == "gpu"
    sent = sum(row.sent_bytes for row in rows)
    return {
        "name": name, "recipe": CASES[name][0], "changes": CASES[name][2], "platform": compiled.platform,
        "date": str(datetime.date.today()), "versions": describe_versions(machine),
        "note": compiled.note, "seconds": compiled.seconds, "peak_bytes": compiled.peak_bytes,
        "sent_bytes": sent, "textbook_bytes": textbook_bytes(static),
        "overlapped_bytes": sum(row.sent_bytes for row in rows if row.overlapped),
        "timeline": estimate_timeline(text, machine),
        "products": dataclasses.asdict(products.read_products(text)) if on_gpu else None,
        "collectives": sum_by_kind(rows),
        "copies": program.large_copies(text, max(1, int(LEAST_SHARE * compiled.peak_bytes))),
        "host_transfers": program.count_host_transfers(text),
    }  # fmt: skip


def describe_versions(machine: Machine) -> str:
    """The versions of jax and of the compiler for a machine."""
    packages = ("jax", COMPILERS[absent_devices.compiler_platform(machine)])
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def estimate_timeline(text: str, machine: Machine) -> dict[str, float] | None:
    """Seconds of computation, sending and waiting; None for TPUs, as the text lacks the FLOPs of their kernels."""
    if absent_devices.compiler_platform(machine) == "tpu":
        return None
    return timeline.play_schedule(text, timeline.machine_rates(machine, "bfloat16"))._asdict()


def sum_by_kind(rows: Sequence[program.Collective]) -> list[dict[str, Any]]:
    """The rows summed by kind, number format, members and source, largest first; those below 1 % are left out."""
    sums: dict[tuple[Any, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        key = (row.kind, row.format, row.members, row.times, describe_source(row.source))
        sent: Any = {"sent_bytes": row.sent_bytes, "overlapped_bytes": row.overlapped * row.sent_bytes}
        sums[key].update(sent)
    total = sum(entry["sent_bytes"] for entry in sums.values())
    names = ("kind", "format", "members", "times", "source")
    table = [dict(zip(names, key, strict=True)) | dict(entry) for key, entry in sums.items()]
    return sorted(
        (row for row in table if row["sent_bytes"] >= LEAST_SHARE * total), key=lambda row: -row["sent_bytes"]
    )


def describe_source(name: str) -> str:
    """Where in the model a collective comes from, without the loops around it: `backward: blocks/attention/k`."""
    parts = name.replace("closed_call/", "").replace("while/body/", "").split("/")
    way = "backward" if "transpose(" in name else "forward" if "jvp(" in name else "update"
    return f"{way}: {'/'.join(parts[-3:])}" if name else "combined"


def join_stored(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows` and the stored ones of other cases, in the order of CASES."""
    path = RESULTS / "programs.json"
    stored = json.loads(path.read_text()) if path.exists() else []
    by_name = {row["name"]: row for row in [*stored, *rows]}
    return [by_name[name] for name in CASES if name in by_name]


def main(argv: list[str]) -> int:
    """Compile and read; exit code 0, 2 for bad input."""
    return guarded("programs", _main, argv)


def _describe(row: dict[str, Any]) -> str:
    ratio = row["sent_bytes"] / row["textbook_bytes"]
    return f"{row['sent_bytes'] / 1e9:.1f} GB sent, {ratio:.2f} of the textbook's"


def _main(argv: list[str]) -> int:
    parser = command_line("compilers.programs", __doc__)
    add_rows_options(parser, CASES)
    options = parser.parse_args(argv)
    rows = measure_rows(options, CASES, read_program, _describe)
    every_row = join_stored(rows)
    if rows and len(every_row) == len(CASES):
        write_result(RESULTS, "programs", every_row, format_page(every_row))
    if options.json != "-":
        print(format_page(rows))
    emit_json({"rows": rows}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
