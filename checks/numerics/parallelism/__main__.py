"""Compare one model under every layout of a mesh with one device: loss, gradients, and the cost of each layout.

    python -m checks.numerics.parallelism [--quick] [--only=fsdp,tensor] [--options=window] [--experts=all]
        [--workdir=runs/parallelism] [--json]

At fixed parameters, in fp32 and again in bf16, it compares the token-mean loss, every gradient and the sums that blocks
give with those of a single device, counts the bytes that each device holds and moves and a pipeline's idle ticks, and
puts the formulas beside them. Also: the temporaries of a pipeline by its number of micro-batches. Eight fake CPU
devices; --quick takes each layout with one variant of the model instead of two, of which stages get a third that has
layers they don't divide; --options takes models that have these options of the block and of attention; then nothing is
counted. --experts takes layouts of models with experts instead, and stores their rows in
checks/results/parallelism_experts.*, beside the others' with their dates. The whole (`make test-parallel`) is written
to checks/results/parallelism.*. Each layout is stored in the workdir when it ends: run it again to resume.

    python -m checks.numerics.parallelism --quick
"""

import itertools
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

if __name__ == "__main__":  # before jax is imported: bf16 rounded where the program says so, and quick compilations
    flags = "--xla_force_host_platform_device_count=8 --xla_allow_excess_precision=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags} --xla_backend_optimization_level=0"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

from checks.numerics.parallelism.experts import check_experts
from checks.numerics.parallelism.layouts import (
    EXPERT_LAYOUTS,
    LAYOUTS,
    MODEL_OPTIONS,
    model_variants,
    uneven_variants,
)
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.fingerprint import KEY, stale_reasons
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.experiments.studies.fsdp.rows import BF16_TOLERANCE, compare_layout, temporary_bytes
from scalelab.record.jsonfiles import read_json, write_json
from scalelab.train.lineage.facts import package_versions

COLUMNS = ("layout", "loss, fp32", "gradients, fp32", "gradients, bf16", "sums in bf16", "bubble", "by formula")
COLUMNS += ("KiB a device", "by formula", "KiB moved a step")
WORST_SUMS = 1.5  # times the distance of one device's bf16 gradients from fp32


def main(argv: list[str]) -> int:
    """Compare all layouts; exit code 0 if every layout agrees, 1 if one doesn't, 2 for bad input."""
    return guarded("parallelism", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("numerics.parallelism", __doc__)
    parser.add_argument("--quick", action="store_true", help="each layout with one variant of the model")
    parser.add_argument("--only", default=",".join(LAYOUTS), metavar="A,B", help=f"layouts: {', '.join(LAYOUTS)}")
    parser.add_argument("--experts", default="", metavar="A,B", help=f"layouts: {', '.join(EXPERT_LAYOUTS)}; or all")
    parser.add_argument("--options", default="", metavar="A,B", help=f"options: {', '.join(MODEL_OPTIONS)}")
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where layouts that ended are stored")
    options = parser.parse_args(argv)
    chosen = _names("only", options.only, LAYOUTS)
    models = _names("options", options.options, MODEL_OPTIONS) if options.options else []
    result: dict[str, list] = {"rows": [], "rows_bf16": [], "temporaries": []}
    if options.experts:
        experts = (
            list(EXPERT_LAYOUTS) if options.experts == "all" else _names("experts", options.experts, EXPERT_LAYOUTS)
        )
        return check_experts(experts, options.quick, options.json)
    if models:
        for name, model in itertools.product(chosen, models):
            print(f"{name}: {model}", file=sys.stderr, flush=True)
            result["rows"].append(
                compare_layout(name, LAYOUTS[name], MODEL_OPTIONS[model], "fp32", costly=False) | {"options": model}
            )
        emit_json(result, options.json)
        return 0 if is_within_tolerance(result) else 1
    for name in (name for name in LAYOUTS if name in chosen):
        rows = stored_rows(options.workdir, name, options.quick)
        result["rows"] += rows["rows"]
        result["rows_bf16"] += rows["rows_bf16"]
    for schedule in {layout.schedule for name, layout in LAYOUTS.items() if name in chosen and layout.stage > 1}:
        if schedule != "circular":
            sizes = {m: temporary_bytes(schedule, m) for m in (4, 32)}
            result["temporaries"].append({"schedule": schedule, "stages": 2, "bytes_by_microbatches": sizes})
    if options.json != "-":
        print_tables(result)
    if not options.quick and len(chosen) == len(LAYOUTS):
        write_parallelism(result)
    emit_json(result, options.json)
    return 0 if is_within_tolerance(result) else 1


def stored_rows(folder: pathlib.Path | None, name: str, quick: bool) -> dict[str, list]:
    """The rows of a layout, in fp32 and bf16: as this code has stored them in the folder, else compared now."""
    path = folder / f"{name}.json" if folder and not quick else None
    if path and path.exists() and not stale_reasons((stored := read_json(path))[KEY]):
        return stored["compared"]
    index, layout, rows = list(LAYOUTS).index(name), LAYOUTS[name], []
    variants = model_variants(index)
    for variant in variants[:1] if quick else (*variants, *uneven_variants(index, layout)):
        print(f"{name}: {variant}", file=sys.stderr, flush=True)
        rows.append(compare_layout(name, layout, variant, "fp32"))
    result = {"rows": rows, "rows_bf16": [compare_layout(name, layout, variants[0], "bf16")]}
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result_header("numerics.parallelism", []) | {"compared": result})
    return result


