"""`scalelab ablate TABLE`: judge others' runs, and print the verdicts."""

from typing import Any

from scalelab import api
from scalelab.api.laws.side_rows import FIELDS
from scalelab.commands.ablate import text
from scalelab.commands.ablate.options import parse_fixed
from scalelab.laws.read.columns import parse_columns


def judge_table(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Judge a table's variants: (lines to print, JSON). BadInput for an unusable table."""
    judged = api.judge_table(
        options.table,
        options.baseline,
        target_flops=options.target_flops,
        fix=parse_fixed(options.fix),
        worth=options.worth,
        next=options.next,
        columns=parse_columns(options.columns, FIELDS),
        block=options.block,
        comparable=options.comparable,
    )
    lines = [line for each in judged.variants for line in ["", *text.describe_variant(each, options.baseline)]]
    content = {"baseline": options.baseline, "variants": judged.variants, "notes": judged.notes}
    return [*judged.notes, *lines][not judged.notes :], content
