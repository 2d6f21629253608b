"""Approaches 1 and 2 of `scalelab fit`: how the best N grows with compute, read off runs without a law of N and D."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.cli.parser import align_columns
from scalelab.commands.fit import text
from scalelab.commands.fit.rows import numeric_columns, read_sources
from scalelab.errors import BadInput
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.study import N_COLUMNS, Row, select_rows
from scalelab.laws.read.table import Table, known_fields, parse_columns
from scalelab.laws.trust import design
from scalelab.laws.use.envelope import Envelope, fit_envelope, training_curves
from scalelab.laws.use.isoflop import IsoFlop, SeedNoise, fit_isoflop
from scalelab.records import read_metrics


def run_approach(arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """(lines for a person, the JSON object)."""
    law = LAWS["chinchilla"]
    columns = parse_columns(arguments.columns, known_fields(law))
    table = read_sources(arguments.sources, law, columns, arguments.n, arguments.where)
    size = N_COLUMNS[arguments.n or "total"]
    kept, excluded = select_rows(table.rows, [size, "D", "C", "val_loss"], "val_loss", arguments.drop_top_loss)
    if not kept:
        raise BadInput(f"none of {len(table.rows)} rows can be used: {text.describe_exclusions(excluded)}")
    found, said = (_first if arguments.approach == 1 else _second)(arguments, kept, size)
    k = float(np.median([row["C"] / (row[size] * row["D"]) for row in kept]))
    goals = [_goal(found, C, k) for C in arguments.target_flops]
    head = f"approach {arguments.approach}: {len(kept)} rows, N: {table.n_convention}"
    lines = [head + (f"; {table.derived}" if table.derived else ""), *said]
    lines += [text.describe_exclusions(excluded)] if excluded else []
    findings = _findings(arguments, kept, size)
    lines += [f"design: {finding.text}" for finding in findings]
    if goals:
        lines += ["", f"best use of the FLOPs where C = {k:.4g} N D:", *align_columns(_rows(goals))]
    return lines, _block(arguments, found, table, goals) | {
        "n_rows": len(kept), "excluded": excluded, "design": [finding.to_json() for finding in findings],
    }  # fmt: skip


def _findings(arguments: Any, kept: Sequence[Row], size: str) -> list[design.Finding]:
    """What is weak about an IsoFLOP grid."""
    if arguments.approach == 1:
        return []
    N, D, C, loss = (np.array([row[name] for row in kept], float) for name in (size, "D", "C", "val_loss"))
    return design.row_findings(LAWS["chinchilla"], {"N": N, "D": D}, loss, C)


def _first(arguments: Any, kept: Sequence[Row], size: str) -> tuple[Envelope, list[str]]:
    """The lower envelope of training curves: of run folders, or of a table whose --cluster column names the run."""
    folders = [row for row in kept if "folder" in row and pathlib.Path(row["folder"]).is_dir()]
    if len(folders) == len(kept):
        checkpoints = training_curves(({**row, "N": row[size]}, read_metrics(row["folder"])) for row in kept)
    else:
        known = numeric_columns(kept, arguments.n or "total")
        if not arguments.cluster or any(arguments.cluster not in row for row in kept):
            raise BadInput(
                "--approach=1 follows each run along its training: --cluster=COLUMN must name the run of a row"
            )
        checkpoints = {name: known[name] for name in ("C", "N", "D", "loss")}
        checkpoints["run"] = np.array([str(row[arguments.cluster]) for row in kept])
    run, C, N, D, loss = (checkpoints[name] for name in ("run", "C", "N", "D", "loss"))
    method, count = arguments.method or "hull", arguments.bootstrap
    found = fit_envelope(run, C, N, D, loss, method, count, seed=arguments.seed)
    said = [f"{found.method} of {len(C)} checkpoints: {len(found.frontier.C)} are the best at their compute"]
    if found.edges:
        said.append(f"left out: {found.edges} held by the smallest or the largest size; the best may lie beyond")
    rows = [["", "fitted", f"{found.level:.0%} interval", ""]]
    for name, value, ends in (("a", found.a, found.a_interval), ("b", found.b, found.b_interval)):
        rows.append([name, f"{value:.4g}", text.format_span(ends), f"{'N' if name == 'a' else 'D'}_opt ~ C^{name}"])
    return found, [*said, "", *align_columns(rows)]


def _second(arguments: Any, kept: Sequence[Row], size: str) -> tuple[IsoFlop, list[str]]:
    """IsoFLOP profiles."""
    C, N, loss = (np.array([row[name] for row in kept], float) for name in ("C", size, "val_loss"))
    noise = SeedNoise() if arguments.seed_noise else None
    resamples = {"resamples": arguments.bootstrap} if noise else {}
    found = fit_isoflop(C, N, loss, arguments.method or "akima", noise, seed=arguments.seed, **resamples)
    rows = [["budget", "sizes", "best N", "loss", ""]]
    for profile in found.profiles:
        edge = "" if profile.interior else "not used: the minimum is at the edge of the sizes tried"
        rows.append([f"{profile.C:.4g}", str(profile.sizes), f"{profile.N:.4g}", f"{profile.loss:.4f}", edge])
    ends = f", {found.level:.0%} interval {text.format_span(found.interval)} (seed noise)" if found.interval else ""
    said = f"N_opt = {found.coefficient:.4g} C^a, a = {found.a:.4g}{ends}, through minima by {found.method}"
    return found, [
        "",
        *align_columns(rows),
        "",
        said,
        *(_drawn(arguments, found, C, N, loss) if arguments.plot else []),
    ]


def _drawn(arguments: Any, found: IsoFlop, C: np.ndarray, N: np.ndarray, loss: np.ndarray) -> list[str]:
    from scalelab.report.figures.fitplots import write_isoflop_figure

    return ["", *(f"wrote {path}" for path in write_isoflop_figure(arguments.plot, found, C, N, loss, "N"))]


def _goal(found: Envelope | IsoFlop, C: float, k: float) -> dict[str, float]:
    if not (np.isfinite(C) and C > 0):
        raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    N = float(found.n_opt(C)) if isinstance(found, IsoFlop) else found.N_coefficient * C**found.a
    return {"C": C, "N": N, "D": C / (k * N)}


def _rows(goals: Sequence[dict[str, float]]) -> list[list[str]]:
    return [["C", "N", "D"], *([f"{goal[name]:.4g}" for name in "CND"] for goal in goals)]


def _block(
    arguments: Any, found: Envelope | IsoFlop, table: Table, goals: Sequence[dict[str, float]]
) -> dict[str, Any]:
    read = {"sources": arguments.sources, "approach": arguments.approach, "derived": table.derived}
    return (
        read | found.to_json() | {"n_convention": table.n_convention, "allocation": {f"{g['C']:g}": g for g in goals}}
    )
