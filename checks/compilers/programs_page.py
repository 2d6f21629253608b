"""The page of `python -m checks.compilers.programs`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.experiments.shared import markdown_table
from scalelab.plan.compiled import products


def format_row(row: Mapping[str, Any]) -> str:
    """A row as a section in Markdown."""
    lines = [[each["kind"], each["format"], str(each["members"]), str(each["times"]), f"{each['sent_bytes'] / 1e9:.2f}",
              f"{each['overlapped_bytes'] / each['sent_bytes']:.0%}", f"`{each['source']}`"]
             for each in row["collectives"]]  # fmt: skip
    head = ["collective", "format", "devices", "times a step", "GB sent", "beside computation", "source"]
    table = "\n".join(markdown_table(head, lines))
    copies = ", ".join(f"{count} x {kind}" for kind, count in row["copies"].items()) or "none"
    multiplied = f"{format_products(row['products'])}\n\n" if row.get("products") else ""
    return (
        f"## {row['recipe']}: {row['name']} ({row['platform']})\n\n`{row['changes']}`; {row['note']}\n\n"
        f"{table}\n\n{multiplied}Large copies, transposes and converts: {copies}. Transfers to the host: "
        f"{row['host_transfers']}.\n"
    )


def format_products(read: Mapping[str, Any]) -> str:
    """What multiplies and what a forward keeps, in one sentence."""
    counts = ", ".join(f"{source} {sum(ways.values()):,}" for source, ways in read["by_source"].items())
    ways = read["products"]
    return (
        f"Products a step: {ways['triton']:,} Triton fusions, {ways['cublas']:,} cuBLAS calls, {ways['other']:,} "
        f"others ({counts})."
    )


def describe_autotuning(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which columns of the page autotuning on a card would change, from the rows compiled both ways; "" without any."""
    both = [(row, row["with_cublas"]) for row in rows if row.get("with_cublas")]
    if not both:
        return ""

    def changes(key: str) -> list[float]:
        return [100 * (other[key] / row[key] - 1) for row, other in both]

    def described(values: Sequence[float]) -> str:
        return " and ".join(f"{value:+.1f} %" for value in values)

    names = " and ".join(row["name"] for row, _ in both)
    shares = [
        f"{row['overlapped_bytes'] / row['sent_bytes']:.0%} with Triton, "
        f"{other['overlapped_bytes'] / other['sent_bytes']:.0%} with cuBLAS"
        for row, other in both
    ]
    computing = [100 * (other["timeline"]["computing_s"] / row["timeline"]["computing_s"] - 1) for row, other in both]
    counts = [
        f"{other['products']['products']['cublas']:,} of {sum(row['products']['products'].values()):,}"
        for row, other in both
    ]
    workspace = max(other["products"]["workspace_bytes"] for _, other in both) / 2**20
    sent = "does not change" if not any(changes("sent_bytes")) else f"changes by {described(changes('sent_bytes'))}"
    return (
        "\n## What autotuning changes\n\nWithout a device every product is a Triton fusion; a card times it against "
        f"cuBLAS and keeps the faster. {names} were compiled a second time with cuBLAS for all products "
        f"(`--xla_gpu_enable_triton_gemm=false`: {' and '.join(counts)} products are calls), which bounds the "
        f"difference. What is sent {sent}. The share beside computation is {'; '.join(shares)}. The peak changes by "
        f"{described(changes('peak_bytes'))}: a call has a workspace ({workspace:.0f} MiB at most), and a cast that a "
        f"Triton fusion does on the way becomes an array of its own. `Computes` changes by {described(computing)}: "
        "those casts are written and read, and the parts into which Triton cuts long sums are not. Which kernel is "
        "faster at a product stands in neither.\n"
    )


def format_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page: one line a row, then its collectives."""
    head = ["step", "device", "GB sent a step", "textbook", "ratio", "beside computation", "computes s", "sends s",
            "waits s", "peak GB", "attention", "kept GB", "Triton", "cuBLAS", "others"]  # fmt: skip
    days = sorted({f"{row['date']} with {row['versions']}" for row in rows})
    lines = [[f"{row['recipe']}: {row['name']}", row["platform"], f"{row['sent_bytes'] / 1e9:.1f}",
              f"{row['textbook_bytes'] / 1e9:.1f}", f"{row['sent_bytes'] / row['textbook_bytes']:.2f}",
              f"{row['overlapped_bytes'] / row['sent_bytes']:.0%}",
              *([f"{row['timeline'][f'{name}_s']:.2f}" for name in ("computing", "sending", "waiting")]
                if row["timeline"] else ["", "", ""]),
              f"{row['peak_bytes'] / 1e9:.1f}", *_product_cells(row)]
             for row in rows]  # fmt: skip
    table = "\n".join(markdown_table(head, lines))
    return (
        f"# What the compiler makes of the step\n\n`python -m checks.compilers.programs`, {'; '.join(days)}: the "
        "step compiled for devices that are not here. GB are what one device sends in a step "
        "by ring algorithms; the textbook's: weights gathered in bf16, gradients scattered in fp32 (FSDP: twice and "
        "once a micro-batch, ZeRO-1: once and once a step), four sums of bf16 activations a layer under tensor "
        "parallelism, 5.5 where blocks are recomputed. `Beside computation`: started and awaited apart, "
        "with computation scheduled between, however short. `Computes`, `sends` and `waits`: that schedule played "
        "through at the planner's rates, with one queue within nodes and one between them "
        f"(`scalelab/plan/compiled/timeline.py`): what is beside too little is waited for. "
        "`Kept`: what the forward's loop over layers stacks for the backward. `Triton`, `cuBLAS`, `others`: products a "
        f"step by what multiplies.\n\n{table}\n{describe_autotuning(rows)}\n"
        + "\n".join(format_row(row) for row in rows)
        + "\n## What this cannot tell\n\nNothing ran: whether a collective beside computation is hidden depends on the "
        "network. GPU programs are compiled without autotuning and with blockwise attention in place of cuDNN's, "
        "which reads more memory, so that seconds are for comparing schedules, not for planning. "
        "Collectives below 1 % of a row's bytes are summed, not listed.\n"
    )


def _product_cells(row: Mapping[str, Any]) -> list[str]:
    """Attention's kernel, GB kept, products by way; in a pipeline no loop over layers keeps anything."""
    traced = re.search(r"attention: (\w+)", row["note"])
    if (read := row.get("products")) is None:
        return [traced[1] if traced else "", *[""] * 4]
    kernel = traced[1] if traced and read["attention"] == "products" else read["attention"]
    kept = f"{read['saved_bytes'] / 1e9:.2f}" if read["saved_bytes"] else ""
    return [kernel, kept, *(f"{read['products'][way]:,}" for way in products.WAYS)]
