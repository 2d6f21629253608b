"""The guard: a memory of recent steps, and a decision on each, made in the step from reduced scalars.

So every host, every device of a mesh and every packed trial decides alike or alone, and a resumed run decides as if it
had never stopped. Signals of a step:

    bad            loss, gradient norm, LR, decay, beta1 or (of a user's optimizer) the update is not finite; or loss or
                   gradient of a micro-batch that the step was then taken without
    loss, grad_norm   outliers: detector log: ln loss > level + max(sigmas x noise, 0.02), or ln norm > level + sigmas x
                   noise and norm > 3 x the window's largest; sigma: value > mean + sigmas x std (OLMo-core: either one)
    early          before step 64, and while the window is too short to judge: loss > limit + max(1, limit / 10), where
                   the limit is the lowest loss so far, but not below that of a uniform guess
    large_updates  before step 64: update norm > 0.1 x weight norm at 8 steps in a row (Adam, AdamW)

Under `log` flagged values never enter the window; under `sigma` all finite ones do, as in OLMo-core. One NaN would
blind either for the length of the window, so it enters neither. An incident begins with a flag and ends when the median
of 8 losses is back within one standard deviation of the level before, or in a new level (incident.py).

Where the guard acts, a flagged step is skipped. After ALIKE bursts of one or two steps, which passed by themselves, an
outlier no higher than those is learnt from, clipped to the window's median norm: a rare source is hard each time.
After an `early` step the LR and the clip are SLOWER times as large, for good.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Guard, Static, replace_hparams
from scalelab.config.choices import DETECTORS, PARAMETRIZATIONS
from scalelab.optim.schedules import Hparams
from scalelab.precision.policy import POLICIES
from scalelab.precision.states import policy_state
from scalelab.train.step.memory import (  # noqa: F401 - the memory is part of the guard, and known by its name
    BLOCK,
    BLOCKS,
    MOST_JUMPS,
    RECENT,
    TINY,
    Counts,
    GuardState,
    Marks,
    Window,
    as_entered,
    begin_window,
    choose,
    first_of,
    init_guard,
    median_norm,
    read_window,
    stack,
    trend_length,
)

GUARD = "guard"  # the metric that is an array, an `incident.Report`: for the logbook, not for metrics.jsonl
SIGNALS = ("", "bad", "loss", "grad_norm", "early", "large_updates")
ACTIONS = ("none", "skip", "clip", "skip_micro_batch")
BAD, LOSS, NORM, EARLY, LARGE_UPDATES = range(1, len(SIGNALS))
OUTLIERS = (LOSS, NORM)  # the signals on which the guard acts; what is bad is skipped without one, too

LEAST_MARGIN = 0.02  # of ln loss: a window of equal losses must not flag the next digit
LARGER = math.log(3.0)  # a gradient norm is an outlier only beyond so many times the window's largest
EARLY_STEPS, EARLY_RISE, LARGE_RATIO, LARGE_IN_A_ROW = 64, 1.0, 0.1, 8
EARLY_SHARE = 0.1  # of the limit: losses that begin at 40 nats scatter by more than one
SLOWER, SLOWEST = 0.7, 0.04  # factor of LR and clip after an early step, and the least that is left of either
LEVEL_ERRORS = 3.0  # standard errors of their mean, by which the level may be too low
ALIKE, ALIKE_STEPS, ALIKE_MARGIN = 3, 2, 1.1  # such bursts, of so many steps; the next may be so many times as high
BUDGET_BLOCKS, BUDGET, MOST_IN_A_ROW = 10, 10, 16  # 5 % of the last 200 steps, or so many in a row: no accidents
REWARMUP_STEPS = 150  # of LR after the moments are reset (SPAM)
LR_JUMP, LR_JUMP_FROM = (
    1.2,
    10,
)  # an LR so many times the step before's is a restart; later than a warm-up's first steps
ADAMS = ("adam", "adamw")


class Signals(NamedTuple):
    """What the guard looks at, of step `step`: loss in nats a token, gradient norm before the clip.

    `finite`: whether all that an update needs is; `left_out`: how many micro-batches are not in loss and gradient, and
    the first of them.
    """

    step: jax.Array
    loss: jax.Array
    grad_norm: jax.Array
    finite: jax.Array
    left_out: Sequence[jax.Array | int] = (0, -1)


class Decision(NamedTuple):
    """What the guard decides on one step. `clip`: a bound on its gradient norm; inf where there is none."""

    accepted: jax.Array  # whether the update is taken
    clip: jax.Array
    signal: jax.Array  # int32, of SIGNALS
    action: jax.Array  # int32, of ACTIONS
    restarted: jax.Array  # whether a known change begins a new window
    left_out: Any  # int32 [2]: how many micro-batches the step does without, and the first of them (-1: none)
    values: jax.Array  # [2]: loss and gradient norm
    thresholds: jax.Array  # [2]: above them either is an outlier
    sigmas: jax.Array  # [2]: how many noises they lie above the level
    limit: jax.Array  # above it a loss is early
    entering: jax.Array  # [2]: the values as they would stand in the window
    window: Window
    lr: jax.Array | float = math.inf  # planned for this step
    overflows: jax.Array | int = 0  # whether it is one of fp16, which lowers the loss scale


def adjust_rates(memory: Any, step: jax.Array, now: Hparams) -> Hparams:
    """`now` with the LR and the clip that the guard's past actions left; exactly `now` where there were none."""
    if not isinstance(memory, GuardState):
        return now
    since = Counts(*memory.counts).rewarm_from
    warm = jnp.where(since >= 0, jnp.minimum(1.0, (step - since + 1) / REWARMUP_STEPS), 1.0)
    lr, clip_norm = now.step.lr * (memory.lr_factor * warm), now.optim.clip_norm * memory.clip_factor
    return replace_hparams(now, {"step.lr": lr, "optim.clip_norm": clip_norm})