def _names(option: str, text: str, known: Mapping[str, Any]) -> list[str]:
    for name in (names := text.split(",")):
        if name not in known:
            raise BadInput(f"--{option}={name}: no such thing{nearest_hint(name, known)}")
    return names


def is_within_tolerance(result: dict[str, list]) -> bool:
    """Whether a row is within tolerance.

    fp32: loss and sums of blocks to 2e-6, gradients to 3e-6; bf16: loss and gradients within BF16_TOLERANCE, or
    gradients at most WORST_SUMS times as far from fp32 as one device's are, which holds in any case where partial
    products are added up in bf16.
    """

    def ratios(row: dict) -> list[float]:
        return [row[key] for key in ("sums_in_bf16", "distance_from_fp32") if key in row]

    exact = all(
        r["loss_rel_diff"] <= 2e-6 and r["grad_rel_diff"] <= 3e-6 and r["sums_rel_diff"] <= 2e-6 for r in result["rows"]
    )
    rounded = result["rows_bf16"]
    return (
        exact
        and all(r["loss_rel_diff"] <= BF16_TOLERANCE for r in rounded)
        and all(r["grad_rel_diff"] <= BF16_TOLERANCE or ratios(r) for r in rounded)
        and all(ratio <= WORST_SUMS for r in rounded for ratio in ratios(r))
    )


def table_cells(result: dict[str, list]) -> list[tuple[str, ...]]:
    """The cells of the table for people."""
    rounded = {r["layout"]: r for r in result["rows_bf16"]}
    cells = []
    for r in result["rows"]:
        moved = ", ".join(f"{axes}: {b / 1024:.0f}" for axes, b in r["collective_bytes"].items())
        bytes_held = [f"{r[key] / 1024:.1f}" for key in ("argument_bytes", "argument_bytes_formula")]
        bf16 = rounded[r["layout"]]
        differences = [f"{d:.1e}" for d in (r["loss_rel_diff"], r["grad_rel_diff"], bf16["grad_rel_diff"])]
        differences.append(f"{bf16['sums_in_bf16']:.2f} x" if "sums_in_bf16" in bf16 else "")
        bubble = [f"{r[f'bubble_{kind}']:.3f}" if r["schedule"] else "" for kind in ("measured", "predicted")]
        name = r["layout"] + (", uneven" if "model.n_layers" in r["variant"] else "")
        cells.append((name, *differences, *bubble, *bytes_held, moved))
    return cells


def temporaries_lines(result: dict[str, list]) -> list[str]:
    """One line per schedule."""
    lines = []
    for row in result["temporaries"]:
        sizes = ", ".join(f"{size / 1024:.0f} KiB with {m}" for m, size in row["bytes_by_microbatches"].items())
        lines.append(f"Temporaries of {row['schedule']}, 2 stages, by number of micro-batches: {sizes}.")
    return lines


def print_tables(result: dict[str, list]) -> None:
    """Print the table and the lines under it."""
    table = Table(*COLUMNS)
    for line in table_cells(result):
        table.add_row(*line)
    Console(width=180).print(table)
    print("\n".join(temporaries_lines(result)))


def write_parallelism(result: dict[str, list]) -> None:
    """Write results/parallelism.json and .md."""
    facts = result_header("numerics.parallelism", []) | {"versions": package_versions()}
    installed = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [f"`make test-parallel`, {facts['date']}; {installed}; eight fake CPU devices.", ""]
    lines += [
        "Two variants of the model a layout, opposite in family, key heads, tied head, remat, accumulation, and in "
        "whether blocks have a loss of their own, which is exact where the loss and every gradient are; with stages a "
        "third with one layer more than they divide.",
        "",
    ]
    lines += [*markdown_table(COLUMNS, table_cells(result)), "", *temporaries_lines(result)]
    write_result(RESULTS, "parallelism", facts | result, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
