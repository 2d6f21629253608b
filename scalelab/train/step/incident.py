"""The guard's memory after a step, and the shape of an incident, from its first flag:

benign       the median of the last 8 losses is back within one standard deviation of the window's median in 32 steps
slow         it came back later
persistent   it has not come back in 200 steps
growing      the third burst of flags in a row has a higher loss than the one before
diverged     32 losses in a row above ln(vocabulary) + 0.5, after step 100
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Guard, Static
from scalelab.config.choices import DETECTORS
from scalelab.train.step.guard import (
    ACTIONS,
    BLOCK,
    BLOCKS,
    EARLY_STEPS,
    GUARD,
    LARGE_IN_A_ROW,
    LARGE_RATIO,
    LARGE_UPDATES,
    RECENT,
    TINY,
    Counts,
    Decision,
    GuardState,
    Marks,
    Signals,
    as_entered,
    init_guard,
    loss_sigmas,
    median,
)
from scalelab.train.step.variables import Outcome, Part, signals_of

SHAPES = ("", "benign", "slow", "persistent", "growing", "diverged")  # of an incident, at the step that shows it
BENIGN, SLOW, PERSISTENT, GROWING, DIVERGED = range(1, len(SHAPES))
BACK, BENIGN_STEPS, PERSISTENT_STEPS = 8, 32, 200
HIGH_FROM, HIGH_MARGIN, HIGH_STEPS = 100, 0.5, 32  # diverged: so many steps above ln(vocabulary) + margin


class Report(NamedTuple):
    """What the logbook wants to know of a step."""

    signal: Any  # of SIGNALS
    action: Any  # of ACTIONS
    value: Any  # what was flagged and what it was held to; 0 where nothing was
    threshold: Any
    sigmas: Any  # standard deviations above the window's mean
    shape: Any  # of SHAPES
    score: Any  # share of flagged steps among the last 10,000
    restarted: Any  # whether a known change began a new window
    first_flag: Any  # step (from 0) of the incident that is open, or was last
    last_flag: Any
    left_out: Any  # micro-batches that the step was taken without, and the first of them (-1: none)
    first_left_out: Any


def next_memory(static: Static, memory: Any, outcome: Outcome) -> tuple[Any, dict[str, jax.Array]]:
    """The memory after a step, and the guard's metrics; both empty where it is off."""
    alarm, norms = outcome.verdict.alarm, outcome.updated.norms
    if alarm is None:
        return memory, {}
    signals = signals_of(outcome.step, outcome.gradient, outcome.verdict)
    uniform = math.log(static.model.vocab_size)
    new, report = remember(static.guard, memory, signals, alarm, norms.update / norms.weights, uniform)
    return new, {GUARD: report, "loss_sigmas": loss_sigmas(memory, outcome.step, signals.loss)}


MEMORY = Part("guard", lambda static, params: init_guard(static.guard), next_memory)


def remember(
    rule: Guard,
    memory: GuardState,
    signals: Signals,
    decision: Decision,
    update_ratio: jax.Array,
    uniform_loss: float,
) -> tuple[GuardState, jax.Array]:
    """The memory after a step, and what the logbook wants to know of it: a `Report`, stacked (the metric GUARD).

    `update_ratio`: norm of the update over that of the weights, NaN where it was not measured; `uniform_loss`: nats of
    a uniform guess.
    """
    step, loss = signals.step, signals.loss
    d, counts = decision, Counts(*memory.counts)
    raw = jnp.where(jnp.isfinite(loss) & (loss > 0), loss, jnp.inf)  # 0: a batch with nothing to predict
    memory = memory._replace(recent=jnp.where(jnp.arange(RECENT) == step % RECENT, raw, memory.recent))
    large = jnp.where((step < EARLY_STEPS) & (update_ratio > LARGE_RATIO), counts.large + 1, 0)
    is_large = (d.signal == 0) & (large == LARGE_IN_A_ROW)
    signal = jnp.where(is_large, LARGE_UPDATES, d.signal)
    flagged = (signal != 0).astype(jnp.int32)
    counts = counts._replace(
        entered=jnp.where(d.restarted, 0, counts.entered),
        base_step=jnp.where(d.restarted, step, counts.base_step),
        is_open=jnp.where(d.restarted, 0, counts.is_open),
        flagged=counts.flagged + flagged,
        overflows=counts.overflows + (~d.accepted & (d.action == ACTIONS.index("skip")) & (d.signal == 0)),
        large=large,
        high=jnp.where((step >= HIGH_FROM) & ~(loss <= uniform_loss + HIGH_MARGIN), counts.high + 1, 0),
    )
    counts, marks, shape = _follow_incident(rule, memory, counts, step, flagged == 1)
    marks = marks._replace(first_loss=jnp.where(jnp.isfinite(marks.first_loss), marks.first_loss, raw))
    jumps = memory.jumps[:, 0] == step + 1
    block = jnp.arange(BLOCKS) == step // BLOCK % BLOCKS
    blocks = jnp.where(block & (step % BLOCK == 0), 0, memory.blocks) + jnp.where(block, flagged, 0)
    window, entered = _enter(rule, memory.window, counts.entered, d, signals)
    state = memory._replace(
        window=window,
        blocks=blocks,
        counts=jnp.stack([jnp.asarray(x, jnp.int32) for x in counts._replace(entered=entered)]),
        marks=jnp.stack([jnp.asarray(x, jnp.float32) for x in marks]),
        data_shift=memory.data_shift + jnp.sum(jnp.where(jumps, memory.jumps[:, 1], 0)),
        jumps=jnp.where(jumps[:, None], -1, memory.jumps),
    )
    report = Report(
        signal,
        d.action,
        jnp.where(signal > 0, jnp.where(is_large, update_ratio, d.value), 0.0),
        jnp.where(signal > 0, jnp.where(is_large, LARGE_RATIO, d.threshold), 0.0),
        jnp.where(signal > 0, d.sigmas, 0.0),
        jnp.where(counts.high == HIGH_STEPS, DIVERGED, shape),
        jnp.sum(blocks) / jnp.minimum(step + 1, BLOCK * BLOCKS),
        d.restarted,
        counts.first_flag,
        counts.last_flag,
        *d.left_out,
    )
    return state, jnp.stack([jnp.asarray(x, jnp.float32) for x in report])


