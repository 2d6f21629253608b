"""The guard's memory after a step, and the shape of an incident, from its first flag:

benign       the median of the last 8 losses is back within one standard deviation of the level before in 32 steps
slow         it came back later
persistent   it has not come back in 200 steps
growing      the third burst of flags in a row has a higher loss than the one before
diverged     32 losses in a row above ln(vocabulary) + 0.5, after step 100
new_level    after 128 steps or more the losses have settled: data that get harder for good. The incident ends, and the
             window, the best loss and the host's tests begin anew. Also without a flag, of losses far above the best

Settled: of the last 64 losses the second half has no higher median than the first (by 3 standard errors of their
difference), falls too slowly to be back within 200 steps, and is below ln(vocabulary); the gradient norm is no outlier,
and not 10 times below the window's, as that of a collapsed model.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Guard, Static
from scalelab.config.choices import DETECTORS
from scalelab.train.step.guard import (
    ALIKE_STEPS,
    EARLY,
    EARLY_STEPS,
    GUARD,
    LARGE_IN_A_ROW,
    LARGE_RATIO,
    LARGE_UPDATES,
    NORM,
    SLOWER,
    SLOWEST,
    Decision,
    Signals,
)
from scalelab.train.step.memory import (
    BLOCK,
    BLOCKS,
    TINY,
    Counts,
    GuardState,
    Marks,
    choose,
    first_of,
    init_guard,
    stack,
)
from scalelab.train.step.variables import Outcome, Part, signals_of

# Of an incident, at the step that shows it.
SHAPES = ("", "benign", "slow", "persistent", "growing", "diverged", "new_level")
BENIGN, SLOW, PERSISTENT, GROWING, DIVERGED, NEW_LEVEL = range(1, len(SHAPES))
SETTLED_FROM, HALF = 128, 32  # steps of an incident before it may end in a new level; of each half that is compared
HALVES_ERROR = 3 * 1.2533 * math.sqrt(2 / HALF)  # 3 standard errors of the difference of their medians, in deviations
COLLAPSED = math.log(10)  # a gradient norm so many times below the window's is that of a model that learns nothing
WORSE, WORSE_SHARE = 4.0, 0.1  # a median of 8 so many deviations of a step, and a tenth, above the best is far above it
QUARTILES = 1.349  # standard deviations between those of a normal distribution
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
    return new, {GUARD: report}


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
    step, d, counts, marks = signals.step, decision, Counts(*memory.counts), Marks(*memory.marks)
    is_number = jnp.isfinite(signals.loss) & (signals.loss > 0)  # 0: a batch with nothing to predict
    raw = choose(is_number, signals.loss, jnp.inf)
    recent = jnp.concatenate([memory.recent[1:], raw[None]])
    large = (counts.large + 1) * ((step < EARLY_STEPS) & (update_ratio > LARGE_RATIO))
    is_large = (d.signal == 0) & (large == LARGE_IN_A_ROW)
    signal = jax.lax.select(is_large, jnp.int32(LARGE_UPDATES), d.signal)
    is_flagged = signal != 0
    flagged = is_flagged.astype(jnp.int32)
    counts = counts._replace(
        base_step=jax.lax.select(d.restarted, step, counts.base_step),
        is_open=counts.is_open * ~d.restarted,
        flagged=counts.flagged + flagged,
        overflows=counts.overflows + d.overflows,
        large=large,
        high=(counts.high + 1) * ((step >= HIGH_FROM) & ~(signals.loss <= uniform_loss + HIGH_MARGIN)),
    )
    marks = marks._replace(
        limit=jnp.minimum(marks.limit, jnp.maximum(raw, uniform_loss)),
        best=choose(~d.restarted, marks.best, jnp.inf),
        lr=d.lr,
    )
    counts, marks, shape = _follow_incident(rule, counts, marks, recent, signals, d, is_flagged, uniform_loss)
    window, entered = _enter(rule, memory.window, d, signals)
    settled = shape == NEW_LEVEL
    due = memory.jumps[:, :1] == step + 1
    shift = memory.data_shift + jnp.sum(due * memory.jumps[:, 1:])
    jumps = choose(jnp.broadcast_to(~due, memory.jumps.shape), memory.jumps, -1)
    blocks = _count_flag(memory.blocks, step, flagged)
    lr_factor, clip_factor = memory.lr_factor, memory.clip_factor
    if rule.acts and DETECTORS[rule.detector].logs:
        slower = jnp.where(signal == EARLY, SLOWER, 1.0)
        lr_factor, clip_factor = (x * jnp.where(x > SLOWEST, slower, 1.0) for x in (lr_factor, clip_factor))
    state = GuardState(
        window, recent, blocks, stack(counts._replace(entered=entered * ~settled), jnp.int32),
        stack(marks, jnp.float32), shift, jumps, lr_factor, clip_factor,
    )  # fmt: skip
    shape = jax.lax.select(counts.high == HIGH_STEPS, jnp.int32(DIVERGED), shape)
    score = jnp.sum(blocks) / jnp.minimum(step + 1, BLOCK * BLOCKS)
    held = choose(is_flagged, d.held, 0.0)
    held = jax.lax.select(is_large, jnp.stack([update_ratio, LARGE_RATIO, 0.0]), held)  # of `large_updates`
    rest = stack([shape, score, d.restarted | settled, counts.first_flag, counts.last_flag], jnp.float32)
    first = stack([signal, d.action], jnp.float32)
    return state, jnp.concatenate([first, held, rest, jnp.float32(d.left_out)])  # as in `Report`


def _count_flag(blocks: jax.Array, step: jax.Array, flagged: jax.Array) -> jax.Array:
    """Flagged steps by block after `step`."""
    number = jax.lax.div(step, BLOCK)
    index = jax.lax.rem(number, BLOCKS)
    before = jax.lax.dynamic_slice(blocks, (index,), (1,)) * (step > number * BLOCK)  # its first step: an old count
    return jax.lax.dynamic_update_slice(blocks, before + flagged, (index,))


def _enter(rule: Guard, window: jax.Array, decision: Decision, signals: Signals) -> tuple[jax.Array, jax.Array]:
    """The window and its count after this step."""
    loss, grad_norm = signals.loss, signals.grad_norm
    enters = (decision.signal == 0) & decision.accepted & (loss > 0)  # a batch with nothing to predict has loss 0
    if DETECTORS[rule.detector].outliers_enter:
        enters = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    longer = jnp.concatenate([window[:, 1:], decision.values[:, None]], axis=1)
    return choose(enters, longer, window), decision.window.entered + enters


def _follow_incident(
    rule: Guard,
    counts: Counts,
    marks: Marks,
    recent: jax.Array,
    signals: Signals,
    d: Decision,
    flag: jax.Array,
    uniform_loss: float,
) -> tuple[Counts, Marks, jax.Array]:
    """(counts, marks, the shape if this step shows it, else 0) after a step that was flagged or not."""
    step, starts = signals.step, flag & (counts.is_open == 0)
    first = jax.lax.select(starts, step, counts.first_flag)
    age, loss = step - first, recent[-1]
    ended = ~flag & (counts.in_a_row > 0)
    peak = choose(~starts, marks.peak, -jnp.inf)
    rises = choose(ended, (counts.rises + 1) * (peak > marks.peak_before), counts.rises) * ~starts
    level, noise = _base_of(rule, d, marks)
    logs = jnp.log(jnp.maximum(recent[-2 * HALF :], TINY))
    now = 0.5 * jnp.sum(jnp.sort(logs[-BACK:])[BACK // 2 - 1 : BACK // 2 + 1])
    is_settled, middle = _has_settled(rule, logs, marks.best, noise, d, uniform_loss)
    marks = marks._replace(
        base=choose(starts, level, marks.base),
        base_std=choose(starts, noise, marks.base_std),
        peak=choose(flag, jnp.maximum(peak, loss), choose(~ended, peak, -jnp.inf)),
        peak_before=choose(ended, peak, choose(~starts, marks.peak_before, jnp.inf)),
        best=choose(step > counts.base_step + BACK - 2, jnp.minimum(marks.best, now), marks.best),
    )
    is_open = starts | (counts.is_open == 1)
    back = is_open & (age >= BACK) & (now <= marks.base + marks.base_std)
    is_far = (now > marks.best + jnp.maximum(WORSE * noise, WORSE_SHARE)) & (d.window.entered >= BACK)
    elevated = (counts.elevated + 1) * is_far
    settled = ((is_open & (age >= SETTLED_FROM)) | (elevated >= SETTLED_FROM)) & is_settled
    cases = (back & (age <= BENIGN_STEPS), back, is_open & ended & (rises == 2), settled,
             is_open & (age == PERSISTENT_STEPS))  # fmt: skip
    shape = first_of(cases, (BENIGN, SLOW, GROWING, NEW_LEVEL, PERSISTENT), 0)
    settled = shape == NEW_LEVEL
    if rule.acts:  # else no burst was skipped
        is_short = ended & (counts.in_a_row <= ALIKE_STEPS)
        counts = counts._replace(alike=counts.alike + is_short)
        marks = marks._replace(reach=choose(is_short, jnp.maximum(marks.reach, peak), marks.reach))
    counts = counts._replace(
        base_step=jax.lax.select(settled, step + 1, counts.base_step),
        first_flag=first,
        last_flag=jax.lax.select(flag, step, counts.last_flag),
        in_a_row=(counts.in_a_row + 1) * flag,
        is_open=is_open & ~back & ~settled,
        rises=rises,
        elevated=elevated * ~settled,
    )
    return counts, marks._replace(best=choose(settled, middle, marks.best)), shape


def _base_of(rule: Guard, d: Decision, marks: Marks) -> tuple[jax.Array, jax.Array]:
    """Level and noise of ln loss before an incident: of the window, or the limit where it holds too few values."""
    level, noise = d.window.level[0], d.window.noise[0]
    if not DETECTORS[rule.detector].logs:
        level, noise = jnp.log(jnp.maximum(level, TINY)), noise / jnp.maximum(level, TINY)
    many = d.window.entered >= BACK
    return choose(many, level, jnp.log(marks.limit)), noise * many


def _has_settled(
    rule: Guard, logs: jax.Array, best: jax.Array, noise: jax.Array, d: Decision, uniform_loss: float
) -> tuple[jax.Array, jax.Array]:
    """Whether the last ln losses [2 x HALF] are at a new level, and that level."""
    quarters = jnp.sort(logs.reshape(2, HALF), axis=1)[:, HALF // 4 :: HALF // 4]  # quartiles and median of each half
    before, after = quarters[0, 1], quarters[1, 1]
    back_in = (after - best - noise) * (HALF / PERSISTENT_STEPS)  # the fall that leads back in time
    noise = jnp.maximum(jnp.max(quarters[:, 2] - quarters[:, 0]) / QUARTILES, noise)
    fall = before - after
    is_flat = (fall >= -HALVES_ERROR * noise) & (fall < back_in)
    level, norm = d.window.level[1], d.values[1]
    is_alive = norm > level - COLLAPSED if DETECTORS[rule.detector].logs else norm * math.exp(COLLAPSED) > level
    return is_flat & (after < math.log(uniform_loss)) & is_alive & (d.signal != NORM), after
