"""scalelab eval RUN[@STEP] [--data=DIR] [--tasks=A.jsonl,B.jsonl] [--ema | --average=K]

Score a run's weights: the loss on its own validation split, or on that of any prepared folder (--data) or other data
(--config.data.KEY=VALUE), of each source where there are several, with standard errors over sequences; and tasks, in the
format of docs/tasks.md: multiple choice and cloze, by likelihood. The headline `acc` compares choices by nats a byte.

What is scored is kept in RUN/evaluations.jsonl, one line for each (step, weights, set): the same command again replaces its
own. At a run's last step they are columns of `scalelab runs`, named SET_METRIC (with ema_ or meanK_ before it for other
weights), and `scalelab fit RUNS --law=downstream --columns=error=SET_error` fits a law to them.

On one device, in the precision of the run. Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.
"""

from scalelab import records
from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json
from scalelab.cli.progress import WorkProgress
from scalelab.config import split_overrides
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Score, keep and print; the exit code is as the module says."""
    overrides, rest = split_overrides(argv)
    parser = Parser("eval", __doc__)
    add_weights_options(parser)
    parser.add_argument("--data", metavar="DIR", help="a prepared folder in place of the run's own data")
    parser.add_argument("--tasks", metavar="FILES", default="", help="task files (JSON lines), separated by commas")
    parser.add_argument(
        "--sequences", type=int, default=1000, metavar="N", help="at most so many of each source; 0: all (default 1000)"
    )
    options = parser.parse_args(rest)
    if options.sequences < 0:
        raise BadInput(f"--sequences={options.sequences} is not a number of sequences; 0 means all")
    if options.data:
        overrides |= {"data.source": "prepared", "data.path": options.data}

    from scalelab.evaluate import evaluations, subject, tasks
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    asked = [tasks.read_task(path) for path in filter(None, options.tasks.split(","))]
    of = subject.load_evaluated_model(options.run, options.ema, options.average)
    config = evaluations.override_data(of.config, overrides)
    with WorkProgress() as bars:
        rows = evaluations.evaluate_tasks(of, asked, bars.update)
        rows = [*evaluations.evaluate_data(of, config, options.sequences, bars.update), *rows]
    replaced = records.write_evaluations(of.origin["run"], rows)
    if options.json != "-":
        print("\n".join([describe_weights(of.origin), *map(format_evaluation, rows)]))
        for name in replaced:
            print(f"  {name}: what was kept under this name was of other content, and is replaced")
    emit_json({"origin": of.origin, "evaluations": rows, "replaced": replaced}, options.json)
    return 0


def format_evaluation(row: dict) -> str:
    """One row of evaluations.jsonl as text."""
    m = row["metrics"]
    if row["kind"] == "data":
        return (
            f"  {row['set']}: {m['loss']:.4f}{_se(m['loss_se'], 4)} nats/token, {m['bpb']:.4f}{_se(m['bpb_se'], 4)} bits/byte; "
            f"{m['sequences']:,} of {m['available']:,} sequences, {m['tokens']:,} tokens"
        )
    others = (
        f" (a token {m['acc_token']:.3f}, raw {m['acc_raw']:.3f}; chance {m['chance']:.3f})" if "chance" in m else ""
    )
    cut = f"; {m['cut']} lost the beginning of their context" if m["cut"] else ""
    return (
        f"  {row['set']}: {'accuracy' if others else 'completed'} {m['acc']:.3f}{_se(m['acc_se'], 3)}{others}, "
        f"p_correct {m['p_correct']:.3f}, {m['bpb']:.3f} bits/byte of the right text; {m['items']} items{cut}"
    )


def _se(value: float | None, digits: int) -> str:
    return "" if value is None else f" ± {value:.{digits}f}"
