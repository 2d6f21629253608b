"""scalelab train --config=F --workdir=D [--config.group.key=value …]

Train one run. Running the command again resumes it exactly from its last checkpoint. configs/base.py lists every key of
the config with its meaning and unit. On SIGTERM, ctrl-C, SIGUSR1, SIGUSR2, SIGXCPU or SIGHUP (not under nohup) the step
is finished and saved, and the exit code is 75.

  scalelab train --branch-from=RUN@STEP --config.schedule.decay_tokens=N --workdir=NEW
starts a decay of N tokens from that checkpoint of a constant or wsd run. The branch is a separate run, bit for bit
equal to a run planned with this end. Its config is the trunk's, or --config's; with --config.train.steps=M the stable
part goes on first.

Several processes, on one host or many, may train one run if they share DIR. Under Slurm use `srun scalelab train …`;
elsewhere start each process with
  --coordinator=HOST:PORT --processes=N --process-id=I   HOST is that of process 0; I is 0 to N-1
and a mesh (--config.parallel.data=-1, …) over the devices of all. Process 0 writes and prints. A signal to one process
stops all after the same step. If one is killed, the others end with exit code 1: at once, or 20 s after the last
heartbeat of its host. If one hangs (train.stall_s), they end with the stacks of all threads in DIR/stacks-I.txt. They
wait as long for one that still compiles, and then end with its name. The same commands resume.

  --lr-factor=F --clip-norm=X --skip-batches=A..B --reset=moments
change a run where it goes on, from its last checkpoint or as a branch; the record lists them, and the same command
again makes no change twice. The guard does the same by itself under guard.policy=rewind.

  scalelab train --workdir=D --back-to=STEP [--lr-factor=F …]
goes back to that saved step, under any schedule, of a run that ended too, with these changes from there on: bit for bit
what `scalelab replay` shows of them. Checkpoints and logs of the steps after it are kept in D/set_aside/1 (2, …), which
reads as a run. A plain `scalelab train` goes on from there, even if this one was killed. The config is the run's own,
or --config's.

D may be a folder in an object store, s3://bucket/path or gs://bucket/path (docs/stores.md).

A run whose step can't fit the memory of the devices is refused before compilation, with a table of its memory by
component; --force starts it. Under model.remat=auto the policy that recomputes least and fits is chosen and printed.

Alarms of the guard are told on the terminal, by the trackers, and to a command of your own
(--config.log.alert=COMMAND).

Exit code: 0 done or ended by eval.patience, 1 diverged or failed, 2 bad input, 3 ended by the guard (guard.policy=skip,
rewind), 75 stopped by a signal after saving.

    scalelab train --config=tiny --workdir=runs/mine --config.optim.peak_lr=3e-3
"""

import re
import sys

from scalelab import api
from scalelab.cli.parser import (
    Parser,
    add_take_over_option,
    add_trust_option,
    config_path,
    emit_json,
    whole_number,
    work_path,
)
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import split_overrides
from scalelab.errors import BadInput, quote_path
from scalelab.record import listing, records
from scalelab.train.checkpoints.manifest import HEALTHY


