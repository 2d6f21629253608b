"""The loop: dispatch k steps, prepare the next data, read the previous metrics; evaluate, save, stop.

It drives a list of runs that share a compiled program; a single run is a list of one. Metrics of a dispatch are read
after the next one was sent, so the device never waits for the host.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from scalelab.model.transformer import Params
from scalelab.parallel.processes import gather_numbers, make_agreed_flag
from scalelab.parallel.pulse import Pulse
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.run import early_stop
from scalelab.train.run.alarms import Alarms, Call
from scalelab.train.run.feed import Feed, GuardMemory
from scalelab.train.run.reader import MetricReader
from scalelab.train.run.rerun import Rerun, Taken, copy_states
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress, Saver, Scorer, Session
from scalelab.train.run.trackers.profile import Profiler
from scalelab.train.run.trackers.sinks import SinkReport
from scalelab.train.step import guard
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import PACKINGS, Program

TIMED = ("compile", "dispatch", "data", "device", "eval", "save")  # what `Pulse.seconds` counts here
StartStates = tuple[int, list[state_lib.TrainState]]  # a step, and the states of the runs there


@dataclasses.dataclass
class TrainOutcome:
    """The outcome of `train_runs`. `stopped`: whether a signal ended it after saving; `calls`: see `Alarms`, by run.

    `digests`: of the last parameters, by run; None where they are gone.
    """

    final_step: int
    resumed_from: int | None
    tokens_per_s: float
    digests: Sequence[str | None]
    stopped: bool
    calls: list[Call | None]


def _stop_before(step: int, run: Run) -> int:
    """The step at which the host has to look again: an evaluation, a save, the end, or k steps on."""
    c = run.config
    multiples = [(step // every + 1) * every for every in (c.eval.every_steps, c.checkpoint.every_steps)]
    return min(*multiples, c.train.steps, step + c.train.steps_per_dispatch)


def train_runs(
    runs: Mapping[str, Run],
    checkpoints: Saver,
    session: Session,
    start: StartStates | None = None,
    params: Sequence[Params] | None = None,
    until: int | None = None,
) -> TrainOutcome:
    """Train `runs` (equal but for hparams and seed) to `train.steps`, from `start` = (step, states) or from scratch.

    Their keys are their names in the checkpoints. Without `start`, `params` replace the drawn initial parameters.
    Returns after the last save is on disk. The runs' records hold the verdicts; if a run diverges, the others go on. If
    no step ends for longer than `train.stall_s`, the session's pulse ends the process; its judge may end runs early.
    With `until` it ends, without verdicts, at that step. It also ends, without saving, where the guard calls for a run
    to go back (`TrainOutcome.calls`).
    """
    pulse, folder = session.pulse or Pulse(), checkpoints.folder.parent
    first = next(iter(runs.values()))

    def note(why: str) -> None:
        for run in runs.values():
            run.event("stalled", pulse.step, why)

    with pulse.watched(first.config.train.stall_s, folder, note):
        try:
            program = PACKINGS[session.mode](first.spec.static, [run.spec.hparams for run in runs.values()])
            step, states = _initial_states(program, start, params)
            parts = _prepare(runs, program, start, checkpoints, pulse, session)
            if step >= first.config.train.steps and any(run.val_loss is None for run in parts.alive):
                _evaluate(parts, states, step)  # its evaluation was lost
            if params and not start:  # the given weights are evaluated before the first step
                _evaluate(parts, states, 0)
            if not start and any(alarms.policy.rewinds for alarms in parts.alarms):
                _save(parts, step, states, False)  # what a run that diverges before its first save goes back to
            with contextlib.closing(parts.profiler):
                step, states, stopped = _take_steps(parts, step, states, make_agreed_flag(session.stop), until)
            return _finish(parts, start[0] if start else None, step, states, stopped, until)
        finally:
            for run in runs.values():
                run.files.close_sinks()


class _Parts(NamedTuple):
    """What the loop drives. `names`: in the checkpoints; `alive`: the runs that had not ended before."""

    runs: Sequence[Run]
    names: Sequence[str]
    alive: Sequence[Run]
    program: Program
    feed: Feed
    alarms: Sequence[Alarms]
    reader: MetricReader
    checkpoints: Saver
    pulse: Pulse
    session: Session
    rerun: Rerun | None  # guard.rerun
    profiler: Profiler


def _prepare(
    by_name: Mapping[str, Run],
    program: Program,
    start: StartStates | None,
    checkpoints: Saver,
    pulse: Pulse,
    session: Session,
) -> _Parts:
    """Take over the runs' folders, and make what reads their data and their metrics."""
    runs = list(by_name.values())
    step, alive = start[0] if start else 0, [run for run in runs if run.status == "running"]
    report = SinkReport(session.progress)
    for run in alive:
        run.enter(step, "resume" if start else "start", report)
    feed = Feed(runs, session.dataset, program.rows)
    memories: list[GuardMemory] = (
        [state.guard for state in start[1]] if start else [guard.init_guard(run.spec.static.guard) for run in runs]
    )
    feed.follow(memories)
    alarms = [
        Alarms(run, step, memory, functools.partial(feed.describe_rows, i))
        for i, (run, memory) in enumerate(zip(runs, memories, strict=True))
    ]
    reader = MetricReader(runs, feed, session.progress, pulse, alarms)
    rerun = Rerun(runs, program) if runs[0].spec.static.guard.rerun else None
    profiler = Profiler(runs[0].config.log.profile, runs[0].folder, step, session.progress)
    names = list(by_name)
    return _Parts(runs, names, alive, program, feed, alarms, reader, checkpoints, pulse, session, rerun, profiler)


