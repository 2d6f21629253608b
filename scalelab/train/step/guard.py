"""The guard: a memory of recent steps, and a decision on each, made in the step from reduced scalars.

So every host, every device of a mesh and every packed trial decides alike or alone, and a resumed run decides as if it
had never stopped. Signals of a step:

    bad            loss, gradient norm, LR, decay, beta1 or (of a user's optimizer) the update is not finite; or loss or
                   gradient of a micro-batch that the step was then taken without
    loss, grad_norm   outliers: detector log: ln loss > mean + max(sigmas x std, 0.02), or ln norm > mean + sigmas x std
                   and norm > 3 x the window's largest; sigma: value > mean + sigmas x std (OLMo-core: loss or norm)
    early          before step 64: loss > first loss + 1
    large_updates  before step 64: update norm > 0.1 x weight norm at 8 steps in a row (Adam, AdamW)

Under `log` flagged values never enter the window; under `sigma` all finite ones do, as in OLMo-core. One NaN would
blind either for the length of the window, so it enters neither. An incident begins with a flag and ends when the median
of 8 losses is back within one standard deviation of the window's median (incident.py).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Guard, Static, replace_hparams
from scalelab.config.choices import DETECTORS, PARAMETRIZATIONS
from scalelab.optim import schedules
from scalelab.optim.schedules import Hparams
from scalelab.precision.policy import POLICIES
from scalelab.precision.states import policy_state

GUARD = "guard"  # the metric that is an array, an `incident.Report`: for the logbook, not for metrics.jsonl
SIGNALS = ("", "bad", "loss", "grad_norm", "early", "large_updates")
ACTIONS = ("none", "skip", "clip", "skip_micro_batch")
BAD, LOSS, NORM, EARLY, LARGE_UPDATES = range(1, len(SIGNALS))
OUTLIERS = (LOSS, NORM)  # the signals on which the guard acts; what is bad is skipped without one, too

TINY = 1e-30  # below it a loss or norm counts as this: the logarithm of zero would be no number
LEAST_MARGIN = 0.02  # of ln loss: a window of equal losses must not flag the next digit
LARGER = 3.0  # a gradient norm is an outlier only beyond so many times the window's largest
EARLY_STEPS, EARLY_RISE, LARGE_RATIO, LARGE_IN_A_ROW = 64, 1.0, 0.1, 8
RECENT = 288  # losses kept whatever they are: what the host's test of a lasting rise needs
BLOCK, BLOCKS = 20, 500  # flags are counted by blocks of steps: 10,000 steps make the spike score
BUDGET_BLOCKS, BUDGET, MOST_IN_A_ROW = 10, 10, 16  # 5 % of the last 200 steps, or so many in a row: no accidents
FORECAST_STEPS, FORECAST_LEAST = 64, 16  # losses that the running forecast of the next one rests on
REWARMUP_STEPS = 150  # of LR after the moments are reset (SPAM)
LR_JUMP, LR_JUMP_FROM = (
    1.2,
    10,
)  # an LR so many times the step before's is a restart; later than a warm-up's first steps
MOST_JUMPS = 4  # of the data, ahead of a run at once
ADAMS = ("adam", "adamw")


class Counts(NamedTuple):
    """Whole numbers of the memory, int32, stacked into one array. Steps are -1 where there is none."""

    entered: Any = 0  # values that entered the window since the last known change
    base_step: Any = 0  # step of that change
    flagged: Any = 0
    in_a_row: Any = 0  # flagged steps up to now
    overflows: Any = 0  # of fp16: they lower the loss scale and are not flagged
    first_flag: Any = -1  # of the incident that is open, or was last
    last_flag: Any = -1
    is_open: Any = 0
    rises: Any = 0  # bursts of flags in a row, each with a higher loss than the one before
    large: Any = 0  # large updates in a row
    high: Any = 0  # losses in a row above that of a uniform guess
    rewinds: Any = 0
    rewarm_from: Any = -1  # step from which the LR is warmed up again


class Marks(NamedTuple):
    """Real numbers of the memory, fp32, stacked into one array."""

    first_loss: Any = jnp.inf
    base: Any = 0.0  # median of the window when the incident began, and its standard deviation
    base_std: Any = 0.0
    peak: Any = -jnp.inf  # largest loss of this burst of flags, and of the one before
    peak_before: Any = jnp.inf


class GuardState(NamedTuple):
    """The guard's memory. The batch of step s is number s + `data_shift`; `lr_factor` and `clip_factor` scale both."""

    window: jax.Array  # [2, W]: ln loss and ln gradient norm of accepted steps (detector sigma: the values)
    recent: jax.Array  # [RECENT]: losses of the last steps, at step % RECENT; inf where not finite
    blocks: jax.Array  # int32 [BLOCKS]: flagged steps by block
    counts: jax.Array  # Counts, stacked
    marks: jax.Array  # Marks, stacked
    data_shift: jax.Array  # int32, batches
    jumps: jax.Array  # int32 [MOST_JUMPS, 2]: (step, batches): from that step on data_shift is larger; -1: none
    lr_factor: jax.Array
    clip_factor: jax.Array


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
    value: jax.Array  # loss or gradient norm, whichever was flagged, and what it was held to
    threshold: jax.Array
    sigmas: jax.Array  # standard deviations above the window's mean
    restarted: jax.Array  # whether a known change begins a new window
    left_out: jax.Array  # int32 [2]: how many micro-batches the step does without, and the first of them (-1: none)


