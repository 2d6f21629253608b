"""python -m checks.compilers.fp8_products [--quick] [--json[=PATH]]

Read what the compiler for an H100 makes of the products under fp8 policies, in three layers of an 8B model: which
products are the library's own in fp8, in which formats they take and give their matrices, and whether the maximum of a
tensor is found in the pass that casts it. Needs the extra plan-cuda; a minute and a half on two CPU cores. Writes
checks/results/fp8_products.json and .md if every policy was compiled.

    python -m checks.compilers.fp8_products --quick
"""

import collections
import datetime
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from checks.compilers.compiled import RECIPES, format_versions
from checks.shared import RESULTS, command_line
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.config import Static
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.model.count import count_parameters
from scalelab.plan.compiled import program
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.machine.machine import load_machine

POLICIES = ("fp8_delayed", "fp8")
CHANGES = {
    "model.n_layers": 3, "model.seq_len": 2048, "model.vocab_size": 4096, "model.remat": "none",
    "train.global_batch": 2, "train.accumulate": 1, "schedule.batch_stages": "", "parallel.fsdp": 1,
}  # fmt: skip
# Without autotuning, which needs a device, XLA takes its own kernels (Triton's) everywhere: the flag asks for cuBLAS.
LIBRARY_FLAG = "--xla_gpu_enable_triton_gemm=false"
LEAST_ELEMENTS = 2**20  # of a tensor: passes over smaller ones are not counted


def load_step(policy: str, changes: Mapping[str, Any] = CHANGES) -> Static:
    """The static config that is compiled, under this policy."""
    overrides = {key: str(value) for key, value in changes.items()} | {"precision.name": policy}
    return config_lib.static(config_lib.load(RECIPES / "llama3_8b.py", overrides))


def compile_text(static: Static) -> str:
    """The text of the step's program. BadInput if the compiler isn't installed."""
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} {LIBRARY_FLAG}"
    try:
        with tempfile.TemporaryDirectory(prefix="scalelab-fp8-") as folder:
            path = pathlib.Path(folder) / "program.txt"
            compile_step(static, load_machine("h100"), program=path)
            return path.read_text()
    finally:
        os.environ["XLA_FLAGS"] = before


def read_products(text: str) -> list[dict[str, Any]]:
    """The library's matrix products in the blocks' layers: source, formats, sizes, precision, and FLOPs of a step."""
    computations, entry = program.read_computations(text)
    times, rows = program.count_calls(computations, entry), []
    for name, lines in computations.items():
        types = {line.name: line.type for line in lines}
        for line in lines if times.get(name) else ():
            target = re.search(r'custom_call_target="(__cublas[^"]*)"', line.rest)
            source = re.search(r'op_name="[^"]*blocks/(\w+/\w+)/dot_general"', line.rest)
            if target and source:
                left, right = (array_of(types[operand]) for operand in re.findall(r"%([\w.-]+)", line.rest)[:2])
                result = array_of(line.type)
                both = left[1] * right[1]
                way = "backward" if "transpose(" in line.rest.split("blocks/")[0] else "forward"
                rows.append(
                    {
                        "source": source[1],
                        "way": way,
                        "call": target[1],
                        "left": left[0],
                        "right": right[0],
                        "result": result[0],
                        "precise": 'operand_precision":["HIGHEST"' in line.rest,
                        # Elements of [M, K], [K, N] and [M, N] give M K N.
                        "flops": 2 * times[name] * round((both * result[1]) ** 0.5),
                    }
                )
    return rows


def array_of(text: str) -> tuple[str, int]:
    """The number format of the first array in a type, and its elements."""
    match = program.ARRAY.search(text)
    assert match
    size = 1
    for length in match[2].split(","):
        size *= int(length or 1)
    return match[1], size


