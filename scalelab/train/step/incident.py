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
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
    judges_updates,
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
    join,
    log_of,
    stack_changed,
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
    """What the logbook wants to know of a step, or of steps [n]; numbers are meant where a step was flagged."""

    signal: Any  # of SIGNALS
    action: Any  # of ACTIONS
    shape: Any  # of SHAPES
    restarted: Any  # whether a known change began a new window
    first_flag: Any  # step (from 0) of the incident that is open, or was last
    last_flag: Any
    left_out: Any  # micro-batches that the step was taken without, and the first of them (-1: none)
    first_left_out: Any
    steps: Any  # taken so far
    loss: Any
    grad_norm: Any
    loss_threshold: Any
    norm_threshold: Any
    loss_sigmas: Any  # standard deviations above the window's mean
    norm_sigmas: Any
    limit: Any  # of an early loss
    update_ratio: Any  # norm of the update over that of the weights
    flags: Any  # flagged steps among the last 10,000

    @property
    def score(self) -> np.ndarray:
        """The share of flagged steps among the last 10,000."""
        return np.float32(self.flags) / np.minimum(self.steps, BLOCK * BLOCKS)

    @property
    def value(self) -> np.ndarray:
        """What was flagged."""
        return self._of_signal(self.loss, {NORM: self.grad_norm, LARGE_UPDATES: self.update_ratio})

    @property
    def threshold(self) -> np.ndarray:
        """What it was held to."""
        others = {NORM: self.norm_threshold, EARLY: self.limit, LARGE_UPDATES: LARGE_RATIO}
        return self._of_signal(self.loss_threshold, others)

    @property
    def sigmas(self) -> np.ndarray:
        """How many standard deviations it lies above the window's mean."""
        return self._of_signal(self.loss_sigmas, {NORM: self.norm_sigmas, LARGE_UPDATES: 0.0})

    def _of_signal(self, value: Any, others: Mapping[int, Any]) -> np.ndarray:
        """The number of each step's signal; `value` where `others` has none."""
        values = [np.broadcast_to(np.float32(x), np.shape(self.signal)) for x in others.values()]
        return np.select([np.asarray(self.signal) == code for code in others], values, value)


class Seen(NamedTuple):
    """What an incident is followed by: the step's signals and decision, the newest losses, whether it was flagged."""

    signals: Signals
    decision: Decision
    recent: jax.Array
    loss: jax.Array  # the last of them
    flag: jax.Array
    uniform_loss: float


def next_memory(static: Static, memory: Any, outcome: Outcome) -> tuple[Any, dict[str, jax.Array]]:
    """The memory after a step, and the guard's metrics; both empty where it is off."""
    alarm, norms = outcome.verdict.alarm, outcome.updated.norms
    if alarm is None:
        return memory, {}
    signals = signals_of(outcome.step, outcome.gradient, outcome.verdict)
    uniform = math.log(static.model.vocab_size)
    ratio = norms.update / norms.weights if judges_updates(static) else jnp.float32(jnp.nan)
    new, report = remember(static.guard, memory, signals, alarm, ratio, uniform)
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
    step, d = signals.step, decision
    before, marks_before = Counts(*memory.counts), Marks(*memory.marks)
    is_number = jnp.isfinite(signals.loss) & (signals.loss > 0)  # 0: a batch with nothing to predict
    raw = choose(is_number, signals.loss, jnp.inf)
    recent = jnp.concatenate([memory.recent[1:], raw[None]])
    is_large = (step < EARLY_STEPS) & (update_ratio > LARGE_RATIO)
    large = choose(is_large, before.large + 1, 0)
    is_quiet = d.signal == 0
    signal = choose(is_quiet & (large == LARGE_IN_A_ROW), LARGE_UPDATES, d.signal)
    is_flagged = signal != 0
    flagged = is_flagged.astype(jnp.int32)
    is_high = (step >= HIGH_FROM) & ~(signals.loss <= uniform_loss + HIGH_MARGIN)
    counts = before._replace(
        base_step=jax.lax.select(d.restarted, step, before.base_step),
        flagged=before.flagged + flagged,
        overflows=before.overflows if isinstance(d.overflows, int) else before.overflows + d.overflows,
        large=large,
        high=choose(is_high, before.high + 1, 0),
    )
    marks = marks_before._replace(
        limit=jnp.minimum(marks_before.limit, jnp.maximum(raw, uniform_loss)),
        best=choose(d.restarted, jnp.inf, marks_before.best),
        lr=d.lr,
    )
    seen = Seen(signals, d, recent, raw, is_flagged, uniform_loss)
    counts, marks, shape, settled = _follow_incident(rule, counts, marks, seen)
    window, entered = _enter(rule, memory.window, d, is_quiet & is_number)
    lr_factor, clip_factor = memory.lr_factor, memory.clip_factor
    if rule.acts and DETECTORS[rule.detector].logs:
        slower = jnp.where(signal == EARLY, SLOWER, 1.0)
        lr_factor, clip_factor = (x * jnp.where(x > SLOWEST, slower, 1.0) for x in (lr_factor, clip_factor))
    state = memory._replace(
        window=window,
        recent=recent,
        blocks=_count_flag(memory.blocks, step, flagged),
        counts=stack_changed(memory.counts, before, counts._replace(entered=choose(settled, 0, entered))),
        marks=stack_changed(memory.marks, marks_before, marks),
        lr_factor=lr_factor,
        clip_factor=clip_factor,
    )
    shape = choose(counts.high == HIGH_STEPS, DIVERGED, shape)
    at = Counts._fields.index("first_flag")
    flags = state.counts[at : at + 2]
    whole = join([signal, d.action, shape, d.restarted | settled, flags, d.left_out, step + 1], jnp.int32)
    total = jnp.sum(state.blocks, dtype=jnp.int32)
    report = [whole, d.values, d.thresholds, d.sigmas, d.limit, update_ratio, total]
    return state, join(report, jnp.float32)  # as in `Report`


