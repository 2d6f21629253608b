"""The metrics of a run's dispatches: read one dispatch behind, turned into lines, progress and alarms."""

import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from scalelab.parallel.pulse import Pulse
from scalelab.train.run.alarms import Alarms
from scalelab.train.run.feed import Feed
from scalelab.train.run.run import SKIPS_IN_A_ROW, Run
from scalelab.train.run.session import Progress
from scalelab.train.step.guard import GUARD, OUTLIERS
from scalelab.train.step.metrics import ARRAYS, LAYERS, as_number
from scalelab.train.step.report.layers import DUE
from scalelab.train.step.report.report import STEP_METRICS

NO_TARGETS, TARGETS = "no_targets", "read/targets"  # the signal of a step without any, and the metric that counts them
# Values whose not being finite skips a step: name in the logbook -> metric.
GUARDED_METRICS = {"loss": "train_loss", "gradient norm": "grad_norm", "LR": "lr"}


class MetricReader:
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
                if alarms.on:
                    metrics = metrics | {"loss_sigmas": alarms.sigmas(metrics["train_loss"][:n])}
                run.files.write_lines(_train_lines(run, step, n, metrics, rate), _layer_lines(step, n, metrics))
                alarms.read(step, n, metrics)
                _note_skips(run, alarms, step, n, metrics)
        losses = [None if m is None else float(m["train_loss"][n - 1]) for m in values]
        self.progress({"step": step + n, "tokens_per_s": rate} | self._shown("train_loss", losses))

    def _eval(self, step: int, _: int, values: list[Any], __: float) -> None:
        for run, (losses, tasks) in zip(self.runs, values, strict=True):
            if run.status != "running":
                continue
            scored = self.feed.scored(run, step, losses) | {name: float(value) for name, value in tasks.items()}
            run.scored(scored)
            run.files.write_lines([_counted(run, step) | scored | {"time": time.time()}])
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
        *sorted(metrics.keys() - {*STEP_METRICS, *ARRAYS}),
    ]
    lines = []
    for i in range(n):
        if (step + i + 1) % run.config.log.every_steps == 0:
            line = _counted(run, step + i + 1)
            line |= {key: as_number(metrics[key][i]) for key in names}
            lines.append(line | {"tokens_per_s": rate, "mfu": mfu, "time": time.time()})
    return lines


def _counted(run: Run, step: int) -> dict[str, float]:
    """The columns of the run's ledger at `step`."""
    return {"step": step, "tokens": run.tokens_before(step), "flops": run.flops_before(step)["exact"]}


def _layer_lines(step: int, n: int, metrics: dict[str, Any]) -> list[dict]:
    layers = dict(metrics.get(LAYERS, {}))
    due = np.flatnonzero(layers.pop(DUE)[:n]) if layers else ()
    return [{"step": step + int(i) + 1} | {key: values[i].tolist() for key, values in layers.items()} for i in due]


def _note_skips(run: Run, alarms: Alarms, step: int, n: int, metrics: dict[str, np.ndarray]) -> None:
    outliers = np.isin(np.asarray(metrics[GUARD])[:n, 0], OUTLIERS) if GUARD in metrics else False
    for i in np.flatnonzero((metrics["streak"][:n] > 0) & ~np.asarray(outliers)):
        signal, text = _skip_reason(metrics, int(i))
        # Of several in a row the first.
        documents = {"documents": alarms.documents(step, int(i), metrics)} if metrics["streak"][i] == 1 else {}
        run.event("skip", step + int(i) + 1, text, signal=signal, action="skip", **documents)
    if metrics["streak"][:n].max() >= SKIPS_IN_A_ROW:
        last = _skip_reason(metrics, int(np.argmax(metrics["streak"][:n])))
        why = "without a target" if last[0] == NO_TARGETS else "without a finite update"
        run.diverge(step + n, f"{SKIPS_IN_A_ROW} batches in a row {why}")


def _skip_reason(metrics: dict[str, np.ndarray], i: int) -> tuple[str, str]:
    """(signal, text for the logbook) of the skipped step at index `i`."""
    if TARGETS in metrics and not metrics[TARGETS][i]:
        return NO_TARGETS, "no targets: the batch has no token to predict, so nothing is moved"
    values = {name: metrics[key][i] for name, key in GUARDED_METRICS.items() if not np.isfinite(metrics[key][i])}
    why = ", ".join(f"{name} {value}" for name, value in values.items())
    return "bad", f"not finite: {why or 'weight decay, beta1 or the update'}"
