"""Approaches 1 and 2 of `scalelab fit`: how the best N grows with compute, estimated without a law of N and D."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.api.laws.fit_rows import numeric_columns, read_sources
from scalelab.cli.parser import align_columns
from scalelab.commands.fit import text
from scalelab.errors import BadInput
from scalelab.laws.design import design
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.fits.study import N_COLUMNS, Row, select_rows
from scalelab.laws.law.names import LAWS
from scalelab.laws.read import units
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.groups import SEED_NAMES
from scalelab.laws.read.table import Table
from scalelab.laws.use.envelope import Envelope, fit_envelope, training_curves
from scalelab.laws.use.isoflop import IsoFlop, fit_isoflop, group_budgets
from scalelab.laws.use.seed_noise import MeasuredNoise, measure_noise
from scalelab.record.records import read_metrics


def run_approach(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit by approach 1 or 2: (lines for a person, the JSON object). BadInput if no row can be used."""
    law = LAWS["chinchilla"]
    columns = parse_columns(options.columns, known_fields(law))
    table = read_sources(options.sources, law, columns, options.n_convention, options.where)
    size = N_COLUMNS[options.n_convention or "total"]
    rows, excluded = select_rows(table.rows, [size, "D", "C", "val_loss"], "val_loss", options.drop_top_loss)
    if not rows:
        raise BadInput(f"none of {len(table.rows)} rows can be used: {text.describe_exclusions(excluded)}")
    with text.tell_reading(table.notes):
        fit, fit_lines = (_first if options.approach == 1 else _second)(options, rows, size)
    k = float(np.median([row["C"] / (row[size] * row["D"]) for row in rows]))
    allocations = [_allocate(fit, C, k) for C in options.target_flops]
    head = f"approach {options.approach}: {len(rows)} rows, N: {table.n_convention}"
    lines = [*table.notes, head + (f"; {table.derived}" if table.derived else ""), *fit_lines]
    lines += [text.describe_exclusions(excluded)] if excluded else []
    design_findings = [*units.question_labels(table.columns), *_findings(options, rows, size)]
    lines += [f"design: {finding.text}" for finding in design_findings]
    if allocations:
        lines += ["", f"best use of the FLOPs where C = {k:.4g} N D:", *align_columns(_rows(allocations))]
    return lines, _block(options, fit, table, allocations) | {
        "n_rows": len(rows), "excluded": excluded, "design": [finding.to_json() for finding in design_findings],
    }  # fmt: skip


def _findings(options: Any, rows: Sequence[Row], size: str) -> list[Finding]:
    """Questions about units, and weaknesses of an IsoFLOP grid (approach 2 only)."""
    N, D, C, loss = (np.array([row[name] for row in rows], float) for name in (size, "D", "C", "val_loss"))
    questions = units.question_values({"N": N, "D": D}, loss, "loss", C)
    if options.approach == 1:
        return questions
    return [*questions, *design.row_findings(LAWS["chinchilla"], {"N": N, "D": D}, loss, C)]


def _first(options: Any, rows: Sequence[Row], size: str) -> tuple[Envelope, list[str]]:
    """Fit the lower envelope of training curves, from run folders or a table whose --cluster column names the run."""
    folders = [row for row in rows if "folder" in row and pathlib.Path(row["folder"]).is_dir()]
    if len(folders) == len(rows):
        checkpoints = training_curves(({**row, "N": row[size]}, read_metrics(row["folder"])) for row in rows)
    else:
        columns = numeric_columns(rows, options.n_convention or "total")
        if not options.cluster or any(options.cluster not in row for row in rows):
            raise BadInput(
                "--approach=1 follows each run through training: --cluster=COLUMN must name the run of a row"
            )
        checkpoints = {name: columns[name] for name in ("C", "N", "D", "loss")}
        checkpoints["run"] = np.array([str(row[options.cluster]) for row in rows])
    run, C, N, D, loss = (checkpoints[name] for name in ("run", "C", "N", "D", "loss"))
    method, count = options.method or "hull", options.bootstrap
    envelope = fit_envelope(run, C, N, D, loss, method, count, seed=options.seed)
    lines = [f"{envelope.method} of {len(C)} checkpoints: {len(envelope.frontier.C)} are the best at their compute"]
    if envelope.edges:
        lines.append(
            f"left out: {envelope.edges} where the smallest or the largest size is the best; the best may lie beyond"
        )
    cells = [["", "fitted", f"{envelope.level:.0%} interval", ""]]
    for name, value, ends in (("a", envelope.a, envelope.a_interval), ("b", envelope.b, envelope.b_interval)):
        cells.append([name, f"{value:.4g}", text.format_span(ends), f"{'N' if name == 'a' else 'D'}_opt ~ C^{name}"])
    return envelope, [*lines, "", *align_columns(cells)]


