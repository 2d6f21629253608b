"""python -m checks.speed.step_times [--data=DIR] [--json[=PATH]]

Compare published times of a training step with the planner's for equal config, mesh and machine, with the traits of
the system that ran it (scalelab/plan/step/systems.py). The GPUs' shares were fitted on these rows and those of DIR, a
TPU's on MaxText's. Ten seconds. --data adds the tables in DIR (llm_foundry.csv, others.csv, new.csv), by chip and by
system, with each row's error where its system had no part in the fit, and errors with other shares of the memory's
bandwidth; five minutes of CPU. --fit prints the shares that fit all rows. Writes checks/results/step_times.*.

    python -m checks.speed.step_times --data=../shared/data/step_times
"""

import json
import pathlib
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from checks.shared import RESULTS, command_line, result_header
from checks.speed.step_times import experts, fit, tables, terms
from checks.speed.step_times.rows import CALIBRATED_ROWS, OTHER_ROWS, OUR_ROWS, SLOWER_ROWS
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.plan.step.time import step_time

CHIP_COLUMNS = (
    "chip",
    "rows",
    "systems",
    "median off",
    "mean abs",
    "in range",
    "left out: median",
    "left out: mean abs",
)
SYSTEM_COLUMNS = ("system", "rows", "chips", *CHIP_COLUMNS[3:])
COLUMNS = ("run", "devices", "published s", "predicted s", "range s", "off by", "MFU", "rows")