def _count_flag(blocks: jax.Array, step: jax.Array, flagged: jax.Array) -> jax.Array:
    """Flagged steps by block after `step`."""
    number = jax.lax.div(step, BLOCK)
    index = jax.lax.rem(number, BLOCKS)
    old = jax.lax.dynamic_slice(blocks, (index,), (1,), allow_negative_indices=False)
    count = choose(step > number * BLOCK, old, 0) + flagged[None]  # a block's first step finds an old count
    return jax.lax.dynamic_update_slice(blocks, count, (index,), allow_negative_indices=False)


def _enter(rule: Guard, window: jax.Array, decision: Decision, is_fit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The window and its count after this step; `is_fit`: whether nothing was flagged of a number above 0."""
    enters = is_fit & decision.accepted
    if DETECTORS[rule.detector].outliers_enter:
        enters = jnp.all(jnp.isfinite(decision.values))
    longer = jnp.concatenate([window[:, 1:], decision.entering[:, None]], axis=1)
    return choose(enters, longer, window), decision.window.entered + enters


def _follow_incident(
    rule: Guard, counts: Counts, marks: Marks, seen: Seen
) -> tuple[Counts, Marks, jax.Array, jax.Array]:
    """(counts, marks, the shape if this step shows it, else 0, whether it is a new level) after a step."""
    (signals, d, recent, loss, flag, _) = seen
    step = signals.step
    was_open = (counts.is_open == 1) & ~d.restarted
    starts, is_open = flag & ~was_open, flag | was_open
    first = jax.lax.select(starts, step, counts.first_flag)
    age = step - first
    ended = ~flag & (counts.in_a_row > 0)
    peak = choose(starts, -jnp.inf, marks.peak)
    higher = choose(peak > marks.peak_before, counts.rises + 1, 0)
    rises = choose(starts, 0, jax.lax.select(ended, higher, counts.rises))
    many = d.window.entered >= BACK
    level, noise = _base_of(rule, d, marks, many)
    logs = log_of(recent[-2 * HALF :])
    now = 0.5 * jnp.sum(jax.lax.top_k(logs[-BACK:], BACK // 2 + 1)[0][-2:])  # their median
    is_settled, middle = _has_settled(rule, logs, marks.best, noise, seen)
    marks = marks._replace(
        base=jax.lax.select(starts, level, marks.base),
        base_std=jax.lax.select(starts, noise, marks.base_std),
        peak=jax.lax.select(flag, jnp.maximum(peak, loss), choose(ended, -jnp.inf, peak)),
        peak_before=jax.lax.select(ended, peak, choose(starts, jnp.inf, marks.peak_before)),
        best=jax.lax.select(step > counts.base_step + BACK - 2, jnp.minimum(marks.best, now), marks.best),
    )
    back = is_open & (age >= BACK) & (now <= marks.base + marks.base_std)
    is_far = (now > marks.best + jnp.maximum(WORSE * noise, WORSE_SHARE)) & many
    elevated = choose(is_far, counts.elevated + 1, 0)
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
        in_a_row=choose(flag, counts.in_a_row + 1, 0),
        is_open=is_open & ~(back | settled),
        rises=rises,
        elevated=choose(settled, 0, elevated),
    )
    return counts, marks._replace(best=jax.lax.select(settled, middle, marks.best)), shape, settled


def _base_of(rule: Guard, d: Decision, marks: Marks, many: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Level and noise of ln loss before an incident: of the window, or the limit where it holds too few values."""
    level, noise = d.window.level[0], d.window.noise[0]
    if not DETECTORS[rule.detector].logs:
        level, noise = jnp.log(jnp.maximum(level, TINY)), noise / jnp.maximum(level, TINY)
    return jax.lax.select(many, level, jnp.log(marks.limit)), choose(many, noise, 0.0)


def _has_settled(
    rule: Guard, logs: jax.Array, best: jax.Array, noise: jax.Array, seen: Seen
) -> tuple[jax.Array, jax.Array]:
    """Whether the last ln losses [2 x HALF] are at a new level, and that level."""
    # Of each half the upper quartile, the median and the lower one. A sort's comparator is ten operations of the step.
    quarters = jax.lax.top_k(logs.reshape(2, HALF), HALF - HALF // 4)[0][:, HALF // 4 - 1 :: HALF // 4]
    before, after = quarters[0, 1], quarters[1, 1]
    back_in = (after - best - noise) * (HALF / PERSISTENT_STEPS)  # the fall that leads back in time
    noise = jnp.maximum(jnp.max(quarters[:, :1] - quarters[:, 2:]) / QUARTILES, noise)
    fall = before - after
    is_flat = (fall >= -HALVES_ERROR * noise) & (fall < back_in)
    d = seen.decision
    level, norm = d.window.norm_level, d.entering[1]
    is_alive = norm > level - COLLAPSED if DETECTORS[rule.detector].logs else norm * math.exp(COLLAPSED) > level
    return is_flat & (after < math.log(seen.uniform_loss)) & is_alive & (d.signal != NORM), after
