"""The page of all parts: one table per part, with chip and date."""

from collections.abc import Callable
from typing import Any

from scalelab.experiments.shared import markdown_table

GB = 1e9
Lines = list[str]


def format_page(results: dict[str, Any]) -> str:
    """Format the whole page."""
    chip = f"{results['devices']} x {results['chip']}" if results["chip"] else "no device was seen"
    lines = [f"`{results['command']}`, {results['date']}, {chip}; {results['machine']}.", ""]
    lines += markdown_table(
        ("part", "status", "seconds", "when"), [_summary(name, part) for name, part in results["parts"].items()]
    )
    for name, part in results["parts"].items():
        if part["status"] == "done" and name in PART_TABLES:
            lines += ["", *PART_TABLES[name](part["result"])]
    return "\n".join(lines) + "\n"


def _summary(name: str, part: dict[str, Any]) -> tuple[str, ...]:
    status = part["status"] + (f": {part['why']}" if "why" in part else "")
    return name, status.replace("|", "/"), f"{part['seconds']:.0f}" if "seconds" in part else "", part.get("date", "")


def _doctor(result: dict[str, Any]) -> Lines:
    matmul = result["matmul"]
    share = f", {matmul['flops'] / matmul['table_flops']:.0%} of the datasheet" if matmul["table_flops"] else ""
    return [
        f"A product of {matmul['n']} x {matmul['n']} in {matmul['dtype']}: {matmul['flops'] / 1e12:.3g} TFLOP/s{share}."
    ]


def _mfu(result: dict[str, Any]) -> Lines:
    columns = (
        "model",
        "rows",
        "remat",
        "planned MFU",
        "MFU",
        "in range",
        "tokens/s",
        "planned GB",
        "peak GB",
        "compile s",
    )
    return markdown_table(columns, [_model(name, row) for name, row in result["models"].items()])


def _model(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    way = row["planned"]
    low, high = way["mfu_range"]
    head = (name, str(way["rows"]), way["remat"], f"{way['mfu']:.1%} ({low:.1%} to {high:.1%})")
    if "mfu" not in row:
        return (*head, row["stopped"].replace("|", "/"), "", "", f"{way['memory_bytes'] / GB:.2f}", "", "")
    peak = f"{row['peak_bytes'] / GB:.2f}" if row["peak_bytes"] else ""
    return (
        *head, f"{row['mfu']:.1%}", "yes" if row["in_range"] else "no", f"{row['tokens_per_s']:,.0f}",
        f"{way['memory_bytes'] / GB:.2f}", peak, f"{row['compile_s']:.0f}",
    )  # fmt: skip


def _attention(result: dict[str, Any]) -> Lines:
    rows = [
        (r["kind"], r["documents"], f"{1e3 * r['seconds']:.3g}", f"{r['share_of_peak']:.0%}", f"{r['off_float32']:.1e}")
        for r in result["rows"]
    ]
    size = "{} sequences of {:,} tokens, {} heads of {}".format(*result["shape"])
    return [
        f"Attention, forward and backward, bf16, {size}.",
        "",
        *markdown_table(("kernel", "documents", "ms", "of the peak", "off float32 by"), rows),
    ]


def _packing(result: dict[str, Any]) -> Lines:
    seconds = {how: way["seconds"] for how, way in result["ways"].items()}
    return [
        f"{result['trials']} trials of {result['steps']} steps: {seconds['vmap']:.3g} s by vmap, "
        f"{seconds['turn']:.3g} s one after another ({result['turn_over_vmap']:.2f} times); losses differ by at most "
        f"{result['largest_loss_difference']:.1e}."
    ]


def _resume(result: dict[str, Any]) -> Lines:
    same = "the same bits" if result["same_parameters"] and result["same_losses"] else "OTHER BITS"
    return [
        f"Killed after step {result['killed_after_checkpoint']} of {result['steps']}, resumed from "
        f"{result['resumed_from']}: {same}."
    ]


def _tests(result: dict[str, Any]) -> Lines:
    lines = [f"Tests: {result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped."]
    return [*lines, *(f"- {name}" for name in result["failures"])]


def _quickstart(result: dict[str, Any]) -> Lines:
    return [f"The quickstart: {result['seconds']:.0f} s."]


PART_TABLES: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "doctor": _doctor, "mfu": _mfu, "attention": _attention, "packing": _packing, "resume": _resume, "tests": _tests,
    "quickstart": _quickstart,
}  # fmt: skip


def format_compiled(rows: list[dict[str, Any]]) -> Lines:
    """Format the programs that were compiled for an absent chip."""
    cells = [
        (r["program"], r["platform"], f"{r['planned_bytes'] / GB:.2f}" if r["planned_bytes"] else "",
            f"{r['peak_bytes'] / GB:.2f}",
         f"{r['seconds']:.0f}", r["note"])
        for r in rows
    ]  # fmt: skip
    return markdown_table(("program", "for", "planned GB", "compiled GB", "s", "note"), cells)
