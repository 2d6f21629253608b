"""The page of `make gpu`: what was measured, beside the plan that was written before, and what is missing."""

from collections.abc import Iterable, Mapping
from typing import Any

from checks.gpu import ledger, tables
from checks.gpu.session import Missing
from scalelab.experiments.shared import markdown_table

GB = 1e9
Lines = list[str]
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]
STEP_PARTS = ("124m-bf16", "124m-fp32", "124m-tf32", "124m-fp8", "1b-bf16", "1b-fp8", "3b-bf16", "3b-fp8")


def format_page(lines: list[ledger.Row], missing: Iterable[Missing]) -> str:
    """Format the whole page from the ledger's lines of one chip."""
    answers = ledger.answers(lines)
    text = [*_head(lines), "", *_steps(answers)]
    for part, table in tables.PART_TABLES.items():
        if part in answers:
            text += ["", *table(answers[part])]
    text += [*_ratios(answers), "", "## Missing, the most useful first", ""]
    rows = [(each.part, each.row, f"{each.cost_s:.0f}", tables.plain_cell(each.why)) for each in missing]
    text += markdown_table(("part", "question", "s", "why"), rows) if rows else ["Nothing."]
    return "\n".join(text) + "\n"


def _head(lines: list[ledger.Row]) -> Lines:
    answered = [line for line in lines if line["event"] == ledger.ANSWERED]
    if not answered:
        return ["# On a GPU", "", "Nothing was measured yet."]
    last = answered[-1]
    versions = ", ".join(f"{name} {value}" for name, value in last["versions"].items())
    codes = ", ".join(dict.fromkeys(line["code"] for line in answered))
    dates = sorted({line["date"][:10] for line in answered})
    driver = f", driver {last['driver']}" if last["driver"] else ""
    return [
        "# On a GPU", "",
        f"`python -m checks.gpu`, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {last['chip']}{driver}; "
        f"{versions}; code {codes}. {len(answered)} answers in {sum(line['seconds'] for line in answered):.0f} s.",
    ]  # fmt: skip


def _steps(answers: Answers) -> Lines:
    """The table of train steps, and for each goal that a plan does not reach what its time goes into."""
    rows = [(part, answers[part]["step"]["answer"]) for part in STEP_PARTS if "step" in answers.get(part, {})]
    if not rows:
        return []
    table = markdown_table(tables.STEP_COLUMNS, [tables.step_cells(part, row) for part, row in rows])
    why = [line for part, row in rows if (line := _explain_goal(part, row))]
    return ["Train steps, each beside the plan that was written before it was compiled:", "", *table, "", *why]


def _explain_goal(name: str, row: Mapping[str, Any]) -> str:
    plan = row["planned"]
    if not plan.get("goal"):
        return ""
    reached = "reached" if row["mfu"] >= plan["goal"] else "not reached"
    text = f"- {name}: the goal of {plan['goal']:.0%} is {reached}; the plan says {plan['mfu']:.0%}"
    if plan["mfu"] >= plan["goal"]:
        return f"{text}."
    part = plan["by_part"]
    return (
        f"{text}: of its {plan['step_s']:.3g} s products take {part['compute_s']:.3g}, at the share of the peak that "
        f"every plan assumes, and passes bound by memory {part['memory_s']:.3g} (remat {plan['remat']}, "
        f"{plan['rows']} rows)."
    )


def _ratios(answers: Answers) -> Lines:
    """Our tokens/s over torch's, for each model that both measured."""
    pairs = (("124m", "124m-bf16", "torch-gpt2-124m"), ("1b", "1b-bf16", "torch-llama-1b"))
    ratios = []
    for name, ours, theirs in pairs:
        rates = [answers.get(part, {}).get("step", {}).get("answer", {}).get("tokens_per_s") for part in (ours, theirs)]
        if all(rates):
            ratios.append(f"{name} {rates[0] / rates[1]:.2f}")
    return ["", f"Our tokens/s over torch's, bf16: {', '.join(ratios)}."] if ratios else []


COMPILED_COLUMNS = (
    "program", "attention", "kept GB by plan", "in the program", "peak GB by plan", "in the program",
    "cuBLAS / Triton", "s", "note",
)  # fmt: skip
COMPILED_HEAD = (
    "`make gpu`'s programs, compiled for chips that are not here and run on none. XLA chooses between cuBLAS's and "
    "Triton's kernels by timing them on a card. Without one it takes its default for each product, so the counts of "
    "the two are what a card may change, and with them the seconds; bytes saved and planned are not touched, and the "
    "peak by a workspace of cuBLAS at most."
)


def format_compiled(by_chip: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the programs that were compiled for absent chips, a table a chip."""
    lines = ["# Programs for a GPU", "", COMPILED_HEAD]
    for chip, result in by_chip.items():
        command = f"`python -m checks.gpu --compile=…`, {result['date']}, jax {result['jax']}"
        rows = [_compiled_cells(row) for row in result["rows"]]
        lines += ["", f"## {chip}", "", f"{command}.", "", *markdown_table(COMPILED_COLUMNS, rows)]
    return "\n".join(lines) + "\n"


def _compiled_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    kernels = row["kernels"]
    counts = f"{kernels['cublas']} / {kernels['triton']}" if kernels else ""
    sizes = (
        f"{row[key] / GB:.2f}" if row[key] else ""
        for key in ("saved_bytes", "kept_bytes", "planned_bytes", "peak_bytes")
    )
    attention = row["kernels"].get("attention", row["attention"])
    return row["program"], attention, *sizes, counts, f"{row['seconds']:.0f}", tables.plain_cell(row["note"])
