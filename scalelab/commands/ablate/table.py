"""`scalelab ablate TABLE` and `SOURCE…`: judge others' runs, and print the verdicts."""

from typing import Any

from scalelab import api
from scalelab.api.laws.side_rows import FIELDS
from scalelab.api.laws.side_runs import RUN_FIELDS
from scalelab.commands.ablate import text
from scalelab.commands.ablate.options import is_table, parse_fixed
from scalelab.laws.read.columns import parse_columns


def judge_sources(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Judge the variants of a table or of folders of runs: (lines to print, JSON). BadInput for unusable ones."""
    more = {
        "target_flops": options.target_flops, "fix": parse_fixed(options.fix), "worth": options.worth,
        "next": options.next, "block": options.block, "comparable": options.comparable,
    }  # fmt: skip
    if is_table(options.sources):
        columns = parse_columns(options.columns, FIELDS)
        judged = api.judge_table(options.sources[0], options.baseline, columns=columns, **more)
    else:
        columns = parse_columns(options.columns, RUN_FIELDS)
        judged = api.judge_runs(options.sources, options.baseline, names=options.names, columns=columns, **more)
    lines = [line for each in judged.variants for line in ["", *text.describe_variant(each, judged.baseline)]]
    content = {"baseline": judged.baseline, "variants": judged.variants, "notes": judged.notes}
    return [*judged.notes, *lines][not judged.notes :], content
