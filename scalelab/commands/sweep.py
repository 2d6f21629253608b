"""scalelab sweep --config=F --workdir=D [--status] [--allow-change=KEY] [--config.group.key=value …]

Train the grid that the file's sweep(h) returns, each trial in D/runs/NAME. Trials that differ only in traced values
(learning rate, decay, betas, seed, …) share one compiled program; the others run in a bounded pool of processes.
Running the command again resumes the sweep, also under a grid that has grown or shrunk: a trial is found by what it
computes, so only what is new trains, and trials that the grid no longer has stay out of the answer (--all-grids: take
them too). At its end stands a line per setting: mean loss over seeds, which settings are told apart from the best, and
the best learning rate. --status prints the tables, also while the sweep runs.
--status --follow shows a sweep, or a run, until it ends, wherever it trains: loss curves, tokens/s, time left, and what
failed and why. It reads files only, and ctrl-C ends nothing else. --status --serve=PORT shows the pages of `scalelab
report` at http://127.0.0.1:PORT, for this machine alone, drawn anew as the files change (0: a port that is free).
D may be a folder in an object store, s3://bucket/path or gs://bucket/path.

--stop-if=RULE ends hopeless trials: RULE is a condition such as p_worse_than_best > 0.95, asked 20 times a trial from
a tenth of its steps and the end of its warm-up on. It may use what `scalelab watch` forecasts: p_worse_than_best (than
the lowest run of the same FLOPs), p_diverges, progress, step, val_loss, low, high (ends of the 90 % interval),
train_loss, sigmas_off_law. A trial that it ends is `stopped early`: it has no result, and no fit or answer takes it.

--executor=slurm trains each pack as an element of one array job: --slurm.partition=gpu --slurm.time=4:00:00, or any
other option of sbatch; --slurm=FILE with one a line. A job that its time limit or a preemption stops saves and is
requeued, as is one without a new step for train.stall_s; after 5 starts without a new step a pack has failed. Ctrl-C
leaves the jobs running; the same command attaches to them, --cancel ends them, --status looks. --dry-run prints the
batch script, also where there is no Slurm. Several tasks
(--slurm.nodes=2 --slurm.ntasks-per-node=1) train each trial together, over a mesh of all their devices.
--executor=manifest trains nothing: it prints one command a pack, and writes them for SkyPilot and Kubernetes; --pack
trains one of these packs. Your own code runs there where that line names it, with --trust or the --config beside it.

While another process sweeps in D, or still saves a pack of it, the command waits and says for whom. A worker that a
signal kills is started again, twice at most; workers whose sweep was killed save and end. --status calls a trial that
says it is running `dead since …` once its process is gone: the same command goes on with it.

Exit code: 0 all trials ended (done, diverged or stopped early; also --status), 1 some failed by an error of their own
(or were killed three times), 2 bad input, 75 stopped by a signal after saving, or something is left to resume.

    scalelab sweep --config=lr_seeds --workdir=runs/lr_seeds
"""

import contextlib
import pathlib
from typing import Any

from scalelab import api
from scalelab.cli.executor_options import add_executor_options
from scalelab.cli.follow import follow_view
from scalelab.cli.parser import (
    Parser,
    add_take_over_option,
    add_trust_option,
    config_path,
    emit_json,
    print_status,
    print_table,
    work_path,
)
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import split_overrides
from scalelab.index import alive
from scalelab.index.grids import describe_left_out
from scalelab.signals import stop_on_signals
from scalelab.sweep import status
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE


