"""The loop: dispatch k steps, prepare the next data, read the previous metrics; evaluate, save, stop.

It drives a list of runs that share a compiled program; a single run is a list of one. Metrics of a dispatch are read
after the next one was sent, so the device never waits for the host.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab import records
from scalelab.data.dataset import Dataset
from scalelab.parallel.processes import make_agreed_flag
from scalelab.parallel.pulse import Pulse
from scalelab.train.run import early_stop
from scalelab.train.run.alarms import Alarms, Call
from scalelab.train.run.early_stop import Judge
from scalelab.train.run.feed import Feed
from scalelab.train.run.run import SKIPS_IN_A_ROW, Run
from scalelab.train.run.sinks import SinkReport
from scalelab.train.step import guard
from scalelab.train.step import state as state_lib
from scalelab.train.step.guard import GUARD, OUTLIERS
from scalelab.train.step.layers import DUE, LAYERS
from scalelab.train.step.metrics import as_number
from scalelab.train.step.program import PACKINGS, Program
from scalelab.train.step.step import STEP_METRICS

# Values whose not being finite skips a step: name in the logbook -> metric.
GUARDED_METRICS = {"loss": "train_loss", "gradient norm": "grad_norm", "LR": "lr"}
Progress = Callable[[dict[str, Any]], None]
Saver = Any  # `Checkpoints`, or what stands for them where nothing is to be saved
StartStates = tuple[int, list[state_lib.TrainState]]  # a step, and the states of the runs there


@dataclasses.dataclass
class TrainOutcome:
    """The outcome of `train_runs`. `stopped`: whether a signal ended it after saving; `calls`: see `Alarms`, by run."""

    final_step: int
    resumed_from: int | None
    tokens_per_s: float
    digests: list[str]
    stopped: bool
    calls: list[Call | None]


class _Reader:
    """Reads metrics one dispatch behind, turns them into lines, and measures throughput."""

    def __init__(
        self, runs: Sequence[Run], feed: Feed, progress: Progress, pulse: Pulse, alarms: Sequence[Alarms]
    ) -> None:
        self.runs, self.feed, self.progress, self.pulse, self.alarms = runs, feed, progress, pulse, alarms
        self.pending: list[tuple[str, int, int, list[Any]]] = []
        self.clock = time.perf_counter()
        self.rates: list[float] = []

    def waits_for(self) -> str:
        """The phase that a dispatch may wait for: its compilation, or an evaluation sent before it."""
        return "eval" if any(kind == "eval" for kind, *_ in self.pending) else "train" if self.rates else "compile"

    def add(self, kind: str, step: int, n: int, values: list[Any], leave: int = 1) -> None:
        """Queue what was just dispatched and read all but the newest `leave` entries."""
        self.pending.append((kind, step, n, values))
        self.read(leave)

    def read(self, leave: int = 0) -> None:
        """Wait for all but the newest `leave` entries and write their lines."""
        while len(self.pending) > leave:
            kind, step, n, values = self.pending.pop(0)
            self.pulse.enter(kind, step + n)
            with self.pulse.timed("device" if kind == "train" else "eval"):
                values = jax.device_get(values)
            elapsed, self.clock = time.perf_counter() - self.clock, time.perf_counter()
            if kind == "train":
                self.pulse.dispatches.append(elapsed)
            (self._train if kind == "train" else self._eval)(step, n, values, elapsed)

    def _train(self, step: int, n: int, values: list[Any], elapsed: float) -> None:
        rate = sum(run.tokens_before(step + n) - run.tokens_before(step) for run in self.runs) / elapsed
        self.rates.append(rate)
        for run, metrics, alarms in zip(self.runs, values, self.alarms, strict=True):
            if metrics is not None and run.status == "running":
                run.write(_train_lines(run, step, n, metrics, rate), _layer_lines(step, n, metrics))
                alarms.read(step, n, metrics)
                _note_skips(run, step, n, metrics)
        losses = [None if m is None else float(m["train_loss"][n - 1]) for m in values]
        self.progress({"step": step + n, "tokens_per_s": rate} | self._shown("train_loss", losses))

    def _eval(self, step: int, _: int, values: list[Any], __: float) -> None:
        for run, losses in zip(self.runs, values, strict=True):
            if run.status != "running":
                continue
            scored = self.feed.scored(run, step, losses)
            run.scored(scored)
            run.write([{"step": step, "tokens": run.tokens_before(step)} | scored | {"time": time.time()}])
        self.progress({"step": step} | self._shown("val_loss", [run.val_loss for run in self.runs]))

    def _shown(self, name: str, losses: Sequence[float | None]) -> dict[str, Any]:
        """The run's own loss; of a pack the median of the trials that go on, how many these are, and how many not."""
        if len(self.runs) == 1:
            return {name: losses[0]}
        alive = [loss for run, loss in zip(self.runs, losses, strict=True) if run.status == "running"]
        finite = [loss for loss in alive if loss is not None and math.isfinite(loss)]
        median = float(np.median(finite)) if finite else math.nan
        return {name: median, "trials": len(alive), "lost": len(self.runs) - len(alive)}