def decide(
    rule: Guard,
    memory: GuardState,
    signals: Signals,
    overflow: jax.Array | bool,
    restarted: jax.Array | bool,
    h: Hparams,
) -> Decision:
    """The decision on a step, from scalars alone.

    `overflow`: whether only the loss scale is to blame if it is not finite; `restarted`: whether the run changes at
    this step in a known way, which begins a new window.
    """
    step, loss, grad_norm, finite, left_out = signals
    counts, limit, detector = Counts(*memory.counts), Marks(*memory.marks).limit, DETECTORS[rule.detector]
    restarted = jnp.asarray(restarted)
    entered = choose(restarted, 0, counts.entered)
    values, window = jnp.stack([loss, grad_norm]), read_window(rule, memory.window, entered)
    entering = as_entered(rule, values)
    above = entering - window.level
    margin = _margins(rule, window, h.guard.sigmas)
    # OLMo-core counts the value at hand among those that it needs.
    least = jnp.maximum(h.guard.minimum, trend_length(rule)) if detector.logs else h.guard.minimum - 1
    is_judged = entered >= least
    outliers = (above > margin) & is_judged
    limit += jnp.maximum(EARLY_RISE, EARLY_SHARE * limit)
    is_start = (step < EARLY_STEPS) | ~is_judged if detector.logs else step < EARLY_STEPS
    is_not = ~finite
    bad = BAD if overflow is False else choose(jnp.asarray(overflow), 0, jnp.int32(BAD))
    is_part = [jnp.asarray(left_out[0]) > 0] if rule.leaves_out else []
    cases = [is_not, *outliers, is_start & (loss > limit), *is_part]
    signal = first_of(cases, (bad, LOSS, NORM, EARLY, BAD)[: len(cases)], 0)
    clips, skips = _choose_action(rule, memory, step, signal, loss) if rule.acts else (None, None)
    actions = [is_not] if skips is None else [skips | is_not, clips]
    action = first_of([*actions, *is_part], [*range(1, len(actions) + 1), *[3] * len(is_part)], 0)
    threshold = jnp.exp(window.level + margin) if detector.logs else window.level + margin
    sigmas = above / jnp.maximum(window.noise, np.full(2, TINY, np.float32))
    accepted, clip = finite, jnp.float32(jnp.inf)
    if clips is not None and skips is not None:
        accepted, clip = finite & ~skips, choose(clips, median_norm(rule, memory.window, entered), jnp.inf)
    return Decision(
        accepted,
        clip,
        signal,
        action,
        restarted,
        stack(left_out, jnp.int32) if rule.leaves_out else np.array([0, -1], np.int32),
        values,
        threshold,
        sigmas,
        limit,
        entering,
        window,
    )