def main(argv: list[str]) -> int:
    """Run the sweep or print its table; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("sweep", __doc__)
    parser.add_argument(
        "--config", type=config_path, metavar="FILE", help="a config file with get_config() and sweep(h)"
    )
    parser.add_argument("--workdir", required=True, type=work_path, metavar="DIR|URL", help="the sweep's folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the packs, with --executor=slurm also the batch script; do nothing",
    )
    parser.add_argument("--status", action="store_true", help="print the table of trials and do nothing else")
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="resume although this key (or group) changed"
    )
    parser.add_argument("--stop-if", metavar="RULE", help="end a trial early where this holds (see above)")
    parser.add_argument("--pack", metavar="KEY", help="train one pack of a manifest, here, and do nothing else")
    parser.add_argument("--cancel", action="store_true", help="end the sweep's jobs in Slurm; they save first")
    parser.add_argument("--all-grids", action="store_true", help="answer with the trials of earlier grids, too")
    add_executor_options(parser)
    add_trust_option(parser)
    parser.add_argument(
        "--force", action="store_true", help="start trials even if they are predicted not to fit this device's memory"
    )
    add_take_over_option(parser)
    parser.add_argument("--follow", action="store_true", help="show the trials, or a run, until they end; only reads")
    parser.add_argument("--serve", type=int, metavar="PORT", help="show the report in a browser here, as it goes")
    options = parser.parse_args(rest)
    if options.follow or options.serve is not None:
        return _show_live(parser, options)
    if options.pack is not None:
        with stop_on_signals() as stop:
            ended = api.train_pack(
                options.workdir, options.pack, options.config, overrides, progress=print_report, stop=stop
            )
        return 0 if ended else 75
    if options.cancel:
        print_status(f"cancelled {api.cancel_sweep(options.workdir)} jobs; they save first")
        return 0
    if options.status:
        return _show(api.sweep_status(options.workdir, options.all_grids, progress=print_report), options)
    if options.config is None:
        parser.error("--config is needed (or --status)")
    if options.dry_run:
        return _show_draft(options, overrides)
    swept = api.sweep(
        options.config,
        options.workdir,
        overrides,
        stop_if=options.stop_if,
        executor=options.executor,
        slurm=options.slurm,
        max_parallel=options.max_parallel,
        allow_change=options.allow_change,
        force=options.force,
        take_over=options.take_over,
        progress=print_report,
        display=Terminal(),
    )
    return _show(swept.status(options.all_grids), options) if swept.verdicts else STOPPED_EXIT_CODE


def _show_draft(options: Any, overrides: dict[str, Any]) -> int:
    """Print what the sweep would train; standard output has the batch script alone, for `sbatch --test-only`."""
    draft = api.draft_sweep(
        options.config,
        options.workdir,
        overrides,
        executor=options.executor,
        slurm=options.slurm,
        max_parallel=options.max_parallel,
        progress=print_report,
    )
    for index, (pack, names) in enumerate(draft.packs.items()):
        print_status(f"pack {index} {pack}: {len(names)} trials, {', '.join(names[:4])}{', …' * (len(names) > 4)}")
    if draft.script and options.json != "-":
        print(draft.script, end="")
    emit_json({"packs": draft.packs, "script": draft.script}, options.json)
    return 0


def _show(state: "api.SweepStatus", options: Any) -> int:
    """Print the trials and the answer; exit codes in the module's docstring."""
    from scalelab.cli.answers import print_answer
    from scalelab.sweep.answer import wording

    if options.json != "-":
        _print(state.rows)
        if state.answer.has_results:
            print()
            print_answer(state.answer)
        elif state.answer.left_out:
            print_status(describe_left_out(state.answer.left_out))
    emit_json(
        {
            "trials": [{alive.DEAD_KEY: None} | row for row in state.rows],
            "answer": wording.answer_json(state.answer),
        },
        options.json,
    )
    for row in state.rows:
        if "damage" in row:
            print_status(f"{row['name']} is damaged: {row['damage']}")
    verdicts = [row["status"] for row in state.rows]
    print_status(status.describe_verdicts(verdicts))
    if options.status and state.queue:
        print_status(state.queue)
    return 0 if options.status else status.exit_code(verdicts)


def _show_live(parser: Parser, options: Any) -> int:
    """Follow on the terminal until the end, or serve pages; ctrl-C ends that and nothing else."""
    if options.follow and options.serve is not None:
        parser.error("--follow is for a terminal and --serve for a browser: two commands can run side by side")
    if not options.status:
        parser.error(f"--{'follow' if options.follow else 'serve'} trains nothing: write it with --status")
    with contextlib.suppress(KeyboardInterrupt):
        _follow(options.workdir) if options.follow else _serve(options.workdir, options.serve)
    return 0


def _follow(workdir: pathlib.Path) -> None:
    with api.follow(workdir) as read:
        follow_view(read)


def _serve(workdir: pathlib.Path, port: int) -> None:
    with api.serve(workdir, port) as server:
        print_status(f"{server.url} shows {server.folder} as it goes; ctrl-C ends this, and no run")
        server.serve_forever()


def _print(rows: list[dict]) -> None:
    columns = ("name", "status", "step", "steps", "train_loss", "val_loss", "tokens_per_s")
    shown = [row | {"status": alive.status_text(row)} for row in rows]
    print_table(columns, [[_text(row.get(column)) for column in columns] for row in shown])


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    return str(value)