def _train_lines(run: Run, step: int, n: int, metrics: dict[str, np.ndarray], rate: float) -> list[dict]:
    mfu = rate * run.record["flops_per_token"]["exact"] / (run.record["peak_flops"] * run.record["mesh"]["devices"])
    names = [
        *(name for name in STEP_METRICS if name in metrics),
        *sorted(metrics.keys() - {*STEP_METRICS, LAYERS, GUARD}),
    ]
    lines = []
    for i in range(n):
        if (step + i + 1) % run.config.log.every_steps == 0:
            line: dict[str, float] = {"step": step + i + 1, "tokens": run.tokens_before(step + i + 1)}
            line |= {key: as_number(metrics[key][i]) for key in names}
            lines.append(line | {"tokens_per_s": rate, "mfu": mfu, "time": time.time()})
    return lines


def _layer_lines(step: int, n: int, metrics: dict[str, Any]) -> list[dict]:
    layers = dict(metrics.get(LAYERS, {}))
    due = np.flatnonzero(layers.pop(DUE)[:n]) if layers else ()
    return [{"step": step + int(i) + 1} | {key: values[i].tolist() for key, values in layers.items()} for i in due]


def _note_skips(run: Run, step: int, n: int, metrics: dict[str, np.ndarray]) -> None:
    outliers = np.isin(np.asarray(metrics[GUARD])[:n, 0], OUTLIERS) if GUARD in metrics else False
    for i in np.flatnonzero((metrics["streak"][:n] > 0) & ~np.asarray(outliers)):
        values = {name: metrics[key][i] for name, key in GUARDED_METRICS.items() if not np.isfinite(metrics[key][i])}
        why = ", ".join(f"{name} {value}" for name, value in values.items())
        text = f"not finite: {why or 'weight decay, beta1 or the update'}"
        run.event("skip", step + int(i) + 1, text, signal="bad", action="skip")
    if metrics["streak"][:n].max() >= SKIPS_IN_A_ROW:
        run.diverge(step + n, f"{SKIPS_IN_A_ROW} batches in a row without a finite update")


