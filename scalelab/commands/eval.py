"""scalelab eval RUN[@STEP] [--data=DIR] [--tasks=A.jsonl,B.jsonl] [--ema | --average=K]

Score a run's weights: the loss on its own validation split, on the split of a prepared folder (--data), or on other
data (--config.data.KEY=VALUE), for each source, with standard errors over sequences; and tasks in the format of
docs/tasks.md: multiple choice and cloze, by likelihood. The headline `acc` compares choices by nats per byte.

Scores are written to RUN/evaluations.jsonl, one line for each (step, weights, set); running the command again replaces
its lines. Scores of a run's last step are columns of `scalelab runs`, named SET_METRIC (with the prefix ema_ or meanK_
for other weights), and `scalelab fit RUNS --law=downstream --columns=error=SET_error` fits a law to them.

Runs on one device, in the run's precision. Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.

    scalelab eval runs/mine --tasks=keywords.jsonl
"""

from scalelab import api
from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json, print_status, whole_number
from scalelab.cli.progress import WorkProgress
from scalelab.config import split_overrides
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Score, store and print; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("eval", __doc__)
    add_weights_options(parser)
    parser.add_argument("--data", metavar="DIR", help="a prepared folder to use instead of the run's own data")
    parser.add_argument("--tasks", metavar="FILES", default="", help="task files (JSON lines), separated by commas")
    parser.add_argument(
        "--sequences",
        type=whole_number,
        default=1000,
        metavar="N",
        help="at most N of each source; 0: all (default 1000)",
    )
    options = parser.parse_args(rest)
    if options.sequences < 0:
        raise BadInput(f"--sequences={options.sequences} is not a number of sequences; 0 means all")
    with WorkProgress() as bars:
        scored = api.evaluate(
            options.run,
            data=options.data,
            tasks=[*filter(None, options.tasks.split(","))],
            overrides=overrides,
            sequences=options.sequences,
            ema=options.ema,
            average=options.average,
            progress=bars.update,
        )
    if scored.not_written:
        print_status(f"not written to evaluations.jsonl: {scored.not_written}")
    if options.json != "-":
        print("\n".join([describe_weights(scored.origin), *map(format_evaluation, scored.rows)]))
        for name in scored.replaced:
            print(f"  {name}: replaced the scores of a set that had this name and other content")
    emit_json({"origin": scored.origin, "evaluations": scored.rows, "replaced": scored.replaced}, options.json)
    return 0


def format_evaluation(row: dict) -> str:
    """Format one row of evaluations.jsonl as text."""
    metrics = row["metrics"]
    if row["kind"] == "data":
        bound = "at least " if row.get("bpb_bound") == "lower" else ""  # the tokenizer lost text
        return (
            f"  {row['set']}: {metrics['loss']:.4f}{_se(metrics['loss_se'], 4)} nats/token, "
            f"{bound}{metrics['bpb']:.4f}{_se(metrics['bpb_se'], 4)} bits/byte; "
            f"{metrics['sequences']:,} of {metrics['available']:,} sequences, {metrics['tokens']:,} tokens"
        )
    accuracies = ""
    if "chance" in metrics:
        token, raw = metrics["acc_token"], metrics["acc_raw"]
        accuracies = f" (per token {token:.3f}, raw {raw:.3f}; chance {metrics['chance']:.3f})"
    truncated = f"; {metrics['cut']} lost the beginning of their context" if metrics["cut"] else ""
    return (
        f"  {row['set']}: {'accuracy' if accuracies else 'completed'} "
        f"{metrics['acc']:.3f}{_se(metrics['acc_se'], 3)}{accuracies}, p_correct {metrics['p_correct']:.3f}, "
        f"{metrics['bpb']:.3f} bits/byte of the right text; {metrics['items']} items{truncated}"
    )


def _se(value: float | None, digits: int) -> str:
    return "" if value is None else f" ± {value:.{digits}f}"
