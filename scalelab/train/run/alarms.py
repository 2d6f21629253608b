"""The host's side of the guard: the logbook's events, and the tests that need more of the past than a step remembers.

    risen      the median of the last 32 ln losses is above that of the 64 before by more than 6 standard errors, by the
               noise about a line through the 256 before; seen one dispatch late
    climbing   the gradient norm's robust slope (Theil-Sen) over 2,000 steps doubles it, and the loss does not rise
    diverged   `incident.DIVERGED`, or risen for 500 steps

What these need of the past is in the checkpoints (the guard's ring of losses, `Alarms.facts`) or in metrics.jsonl, so a
resumed run raises the same alarms.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.config.choices import DETECTORS, GUARD_POLICIES
from scalelab.numbers.forecast import FORECAST_STEPS, forecast_sigmas
from scalelab.parallel.processes import gather_to_host, is_first_process
from scalelab.record import records
from scalelab.train.expert_alarms import ExpertAlarms
from scalelab.train.run.feed import GuardMemory
from scalelab.train.run.run import Run
from scalelab.train.step import guard, incident
from scalelab.train.step.guard import RECENT, SIGNALS
from scalelab.train.step.incident import SHAPES
from scalelab.train.step.metrics import EXPERTS, LAYERS
from scalelab.train.step.report.layers import DUE, WORST

LAST, BEFORE = 32, 64  # steps whose medians are compared
RISEN_SIGMAS, RISEN_STEPS = 6.0, 500
MEDIAN_ERROR = 1.2533  # standard error of a median, in standard deviations over sqrt(n)
CLIMB_STEPS, CLIMB_EVERY, CLIMB_FACTOR = 2000, 100, 2.0
MOST_EVENTS = 20  # of one incident: the others are counted in spike_score
MOST_ROWS = 8  # sequences of a flagged batch that an event names
DONE = {"skip": "skipped", "clip": "clipped to the window's median norm",
        "skip_micro_batch": "the step is the mean of the others"}  # fmt: skip
STALE = 64  # steps after which a flag is no longer the beginning of a divergence
UNITS = {"loss": "loss {:.4g} nats", "grad_norm": "gradient norm {:.4g}", "early": "loss {:.4g} nats",
         "large_updates": "update norm / weight norm {:.3g}"}  # fmt: skip


class Call(NamedTuple):
    """Why a run should go back: the step that showed it, and the first and last flagged steps (from 0)."""

    step: int
    why: str
    first_flag: int
    last_flag: int
    early: int = 0  # early flags so far, each of which has lowered the LR


def rising_steps(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hold each of the last n of `losses` [RECENT - 1 + n] to those before: (risen, median, threshold), each [n].

    Medians and thresholds are losses in nats. Losses that are not finite are left out of the noise.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.log(np.maximum(np.float64(losses), guard.TINY)), RECENT)
    now, before = (np.median(windows[:, part], axis=1) for part in (slice(-LAST, None), slice(-LAST - BEFORE, -LAST)))
    past = windows[:, :-LAST]
    line = np.stack([np.ones(past.shape[1]), np.arange(past.shape[1])], axis=1)
    fits = [_line_residuals(line, row) for row in past]
    noise = 1.4826 * np.array([np.median(np.abs(residuals)) for residuals in fits])
    threshold = before + RISEN_SIGMAS * MEDIAN_ERROR * noise * np.sqrt(1 / LAST + 1 / BEFORE)
    return now > threshold, np.exp(now), np.exp(threshold)


def _line_residuals(line: np.ndarray, row: np.ndarray) -> np.ndarray:
    finite = np.isfinite(row)
    if finite.sum() < BEFORE:
        return np.full(1, np.inf)
    return row[finite] - line[finite] @ np.linalg.lstsq(line[finite], row[finite], rcond=None)[0]


def robust_slope(steps: np.ndarray, values: np.ndarray) -> float:
    """The median of the slopes through all pairs of points (Theil 1950, Sen 1968)."""
    i, j = np.triu_indices(len(steps), 1)
    return float(np.median((values[j] - values[i]) / (steps[j] - steps[i])))


class Alarms:
    """The alarms of one run. `facts` go into its checkpoints; `call` is why the run should go back, or None.

    `describe_rows(step, rows, excerpts)` says where rows of a batch come from (`Feed.describe_rows`).
    """

    def __init__(
        self, run: Run, step: int, memory: GuardMemory, describe_rows: Callable[..., list[dict[str, Any]]]
    ) -> None:
        self.run, self.describe_rows = run, describe_rows
        self.call: Call | None = None
        self.facts: dict[str, Any] = {"risen_since": None, "climbed": None, "early": 0} | run.facts.get("alarms", {})
        self.experts = ExpertAlarms(run.spec.static.model.experts_per_token, self.facts.get("experts"))
        self.on = isinstance(memory, guard.GuardState)
        self.policy, self.events = GUARD_POLICIES[run.spec.static.guard.policy], 0
        if isinstance(memory, guard.GuardState):
            counts = guard.Counts(*(int(x) for x in gather_to_host(memory.counts)))
            self.base_step = counts.base_step
            self.recent = gather_to_host(memory.recent)  # oldest first
            self.logged = _logged_norms(run, step)

    def sigmas(self, losses: np.ndarray) -> np.ndarray:
        """`forecast_sigmas` of the losses that are read next."""
        finite = np.where(np.isfinite(losses), losses, np.inf)
        return forecast_sigmas(np.concatenate([self.recent[-FORECAST_STEPS:], finite]))

    def read(self, step: int, n: int, metrics: Mapping[str, Any]) -> None:
        """Raise the alarms of the `n` steps after `step` from their metrics [n]."""
        if not self.on:
            return
        self.facts = dict(self.facts)  # a save that is underway has those from before
        report = incident.Report(*np.asarray(metrics[guard.GUARD])[:n].T)
        self._flags(step, report, metrics)
        self._shapes(step, report, np.asarray(metrics["train_loss"])[:n])
        for i in np.flatnonzero(report.restarted):
            self.base_step = step + int(i)
        self._risen(step, np.asarray(metrics["train_loss"])[:n], report)
        self._climbing(step, n, metrics)
        if EXPERTS in metrics:
            self.facts["experts"] = self.experts.read(step, n, metrics, self._event)
        self.run.record["spike_score"] = float(report.score[-1])
        self.run.facts["alarms"] = self.facts

    def _event(self, step: int, signal: str, text: str, **fields: Any) -> None:
        """Write a line of the guard in the logbook."""
        done = DONE.get(fields.get("action", ""), "")
        done = done or ("nothing done" if self.policy.acts else "nothing done: guard.policy=watch")
        self.run.event("guard", step, f"{text}; {done}", **({"signal": signal, "action": "none"} | fields))

    def _flags(self, step: int, report: incident.Report, metrics: Mapping[str, Any]) -> None:
        """One event for each stretch of steps with one signal and action."""
        codes = report.signal * len(guard.ACTIONS) + report.action
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1), len(codes)]
        for i, j in itertools.pairwise(edges):
            signal, action = SIGNALS[int(report.signal[i])], guard.ACTIONS[int(report.action[i])]
            self.facts["early"] += (j - i) * (signal == "early")
            if signal in ("", "bad") and action != "skip_micro_batch":  # the reader notes a step that is not finite
                continue
            self.events += 1
            if self.events > MOST_EVENTS:
                continue
            steps = {"from": step + int(i) + 1, "to": step + int(j)}
            if signal == "early" and action == "none":  # as many were skipped as may be
                self._call(step + int(i) + 1, "early", report, int(i))
            if action == "skip_micro_batch":
                self._left_out(step, report, i, steps)
            else:
                self._outliers(step, report, metrics, i + int(np.argmax(report.sigmas[i:j])), signal, steps)

    def _outliers(
        self, step: int, report: incident.Report, metrics: Mapping[str, Any], at: int, signal: str, steps: Mapping
    ) -> None:
        """The event of a stretch of outliers, the farthest of them at the index `at`."""
        text = UNITS[signal].format(report.value[at]) + f" above {report.threshold[at]:.4g}"
        sigmas = float(report.sigmas[at])
        text += f", {sigmas:.3g} standard deviations above the window" if signal in ("loss", "grad_norm") else ""
        text += self._slower(signal)
        self._event(
            steps["from"],
            signal,
            text + self._extent(steps),
            value=float(report.value[at]),
            threshold=float(report.threshold[at]),
            sigmas=sigmas,
            action=guard.ACTIONS[int(report.action[at])],
            **steps,
            documents=self.documents(step, at, metrics),
        )

    def _slower(self, signal: str) -> str:
        is_slowed = signal == "early" and self.policy.acts and DETECTORS[self.run.spec.static.guard.detector].logs
        return f"; each time LR and clip x {guard.SLOWER:g} from there on" if is_slowed else ""

    def _left_out(self, step: int, report: incident.Report, i: int, steps: Mapping) -> None:
        """The event of a stretch of steps taken without a micro-batch."""
        n, total, first = int(report.left_out[i]), self.run.spec.static.accumulate, int(report.first_left_out[i])
        text = f"not finite: left out {n} of {total} micro-batches, the first of them number {first}"
        rows = range(first, self.run.spec.static.global_batch, total)
        documents = self._described(step + i, rows)
        self._event(
            steps["from"],
            "bad",
            text + self._extent(steps),
            action="skip_micro_batch",
            left_out=n,
            **steps,
            documents=documents,
        )

    def _extent(self, steps: Mapping[str, int]) -> str:
        text = f" (steps {steps['from']} to {steps['to']})" if steps["to"] > steps["from"] else ""
        return text + ("; further ones are counted in spike_score alone" if self.events == MOST_EVENTS else "")

    def documents(self, step: int, i: int, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Where the batch of the step at index `i` after `step` comes from: its worst sequences, if they were measured.

        These have their losses, and the first its beginning. Else the first rows, in no order.
        """
        measured = metrics.get(LAYERS, {})
        if not (measured and measured[DUE][i] and np.isfinite(metrics["train_loss"][i])):
            return self._described(step + i, range(self.run.spec.static.global_batch))
        ranks = [rank for rank in range(1, WORST + 1) if f"worst/row_{rank}" in measured]
        rows = [int(measured[f"worst/row_{rank}"][i]) for rank in ranks]
        losses = {row: float(measured[f"worst/loss_{rank}"][i]) for row, rank in zip(rows, ranks, strict=True)}
        return [line | {"loss": losses[line["row"]]} for line in self._described(step + i, rows, 1)]

    def _described(self, step: int, rows: Sequence[int], excerpts: int = 0) -> list[dict[str, Any]]:
        """`describe_rows` of the first few, in the process that writes the logbook."""
        return self.describe_rows(step, rows[:MOST_ROWS], excerpts) if is_first_process() else []

    def _shapes(self, step: int, report: incident.Report, losses: np.ndarray) -> None:
        """An event where an incident shows its shape; those that do not pass call for more than a skip."""
        for i in np.flatnonzero(report.shape):
            shape, at = SHAPES[int(report.shape[i])], step + int(i) + 1
            if shape == "new_level":
                self._new_level(at, np.append(self.recent, losses[: i + 1]))
            else:
                self._event(at, shape, f"the incident is {shape}")
            if shape in ("benign", "slow", "new_level"):
                self.events = 0
            else:
                self._call(at, shape, report, int(i))

    def _new_level(self, at: int, losses: np.ndarray) -> None:
        level = float(np.median(losses[-LAST:]))
        self.facts["risen_since"] = None
        text = f"the incident has ended in a new level: median {level:.4g} nats over {LAST} steps"
        self._event(at, "new_level", f"{text}; steps from here on are judged by it", value=level)

    def _call(self, step: int, why: str, report: incident.Report, i: int) -> None:
        """Remember the first reason to do more than skip; a run that skips and has diverged ends."""
        if self.policy.rewinds and self.call is None:
            first, last = int(report.first_flag[i]), int(report.last_flag[i])
            since = self.facts["risen_since"]
            is_recent = step - last <= STALE and (since is None or first < since)
            flagged = first >= 0 and (why != "diverged" or is_recent)
            steps = (first, last) if flagged else ((since or step) - LAST, step - 1)
            self.call = Call(step, why, *steps, self.facts["early"])
        if self.policy.acts and not self.policy.rewinds and why == "diverged":
            why = "the guard: the loss stays above that of a uniform guess, or has risen for 500 steps"
            self.run.diverge(step, why, by_guard=True)

    def _risen(self, step: int, losses: np.ndarray, report: incident.Report) -> None:
        series = np.concatenate([self.recent, np.where(np.isfinite(losses) & (losses > 0), losses, np.inf)])
        self.recent = series[-RECENT:]
        judged = np.arange(step, step + len(losses)) + 1 - self.base_step >= RECENT
        if not judged.any():
            self.facts["risen_since"] = None
            return
        risen, medians, thresholds = rising_steps(series[1:])
        for i, flag in enumerate(risen & judged):
            at, since = step + i + 1, self.facts["risen_since"]
            if not flag:
                self.facts["risen_since"] = None
            elif since is None:
                self.facts["risen_since"] = at
                text = f"the loss has risen: median {medians[i]:.4g} nats over {LAST} steps, above {thresholds[i]:.4g}"
                self._event(at, "risen", text, value=float(medians[i]), threshold=float(thresholds[i]))
            elif at - since == RISEN_STEPS:
                self._event(at, "diverged", f"the loss has risen for {RISEN_STEPS} steps")
                self._call(at, "diverged", report, i)

    def _climbing(self, step: int, n: int, metrics: Mapping[str, Any]) -> None:
        every = self.run.config.log.every_steps
        for i in range(n):
            at = step + i + 1
            if at % every == 0:
                self.logged.append((at, float(metrics["grad_norm"][i]), float(metrics["train_loss"][i])))
            if at % CLIMB_EVERY == 0 and at - max(self.base_step, self.facts["climbed"] or 0) >= CLIMB_STEPS:
                self.logged = [row for row in self.logged if row[0] > at - CLIMB_STEPS]
                self._test_climb(at)

    def _test_climb(self, at: int) -> None:
        rows = np.array(self.logged)
        rows = rows[np.isfinite(rows).all(axis=1) & (rows > 0).all(axis=1)] if len(rows) else rows
        rows = rows[:: max(1, len(rows) // 200)]
        if len(rows) < 20:
            return
        norm, loss = (robust_slope(rows[:, 0], np.log(rows[:, k])) * CLIMB_STEPS for k in (1, 2))
        if norm >= np.log(CLIMB_FACTOR) and loss <= 0:
            self.facts["climbed"] = at
            text = f"the gradient norm has grown {np.exp(norm):.3g} times over {CLIMB_STEPS} steps, the loss not"
            self._event(at, "climbing", text, value=float(np.exp(norm)), threshold=CLIMB_FACTOR)


def _logged_norms(run: Run, step: int) -> list[tuple[int, float, float]]:
    """(step, gradient norm, loss) of the lines before `step` that the test for climbing norms looks back on."""
    # Damaged lines are left out: a run that goes on has none, and an ended trial must not stop its pack.
    lines = records.read_json_lines(run.folder / "metrics.jsonl", records.METRICS_SCHEMA, []) if step else []
    names = ("step", "grad_norm", "train_loss")
    return [
        (line["step"], float(line["grad_norm"]), float(line["train_loss"]))
        for line in lines
        if step - CLIMB_STEPS < line["step"] <= step and all(line.get(name) is not None for name in names)
    ]