def _take_steps(
    parts: _Parts, step: int, states: Any, stop: Callable[[], bool], until: int | None
) -> tuple[int, Any, bool]:
    """Take the steps after `step`; returns the last one, the states there, and whether a signal ended it."""
    runs, reader, pulse, session, config = parts.runs, parts.reader, parts.pulse, parts.session, parts.runs[0].config
    stopped, end = False, until or config.train.steps
    while step < end and any(run.status == "running" for run in runs) and not stopped:
        n = pulse.steps_at_once = min(_stop_before(step, runs[0]), end, *parts.profiler.stop_before(step)) - step
        with parts.profiler.around(step):
            states = _dispatch(parts, states, step, n)
        parts.profiler.end(step + n, states)
        step, last = step + n, step + n == end
        if step == config.train.steps or step % config.eval.every_steps == 0:
            _evaluate(parts, states, step)
            if config.eval.patience and not last:
                reader.read()
                early_stop.end_impatient(runs, step, session.progress)
        stopped = stop()
        if session.judge and not last and early_stop.is_look_due(step - n, step, config.train.steps):
            reader.read()
            early_stop.end_hopeless(runs, step, session.judge, session.progress)
        last |= bool(config.eval.patience) and not any(run.status == "running" for run in runs)
        due = last or stopped or step % config.checkpoint.every_steps == 0
        if due:
            reader.read()  # lines up to here are on disk before the checkpoint that a resumed run starts from
        if any(each.call for each in parts.alarms):
            break
        if due:
            _save(parts, step, states, last or stopped)
    return step, states, stopped


def _save(parts: _Parts, step: int, states: Any, last: bool) -> None:
    parts.pulse.enter("save", step)
    with parts.pulse.timed("save"):
        by_name = dict(zip(parts.names, parts.program.separate(states), strict=True))
        parts.checkpoints.save(step, by_name, last, _ledgers(parts, step))


def _ledgers(parts: _Parts, step: int) -> dict[str, dict[str, Any]]:
    """The ledger of each run at `step`, by its name in the checkpoints."""
    ledgers = {}
    for i, (name, run) in enumerate(zip(parts.names, parts.runs, strict=True)):
        number, by_source = parts.feed.position(i, step)
        flops, per_token, rewinds = run.flops_before(step), run.record["flops_per_token"], run.facts.get("rewinds", {})
        ledgers[name] = ledger.write_ledger(run.spec.stretches, step, number, by_source, flops, per_token, rewinds)
    return ledgers


