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
    lines += format_ratios(results["parts"])
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


MODEL_COLUMNS = ("rows", "remat", "planned MFU", "MFU", "in range", "tokens/s", "planned GB", "peak GB", "compile s")


def _mfu(result: dict[str, Any]) -> Lines:
    rows = [(name, _goal(result["goals"].get(name), row), *_model(row)) for name, row in result["models"].items()]
    head = f"Train steps in {result['precision']}, against plans that were written before:"
    return [head, "", *markdown_table(("model", "goal", *MODEL_COLUMNS), rows)]


def _goal(goal: float | None, row: dict[str, Any]) -> str:
    return "" if goal is None else f"{goal:.0%}: {_yes(row.get('mfu', 0) >= goal)}"


def _yes(reached: bool) -> str:
    return "yes" if reached else "no"


def _model(row: dict[str, Any]) -> tuple[str, ...]:
    way = row["planned"]
    low, high = way["mfu_range"]
    head = (str(way["rows"]), way["remat"], f"{way['mfu']:.1%} ({low:.1%} to {high:.1%})")
    if "mfu" not in row:
        return (*head, row["stopped"].replace("|", "/"), "", "", f"{way['memory_bytes'] / GB:.2f}", "", "")
    peak = f"{row['peak_bytes'] / GB:.2f}" if row["peak_bytes"] else ""
    return (
        *head, f"{row['mfu']:.1%}", _yes(row["in_range"]), f"{row['tokens_per_s']:,.0f}",
        f"{way['memory_bytes'] / GB:.2f}", peak, f"{row['compile_s']:.0f}",
    )  # fmt: skip


def _sweeps(result: dict[str, Any]) -> Lines:
    kinds = [("remat " + name, row) for name, row in result["remat"].items()]
    kinds += [(f"chunks of {int(tokens):,} tokens", row) for tokens, row in result["chunks"].items()]
    rows = [(name, *_model(row)) for name, row in kinds]
    return [f"The {result['model']} model, varied:", "", *markdown_table(("what", *MODEL_COLUMNS), rows)]


def _baselines(result: dict[str, Any]) -> Lines:
    return [f"torch.compile, {name}: {_describe_baseline(row)}." for name, row in result["models"].items()]


def _describe_baseline(row: dict[str, Any]) -> str:
    if "left_out" in row:
        return f"left out: {row['left_out']}"
    return f"{row['tokens_per_s']:,.0f} tokens/s with {row['rows']} rows (torch {row['torch']})"


def format_ratios(parts: dict[str, Any]) -> Lines:
    """Our tokens/s over torch's, for each model that both measured in this run."""
    ours, theirs = (parts.get(name, {}).get("result", {}).get("models", {}) for name in ("mfu", "baselines"))
    both = [name for name in ours if "tokens_per_s" in ours[name] and "tokens_per_s" in theirs.get(name, {})]
    ratios = ", ".join(f"{name} {ours[name]['tokens_per_s'] / theirs[name]['tokens_per_s']:.2f}" for name in both)
    return ["", f"Our tokens/s over torch's, bf16, in this run: {ratios}."] if both else []


def _plan(result: dict[str, Any]) -> Lines:
    points = [
        (f"{p['rows']}", f"{p['tokens_per_s']:,.0f}", f"{p['predicted_tokens_per_s']:,.0f}")
        for p in result["measured"]["points"]
    ]
    found = result["calibration"]
    table = markdown_table(("rows", "tokens/s", "predicted"), points)
    end = f"{found['factor']:.3g} times the plan's rate; the next run within {found['low']:.2f} to {found['high']:.2f}"
    return ["`plan --measure`:", "", *table, "", f"`plan --calibrate` by {len(found['runs'])} programs: {end} of it."]


def _isoflop(result: dict[str, Any]) -> Lines:
    found = result["prediction"]
    low, high = found["interval90"]
    return [
        f"IsoFLOP study: {found['predicted_loss']:.4f} is predicted (90 % in {low:.4f} to {high:.4f}) for the run that "
        f"`{result['command']}` goes on with."
    ]


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
    seconds = {how: way.get("seconds") for how, way in result["ways"].items()}
    return [
        f"{result['trials']} trials of {result['steps']} steps: {seconds['vmap']:.3g} s by vmap, "
        f"{seconds['turn']:.3g} s one after another ({result['turn_over_vmap']:.2f} times), {_apart(result)}; losses "
        f"differ by at most {result['largest_loss_difference']:.1e}."
    ]


def _apart(result: dict[str, Any]) -> str:
    way = result["ways"]["processes"]
    if "left_out" in way:
        return f"in processes of their own left out: {way['left_out']}"
    times = result["processes_over_vmap"]
    return f"{way['seconds']:.3g} s in {result['trials']} processes ({times:.2f} times; goal 5: {_yes(times >= 5)})"


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
    "doctor": _doctor, "mfu": _mfu, "fp8": _mfu, "baselines": _baselines, "packing": _packing, "attention": _attention,
    "resume": _resume, "sweeps": _sweeps, "plan": _plan, "tests": _tests, "quickstart": _quickstart,
    "isoflop": _isoflop,
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