def _stop_before(step: int, run: Run) -> int:
    """The step at which the host has to look again: an evaluation, a save, the end, or k steps on."""
    c = run.config
    multiples = [(step // every + 1) * every for every in (c.eval.every_steps, c.checkpoint.every_steps)]
    return min(*multiples, c.train.steps, step + c.train.steps_per_dispatch)


def train_runs(
    runs: Sequence[Run],
    dataset: Dataset,
    checkpoints: Saver,
    names: Sequence[str],
    mode: str = "turn",
    start: StartStates | None = None,
    progress: Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    params: Sequence[Any] | None = None,
    pulse: Pulse | None = None,
    judge: Judge | None = None,
    until: int | None = None,
) -> TrainOutcome:
    """Train `runs` (equal but for hparams and seed) to `train.steps`, from `start` = (step, states) or from scratch.

    Without `start`, `params` replace the drawn initial parameters. `names` are the runs' keys in the checkpoints.
    Returns after the last save is on disk. The runs' records hold the verdicts; if a run diverges, the others go on. If
    no step ends for longer than `train.stall_s`, the `pulse` ends the process. A `judge` may end runs early. With
    `until` it ends, without verdicts, at that step. It also ends, without saving, where the guard calls for a run to go
    back (`TrainOutcome.calls`).
    """
    pulse, folder = pulse or Pulse(), checkpoints.folder.parent

    def note(why: str) -> None:
        for run in runs:
            run.event("stalled", pulse.step, why)

    with pulse.watched(runs[0].config.train.stall_s, folder, note):
        try:
            return _take_steps(
                runs, dataset, checkpoints, names, mode, start, progress, stop, params, pulse, judge, until
            )
        finally:
            for run in runs:
                run.close_sinks()


def _take_steps(
    runs: Sequence[Run],
    dataset: Dataset,
    checkpoints: Saver,
    names: Sequence[str],
    mode: str,
    start: StartStates | None,
    progress: Progress,
    stop: Callable[[], bool],
    params: Sequence[Any] | None,
    pulse: Pulse,
    judge: Judge | None,
    until: int | None,
) -> TrainOutcome:
    """Take the steps; the arguments are those of `train_runs`."""
    config = runs[0].config
    program = PACKINGS[mode](runs[0].spec.static, [run.spec.hparams for run in runs])
    stop = make_agreed_flag(stop)
    step, states = _initial_states(program, start, params)
    alive = [run for run in runs if run.status == "running"]
    report = SinkReport(progress)
    for run in alive:
        run.enter(step, "resume" if start else "start", report)
    feed = Feed(runs, dataset, program.rows)
    memories = (
        [state.guard for state in start[1]] if start else [guard.init_guard(run.spec.static.guard) for run in runs]
    )
    feed.follow(memories)
    alarms = [Alarms(run, step, memory) for run, memory in zip(runs, memories, strict=True)]
    reader = _Reader(runs, feed, progress, pulse, alarms)
    if step >= config.train.steps and any(run.val_loss is None for run in alive):  # its evaluation was lost
        reader.add("eval", step, 0, _evaluate(program, states, feed, pulse))
    if params and not start:  # the given weights are evaluated before the first step
        reader.add("eval", 0, 0, _evaluate(program, states, feed, pulse))
    stopped, end = False, until or config.train.steps
    while step < end and any(run.status == "running" for run in runs) and not stopped:
        n = pulse.steps_at_once = min(_stop_before(step, runs[0]), end) - step
        pulse.enter("train", step)
        batches = feed.take(step, n)
        pulse.enter(reader.waits_for(), step + n)
        with pulse.timed("dispatch" if pulse.seconds.get("compile") else "compile"):
            states, metrics = program.advance(states, batches, n)
        pulse.enter("train", step)
        with pulse.timed("data"):
            feed.prepare(step + n)
        reader.add("train", step, n, metrics)
        step, last = step + n, step + n == end
        if step == config.train.steps or step % config.eval.every_steps == 0:
            pulse.enter("eval", step)
            reader.add("eval", step, 0, _evaluate(program, states, feed, pulse))
        stopped = stop()
        if judge and not last and early_stop.is_look_due(step - n, step, config.train.steps):
            reader.read()
            early_stop.end_hopeless(runs, step, judge, progress)
        due = last or stopped or step % config.checkpoint.every_steps == 0
        if due:
            reader.read()  # lines up to here are on disk before the checkpoint that a resumed run starts from
        if any(each.call for each in alarms):
            break
        if due:
            pulse.enter("save", step)
            with pulse.timed("save"):
                checkpoints.save(step, dict(zip(names, program.separate(states), strict=True)), last or stopped)
    reader.read()
    pulse.enter("save", step)
    checkpoints.close()
    stopped = stopped and step < config.train.steps
    calls = [each.call for each in alarms]
    for run in alive:
        if run.status == "running" and not (until or any(calls)):
            _verdict(run, step, stopped)
        run.record["seconds"] = pulse.seconds | {"steps": step - (start[0] if start else 0)}
        if run.status != records.STOPPED_EARLY_STATUS:  # its record is of the step at which it ended
            run.keep_record(step)
    digests = [state_lib.params_digest(state.params) for state in program.separate(states)]
    rate = float(np.median(reader.rates or [0.0]))
    return TrainOutcome(step, start[0] if start else None, rate, digests, stopped, calls)


def report_resume(name: str, start: StartStates | None, config: ConfigDict, progress: Progress) -> None:
    """Tell the user at which step a run goes on, if there is anything left to train."""
    if start and start[0] < config.train.steps:
        progress({"note": f"{name}: resumed at step {start[0]}"})


def _initial_states(program: Program, start: StartStates | None, params: Sequence[Any] | None) -> tuple[int, Any]:
    """(step, states) to start from."""
    if start:
        return start[0], program.join(start[1])
    states = program.init()
    if params:
        drawn = program.separate(states)
        states = program.join([s._replace(params=_as_drawn(s.params, p)) for s, p in zip(drawn, params, strict=True)])
    return 0, states


def _evaluate(program: Program, states: Any, feed: Feed, pulse: Pulse) -> list[tuple[Any, ...]]:
    """The losses of each run, one for each source."""
    with pulse.timed("eval"):
        return list(zip(*[program.evaluate(states, val) for val in feed.val], strict=True))


def _as_drawn(drawn: Any, given: Any) -> Any:
    """The given weights (fp32), cast to the dtypes of the drawn ones."""
    return jax.tree.map(lambda d, g: g if g.dtype == d.dtype else g.astype(d.dtype), drawn, given)


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