def _dispatch(parts: _Parts, states: Any, step: int, n: int) -> Any:
    """Send `n` steps to the devices; while these are busy, prepare the next batches and read the metrics before."""
    pulse, feed, reader = parts.pulse, parts.feed, parts.reader
    pulse.enter("train", step)
    batches = feed.take(step, n)
    pulse.enter(reader.waits_for(), step + n)
    before = copy_states(states) if parts.rerun else None
    with pulse.timed("dispatch" if pulse.seconds.get("compile") else "compile"):
        states, metrics = parts.program.advance(states, batches, n)
    if parts.rerun:
        states, metrics = parts.rerun.judge(before, batches, step, n, Taken(states, metrics))
    pulse.enter("train", step)
    with pulse.timed("data"):
        feed.prepare(step + n)
    reader.add("train", step, n, metrics)
    return states


def _evaluate(parts: _Parts, states: Any, step: int) -> None:
    """Send the evaluation of each run, one loss for each source; score its tasks."""
    parts.pulse.enter("eval", step)
    with parts.pulse.timed("eval" if parts.pulse.seconds.get("eval") else "compile"):  # the first one compiles
        losses = [parts.program.evaluate(states, val) for val in parts.feed.val]
    scores: list[Mapping[str, float]] = [{}] * len(parts.runs)
    if parts.session.scorer:
        parts.reader.read()  # else the time of the tasks would count as that of the steps before
        scores = _score_tasks(parts, states, step, parts.session.scorer)
    values = list(zip(zip(*losses, strict=True), scores, strict=True))
    parts.reader.add("eval", step, 0, values, leave=0 if parts.session.scorer else 1)


def _score_tasks(parts: _Parts, states: Any, step: int, scorer: Scorer) -> list[Mapping[str, float]]:
    """The columns of `eval.tasks`, by run; {} for one that has ended."""
    parts.pulse.enter("eval", step)
    beat = functools.partial(parts.pulse.enter, "eval", step)
    with parts.pulse.timed("eval"):
        states_by_run = parts.program.separate(states)
        return [
            scorer.score(run.config, state, beat) if run.status == "running" else {}
            for run, state in zip(parts.runs, states_by_run, strict=True)
        ]


def _finish(parts: _Parts, first: int | None, step: int, states: Any, stopped: bool, until: int | None) -> TrainOutcome:
    """Wait for what is underway, and write the verdicts and the records."""
    pulse, reader, config = parts.pulse, parts.reader, parts.runs[0].config
    reader.read()
    pulse.enter("save", step)
    parts.checkpoints.close()
    stopped = stopped and step < config.train.steps
    calls = [each.call for each in parts.alarms]
    by_process = gather_numbers({part: pulse.seconds.get(part, 0.0) for part in TIMED})
    for run in parts.alive:
        if run.status == "running" and not (until or any(calls)):
            _verdict(run, step, stopped)
        run.record["seconds"] = pulse.seconds | {"steps": step - (first or 0)}
        run.record |= {"seconds_by_process": by_process} if by_process else {}
        if run.status != records.STOPPED_EARLY_STATUS:  # its record is of the step at which it ended
            run.keep_record(step)
    digests = [state_lib.params_digest(state.params) for state in parts.program.separate(states)]
    rate = float(np.median(reader.rates or [0.0]))
    return TrainOutcome(step, first, rate, digests, stopped, calls)


def report_resume(name: str, start: StartStates | None, config: ConfigDict, progress: Progress) -> None:
    """Tell the user at which step a run goes on, if there is anything left to train."""
    if start and start[0] < config.train.steps:
        progress({"note": f"{name}: resumed at step {start[0]}"})


def _initial_states(program: Program, start: StartStates | None, params: Sequence[Params] | None) -> tuple[int, Any]:
    """(step, states) to start from."""
    if start:
        return start[0], program.join(start[1])
    states = program.init()
    if params:
        drawn = program.separate(states)
        states = program.join([state_lib.replace_weights(s, p) for s, p in zip(drawn, params, strict=True)])
    return 0, states


def _verdict(run: Run, step: int, stopped: bool) -> None:
    ceiling = math.log(run.config.model.vocab_size)
    if stopped:
        run.status = "stopped"
        run.event("stopped", step, "by a signal, after saving")
    elif run.val_loss is not None and not run.val_loss < ceiling:
        run.diverge(step, f"validation loss {run.val_loss:.4g} is no better than a uniform guess ({ceiling:.4g})")
    else:
        run.status = "done"
        run.event("done", step, f"validation loss {run.val_loss:.4f} nats/token")
