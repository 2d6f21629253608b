"""python -m checks.compilers.memory [--quick] [--rows="NAME; NAME"] [--json[=PATH]]

Ask what each means of saving memory saves in a step of LLaMA 7B on one device, as `scalelab plan` predicts it and as
XLA compiles the step for an H100 that is not here: updates layer by layer, moments in the host's memory, weights in
bf16, 8-bit GaLore. Needs the extra plan-cuda; ten minutes on two CPU cores. Writes checks/results/memory.json and .md
if every row was compiled.

    python -m checks.compilers.memory --quick
"""

import datetime
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from checks.shared import RESULTS, command_line
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.config import Static
from scalelab.config.files import find_config_file
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.hardware.device_memory import usable_bytes
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.time import expected_s
from scalelab.train.step.state import host_bytes

CARD = "rtx4090"  # the 24 GB of the claim; XLA compiles for an H100, whose buffers are the same
ADAMW = "optim.name=adamw optim.rank=none optim.every=none optim.low_rank_scale=none optim.peak_lr=3e-4"
WHOLE, FP32 = "train.updates=whole", "precision.name=bf16"
# {name: changes to configs/galore_7b.py}
CASES = {
    "AdamW, weights in fp32": f"{ADAMW} {WHOLE} {FP32}",
    "the same, updated layer by layer": f"{ADAMW} {FP32}",
    "the same, moments on the host": f"{ADAMW} {FP32} train.moments=pinned_host",
    "the same, weights in bf16": f"{ADAMW} train.moments=pinned_host",
    "8-bit GaLore, weights in bf16": WHOLE,
    "the same, updated layer by layer (configs/galore_7b.py)": "",
}


def load_case(name: str) -> Static:
    """The static config of a row."""
    overrides = dict(change.split("=", 1) for change in CASES[name].split())
    return config_lib.static(config_lib.load(find_config_file("galore_7b"), overrides))


def measure_row(name: str) -> dict[str, Any]:
    """Plan and compile a row; bytes of the device. BadInput if the compiler isn't installed."""
    static, h100, card = load_case(name), load_machine("h100"), load_machine(CARD)
    planned, compiled = step_memory(static, h100), compile_step(static, h100)
    return {
        "name": name, "changes": CASES[name], "planned_bytes": planned.total, "components": planned.components,
        "peak_bytes": compiled.peak_bytes, "argument_bytes": compiled.argument_bytes, "temp_bytes": compiled.temp_bytes,
        "host_bytes": [host_bytes(static), compiled.host_bytes], "usable_bytes": usable_bytes(card.chip),
        "planned_s": expected_s(static, card, default_efficiency(card)), "seconds": compiled.seconds,
        "platform": compiled.platform, "note": compiled.note,
    }  # fmt: skip


def format_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    head = ["step", "planned GB", "compiled GB", "off by", "on the host GB", "card", "arguments GB", "temporaries GB",
            "planned s"]  # fmt: skip
    lines = [[
        row["name"], f"{row['planned_bytes'] / 1e9:.2f}", f"{row['peak_bytes'] / 1e9:.2f}",
        f"{row['planned_bytes'] / row['peak_bytes'] - 1:+.0%}", f"{row['host_bytes'][1] / 1e9:.2f}",
        "fits" if row["peak_bytes"] <= row["usable_bytes"] else "no", f"{row['argument_bytes'] / 1e9:.2f}",
        f"{row['temp_bytes'] / 1e9:.2f}", f"{row['planned_s']:.2f}",
    ] for row in rows]  # fmt: skip
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jax-cuda12-pjrt"))
    usable, last = rows[0]["usable_bytes"], rows[-1]
    return "\n".join([
        "# LLaMA 7B on a card of 24 GB", "",
        f"`python -m checks.compilers.memory`, {datetime.date.today()}, {versions}: one sequence of 2,048 tokens, "
        "every block recomputed, on one device. Planned: the total of `scalelab plan`; compiled: XLA's peak for "
        f"{last['platform']} ({last['note']}). Card: whether the compiled peak is below what a program gets of an RTX "
        f"4090, {usable / 1e9:.2f} GB by the planner (24 GiB less the driver's part, 90 % of the rest for jax). "
        "Planned s: a step on that card, moments over PCIe behind nothing.", "",
        *markdown_table(head, lines), "",
        f"GaLore's claim, 7 G parameters on 24 GB (Zhao et al. 2024; their script says 22.72 G at 256 tokens): "
        f"{last['planned_bytes'] / 1e9:.2f} GB planned, {last['peak_bytes'] / 1e9:.2f} GB compiled.", "",
        "## What this cannot tell", "",
        "Nothing ran. The compiler is that for an H100, without autotuning and with blockwise attention in place of "
        "cuDNN's; one for an Ada card may choose other buffers. Fragmentation of the allocator, and workspaces that "
        "cuSOLVER takes by itself for the singular value decomposition every 500 steps, are not in XLA's peak.", "",
    ])  # fmt: skip


def main(argv: list[str]) -> int:
    """Plan and compile; exit code 0, 2 for bad input."""
    return guarded("memory", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("compilers.memory", __doc__)
    parser.add_argument("--rows", default="; ".join(CASES), metavar="A; B", help=f"rows: {'; '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="the last row alone")
    options = parser.parse_args(argv)
    names, rows = [name.strip() for name in options.rows.split(";")][-1 if options.quick else 0 :], []
    for name in names:
        if name not in CASES:
            raise BadInput(f"--rows={name}: no such row; the rows are {'; '.join(CASES)}")
        rows.append(measure_row(name))
        sizes = [
            f"{rows[-1][key] / 1e9:.2f} GB {key.removesuffix('_bytes')}" for key in ("planned_bytes", "peak_bytes")
        ]
        print(f"{name}: {', '.join(sizes)}", file=sys.stderr, flush=True)
    if options.json != "-":
        print(format_page(rows))
    if len(rows) == len(CASES):
        write_result(RESULTS, "memory", rows, format_page(rows))
    emit_json({"rows": rows}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
