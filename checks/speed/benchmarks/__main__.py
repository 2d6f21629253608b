"""python -m checks.speed.benchmarks [--only=PART] [--rounds=N] [--keep] [--json[=PATH]]

PART: step, optimizers, packing, startup, laws, fits, checkpoints, compile, data; and peers, which only runs by name.

Measure how fast scalelab is, as ratios within one run, medians after a warm-up: its training step over a bare pure-JAX
step with equal arithmetic, a step under every optimizer over one under AdamW, eight packed trials over a bare loop, a
warm start over a cold one, compilation under FSDP x tensor parallelism over that on one device, a checkpoint over the
raw disk; fits and their resamples over scipy's, and whole fit commands, in CPU seconds of one core; batches read over
a bare memmap, and `scalelab prepare` on all cores over one; a step of peers (torch.compile's GPT-2, where torch is
installed, and a Linen decoder like nanodo's) over ours, 20 minutes at --rounds=9. Without peers about a quarter of an
hour on two CPU cores; leave the machine alone meanwhile. --keep stores the results in
checks/results/benchmarks.json, each part with its machine and date; parts that were not measured keep their old
results.

    python -m checks.speed.benchmarks --rounds=3
"""

import datetime
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from checks.shared import command_line
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.shared import describe_machine
from scalelab.record import records

RESULTS = pathlib.Path(__file__).parents[2] / "results" / "benchmarks.json"
PART_NAMES = ("step", "optimizers", "packing", "startup", "laws", "fits", "checkpoints", "compile", "data")
NAMED_PARTS = ("peers",)  # measured only where --only names them
Cells = tuple[str, str, str, str, str]


