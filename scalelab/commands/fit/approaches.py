"""Approaches 1 and 2 of `scalelab fit` as lines: how the best N grows with compute, without a law of N and D."""

from collections.abc import Sequence
from typing import Any

from scalelab import api
from scalelab.cli.parser import align_columns
from scalelab.commands.fit import text
from scalelab.commands.fit.options import finished_words
from scalelab.errors import BadInput
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.table import Table
from scalelab.laws.use.envelope import Envelope
from scalelab.laws.use.isoflop import IsoFlop
from scalelab.laws.use.seed_noise import MeasuredNoise


def run_approach(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit by approach 1 or 2: (lines for a person, the JSON object). BadInput if no row can be used."""
    law = LAWS["chinchilla"]
    table = api.read_table(
        options.sources,
        law,
        columns=parse_columns(options.columns, known_fields(law)),
        n_convention=options.n_convention,
        where=options.where,
        finished=finished_words(options),
    )
    try:
        with text.tell_reading(table.notes):
            found = api.fit_approach(
                table,
                options.approach,
                n_convention=options.n_convention,
                drop_top_loss=options.drop_top_loss,
                target_flops=options.target_flops,
                method=options.method,
                cluster=options.cluster,
                seed_noise=options.seed_noise,
                bootstrap=options.bootstrap,
                seed=options.seed,
                level=options.level,
            )
    except api.NoRows as refusal:
        raise BadInput(
            f"none of {refusal.n_rows} rows can be used: {text.describe_exclusions(refusal.excluded)}"
        ) from None
    head = f"approach {options.approach}: {found.n_rows} rows, N: {table.n_convention}"
    lines = [*table.notes, head + (f"; {table.derived}" if table.derived else ""), *_describe(found, options)]
    lines += [text.describe_exclusions(found.excluded)] if found.excluded else []
    lines += [f"design: {finding.text}" for finding in found.findings]
    if found.allocations:
        lines += ["", f"best use of the FLOPs where C = {found.k:.4g} N D:", *align_columns(_rows(found.allocations))]
    return lines, _block(options, found, table)


def _describe(found: "api.ApproachFit", options: Any) -> list[str]:
    if isinstance(found.fit, Envelope):
        return _describe_envelope(found.fit, found.n_checkpoints)
    lines = _describe_isoflop(found.fit, found.noise)
    if options.figures:
        lines += ["", *(f"wrote {path}" for path in api.draw_fit(found, options.figures))]
    return lines


def _describe_envelope(envelope: Envelope, n_checkpoints: int) -> list[str]:
    lines = [
        f"{envelope.method} of {n_checkpoints} checkpoints: {len(envelope.frontier.C)} are the best at their compute"
    ]
    if envelope.edges:
        lines.append(
            f"left out: {envelope.edges} where the smallest or the largest size is the best; the best may lie beyond"
        )
    cells = [["", "fitted", f"{envelope.level:.0%} interval", ""]]
    for name, value, ends in (("a", envelope.a, envelope.a_interval), ("b", envelope.b, envelope.b_interval)):
        cells.append([name, f"{value:.4g}", text.format_span(ends), f"{'N' if name == 'a' else 'D'}_opt ~ C^{name}"])
    return [*lines, "", *align_columns(cells)]


def _describe_isoflop(isoflop: IsoFlop, noise: MeasuredNoise | None) -> list[str]:
    """Format IsoFLOP profiles: the best N at each budget, and a power law through these minima."""
    cells = [["budget", "sizes", "best N", "loss", ""]]
    for profile in isoflop.profiles:
        edge = "" if profile.interior else "not used: the minimum is at the edge of the sizes tried"
        cells.append([f"{profile.C:.4g}", str(profile.sizes), f"{profile.N:.4g}", f"{profile.loss:.4f}", edge])
    ends = ""
    if isoflop.interval:
        ends = f", {isoflop.level:.0%} interval {text.format_span(isoflop.interval)} (seed noise)"
    law_line = f"N_opt = {isoflop.coefficient:.4g} C^a, a = {isoflop.a:.4g}{ends}, through minima by {isoflop.method}"
    return ["", *align_columns(cells), "", law_line, *_describe_noise(noise)]


def _describe_noise(noise: MeasuredNoise | None) -> list[str]:
    """Describe the source of the seed noise in one line."""
    if noise is None:
        return []
    source = {
        "repeats": f"{noise.count} settings with repeated runs",
        "residuals": f"{noise.count} runs beside parabolas through three neighbouring sizes; no setting was repeated "
        "often enough",
    }[noise.source]
    return [f"seed noise: {noise.share:.2%} of the loss, from {source} ({noise.dof:.3g} degrees of freedom)"]


def _rows(allocations: Sequence[dict[str, float]]) -> list[list[str]]:
    return [["C", "N", "D"], *([f"{allocation[name]:.4g}" for name in "CND"] for allocation in allocations)]


def _block(options: Any, found: "api.ApproachFit", table: Table) -> dict[str, Any]:
    facts = {"sources": options.sources, "approach": options.approach, "derived": table.derived}
    facts |= {"columns": dict(table.columns), "read_as": list(table.notes)}
    by_budget = {f"{allocation['C']:g}": allocation for allocation in found.allocations}
    facts |= found.fit.to_json() | {"n_convention": table.n_convention, "allocation": by_budget}
    return facts | {
        "n_rows": found.n_rows,
        "excluded": found.excluded,
        "design": [each.to_json() for each in found.findings],
    }