def _choose_action(
    rule: Guard, memory: GuardState, step: jax.Array, signal: jax.Array, loss: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Whether the step is clipped, and whether it is skipped, where the guard acts."""
    counts, marks, logs = Counts(*memory.counts), Marks(*memory.marks), DETECTORS[rule.detector].logs
    outlier = (signal == LOSS) | (signal == NORM)
    if rule.clips:
        clips = outlier
    elif logs:
        is_like_before = (counts.alike >= ALIKE) & (counts.in_a_row < ALIKE_STEPS)
        clips = outlier & is_like_before & (loss <= ALIKE_MARGIN * marks.reach)
    else:
        clips = jnp.zeros((), bool)
    skips = (outlier | (signal == EARLY)) if logs else outlier
    return clips, skips & ~clips & ~_is_budget_spent(memory, step)


def _is_budget_spent(memory: GuardState, step: jax.Array) -> jax.Array:
    """Whether so many steps were flagged lately that it is no accident: what is left out next is not skipped."""
    recent_flags = jnp.sum(jnp.where(_is_recent_block(step), memory.blocks, 0))
    return (Counts(*memory.counts).in_a_row >= MOST_IN_A_ROW) | (recent_flags > BUDGET)


def may_leave_out(memory: GuardState, step: jax.Array) -> jax.Array:
    """Whether a micro-batch that is not finite may be left out; else the whole step is skipped, and counts as such."""
    return ~_is_budget_spent(memory, step)


def decide_step(static: Static, state: Any, signals: Signals, planned: Hparams) -> Decision:
    """The decision on a step of a `TrainState`; `planned` are the schedules' numbers."""
    overflow = _is_overflow(static, state.precision, signals)
    restarted = is_known_change(static, state.step, Marks(*state.guard.marks).lr, planned.step.lr)
    decision = decide(static.guard, state.guard, signals, overflow, restarted, planned)
    if overflow is not False:
        decision = decision._replace(overflows=overflow & (decision.signal == 0))
    return decision._replace(lr=planned.step.lr)


def clip_outlier(rule: Guard, now: Hparams, decision: Decision) -> Hparams:
    """The numbers `now` of an update under this decision."""
    if not rule.acts:
        return now
    return replace_hparams(now, {"optim.clip_norm": jnp.minimum(now.optim.clip_norm, decision.clip)})


def _margins(rule: Guard, window: Window, sigmas: jax.Array) -> jax.Array:
    """How far above the level loss and gradient norm are outliers, as they stand in the window."""
    if not DETECTORS[rule.detector].logs:
        return sigmas * window.noise
    margin = (sigmas + LEVEL_ERRORS / math.sqrt(trend_length(rule))) * window.noise
    larger = window.largest_norm - window.norm_level + LARGER
    return jnp.maximum(margin, jnp.concatenate([np.array([LEAST_MARGIN], np.float32), larger[None]]))


def _is_recent_block(step: jax.Array) -> jax.Array:
    """[BLOCKS]: the block of this step and those before it that the budget counts."""
    block = jax.lax.div(step, jnp.int32(BLOCK))
    age = jax.lax.rem(block + (BLOCKS * BLOCK) - jnp.arange(BLOCKS), jnp.int32(BLOCKS))
    is_begun = step > block * BLOCK  # a block's first step finds an old one's count
    return (age < BUDGET_BLOCKS) & ((age > 0) | is_begun)


def is_known_change(static: Static, step: jax.Array, lr_before: jax.Array, lr: jax.Array) -> jax.Array:
    """Whether the batch, the data's mixture or the planned LR jumps at this step, as planned."""
    jump = (step > LR_JUMP_FROM) & (lr > LR_JUMP * lr_before)
    stages = (*static.batch_ramp, *static.guard.stages)
    return jump | jnp.any(step == jnp.asarray(stages, jnp.int32)) if stages else jump


def _is_overflow(static: Static, precision: Any, signals: Signals) -> jax.Array | bool:
    """Whether the gradients of a finite loss overflowed because of the loss scale, which is then lowered."""
    scale = policy_state(POLICIES[static.precision]).loss_factor(precision)
    if scale is None:
        return False
    return jnp.isfinite(signals.loss) & ~jnp.isfinite(signals.grad_norm) & (scale > 1)


def judges_updates(static: Static) -> bool:
    """Whether `large_updates` is a signal of this optimizer: others' updates have other sizes, logged or not."""
    return static.optim.name in ADAMS and not PARAMETRIZATIONS[static.model.parametrization].width


def measures_updates(static: Static, step: jax.Array) -> jax.Array | bool:
    """Whether the guard needs the norms of this step's update, for `large_updates`."""
    return step < EARLY_STEPS if judges_updates(static) and static.guard.watches else False
