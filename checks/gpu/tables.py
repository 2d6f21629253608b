"""The tables and lines of the page of `make gpu`, one for each part."""

from collections.abc import Callable, Mapping
from typing import Any

from scalelab.experiments.shared import markdown_table

GB = 1e9
Lines = list[str]
STEP_COLUMNS = (
    "step", "rows", "remat", "goal", "planned MFU", "MFU", "in range", "tokens/s", "planned GB", "peak GB",
    "attention", "cuBLAS / Triton", "compile s",
)  # fmt: skip


def step_cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of STEP_COLUMNS for one step."""
    plan, kernels = row["planned"], row["kernels"]
    low, high = plan["mfu_range"]
    peak = row["peak_bytes"] or row["compiled_peak_bytes"]
    return (
        name, str(plan["rows"]), plan["remat"], f"{plan['goal']:.0%}" if plan.get("goal") else "",
        f"{plan['mfu']:.1%} ({low:.1%} to {high:.1%})", f"{row['mfu']:.1%}", "yes" if row["in_range"] else "no",
        f"{row['tokens_per_s']:,.0f}", f"{plan['memory_bytes'] / GB:.2f}", f"{peak / GB:.2f}",
        kernels["attention"], f"{kernels['cublas']} / {kernels['triton']}",
        f"{row['compile_s']:.0f}",
    )  # fmt: skip


def _doctor(rows: Mapping[str, Any]) -> Lines:
    lines = []
    if "doctor" in rows:
        matmul = rows["doctor"]["answer"]["matmul"]
        share = f", {matmul['flops'] / matmul['table_flops']:.0%} of the datasheet" if matmul["table_flops"] else ""
        size = f"{matmul['n']} x {matmul['n']} in {matmul['dtype']}"
        lines.append(f"A product of {size}: {matmul['flops'] / 1e12:.3g} TFLOP/s{share}.")
    if "step" in rows:
        lines.append(f"A step of the smallest model: {1e3 * rows['step']['answer']['step_s']:.3g} ms.")
    return lines


def _varied(what: str) -> Callable[[Mapping[str, Any]], Lines]:
    def table(rows: Mapping[str, Any]) -> Lines:
        steps = [(name, line["answer"]) for name, line in rows.items() if "kernels" in line["answer"]]
        return [f"{what}:", "", *markdown_table(STEP_COLUMNS, [step_cells(name, row) for name, row in steps])]

    return table


def _attention(rows: Mapping[str, Any]) -> Lines:
    shape = next((line["answer"]["shape"] for line in rows.values() if "shape" in line["answer"]), None)
    if shape is None:
        return []
    head = "Attention forward and backward in bf16, {} sequences of {:,} tokens, {} heads of {}:".format(*shape)
    cells = [(name, *_attention_cells(line["answer"])) for name, line in rows.items()]
    return [head, "", *markdown_table(("kernel", "ms", "of the peak", "off float32 by"), cells)]


def _attention_cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if "left_out" in row:
        return f"left out: {plain_cell(row['left_out'])}", "", ""
    return f"{1e3 * row['seconds']:.3g}", f"{row['share_of_peak']:.0%}", f"{row['off_float32']:.1e}"


def _profile(name: str) -> Callable[[Mapping[str, Any]], Lines]:
    def table(rows: Mapping[str, Any]) -> Lines:
        if "profile" not in rows:
            return []
        row = rows["profile"]["answer"]
        idle = 1 - row["busy_s"] / row["step_s"] if row["step_s"] else 0.0
        head = (
            f"A profiled step of {name}: {1e3 * row['step_s']:.4g} ms; in {idle:.1%} of it no kernel runs. The slowest:"
        )
        cells = [
            (f"{1e3 * each['seconds']:.3g}", f"{each['calls']:.0f}", each["name"], plain_cell(each["place"]))
            for each in row["operations"]
        ]
        return [head, "", *markdown_table(("ms a step", "runs", "operation", "of"), cells)]

    return table


def _packing(rows: Mapping[str, Any]) -> Lines:
    ways = {name: line["answer"] for name, line in rows.items()}
    parts = [
        f"{way['trials']} trials of {way['steps']} steps by {name}: {way['seconds']:.3g} s"
        for name, way in ways.items()
    ]
    if {"vmap", "turn"} <= set(ways):
        pairs = zip(ways["vmap"]["losses"], ways["turn"]["losses"], strict=True)
        worst = max(abs(a / b - 1) for a, b in pairs)
        parts.append(
            f"turn over vmap {ways['turn']['seconds'] / ways['vmap']['seconds']:.2f}; losses differ by {worst:.1e}"
        )
    return ["; ".join(parts) + "."]


def _processes(rows: Mapping[str, Any]) -> Lines:
    row = rows["processes"]["answer"]
    return [f"The same trials in processes of their own: {row.get('left_out') or '{:.3g} s'.format(row['seconds'])}."]


def _resume(rows: Mapping[str, Any]) -> Lines:
    row = rows["same bits"]["answer"]
    same = "the same bits" if row["same_parameters"] and row["same_losses"] else "OTHER BITS"
    killed = f"Killed after step {row['killed_after_checkpoint']} of {row['steps']}"
    return [f"{killed}, resumed from {row['resumed_from']}: {same}."]


def _tests(rows: Mapping[str, Any]) -> Lines:
    row = rows["tests"]["answer"]
    counts = f"{row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped in {row['seconds']:.0f} s"
    return [f"tests/accelerator: {counts}.", *(f"- {name}" for name in row["failures"])]


def _plan(rows: Mapping[str, Any]) -> Lines:
    lines: Lines = []
    if "measure" in rows:
        points = [
            (f"{p['rows']}", f"{p['tokens_per_s']:,.0f}", f"{p['predicted_tokens_per_s']:,.0f}")
            for p in rows["measure"]["answer"]["points"]
        ]
        lines += ["`plan --measure`:", "", *markdown_table(("rows", "tokens/s", "predicted"), points)]
    if "calibrate" in rows:
        row = rows["calibrate"]["answer"]
        end = f"{row['factor']:.3g} times the plan's rate; the next run within {row['low']:.2f} to {row['high']:.2f}"
        lines += ["", f"`plan --calibrate` by {len(row['runs'])} programs: {end} of it."]
    return lines


def _quickstart(rows: Mapping[str, Any]) -> Lines:
    line = rows["quickstart"]
    return [f"The quickstart: {_score(line['answer']['report']['held_out'])}; {line['seconds']:.0f} s."]


def _score(row: Mapping[str, Any]) -> str:
    inside = "inside" if row["inside"] else "OUTSIDE"
    return f"predicted {row['predicted_loss']:.4f}, measured {row['measured_loss']:.4f}, {inside} the 90 % interval"


def _reference_run(rows: Mapping[str, Any]) -> Lines:
    row = rows["run"]["answer"]
    points = [
        (f"{p['step']}", _digits(p, "train_loss"), f"{p['val_loss']:.4f}", f"{p.get('mfu', 0):.1%}")
        for p in row["curve"]
        if "val_loss" in p
    ]
    sums = f"parameters {row['params_digest'][:16]}, data {row['data']['fingerprint']}"
    head = f"Reference run: {row['steps']} steps, validation loss {row['val_loss']:.4f} nats a byte; {sums}."
    return [head, "", *markdown_table(("step", "loss", "validation", "MFU"), points)]


def _digits(point: Mapping[str, Any], key: str) -> str:
    return f"{point[key]:.4f}" if key in point else ""


def _reference_grid(rows: Mapping[str, Any]) -> Lines:
    if "score" in rows:
        return [f"Reference study: {_score(rows['score']['answer']['held_out'])}."]
    row = rows["prediction"]["answer"]
    low, high = row["interval90"]
    return [f"Reference study: {row['predicted_loss']:.4f} is predicted (90 % in {low:.4f} to {high:.4f})."]


def _torch(name: str) -> Callable[[Mapping[str, Any]], Lines]:
    def line(rows: Mapping[str, Any]) -> Lines:
        row = rows["step"]["answer"]
        if "left_out" in row:
            return [f"torch.compile, {name}: left out: {row['left_out']}."]
        how = f"{row['rows']} rows, remat {row['remat']} (torch {row['torch']})"
        return [f"torch.compile, {name}: {row['tokens_per_s']:,.0f} tokens/s with {how}."]

    return line


def plain_cell(text: str) -> str:
    """Text that fits a cell of a table."""
    return text.replace("|", "/").replace("\n", " ")


PART_TABLES: dict[str, Callable[[Mapping[str, Any]], Lines]] = {
    "doctor": _doctor,
    "resume": _resume,
    "attention": _attention,
    "profile-124m": _profile("GPT-2 small"),
    "profile-1b": _profile("the 1B model"),
    "packing": _packing,
    "processes": _processes,
    "torch-llama-1b": _torch("the Llama of 1B"),
    "torch-gpt2-124m": _torch("GPT-2 small"),
    "tests": _tests,
    "chunks-1b": _varied("The 1B model with other chunks of the loss"),
    "remat-1b": _varied("The 1B model under each remat policy"),
    "plan": _plan,
    "quickstart": _quickstart,
    "reference-run": _reference_run,
    "reference-grid": _reference_grid,
}