def main(argv: list[str]) -> int:
    """Compare all rows; exit code 0 if every row but our own is in its range, else 1."""
    return guarded("step_times", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.step_times", __doc__)
    parser.add_argument("--data", metavar="DIR", type=pathlib.Path, help="a folder of tables of published step times")
    parser.add_argument("--fit", action="store_true", help="with --data: print the shares that fit all rows")
    options = parser.parse_args(argv)
    groups = {"calibrated": CALIBRATED_ROWS, "others": OTHER_ROWS, "slower": SLOWER_ROWS, "ours": OUR_ROWS}
    known = {name: make() for group in groups.values() for name, make in group.items()}
    every = known | tables.read_tables(options.data) if options.data else {}
    if options.fit and every:
        print(json.dumps(fit.fit_generations(fit.prepare_rows(every)), indent=1))
    more = tables.compare_rows(every) if every else []
    rows = [compare_step_time(name, kind, make()) for kind, group in groups.items() for name, make in group.items()]
    result = result_header("speed.step_times", argv) | {
        "rows": rows,
        "error": {kind: summarize_errors(rows, kind) for kind in groups},
    }
    result["experts"] = describe_experts()
    if more:
        result |= {"tables": more, "chips": tables.summarize_by_chip(more), "all": tables.summarize_all(more)}
        result["together"] = describe_together(more + experts.compare_rows())
        result["experts"]["terms"] = terms.judge_terms()
        result |= {"systems": tables.summarize_by_system(more), "hbm": fit.compare_hbm(fit.prepare_rows(every))}
    if options.json != "-":
        print_table(COLUMNS, table_cells(rows))
        print_table(COLUMNS, table_cells(result["experts"]["rows"]))
        if more:
            print_table(CHIP_COLUMNS, group_cells(result["chips"], "chip"))
            print_table(SYSTEM_COLUMNS, group_cells(result["systems"], "system"))
    write_step_times(result)
    emit_json(result, options.json)
    return 0 if all(r["in_range"] or r["kind"] == "ours" for r in rows) else 1


def describe_experts() -> dict[str, Any]:
    """The rows with experts, and their errors in all, of those that no fit had, by chip and by system."""
    lines = experts.compare_rows()
    rows = [line | {"kind": "held" if line["held"] else "experts"} for line in lines]
    held = [line for line in lines if line["held"]]
    last = [line for line in lines if " 26.06 " in line["name"]]
    return {
        "rows": rows, "mean_absolute": statistics.mean(abs(line["error"]) for line in lines),
        "in_range": sum(line["in_range"] for line in lines),
        "held_rows": len(held), "held_mean_absolute": statistics.mean(abs(line["error"]) for line in held),
        "held_in_range": sum(line["in_range"] for line in held),
        "last_rows": len(last), "last_mean_absolute": statistics.mean(abs(line["error"]) for line in last),
        "last_in_range": sum(line["in_range"] for line in last),
        "chips": tables.summarize_by_chip(lines), "systems": tables.summarize_by_system(lines),
    }  # fmt: skip


def describe_together(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows of dense models and of those with experts: by chip, all units together, and the worst of three or more."""
    chips = tables.summarize_by_chip([line | {"precision": ""} for line in lines])
    worst = max((chip for chip in chips if chip["rows"] >= 3), key=lambda chip: chip["mean_absolute_error"])
    return {
        "rows": len(lines), "mean_absolute": statistics.mean(abs(line["error"]) for line in lines),
        "in_range": statistics.mean(line["in_range"] for line in lines), "chips": chips,
        "worst_chip": worst["chip"], "worst_chip_mean_absolute": worst["mean_absolute_error"],
    }  # fmt: skip


def compare_step_time(name: str, kind: str, measured: Any) -> dict[str, Any]:
    """One published time beside the planner's."""
    predicted = step_time(measured.static, measured.machine, traits=measured.traits)
    return {
        "name": name, "kind": kind, "chip": measured.machine.chip.name, "devices": measured.static.layout.devices,
        "published_s": measured.seconds, "predicted_s": predicted.total_s,
        "low_s": predicted.low_s, "high_s": predicted.high_s,
        "error": predicted.total_s / measured.seconds - 1,
        "in_range": predicted.low_s <= measured.seconds <= predicted.high_s,
        "mfu": predicted.mfu,
    }  # fmt: skip


def summarize_errors(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Errors of the expected times: median, mean of absolute values, largest."""
    errors = [r["error"] for r in rows if r["kind"] == kind]
    sizes = [abs(e) for e in errors]
    return {"median": statistics.median(errors), "mean_absolute": statistics.mean(sizes), "largest": max(sizes)}


def table_cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The cells of the table for people."""
    return [
        (
            r["name"],
            f"{r['devices']:,} {r['chip']}",
            f"{r['published_s']:.2f}",
            f"{r['predicted_s']:.2f}",
            f"{r['low_s']:.2f} to {r['high_s']:.2f}",
            f"{r['error']:+.0%}",
            f"{r['mfu']:.1%}",
            r["kind"],
        )
        for r in rows
    ]


def group_cells(groups: list[dict[str, Any]], key: str) -> list[tuple[str, ...]]:
    """The cells of the table by chip or by system, for people."""

    def percent(value: float | None, sign: str = "+") -> str:
        return "" if value is None else f"{value:{sign}.0%}"

    return [
        (
            c[key],
            str(c["rows"]),
            ", ".join(c["systems"] if key == "chip" else c["chips"]),
            percent(c["median_error"]),
            f"{c['mean_absolute_error']:.0%}",
            str(c["in_range"]),
            percent(c["left_out_error"]),
            percent(c["left_out_mean_absolute"], ""),
        )
        for c in groups
    ]


def describe_all(of: dict[str, Any]) -> str:
    """The claim over all rows in a sentence each."""
    return (
        f"All {of['rows']} rows (--data): mean of absolute errors {of['mean_absolute']:.1%}, {of['in_range']:.0%} in "
        f"range. With each row's system left out of the fit ({of['left_out_rows']} rows): "
        f"{of['left_out_mean_absolute']:.1%}, worst chip of three rows or more {of['worst_chip']}, "
        f"{of['worst_chip_mean_absolute']:.1%}. A TPU's rows are of one system a chip, which its share was set on."
    )


def together_lines(of: dict[str, Any]) -> list[str]:
    """Dense rows and rows with experts, by chip, in Markdown."""
    return [
        f"Dense rows and rows with experts together, {of['rows']}: mean of absolute errors {of['mean_absolute']:.1%}, "
        f"{of['in_range']:.0%} in range; worst chip of three rows or more {of['worst_chip']}, "
        f"{of['worst_chip_mean_absolute']:.1%}.",
        "",
        *markdown_table(CHIP_COLUMNS, group_cells(of["chips"], "chip")),
    ]


def describe_hbm(errors: dict[str, dict[str, float]]) -> str:
    """What other shares of the memory's bandwidth would do to the errors, all else fitted again."""
    each = "; ".join(
        f"{float(share):.0%}: {', '.join(f'{name} {mean:.1%}' for name, mean in means.items())}"
        for share, means in errors.items()
    )
    return (
        f"Shares of the memory's bandwidth, all else fitted again with each system left out of at most "
        f"{fit.MOST_COMPARED} rows of a system on a chip: mean of absolute errors with {each}."
    )


def print_table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    """Print a table to a terminal."""
    table = Table(*columns)
    for line in lines:
        table.add_row(*line)
    Console(width=150).print(table)


def expert_lines(result: dict[str, Any]) -> list[str]:
    """The tables of models with experts in Markdown."""
    rows = result["rows"]
    held = f"{result['held_rows']} rows, `held`, had no part in that: {result['held_mean_absolute']:.0%}"
    return [
        f"Models with experts: {len(rows)} rows of other systems: mean of absolute errors "
        f"{result['mean_absolute']:.1%}, {result['in_range']} in range. Fitted were a TPU's grouped products and its "
        "gathers, on the rows of v7, and the seconds that a host takes a block in Megatron-Bridge, on Qwen3 30B with "
        f"B200, and with an overlapped exchange on Qwen3 235B of 25.11. {held}, {result['held_in_range']} in range. "
        f"Of release 26.06, whose {result['last_rows']} rows came after each number was chosen and before the last "
        f"three terms, which have none: "
        f"{result['last_mean_absolute']:.1%}, {result['last_in_range']} in range.",
        "",
        *([*terms.describe_terms(result["terms"]), ""] if "terms" in result else []),
        *markdown_table(COLUMNS, table_cells(rows)),
        "",
        *markdown_table(CHIP_COLUMNS, group_cells(result["chips"], "chip")),
        "",
        *markdown_table(SYSTEM_COLUMNS, group_cells(result["systems"], "system")),
    ]


def write_step_times(result: dict[str, Any]) -> None:
    """Write results/step_times.json and .md."""
    summary = ", ".join(
        f"{kind}: median {e['median']:+.1%}, mean of absolute {e['mean_absolute']:.1%}, largest {e['largest']:.0%}"
        for kind, e in result["error"].items()
    )
    lines = [f"`{result['command']}`, {result['date']}. Expected over published, less one. {summary}.", ""]
    lines += markdown_table(COLUMNS, table_cells(result["rows"]))
    if "chips" in result:
        lines += ["", describe_all(result["all"]), ""]
        lines += [*markdown_table(CHIP_COLUMNS, group_cells(result["chips"], "chip")), ""]
        lines += markdown_table(SYSTEM_COLUMNS, group_cells(result["systems"], "system"))
        lines += ["", describe_hbm(result["hbm"])]
    lines += ["", *expert_lines(result["experts"])]
    lines += ["", *together_lines(result["together"])] if "together" in result else []
    write_result(RESULTS, "step_times", result, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