def init_guard(rule: Guard) -> Any:
    """The memory of a run's first step; () if the guard is off."""
    if not rule.watches:
        return ()
    one = jnp.ones((), jnp.float32)
    return GuardState(
        jnp.zeros((2, rule.window), jnp.float32), jnp.full(RECENT, jnp.inf, jnp.float32),
        jnp.zeros(BLOCKS, jnp.int32), jnp.array(Counts(), jnp.int32), jnp.array(Marks(), jnp.float32),
        jnp.zeros((), jnp.int32), jnp.full((MOST_JUMPS, 2), -1, jnp.int32), one, one,
    )  # fmt: skip


def begin_window(memory: Any, step: int) -> Any:
    """The memory where a run goes on at `step` under another config: what is normal has to be learnt anew."""
    if not isinstance(memory, GuardState):
        return memory
    counts = Counts(*memory.counts)._replace(entered=0, base_step=step, is_open=0)
    return memory._replace(counts=jnp.stack([jnp.asarray(x, jnp.int32) for x in counts]))


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
    counts, marks = Counts(*memory.counts), Marks(*memory.marks)
    entered = jnp.where(restarted, 0, counts.entered)
    values = jnp.stack([loss, grad_norm])
    held = _hold_to_window(rule, memory.window, entered, values, h.guard.sigmas)
    thresholds, sigmas, outliers = held
    # OLMo-core counts the value at hand among those that it needs.
    judged = finite & (entered >= h.guard.minimum - DETECTORS[rule.detector].outliers_enter)
    early = finite & (step < EARLY_STEPS) & (loss > marks.first_loss + EARLY_RISE)
    is_part = jnp.asarray(left_out[0]) > 0
    cases = (~finite & ~jnp.asarray(overflow), judged & outliers[0], judged & outliers[1], early, is_part)
    signal = jnp.select(cases, (BAD, LOSS, NORM, EARLY, BAD), 0).astype(jnp.int32)
    outlier = (signal == LOSS) | (signal == NORM)
    clips = outlier & rule.clips
    skips = outlier & (rule.acts and not rule.clips) & ~_is_budget_spent(memory, step)
    action = jnp.select((skips | ~finite, clips, is_part), (1, 2, 3), 0).astype(jnp.int32)
    norm = signal == NORM
    pick = lambda pair: jnp.where(norm, pair[1], pair[0])  # noqa: E731
    threshold = jnp.where(signal == EARLY, marks.first_loss + EARLY_RISE, pick(thresholds))
    clip = jnp.where(clips, _median_norm(rule, memory.window, entered), jnp.inf)
    return Decision(
        finite & ~skips, clip, signal, action, pick(values), threshold, pick(sigmas), jnp.asarray(restarted),
        jnp.stack([jnp.asarray(x, jnp.int32) for x in left_out]),
    )  # fmt: skip


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
    restarted = is_known_change(static, state.step, planned, planned.step.lr)
    return decide(static.guard, state.guard, signals, overflow, restarted, planned)


def clip_outlier(rule: Guard, now: Hparams, decision: Decision) -> Hparams:
    """The numbers `now` of an update under this decision."""
    if not rule.clips:
        return now
    return replace_hparams(now, {"optim.clip_norm": jnp.minimum(now.optim.clip_norm, decision.clip)})