def main(argv: list[str]) -> int:
    """Train one run; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("train", __doc__)
    parser.add_argument(
        "--config",
        type=config_path,
        metavar="FILE",
        help="a config file, e.g. configs/tiny.py (default of a branch: the trunk's; with --back-to: the run's)",
    )
    parser.add_argument("--workdir", required=True, type=work_path, metavar="DIR|URL", help="the run's folder")
    parser.add_argument(
        "--init-from", metavar="RUN[@STEP]|hf:DIR", help="start on these weights (sets train.init_from)"
    )
    parser.add_argument(
        "--branch-from",
        metavar="RUN[@STEP]",
        help="start a decay from that step of a constant or wsd run, as a separate run",
    )
    parser.add_argument(
        "--fallback", action="store_true", help="if the last checkpoint is damaged, resume from the one before"
    )
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="resume although this key (or group) changed"
    )
    add_trust_option(parser)
    parser.add_argument(
        "--force", action="store_true", help="start the run even if it is predicted not to fit this device's memory"
    )
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="the host of process 0 and a free port there, if there are several processes",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="how many processes train this run together")
    parser.add_argument("--process-id", type=int, metavar="I", help="the index of this process, from 0 on")
    add_take_over_option(parser)
    add_change_options(parser)
    options = parser.parse_args(rest)
    if options.config is None and not options.branch_from and options.back_to is None:
        parser.error("--config is needed (or --branch-from, or --back-to)")
    trained = api.train(
        options.config,
        options.workdir,
        overrides,
        init_from=options.init_from,
        branch_from=options.branch_from,
        fallback=options.fallback,
        allow_change=options.allow_change,
        force=options.force,
        take_over=options.take_over,
        back_to=options.back_to,
        lr_factor=options.lr_factor,
        clip_norm=options.clip_norm,
        skip_batches=_batches(options.skip_batches),
        reset=options.reset,
        coordinator=options.coordinator,
        processes=options.processes,
        process_id=options.process_id,
        progress=print_report,
        display=Terminal(),
    )
    if trained.process == 0:
        _print(trained, options.json)
    if trained.ended_by == "guard":
        return 3
    return {"done": 0, records.STOPPED_EARLY_STATUS: 0, "stopped": 75}.get(trained.status, 1)


def add_change_options(parser: Parser) -> None:
    """Add the options that change a run where it goes on."""
    parser.add_argument(
        "--back-to", type=whole_number, metavar="STEP", help="go back to that saved step, and on from there"
    )
    parser.add_argument("--lr-factor", type=float, metavar="F", help="go on with F times the LR, from here to the end")
    parser.add_argument("--clip-norm", type=float, metavar="X", help="go on with gradients clipped to this norm")
    parser.add_argument("--skip-batches", metavar="A..B", help="go on without the batches A to B (by their numbers)")
    parser.add_argument(
        "--reset", choices=["moments"], help="go on with the optimizer's state anew, and 150 steps of warm-up"
    )


def _batches(text: str | None) -> tuple[int, int] | None:
    """Parse `A..B` as the first and last batch."""
    if text is None:
        return None
    batches = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if not batches:
        raise BadInput(f"--skip-batches={text!r} is not A..B, two numbers of batches; e.g. 900..1100")
    return int(batches[1]), int(batches[2])


def _print(trained: "api.Trained", destination: str | None) -> None:
    bound = trained.bpb_bound
    loss = f", validation loss {_number(trained.val_loss)} nats/token, {_bits(trained.bpb, bound)}"
    if trained.status == "stopped":
        loss = (loss if trained.val_loss is not None else "") + "; the same command goes on"
    print(f"{trained.name}: {trained.status} at step {trained.final_step}{loss}; {trained.folder}", file=sys.stderr)
    for source in listing.rows_by_source(trained.by_source):
        scored, read = "only trained on", "only scored"
        if source["val_loss"] is not None:
            scored = f"{_number(source['val_loss'])} nats/token, {_bits(source['bpb'], bound)}"
        if source["tokens"] is not None:
            read = f"{source['tokens']:,} tokens, {source['epochs']:.3g} epochs"
        print(f"  {source['source']}: {scored}; {read}", file=sys.stderr)
    if trained.status == "diverged":
        print(
            f"first its cause, and the key to turn: scalelab diagnose {quote_path(trained.folder)}; "
            f"{_way_back(trained.folder)}",
            file=sys.stderr,
        )
    emit_json(trained.to_json(), destination)


def _way_back(folder: str) -> str:
    """Where a diverged run can go on: its last saved step whose state was healthy."""
    try:
        saved = api.list_checkpoints(folder)
    except BadInput:
        return "then a new run, as no step was saved"
    states = {row["step"]: row["health"].values() for row in saved if row["looks_ok"]}
    healthy = [step for step, state in states.items() if all(each == HEALTHY for each in state)]
    if not healthy:
        return "then a new run, as no saved step is healthy"
    back = f"scalelab train --workdir={quote_path(folder)} --back-to={max(healthy)} --lr-factor=.7"
    return f"then back to its last healthy step: {back}"


def _bits(value: float | None, bound: str) -> str:
    """Bits per byte; at least so many if the tokenizer lost text (`bound` "lower")."""
    return f"{'at least ' * (bound == 'lower')}{_number(value)} bits/byte"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
