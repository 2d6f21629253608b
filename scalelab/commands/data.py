"""scalelab data show DIR|RUN@STEP [--step=N] · scalelab data stats DIR|RUN

show    print the rows that a step reads: source and position of each, where its documents begin and end, and how many
        targets are masked (data.documents=mask). RUN@STEP reads a run's own batch; of a prepared folder the batches are
        those of --config and --config.group.key=value, else of the defaults
stats   print what a corpus holds by source and split: documents, tokens, bytes a token, lengths beside the sequence
        length, copies, validation documents that stand in the training text; with a run, or with --config or
        --config.group.key=value, the epochs by source of that run

--out=PAGE.html writes the same as a page. Steps count from 1, as in metrics.jsonl.

Exit code: 0 done, 2 bad input.

    scalelab data stats prepared --config.model.seq_len=512
"""

from scalelab import api
from scalelab.cli.parser import Parser, config_path, emit_json, print_status, print_table
from scalelab.config import split_overrides
from scalelab.errors import BadInput
from scalelab.untrusted.text import escape_text

MOST_ROWS = 32  # printed; --json and --out have all


def main(argv: list[str]) -> int:
    """Run one action; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("data", __doc__)
    parser.add_argument("action", choices=["show", "stats"], help="what to do")
    parser.add_argument("source", metavar="DIR|RUN@STEP", help="a prepared folder, or a run's")
    parser.add_argument("--step", type=int, metavar="N", help="show: the step, from 1 on; default: 1")
    parser.add_argument("--config", type=config_path, metavar="FILE", help="the config of a planned run")
    parser.add_argument("--out", metavar="PAGE.html", help="write a page, too")
    options = parser.parse_args(rest)
    if options.step is not None and options.action == "stats":
        raise BadInput("--step goes with `data show`")
    shown: api.DataShown | api.DataStats
    if options.action == "show":
        shown = api.data_show(options.source, config=options.config, overrides=overrides, step=options.step)
        content = shown._asdict() | {"rows": [_row_facts(row) for row in shown.rows]}
    else:
        shown = api.data_stats(options.source, config=options.config, overrides=overrides)
        content = shown._asdict() | {"splits": [row._asdict() for row in shown.splits]}
    if options.json != "-":
        _print_rows(shown) if isinstance(shown, api.DataShown) else _print_stats(shown)
    if options.out:
        print_status(f"wrote {api.draw_data(shown, options.out)}")
    emit_json(content, options.json)
    return 0


def _row_facts(row: "api.Row") -> dict[str, object]:
    return row._asdict() | {"documents": [document._asdict() for document in row.documents]}


def _print_rows(shown: "api.DataShown") -> None:
    print(f"step {shown.step}: {len(shown.rows)} rows of {shown.seq_len:,} targets, data.documents={shown.documents}")
    cells = []
    for row in shown.rows[:MOST_ROWS]:
        place = f"{row.source}/{row.shard}@{row.token}"
        for i, document in enumerate(row.documents):
            before = f"+{document.offset}" if document.offset else ""
            stretch = f"{document.start}..{document.stop - 1}"
            first = (str(row.row), place, str(len(row.masked))) if i == 0 else ("", "", "")
            end = "ends" if document.ends else "goes on"
            cells.append([*first, f"{document.document}{before}", stretch, end, escape_text(document.text)])
    print_table(("row", "place", "masked", "document", "tokens", "", "text"), cells)
    if len(shown.rows) > MOST_ROWS:
        print(f"{len(shown.rows) - MOST_ROWS} more rows: --json and --out have all")


def _print_stats(stats: "api.DataStats") -> None:
    print(f"{stats.folder}: fingerprint {stats.fingerprint}; sequences of {stats.seq_len:,} tokens")
    cells = [
        [
            row.source, row.split, f"{row.documents:,}", f"{row.tokens:,}", f"{row.targets:,}",
            f"{row.bytes_per_token:.3f}",
            " ".join(f"{length:,}" for length in row.lengths), f"{row.longer:.0%} ({row.longer_tokens:.0%})",
            f"{row.windows:,}", _count(row.copies), _count(row.leaks),
        ]
        for row in stats.splits
    ]  # fmt: skip
    print_table(
        ("source", "split", "documents", "tokens", "predicted", "bytes/token", "lengths 0 10 50 90 100 %",
         "longer (their tokens)", "sequences", "copies", "in training"), cells
    )  # fmt: skip
    for line in stats.epochs:
        print(f"{escape_text(line['source'])}: {line['tokens']:,} tokens are read, {line['epochs']:.3g} epochs")
    if stats.lossy:
        print("the tokenizer loses text: bits per byte on these data are a lower bound")


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