def _second(options: Any, rows: Sequence[Row], size: str) -> tuple[IsoFlop, list[str]]:
    """Fit IsoFLOP profiles: the best N at each budget, and a power law through these minima."""
    C, N, loss = (np.array([row[name] for row in rows], float) for name in ("C", size, "val_loss"))
    noise = _seed_noise(options, rows, C, N, loss)
    extra = {"resamples": options.bootstrap, "level": options.level or INTERVAL_LEVEL} if noise else {}
    isoflop = fit_isoflop(C, N, loss, options.method or "akima", noise, seed=options.seed, **extra)
    cells = [["budget", "sizes", "best N", "loss", ""]]
    for profile in isoflop.profiles:
        edge = "" if profile.interior else "not used: the minimum is at the edge of the sizes tried"
        cells.append([f"{profile.C:.4g}", str(profile.sizes), f"{profile.N:.4g}", f"{profile.loss:.4f}", edge])
    ends = ""
    if isoflop.interval:
        ends = f", {isoflop.level:.0%} interval {text.format_span(isoflop.interval)} (seed noise)"
    law_line = f"N_opt = {isoflop.coefficient:.4g} C^a, a = {isoflop.a:.4g}{ends}, through minima by {isoflop.method}"
    return isoflop, [
        "",
        *align_columns(cells),
        "",
        law_line,
        *_describe_noise(noise),
        *(_draw(options, isoflop, C, N, loss) if options.figures else []),
    ]


def _seed_noise(
    options: Any, rows: Sequence[Row], C: np.ndarray, N: np.ndarray, loss: np.ndarray
) -> MeasuredNoise | None:
    """The noise of one run, measured in the table, where it is asked for."""
    if not options.seed_noise:
        return None
    if options.bootstrap < 1:
        raise BadInput("--seed-noise draws noisy copies, and --bootstrap=0 gives none: ask for copies; 1000 is usual")
    name = next((name for name in SEED_NAMES if all(name in row for row in rows)), None)
    return measure_noise(group_budgets(C), N, loss, [str(row[name]) for row in rows] if name else None)


def _describe_noise(noise: MeasuredNoise | None) -> list[str]:
    """Where the seed noise comes from, in one line."""
    if noise is None:
        return []
    source = {
        "repeats": f"{noise.count} settings with repeated runs",
        "residuals": f"{noise.count} runs beside parabolas through three neighbouring sizes; no setting was repeated "
        "often enough",
    }[noise.source]
    return [f"seed noise: {noise.share:.2%} of the loss, from {source} ({noise.dof:.3g} degrees of freedom)"]


def _draw(options: Any, isoflop: IsoFlop, C: np.ndarray, N: np.ndarray, loss: np.ndarray) -> list[str]:
    from scalelab.report.figures.fitplots import write_isoflop_figure

    return ["", *(f"wrote {path}" for path in write_isoflop_figure(options.figures, isoflop, C, N, loss, "N"))]


def _allocate(fit: Envelope | IsoFlop, C: float, k: float) -> dict[str, float]:
    if not (np.isfinite(C) and C > 0):
        raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    N = float(fit.n_opt(C)) if isinstance(fit, IsoFlop) else fit.N_coefficient * C**fit.a
    return {"C": C, "N": N, "D": C / (k * N)}


def _rows(allocations: Sequence[dict[str, float]]) -> list[list[str]]:
    return [["C", "N", "D"], *([f"{allocation[name]:.4g}" for name in "CND"] for allocation in allocations)]


def _block(
    options: Any, fit: Envelope | IsoFlop, table: Table, allocations: Sequence[dict[str, float]]
) -> dict[str, Any]:
    facts = {"sources": options.sources, "approach": options.approach, "derived": table.derived}
    facts |= {"columns": dict(table.columns), "read_as": list(table.notes)}
    by_budget = {f"{allocation['C']:g}": allocation for allocation in allocations}
    return facts | fit.to_json() | {"n_convention": table.n_convention, "allocation": by_budget}