def _hold_to_window(
    rule: Guard, window: jax.Array, entered: jax.Array, values: jax.Array, sigmas: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of loss and gradient norm, each [2]: threshold, standard deviations above the mean, whether outliers."""
    x = as_entered(rule, values)
    filled = (jnp.arange(rule.window) < entered)[None]
    n = jnp.clip(entered, 2, rule.window).astype(jnp.float32)
    mean = jnp.sum(jnp.where(filled, window, 0.0), axis=1) / n
    std = jnp.sqrt(jnp.sum(jnp.where(filled, jnp.square(window - mean[:, None]), 0.0), axis=1) / (n - 1))
    margin = sigmas * std
    if DETECTORS[rule.detector].logs:
        largest = jnp.max(jnp.where(filled[0], window[1], -jnp.inf))
        margin = jnp.maximum(margin, jnp.stack([LEAST_MARGIN, largest - mean[1] + jnp.log(LARGER)]))
    threshold = mean + margin
    threshold = jnp.exp(threshold) if DETECTORS[rule.detector].logs else threshold
    return threshold, (x - mean) / jnp.maximum(std, TINY), x - mean > margin


def as_entered(rule: Guard, values: jax.Array) -> jax.Array:
    """Losses or norms as they stand in the window."""
    return jnp.log(jnp.maximum(values, TINY)) if DETECTORS[rule.detector].logs else values


def median(values: jax.Array, n: jax.Array | int) -> jax.Array:
    """The median of the `n` finite ones of `values`, whose others are inf; inf of none."""
    ordered = jnp.sort(values)
    return 0.5 * (ordered[jnp.maximum(n - 1, 0) // 2] + ordered[n // 2])


def _median_norm(rule: Guard, window: jax.Array, entered: jax.Array) -> jax.Array:
    n = jnp.minimum(entered, rule.window)
    middle = median(jnp.where(jnp.arange(rule.window) < n, window[1], jnp.inf), n)
    return jnp.exp(middle) if DETECTORS[rule.detector].logs else middle


def loss_sigmas(memory: GuardState, step: jax.Array, loss: jax.Array) -> jax.Array:
    """Standard deviations of ln loss above its running forecast; 0 before FORECAST_LEAST losses are known.

    The forecast is the line of least squares through the last FORECAST_STEPS losses, flagged ones included, and the
    standard deviation that of its residuals.
    """
    age = (step - 1 - jnp.arange(RECENT)) % RECENT
    known = (age < jnp.minimum(step, FORECAST_STEPS)) & jnp.isfinite(memory.recent)
    n, x = jnp.sum(known).astype(jnp.float32), -1.0 - age
    mean = lambda values: jnp.sum(jnp.where(known, values, 0.0)) / jnp.maximum(n, 1.0)  # noqa: E731
    x_mean, y_mean = mean(x), mean(memory.recent)
    dx, dy = x - x_mean, jnp.where(known, memory.recent - y_mean, 0.0)
    slope = mean(dx * dy) / jnp.maximum(mean(dx * dx), TINY)
    std = jnp.sqrt(mean(jnp.square(dy - slope * dx)) * n / jnp.maximum(n - 2.0, 1.0))
    above = jnp.log(jnp.maximum(loss, TINY)) - (y_mean - slope * x_mean)
    return jnp.where(n >= FORECAST_LEAST, above / jnp.maximum(std, TINY), 0.0)


def _is_recent_block(step: jax.Array) -> jax.Array:
    """[BLOCKS]: the block of this step and those before it that the budget counts."""
    age = (step // BLOCK - jnp.arange(BLOCKS)) % BLOCKS
    return (age < BUDGET_BLOCKS) & ((age > 0) | (step % BLOCK > 0))  # a block's first step finds an old one's count


def is_known_change(static: Static, step: jax.Array, h: Hparams, lr: jax.Array) -> jax.Array:
    """Whether the batch, the data's mixture or the LR jumps at this step, as planned."""
    before = schedules.make_schedule(static)(jnp.maximum(step - 1, 0), h)
    jump = (step > LR_JUMP_FROM) & (lr > LR_JUMP * before)
    stages = (*static.batch_ramp, *static.guard.stages)
    return jump | jnp.any(step == jnp.asarray(stages, jnp.int32)) if stages else jump


def _is_overflow(static: Static, precision: Any, signals: Signals) -> jax.Array | bool:
    """Whether the gradients of a finite loss overflowed because of the loss scale, which is then lowered."""
    scale = policy_state(POLICIES[static.precision]).loss_factor(precision)
    if scale is None:
        return False
    return jnp.isfinite(signals.loss) & ~jnp.isfinite(signals.grad_norm) & (scale > 1)


def measures_updates(static: Static, step: jax.Array) -> jax.Array | bool:
    """Whether the guard needs the norms of this step's update, for `large_updates`."""
    adam = static.optim.name in ADAMS and not PARAMETRIZATIONS[static.model.parametrization].width
    return step < EARLY_STEPS if adam and static.guard.watches else False