def count_passes(text: str) -> dict[str, int]:
    """Kernels over large tensors: `cast` to fp8 alone, `cast_and_maximum` in one pass, `maximum` alone."""
    computations, entry = program.read_computations(text)
    times, passes = program.count_calls(computations, entry), collections.Counter[str]()
    fusions = [
        line
        for name, lines in computations.items()
        if times.get(name)
        for line in lines
        if line.operation == "fusion" and is_in_blocks(line)
    ]
    for fusion in fusions:
        body = computations[program.CALLED.findall(fusion.rest)[0]]
        largest = max((array_of(line.type)[1] for line in body if program.ARRAY.search(line.type)), default=0)
        casts = any(line.operation == "convert" and line.type.startswith("f8") for line in body)
        finds = any(line.operation == "reduce" and "reduce_max" in line.rest for line in body)
        if largest >= LEAST_ELEMENTS and (casts or finds):
            passes["cast_and_maximum" if casts and finds else "cast" if casts else "maximum"] += 1
    return dict(passes)


def is_in_blocks(line: program.Instruction) -> bool:
    """Whether a product of the blocks asks for this instruction."""
    return bool(re.search(r'op_name="[^"]*blocks/(attention/[qkvo]|mlp/\w+)/', line.rest))


def read_policy(policy: str, changes: Mapping[str, Any] = CHANGES) -> dict[str, Any]:
    """One row: a policy's products and passes, and the FLOPs that the model's shape says."""
    static = load_step(policy, changes)
    text = compile_text(static)
    tokens = static.global_batch * static.model.seq_len
    return {
        "policy": policy, "products": read_products(text), "passes": count_passes(text),
        "expected_flops": 6 * tokens * count_parameters(static.model)["kaplan"],
    }  # fmt: skip


def fp8_share(row: Mapping[str, Any]) -> float:
    """The share of the blocks' FLOPs in products whose operands both come in fp8."""
    own = [p["flops"] for p in row["products"] if p["call"].endswith("$f8") and p["left"][:2] == p["right"][:2] == "f8"]
    return sum(own) / row["expected_flops"]


def format_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page: the shares, then each policy's products."""
    changes = " ".join(f"{key}={value}" for key, value in CHANGES.items())
    head = ["policy", "blocks' FLOPs in fp8", "summed in fp32", "casts with the maximum", "casts alone", "maxima alone"]
    kinds = "cast_and_maximum", "cast", "maximum"
    lines = [
        [
            row["policy"],
            f"{fp8_share(row):.1%}",
            f"{sum(p['precise'] for p in row['products'])} of {len(row['products'])}",
            *(str(row["passes"].get(kind, 0)) for kind in kinds),
        ]
        for row in rows
    ]
    table = "\n".join(markdown_table(head, lines))
    return (
        f"# Products in fp8 on an H100\n\n`python -m checks.compilers.fp8_products`, {datetime.date.today()}, "
        f"{format_versions()}: `llama3_8b` with `{changes}`, compiled for an H100 that is not here, with cuBLAS in "
        f"place of XLA's own kernels (`{LIBRARY_FLAG}`). The share is of the FLOPs that the model's shape says; passes "
        f"over a layer's tensors are counted by kernels.\n\n{table}\n\n"
        + "\n".join(format_products(row) for row in rows)
        + "\n## What this cannot tell\n\nNothing ran. On a device autotuning chooses between these calls and XLA's "
        "own kernels, product by product; both take fp8 operands. What time is saved, and what sums in fp32 cost "
        "against an H100's fast accumulation, isn't known. Attention and the head are not in fp8 under these "
        "policies.\n"
    )


def format_products(row: Mapping[str, Any]) -> str:
    """A policy's products as a section: those alike in one line."""
    alike: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for p in row["products"]:
        alike[p["way"], f"{p['left']} x {p['right']}", p["result"], f"`{p['call']}`"].append(p["source"])
    head = ["way", "operands", "result", "call", "products"]
    lines = [[*key, ", ".join(sorted(sources))] for key, sources in sorted(alike.items(), reverse=True)]
    return f"## {row['policy']}\n\n" + "\n".join(markdown_table(head, lines)) + "\n"


def main(argv: list[str]) -> int:
    """Compile and read; exit code 0, 2 for bad input."""
    return guarded("fp8_products", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("compilers.fp8_products", __doc__)
    parser.add_argument("--quick", action="store_true", help="the first policy alone")
    options = parser.parse_args(argv)
    rows = [read_policy(policy) for policy in POLICIES[: 1 if options.quick else None]]
    if options.json != "-":
        print(format_page(rows))
    if len(rows) == len(POLICIES):
        write_result(RESULTS, "fp8_products", rows, format_page(rows))
    emit_json({"rows": rows}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
