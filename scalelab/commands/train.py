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

  --lr-factor=F --skip-batches=A..B --reset=moments
change a run where it goes on, from its last checkpoint or as a branch; the record lists them, and the same command
again makes no change twice. The guard does the same by itself under guard.policy=rewind.

D may be a folder in an object store, s3://bucket/path or gs://bucket/path (docs/stores.md).

A run whose step can't fit the memory of the devices is refused before compilation, with a table of its memory by
component; --force starts it. Under model.remat=auto the policy that recomputes least and fits is chosen and printed.

Exit code: 0 done or ended by eval.patience, 1 diverged or failed, 2 bad input, 75 stopped by a signal after saving.

    scalelab train --config=tiny --workdir=runs/mine --config.optim.peak_lr=3e-3
"""

import math
import os
import pathlib
import re
import sys
import traceback
from typing import Any

from scalelab import config as config_lib
from scalelab import git, lock, records
from scalelab.cli.memory_check import check_memory_fits, settle_remat
from scalelab.cli.parser import (
    Parser,
    add_take_over_option,
    add_trust_option,
    config_path,
    emit_json,
    print_status,
    work_path,
)
from scalelab.cli.progress import RunProgress
from scalelab.config import list_not_reproduced, split_overrides
from scalelab.errors import BadInput, WorkFailed
from scalelab.hardware import device_memory
from scalelab.stores import mirror
from scalelab.stores.urls import url_of
from scalelab.untrusted.text import PlainStream


def main(argv: list[str]) -> int:
    """Train one run; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("train", __doc__)
    parser.add_argument(
        "--config",
        type=config_path,
        metavar="FILE",
        help="a config file, e.g. configs/tiny.py (default of a branch: the trunk's)",
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
    options.change = _change(options)
    if options.workdir.name in ("", ".."):  # `.` has no name, and a run has its folder's
        options.workdir = options.workdir.resolve()
    with mirror.attached(options.workdir, options.take_over, print_status):
        return _train_in_folder(parser, options, overrides)


def _train_in_folder(parser: Parser, options: Any, overrides: dict[str, str]) -> int:
    device_memory.reserve_gpu_memory()
    if options.init_from:
        overrides["train.init_from"] = options.init_from
    if options.fallback:
        overrides["checkpoint.fallback"] = "true"
    config = _config(parser, options, overrides)

    from scalelab.parallel import processes

    place = processes.find_process_place(options.coordinator, options.processes, options.process_id)
    if place is None:
        return _train(config, options)
    mirror.refuse_several_processes(options.workdir)
    return _train_as_process(place, config, options)


def add_change_options(parser: Parser) -> None:
    """Options that change a run where it goes on."""
    parser.add_argument("--lr-factor", type=float, metavar="F", help="go on with F times the LR, from here to the end")
    parser.add_argument("--skip-batches", metavar="A..B", help="go on without the batches A to B (by their numbers)")
    parser.add_argument(
        "--reset", choices=["moments"], help="go on with the optimizer's state anew, and 150 steps of warm-up"
    )


def _change(options: Any) -> Any:
    """What the options ask to change where the run goes on; None: nothing."""
    if options.lr_factor is None and options.skip_batches is None and options.reset is None:
        return None
    factor = 1.0 if options.lr_factor is None else options.lr_factor
    if not 0 < factor < math.inf:
        raise BadInput(f"--lr-factor={factor:g} must be finite and above zero; nearest: 0.7")
    batches = re.fullmatch(r"(\d+)\.\.(\d+)", options.skip_batches or "0..0")
    if not batches:
        raise BadInput(f"--skip-batches={options.skip_batches!r} is not A..B, two numbers of batches; e.g. 900..1100")
    skip = (int(batches[1]), int(batches[2])) if options.skip_batches else None

    from scalelab.train.single import ByHand

    return ByHand(factor, skip, options.reset is not None)


def _config(parser: Parser, options: Any, overrides: dict[str, str]) -> Any:
    if not options.branch_from:
        if options.config is None:
            parser.error("--config is needed (or --branch-from)")
        return config_lib.load(options.config, overrides)
    if options.init_from:
        raise BadInput("--branch-from loads a run's whole state, --init-from only its weights: give one of them")
    from scalelab.train.resume.branch import plan_branch

    return plan_branch(options.branch_from, options.config, overrides, options.workdir)


def _train(config: Any, options: Any, first: bool = True, pulse: Any = None) -> int:
    from scalelab.signals import stop_on_signals
    from scalelab.train.lineage.compatibility import refuse_foreign_files
    from scalelab.train.single import train_single
    from scalelab.train.step.program import cache_compilations

    if first:
        refuse_foreign_files(options.workdir)
    cache_compilations()
    for text in list_not_reproduced(options.config) if first and options.config else ():
        print(f"note: {options.config} does not reproduce: {text}", file=sys.stderr)
    folder = options.workdir
    config = settle_remat(config, folder, options.force)
    if not options.force:
        check_memory_fits(config, folder)
    with RunProgress(folder.name, config.train.steps) as bar, stop_on_signals() as stop:
        progress = bar.update if first else lambda _: None
        code = git.code_state(options.config)
        result = train_single(
            config, folder, progress, stop, options.allow_change, options.take_over, pulse, code, options.change
        )
    if url := url_of(folder):
        result["folder"] = url
    if first:
        _report(result, options.json)
    return {"done": 0, records.STOPPED_EARLY_STATUS: 0, "stopped": 75}.get(result["status"], 1)


def _report(result: dict[str, Any], destination: str | None) -> None:
    print(
        f"{result['name']}: {result['status']} at step {result['final_step']}, validation loss "
        f"{_number(result['val_loss'])} nats/token, {_number(result['bpb'])} bits/byte; {result['folder']}",
        file=sys.stderr,
    )
    for source in records.rows_by_source(result["by_source"]):
        print(
            f"  {source['source']}: {_number(source['val_loss'])} nats/token, {_number(source['bpb'])} bits/byte; "
            f"{source['tokens']:,} tokens, {source['epochs']:.3g} epochs",
            file=sys.stderr,
        )
    emit_json(result, destination)


def _train_as_process(place: Any, config: Any, options: Any) -> int:
    """Train as one of several processes. A failure ends this one at once: jax would wait for the others to leave."""
    from scalelab.parallel.processes import run_together
    from scalelab.parallel.pulse import Pulse, run_with_timeout

    folder, pulse = options.workdir, Pulse()

    def end(code: int, why: str) -> None:
        _write_last_line(f"scalelab: {place.name()}: {why}\n")
        run_with_timeout(10.0, lock.release_all_locks)
        os._exit(code)

    def end_with_others(code: int, why: str) -> None:
        end(code, why if code == 2 else f"{why}; stopped here too: {_resume_hint(folder)}")

    facts = {key: str(value) for key, value in config_lib.leaves(config).items()}
    facts |= {"--workdir": str(folder.absolute()), "--allow-change": " ".join(sorted(options.allow_change))}
    _drop_native_output()
    try:
        with run_together(place, facts, folder, end_with_others, pulse, config.train.stall_s):
            return _train(config, options, place.index == 0, pulse)
    except (BadInput, WorkFailed) as error:
        end(2 if isinstance(error, BadInput) else 1, str(error))
    except BaseException:  # of any kind: the other processes are told, or they would wait for this one
        end(1, traceback.format_exc())
    raise AssertionError("end() does not return")


def _resume_hint(folder: pathlib.Path) -> str:
    from scalelab.train.checkpoints import manifest

    steps = manifest.list_steps(folder / "checkpoints")
    return f"the same commands resume from step {steps[-1]}" if steps else "nothing was saved yet"


def _drop_native_output() -> None:
    """Keep standard output for the result: gloo's own lines there (one per device) are dropped."""
    sys.stdout = PlainStream(os.fdopen(_silence(1), "w"))  # type: ignore[assignment]


def _write_last_line(text: str) -> None:
    """Write to standard error and silence it afterwards: jax prints a whole page when the coordinator is gone."""
    os.write(_silence(2), text.encode())


def _silence(descriptor: int) -> int:
    """Drop all later writes to `descriptor`; returns a copy of it that still writes."""
    copy = os.dup(descriptor)
    with open(os.devnull, "w") as null_device:
        os.dup2(null_device.fileno(), descriptor)
    return copy


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