def main(argv: list[str]) -> int:
    """Exit code 0, or 2 for bad input."""
    return guarded("benchmarks", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.benchmarks", __doc__)
    parser.add_argument("--only", metavar="PART", help=f"one part: {', '.join(PART_NAMES + NAMED_PARTS)}")
    parser.add_argument("--keep", action="store_true", help="into checks/results/benchmarks.json; other parts stay")
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="timed rounds of each contender (default: 7)"
    )
    options = parser.parse_args(argv)
    if options.only and options.only not in PART_NAMES + NAMED_PARTS:
        raise BadInput(f"--only={options.only}: no such part{nearest_hint(options.only, PART_NAMES + NAMED_PARTS)}")
    if options.rounds < 1:
        raise BadInput(f"--rounds={options.rounds}: at least 1")
    from checks.speed.benchmarks import checkpoints, compiling, data, law_commands, laws, packing, startup
    from checks.speed.benchmarks.steps import optimizers, peers, step

    result: dict[str, Any] = {"machine": describe_machine(), "date": str(datetime.date.today())}
    few = max(1, options.rounds // 2)  # rounds of parts that take half a minute each
    parts = {
        "step": lambda: step.measure_step_rows(options.rounds),
        "optimizers": lambda: optimizers.measure_optimizers(few),
        "packing": lambda: packing.measure_packing(few),
        "startup": lambda: startup.measure_startup(few),
        "checkpoints": lambda: checkpoints.measure_checkpoints(options.rounds),
        "laws": lambda: laws.measure_laws(options.rounds),
        "fits": law_commands.measure_law_commands,
        "compile": lambda: compiling.measure_compilation(few),
        "data": lambda: data.measure_data(options.rounds),
        "peers": lambda: peers.measure_peer_rows(options.rounds),
    }
    for name in [options.only] if options.only else PART_NAMES:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        result[name] = parts[name]()
        if options.keep:
            store_part(name, result, options.rounds)
    if options.json != "-":
        print_table(result)
    emit_json(result, options.json)
    return 0


def store_part(name: str, result: dict[str, Any], rounds: int) -> None:
    """Store one part in RESULTS, with the machine and date of its measurement."""
    stored = records.read_json(RESULTS)
    measured = {"machine": result["machine"], "date": result["date"], "rounds": rounds}
    stored["measured"] = stored.get("measured", {}) | {name: measured}
    records.write_json(RESULTS, stored | {name: result[name]})


def print_table(result: dict[str, Any]) -> None:
    """Print all parts as one table."""
    columns = ("what", "scalelab", "against", "ratio (lowest to highest)", "goal")
    table = Table(*columns, title=result["machine"], caption=result["date"])
    for name, rows in PART_ROWS.items():
        for cells in rows(result[name]) if name in result else ():
            table.add_row(*cells)
    Console(width=160).print(table)


def _step_rows(rows: list[dict[str, Any]]) -> list[Cells]:
    measured = []
    for row in rows:
        ours, bare = (f"{row[f'{whose}_tokens_per_s']:,.0f} tokens/s" for whose in ("scalelab", "bare"))
        against = f"bare step: {bare}, {row['bare_share_of_peak']:.0%} of {row['peak_gflops']:.0f} GFLOP/s"
        value = _ratio(row) if row["ratio"] is not None else "none: the bare step is under a quarter of the peak"
        measured.append((f"step, vocab {row['vocab']:,}", ours, against, value, "at least 0.97"))
    return measured


def _optimizer_rows(rows: list[dict[str, Any]]) -> list[Cells]:
    return [
        (
            f"step under {row['optimizer']}",
            f"{row['ms_a_step']:.0f} ms",
            f"adamw; by added FLOPs {row['predicted']:.2f}",
            f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"at most {row['goal']}" if row["goal"] else "",
        )
        for row in rows
    ]


def _peer_rows(rows: list[dict[str, Any]]) -> list[Cells]:
    goals = {("torch", 256): "at least 1.05", ("linen", 32_768): "at least 1.3"}
    return [
        (
            f"step, vocab {row['vocab']:,}, against {name}",
            *_peer_cells(row["peers"]["scalelab"], peer),
            goals.get((name, row["vocab"]), ""),
        )
        for row in rows
        for name, peer in row["peers"].items()
        if name != "scalelab"
    ]


def _peer_cells(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[str, str, str]:
    if "left_out" in peer:
        return f"{ours['ms'][0]:.0f} ms", f"left out: {peer['left_out']}", ""
    middle, low, high = peer["time_over_ours"]
    return f"{ours['ms'][0]:.0f} ms", f"{peer['ms'][0]:.0f} ms", f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _packing_rows(row: dict[str, Any]) -> list[Cells]:
    packed, processes = f"{row['packed_s']:.1f} s", f"8 processes: {row['processes_s']:.1f} s"
    return [
        ("8 trials packed", packed, f"bare loop: {row['bare_s']:.1f} s", _ratio(row), "at most 1.15"),
        ("", packed, processes, f"{row['over_processes']:.2f}", ""),
    ]


def _startup_rows(row: dict[str, Any]) -> list[Cells]:
    cold, warm = f"cold: {row['cold_s']:.1f} s", f"{row['warm_s']:.1f} s"
    return [("first step, warm cache", warm, cold, _ratio(row), "at most 0.60")]


def _compile_rows(row: dict[str, Any]) -> list[Cells]:
    mesh = f"{row['mesh_s']:.1f} s (XLA {row['mesh_xla_s']:.1f})"
    one = f"one device: {row['one_s']:.1f} s (XLA {row['one_xla_s']:.1f})"
    return [("compilation, FSDP x tensor", mesh, one, _ratio(row), "at most 1.50")]


def _laws_rows(row: dict[str, Any]) -> list[Cells]:
    """Rows of fits in CPU seconds; the references' times are extrapolated from samples."""
    grown, starts, draws = row["growth"], row["sampled_starts"], row["sampled_resamples"]
    above = row["scipy_median_excess"]
    return [
        ("exact fit, 240 points", f"{row['fit_s'] * 1e3:.0f} ms",
            f"scipy, 4,500 starts ({starts} run): {row['grid_s']:.0f} s",
         f"{row['fit_ratio']:,.0f}", "at least 1,000"),
        ("4,000 resamples", f"{row['bootstrap_s']:.1f} s",
         f"scipy, one start ({draws} run), {above:.1%} too high: {row['scipy_bootstrap_s']:.1f} s",
         f"{row['scipy_ratio']:.1f}", "at least 10"),
        ("", "", f"the same, converged: {row['tight_bootstrap_s']:.0f} s", f"{row['tight_ratio']:.0f}", "at least 10"),
        ("10 x the resamples, the rows", "", "", f"{grown['resamples_10x']:.1f}, {grown['rows_10x']:.1f}",
            "about 10, no more"),
        ("first fit of a new process", f"{row['fresh_s']:.1f} s", "", "", "under 5 s"),
    ]  # fmt: skip


def _fit_rows(rows: list[dict[str, Any]]) -> list[Cells]:
    """Rows of whole fit commands."""
    return [
        (
            row["name"],
            f"{row['cpu_s']:.1f} CPU s, {row['peak_mib']:,.0f} MiB",
            "",
            "",
            f"at most {row['most_s']:.0f} s, {row['most_gib']:.0f} GiB",
        )
        for row in rows
    ]


def _checkpoint_rows(row: dict[str, Any]) -> list[Cells]:
    rows: list[Cells] = []
    for what, raw in (("save", "write"), ("restore", "read")):
        low, high = row[f"{what}_ratio_range"]
        shares = f"Orbax {row[f'{what}_orbax_share']:.0%}, hashing and commit {row[f'{what}_hash_share']:.0%}"
        rate, disk = row["bytes"] / row[f"{what}_s"] / 1e6, row["bytes"] / row[f"raw_{raw}_s"] / 1e6
        ratio = f"{row[f'{what}_ratio']:.2f} ({low:.2f} to {high:.2f})"
        ours, against = f"{rate:,.0f} MB/s ({shares})", f"raw {raw}: {disk:,.0f} MB/s"
        rows.append((f"{what} 100 M fp32 numbers", ours, against, ratio, "at least 0.25"))
    blocked = f"{row['blocked_share']:.1%} of the save"
    return [
        *rows,
        ("  step held up", f"{row['blocked_s'] * 1e3:.0f} ms", f"save: {row['save_s']:.2f} s", blocked, "at most 15 %"),
    ]


def _data_rows(row: dict[str, Any]) -> list[Cells]:
    (low, high), (slow, fast) = row["read_ratio_range"], row["speedup_range"]
    least, most = row["mixed_ratio_range"]
    cores = row["cores"]
    return [
        (
            "batches of 256 tokens a sequence",
            f"{row['read_tokens_per_s'] / 1e6:,.0f} M tokens/s",
            f"bare memmap: {row['memmap_tokens_per_s'] / 1e6:,.0f} M tokens/s",
            f"{row['read_ratio']:.2f} ({low:.2f} to {high:.2f})",
            "at least 20 M tokens/s",
        ),
        (
            "  of four capped sources, 16 sequences a batch",
            f"{row['mixed_tokens_per_s'] / 1e6:,.0f} M tokens/s",
            "the same",
            f"{row['mixed_ratio']:.2f} ({least:.2f} to {most:.2f})",
            "at least 20 M tokens/s",
        ),
        (
            f"prepare, {cores} workers, {row['cpu_ratio']:.2f} x the CPU time",
            f"{row['all_bytes_per_s'] / 1e6:.1f} MB/s",
            f"one worker: {row['one_bytes_per_s'] / 1e6:.1f} MB/s",
            f"{row['speedup']:.2f} ({slow:.2f} to {fast:.2f})",
            f"at least {0.8 * cores:.1f}",
        ),
    ]


def _ratio(row: dict[str, Any]) -> str:
    low, high = row["ratio_range"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


PART_ROWS: dict[str, Callable[[Any], list[Cells]]] = {
    "step": _step_rows, "optimizers": _optimizer_rows, "packing": _packing_rows, "startup": _startup_rows,
    "compile": _compile_rows, "laws": _laws_rows, "fits": _fit_rows, "checkpoints": _checkpoint_rows,
    "data": _data_rows, "peers": _peer_rows,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
