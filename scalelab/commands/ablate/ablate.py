"""scalelab ablate --baseline=A.py --variant=B.py [--variant=C.py …] --budgets=C,C,… --seeds=K --workdir=DIR
scalelab ablate TABLE --baseline=NAME [--target-flops=C] [--worth=M] [--columns=side=…,loss=…] [--block=COLUMN]
scalelab ablate SOURCE SOURCE… [--baseline=NAME] | SOURCE --columns=side=KEY --baseline=NAME

Does a change hold at scale? The answer is a multiplier m: with m times the compute the baseline is as good as the
variant. m is given at every budget, as a function of scale, and at --target-flops, in FLOPs, tokens and time, with
90 % intervals, and it ends in a verdict: adopt (m is above --worth, 1.02 by default), reject (below 1/1.02), no
difference that matters (between these) or undecided. At a budget that was run, the verdict is that of its own runs;
elsewhere, that of a curve through all. Several variants are judged together: their intervals hold for all at once.

With configs, both sides are trained on a ladder of budgets (FLOPs). Each side's learning rate is tuned with the same
number of trials at all budgets but the largest, and carried there by a law. The multiplier at the largest budget and
the criterion are on disk before it starts. Run the command again to resume; more --seeds are added to those that are
there. A variant is a config file or pkg.mod:fn that returns a config; --config.group.key=value sets a value on all
sides.

With a TABLE (.csv, .tsv, .jsonl or .parquet), runs of others are judged: a row a run, and a side each. A row whose loss
is nan or empty is a run that diverged. A column that varies within a budget and that both sides share (a width, a data
ratio) is found, or named by --block, and runs are paired within it. What one side lacks is left out and said. Where N
and tokens vary each on its own, the baseline's law is that of a surface in both. Losses that fall towards a floor of
their own, as with another tokenizer, are asked about; --comparable says that all are measured alike.

With SOURCEs, each is a side: a folder of runs, of this or another program (docs/foreign.md), as in `scalelab ablate
theirs/adamw theirs/muon`. Or one folder holds all, and a setting tells the sides: --columns=side=optimizer. Budgets are
the runs' FLOPs, else 6 N D; N, D and the loss are found as `scalelab runs` finds them, or named by --columns.

Exit code: 0 done (whatever the verdict), 1 a run failed, 2 bad input, 75 stopped by a signal after saving.

    scalelab ablate runs.csv --baseline=adamw --target-flops=1e21
"""

from typing import Any

from scalelab.cli.parser import emit_json
from scalelab.commands.ablate.options import is_table, make_parser
from scalelab.config import split_overrides
from scalelab.errors import BadInput

TABLE_OPTIONS = ("columns", "block", "comparable")
STUDY_OPTIONS = (
    "variant", "budgets", "sizes", "seeds", "workdir", "tune", "untuned", "rule", "tokens_per_param", "plan", "noise",
    "correlation", "status", "take_over",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Judge a table, or run, plan or show a study; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = make_parser(__doc__)
    options = parser.parse_args(rest)
    _refuse_idle(options, {name: parser.get_default(name) for name in vars(options)}, overrides)
    from scalelab.commands.ablate import study, table

    if options.sources:
        lines, result = table.judge_sources(options)
        code = 0
    else:
        code, lines, result = study.run(options, overrides)
    if options.json != "-":
        print("\n".join(lines))
    emit_json(result, options.json)
    return code


def _refuse_idle(options: Any, defaults: dict[str, Any], overrides: dict[str, str]) -> None:
    """Raise BadInput for an option that this form of the command would ignore, or for one that it needs."""
    changed = {name for name, value in defaults.items() if getattr(options, name) != value}
    idle = STUDY_OPTIONS if options.sources else TABLE_OPTIONS
    for name in (name for name in idle if name in changed):
        where = "with a table or runs" if options.sources else "without a table"
        raise BadInput(f"--{name.replace('_', '-')} has no effect {where}: leave it out")
    if options.sources and overrides:
        raise BadInput(f"--config.{next(iter(overrides))} has no effect with a table or runs: leave it out")
    needed = (("baseline",) if is_table(options.sources) else ()) if options.sources else ("baseline", "workdir")
    if not options.sources and not options.status and not options.next:
        needed = ("baseline", "variant", "budgets", *(() if options.plan else ("workdir",)))
    for name in needed if not options.status or options.sources else ("workdir",):
        if not getattr(options, name):
            raise BadInput(f"--{name} is needed (`scalelab ablate --help` shows both ways to call it)")