def _enter(
    rule: Guard, window: jax.Array, entered: jax.Array, decision: Decision, signals: Signals
) -> tuple[jax.Array, jax.Array]:
    """The window and its count after this step."""
    loss, grad_norm = signals.loss, signals.grad_norm
    enters = (decision.signal == 0) & decision.accepted & (loss > 0)  # a batch with nothing to predict has loss 0
    if DETECTORS[rule.detector].outliers_enter:
        enters = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    here = (jnp.arange(rule.window) == entered % rule.window) & enters
    values = as_entered(rule, jnp.stack([loss, grad_norm]))
    return jnp.where(here[None], values[:, None], window), entered + enters


def _follow_incident(
    rule: Guard, memory: GuardState, counts: Counts, step: jax.Array, flag: jax.Array
) -> tuple[Counts, Marks, jax.Array]:
    """(counts, marks, the shape if this step shows it, else 0) after a step that was flagged or not."""
    marks, starts = Marks(*memory.marks), flag & (counts.is_open == 0)
    base, std = _window_base(rule, memory.window[0], counts.entered)
    first = jnp.where(starts, step, counts.first_flag)
    age, loss = step - first, memory.recent[step % RECENT]
    peak = jnp.where(starts, -jnp.inf, marks.peak)
    ended = ~flag & (counts.in_a_row > 0)
    rises = jnp.where(peak > marks.peak_before, counts.rises + 1, 0)
    rises = jnp.where(starts, 0, jnp.where(ended, rises, counts.rises))
    marks = marks._replace(
        base=jnp.where(starts, base, marks.base),
        base_std=jnp.where(starts, std, marks.base_std),
        peak=jnp.where(flag, jnp.maximum(peak, loss), jnp.where(ended, -jnp.inf, peak)),
        peak_before=jnp.where(ended, peak, jnp.where(starts, jnp.inf, marks.peak_before)),
    )
    is_open = starts | (counts.is_open == 1)
    now = jnp.log(jnp.maximum(median(memory.recent[(step - jnp.arange(BACK)) % RECENT], BACK), TINY))
    back = is_open & (age >= BACK) & jnp.isfinite(now) & (now <= marks.base + marks.base_std)
    grows = is_open & ended & (rises == 2)
    cases = (back & (age <= BENIGN_STEPS), back, grows, is_open & (age == PERSISTENT_STEPS))
    shape = jnp.select(cases, (BENIGN, SLOW, GROWING, PERSISTENT), 0).astype(jnp.int32)
    counts = counts._replace(
        first_flag=first,
        last_flag=jnp.where(flag, step, counts.last_flag),
        in_a_row=jnp.where(flag, counts.in_a_row + 1, 0),
        is_open=is_open & ~back,
        rises=rises,
    )
    return counts, marks, shape


def _window_base(rule: Guard, losses: jax.Array, entered: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Median and standard deviation of ln loss in the window; (inf, 0) of fewer than two values."""
    n = jnp.minimum(entered, rule.window)
    filled = jnp.arange(rule.window) < n
    logs = losses if DETECTORS[rule.detector].logs else jnp.log(jnp.maximum(losses, TINY))
    many = jnp.maximum(n, 2).astype(jnp.float32)
    mean = jnp.sum(jnp.where(filled, logs, 0.0)) / many
    std = jnp.sqrt(jnp.sum(jnp.where(filled, jnp.square(logs - mean), 0.0)) / (many - 1))
    middle = median(jnp.where(filled, logs, jnp.inf), n)
    return jnp.where(n >= 2, middle, jnp.inf), jnp.where(n >= 2, std, 0.0)
