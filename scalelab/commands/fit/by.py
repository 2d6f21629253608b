"""`scalelab fit --by=COLUMN`: one law for several groups of rows, and how the groups differ."""

import math
from collections.abc import Sequence
from typing import Any

from scalelab import api
from scalelab.cli.parser import align_columns
from scalelab.cli.progress import WorkProgress
from scalelab.commands.fit import text, trust_text
from scalelab.commands.fit.options import finished_words
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.fits.groups.group_fits import GroupFits
from scalelab.laws.fits.groups.joint_law import is_offset
from scalelab.laws.read import units
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.table import Table
from scalelab.laws.use.decision import Interval


def run_group_fit(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit a law to groups of rows: (lines for a person, the JSON object). BadInput if options contradict."""
    law = api.load_law(options.law or "chinchilla", options.hold, options.size)
    table = api.read_table(
        options.sources,
        law,
        columns=parse_columns(options.columns, known_fields(law)),
        n_convention=options.n_convention,
        where=options.where,
        finished=finished_words(options),
    )
    with WorkProgress() as bars, text.tell_reading(table.notes):
        fits = api.fit_groups(
            table,
            options.by,
            law,
            n_convention=options.n_convention,
            drop_top_loss=options.drop_top_loss,
            cluster=options.cluster or "auto",
            checkpoints=options.checkpoints or "auto",
            exponents=options.exponents or "shared",
            against=options.against,
            shared=tuple(options.shared.split(",")) if options.shared else (),
            objective=options.objective or "huber_log",
            delta=options.delta,
            bootstrap=options.bootstrap,
            seed=options.seed,
            target_flops=options.target_flops,
            level=options.level or INTERVAL_LEVEL,
            target_values=options.target_values,
            progress=bars.update,
        )
    findings = [*units.question_labels(table.columns), *fits.design]
    facts = {"sources": options.sources, "derived": table.derived, "left_out_by_where": table.left_out}
    facts |= {"columns": dict(table.columns), "read_as": list(table.notes)}
    lines = [*describe_groups(fits, table, options), *(finding.line for finding in findings)]
    names = {"row_names": [str(row.get("name", "")) for row in fits.kept]}
    return lines, facts | fits.to_json() | {"design": [finding.to_json() for finding in findings]} | names


def describe_groups(fits: GroupFits, table: Table, options: Any) -> list[str]:
    """Format the whole report of a fit of groups."""
    lines = [*table.notes, *_heading(fits, table), "", *align_columns(_param_rows(fits)), "", *_compute(fits)]
    lines += [trust_text.describe_certificate(each.to_json(), name) for name, each in fits.certificates.items()]
    lines.append(trust_text.describe_form_test(fits.form, [*fits.law.columns, fits.by], fits.joint.problem.points))
    if fits.misfit:
        lines.append(trust_text.describe_misfit(fits.misfit.to_json()))
    if fits.dependence:
        lines.append(trust_text.describe_dependence(fits.named_dependence()))
    if fits.draws:
        failed = "".join(f"; {number} failed: {reason}" for reason, number in fits.failed.items())
        lines.append(f"intervals: {fits.used} of {fits.requested} resamples (seed {fits.seed}){failed}")
    lines += [*_pooled(fits), *_support(fits)]
    if fits.excluded:
        lines.append(text.describe_exclusions(fits.excluded))
    if table.left_out:
        lines.append(f"left out by --where {' and '.join(map(repr, options.where))}: {table.left_out} rows")
    return lines


def _heading(fits: GroupFits, table: Table) -> list[str]:
    size = f", N: {table.n_convention}" if "N" in fits.law.columns else ""
    derived = f"; {table.derived}" if table.derived else ""
    own = [name for name in fits.law.params if name not in fits.shared]
    pooled = f", {', '.join(fits.pooled)} pooled" if fits.pooled else ""
    how = f"{', '.join(own)} of each group{pooled}; shared: {', '.join(fits.shared) or 'none'}"
    counts = ", ".join(f"{name} {count}" for name, count in zip(fits.names, fits.counts, strict=True))
    return [
        f"{fits.law.equation.rstrip('.')} by {fits.by!r}: {how}",
        f"{sum(fits.counts)} rows ({counts}){size}{derived}",
    ]


def _param_rows(fits: GroupFits) -> list[list[str]]:
    """Make a row for each parameter of each group; shared parameters get one row for all groups."""
    level, reference = f"{fits.level:.0%}", fits.reference
    rows = [["", fits.by, "fitted", level, f"beside {reference}", level]]
    for name in fits.law.params:
        for group in fits.names[:1] if name in fits.shared else fits.names:
            value, *ends = fits.interval(group, name)
            cells = [name, "all" if name in fits.shared else group, f"{value:.4g}", format_ends(ends)]
            if name not in fits.shared and group != reference:
                cells += _beside(fits, group, name)
            rows.append([*cells, *[""] * (6 - len(cells))])
    return rows if fits.draws else [[row[0], row[1], row[2], row[4]] for row in rows]


def _beside(fits: GroupFits, group: str, name: str) -> list[str]:
    """Compare a parameter with the reference group: the difference for exponents and additive terms, else the ratio."""
    both = fits.difference(group, name)
    if fits.law.params[name].how == "direct" or is_offset(fits.law, name):
        return [f"{both.difference.value:+.4g}", format_ends(both.difference[1:], "+")]
    return [f"{both.ratio.value:.4g} times", format_ends(both.ratio[1:])]


def format_ends(ends: Sequence[float], sign: str = "") -> str:
    """`0.56 to 0.67`; an infinite end reads "or more"; nothing without an interval."""
    low, high = ends
    if math.isnan(low) or math.isnan(high):
        return ""
    if math.isinf(high):
        return "never" if math.isinf(low) else f"{low:.4g} or more"
    return f"{low:{sign}.4g} to {high:{sign}.4g}"


def _compute(fits: GroupFits) -> list[str]:
    """Describe the compute that each group needs for the reference group's best loss."""
    if not fits.compute:
        return []
    level, lines = f"{fits.level:.0%}", list[str]()
    for C, row in fits.compute.items():
        how = "" if fits.law.columns == ("C",) else f", each group's best N and D where C = {fits.k:.4g} N D"
        lines.append(f"at {C:.4g} FLOPs{how}; compute for the loss of {fits.reference}:")
        cells = [["", fits.law.target, level, "compute", level]]
        for name, factor in row.items():
            same = [format_factor(factor.factor), format_ends(factor.factor[1:])]
            cells.append(
                [
                    name,
                    f"{factor.loss.value:.4g}",
                    format_ends(factor.loss[1:]),
                    *(["1 times", ""] if name == fits.reference else same),
                ]
            )
        lines += [*align_columns(cells if fits.draws else [[*line[:2], line[3]] for line in cells]), ""]
    return lines


def format_factor(factor: Interval) -> str:
    """Format a factor of compute as `0.61 times`; an infinite one says that no compute is enough."""
    if math.isnan(factor.value):
        return "no best size"
    return "never" if math.isinf(factor.value) else f"{factor.value:.3g} times"


def _pooled(fits: GroupFits) -> list[str]:
    """Describe pooling: each exponent's mean, its spread between groups, and how far each group moved."""
    lines = []
    for name, pooled in fits.pooled.items():
        moved = ", ".join(f"{group} {share:.0%}" for group, share in zip(fits.names, pooled.moved, strict=True))
        lines.append(
            f"pooled: {name} {pooled.mean:.4g} (error {pooled.mean_error:.2g}), between groups {pooled.between:.2g} "
            f"({format_ends(pooled.interval)}); moved to the mean: {moved}"
        )
    return lines


def _support(fits: GroupFits) -> list[str]:
    """Describe whether the data support separate exponents."""
    if fits.test is None:
        return [f"separate exponents: not tested: {fits.untested}"] if fits.untested else []
    test = fits.test
    head = (
        f"separate exponents: objective {test.lower_by:.1%} lower (by chance up to {test.by_chance:.1%}; "
        f"p = {test.p:.2g} of {test.tables} simulated tables)"
    )
    if not test.supported:
        return [f"{head}: the data do not ask for them"]
    pooled = " or pooled" if len(fits.names) > 2 else ""
    advice = f"; --exponents=separate{pooled}" if fits.exponents == "shared" else ""
    return [f"{head}: the data ask for them{advice}"]
