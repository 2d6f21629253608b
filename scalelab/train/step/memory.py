"""The guard's memory: what it holds, what its window says, and memories of former versions.

The window's level and noise under the detector `log` are those about a trend, since the descent of a run's start would
hide a tenfold loss: the mean of the last TREND values; and the standard deviation about a line through them, or about
one through as many before if that is smaller (so that a rise does not hide itself), but at least that by differences of
neighbours in the whole window (von Neumann 1941).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Guard
from scalelab.config.choices import DETECTORS
from scalelab.parallel.processes import gather_to_host

TINY = 1e-30  # below it a loss or norm counts as this: the logarithm of zero would be no number
RECENT = 288  # newest losses, whatever they are: what the host's test of a lasting rise needs
BLOCK, BLOCKS = 20, 500  # flags are counted by blocks of steps: 10,000 steps make the spike score
MOST_JUMPS = 4  # of the data, ahead of a run at once
FORMER_COUNTS, FORMER_MARKS = 13, 5  # fields that they had before 0.4; those since then stand last
LINE_CAUTION = 1.5  # of the smaller of two variances: no more false flags than about the mean (checks.diagnosis.noise)
TREND = 32  # newest values of the window, through which the trend's line goes


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
    alike: Any = 0  # bursts of one or two flags, which passed by themselves
    elevated: Any = 0  # steps in a row at which the median of 8 losses was far above the best


class Marks(NamedTuple):
    """Real numbers of the memory, fp32, stacked into one array."""

    limit: Any = jnp.inf  # the lowest loss so far, at least that of a uniform guess
    base: Any = 0.0  # the window's level of ln loss when the incident began, and its noise
    base_std: Any = 0.0
    peak: Any = -jnp.inf  # largest loss of this burst of flags, and of the one before
    peak_before: Any = jnp.inf
    best: Any = jnp.inf  # lowest median of 8 ln losses since the last known change
    reach: Any = 0.0  # largest loss of the bursts in `alike`
    lr: Any = jnp.inf  # planned for the step before


class GuardState(NamedTuple):
    """The guard's memory; `lr_factor` and `clip_factor` scale both. Batches follow from `feed.DataShift`."""

    window: jax.Array  # [2, W]: ln loss and ln gradient norm of accepted steps (sigma: the values), newest last
    recent: jax.Array  # [RECENT]: losses of the last steps, newest last; inf where not finite
    blocks: jax.Array  # int32 [BLOCKS]: flagged steps by block
    counts: jax.Array  # Counts, stacked
    marks: jax.Array  # Marks, stacked
    data_shift: jax.Array  # int32: the batch of step s is number s + this, and more by `jumps`; no step changes either
    jumps: jax.Array  # int32 [MOST_JUMPS, 2]: (step, batches): so many more from that step on; -1: none
    lr_factor: jax.Array
    clip_factor: jax.Array


class Window(NamedTuple):
    """What the window says of loss and gradient norm, [2]; `entered`: how many values it has seen."""

    level: jax.Array
    noise: jax.Array
    norm_level: jax.Array  # a number, as is the next
    largest_norm: jax.Array
    entered: jax.Array


def init_guard(rule: Guard) -> Any:
    """The memory of a run's first step; () if the guard is off."""
    if not rule.watches:
        return ()
    one = jnp.ones((), jnp.float32)
    return GuardState(
        jnp.zeros((2, rule.window), jnp.float32),
        jnp.full(RECENT, jnp.inf, jnp.float32),
        jnp.zeros(BLOCKS, jnp.int32),
        jnp.array(Counts(), jnp.int32),
        jnp.array(Marks(), jnp.float32),
        jnp.zeros((), jnp.int32),
        jnp.full((MOST_JUMPS, 2), -1, jnp.int32),
        one,
        one,
    )


def former_shapes(memory: GuardState) -> GuardState:
    """Shapes of a memory as versions before 0.4 saved it, on the devices of `memory`."""
    sizes = {"counts": FORMER_COUNTS, "marks": FORMER_MARKS}
    former: dict[str, Any] = {}
    for name, size in sizes.items():
        leaf = getattr(memory, name)
        former[name] = jax.ShapeDtypeStruct((size,), leaf.dtype, sharding=getattr(leaf, "sharding", None))
    return memory._replace(**former)


def upgrade_memory(memory: GuardState, step: int) -> GuardState:
    """A memory that was saved at `step` in the form of `former_shapes`, in today's: its rings began anywhere."""
    if memory.counts.shape != (FORMER_COUNTS,):
        return memory
    old = {name: gather_to_host(getattr(memory, name)) for name in ("counts", "marks", "window", "recent")}
    values = {
        "counts": np.array([*old["counts"], *Counts()[FORMER_COUNTS:]], np.int32),
        "marks": np.array([*old["marks"], *Marks()[FORMER_MARKS:]], np.float32),
        "window": np.roll(old["window"], -int(old["counts"][0]) % old["window"].shape[1], axis=1),
        "recent": np.roll(old["recent"], -step % RECENT),
    }
    return memory._replace(**{name: jax.device_put(x, getattr(memory, name).sharding) for name, x in values.items()})


def begin_window(memory: Any, step: int) -> Any:
    """The memory where a run goes on at `step` under another config: what is normal has to be learnt anew."""
    if not isinstance(memory, GuardState):
        return memory
    counts = Counts(*memory.counts)._replace(entered=0, base_step=step, is_open=0, alike=0, elevated=0)
    marks = Marks(*memory.marks)._replace(best=jnp.inf)
    return memory._replace(counts=stack(counts, jnp.int32), marks=stack(marks, jnp.float32))


def stack(values: Sequence[Any], dtype: Any) -> jax.Array:
    """Counts or marks as one array."""
    return jnp.stack([jnp.asarray(x, dtype) for x in values])


def stack_changed(array: jax.Array, before: Sequence[Any], after: Sequence[Any]) -> jax.Array:
    """`stack` of `after` where `before` are the fields of `array`: what is the same object is not taken apart."""
    parts: list[jax.Array] = []
    i = 0
    for is_same, pairs in itertools.groupby(zip(before, after, strict=True), lambda pair: pair[0] is pair[1]):
        values = [value for _, value in pairs]
        parts += [array[i : i + len(values)]] if is_same else values
        i += len(values)
    return join(parts, array.dtype)


def join(parts: Sequence[Any], dtype: Any) -> jax.Array:
    """Numbers and vectors as one vector."""
    arrays = [jnp.asarray(x, dtype) for x in parts]
    return jnp.concatenate([x if x.ndim else x[None] for x in arrays])


def read_window(rule: Guard, window: jax.Array, entered: jax.Array) -> Window:
    """Level, noise and largest value of loss and gradient norm."""
    filled = entered >= np.arange(rule.window, 0, -1, dtype=np.int32)
    largest, n = jnp.max(choose(filled, window[1], -np.inf)), count_values(entered, rule.window)
    if not DETECTORS[rule.detector].logs:
        mean = jnp.sum(jnp.where(filled[None], window, 0.0), axis=1) / n
        squares = jnp.sum(jnp.where(filled[None], jnp.square(window - mean[:, None]), 0.0), axis=1)
        return Window(mean, jnp.sqrt(squares / (n - 1)), mean[1], largest, entered)
    last = trend_length(rule)
    steps = window[:, 1:] - window[:, :-1]
    steps = choose(jnp.broadcast_to(filled[:-1], steps.shape), steps, 0.0)
    by_steps = jnp.sum(steps * steps, axis=1) / (2 * (n - 1))
    newest = window[:, -1:]
    halves = (window[:, -2 * last :] - newest).reshape(2, 2, last)  # row, half, value
    x = np.arange(last) - (last - 1) / 2  # steps from the middle
    slope = np.broadcast_to(np.float32(x / np.sqrt(np.sum(x * x))), halves.shape)
    sums, slopes = jnp.sum(halves, axis=2), jnp.sum(halves * slope, axis=2)
    means = sums * np.full((2, 2), 1 / last, np.float32)
    left = jnp.sum(halves * halves, axis=2) - means * sums - slopes * slopes  # squares about the line
    enough = jnp.broadcast_to(entered >= np.array([2 * last, last], np.int32), left.shape)
    variance = jnp.min(choose(enough, left, np.inf), axis=1) * np.full(2, LINE_CAUTION / max(last - 2, 1), np.float32)
    level = (newest + means[:, 1:])[:, 0]
    return Window(level, jnp.sqrt(jnp.maximum(variance, by_steps)), level[1], largest, entered)


def trend_length(rule: Guard) -> int:
    """How many of the window's newest values are its level; their trend and that of as many before give its noise.

    Before so many are there the noise is infinite.
    """
    return min(TREND, rule.window // 2)


def choose(condition: jax.Array, value: jax.Array | float, otherwise: jax.Array | float) -> jax.Array:
    """`jnp.where` of arrays of one shape and dtype, or of one and a constant: a single operation of the step."""
    like = value if isinstance(value, jax.Array) else otherwise
    assert isinstance(like, jax.Array)  # two constants have no dtype
    pair = [x if isinstance(x, jax.Array) else np.full(like.shape, x, like.dtype) for x in (value, otherwise)]
    return jax.lax.select(condition, *pair)


def first_of(cases: Sequence[jax.Array], codes: Sequence[jax.Array | int], otherwise: int) -> jax.Array:
    """The code of the first case that holds, int32."""
    code = jnp.int32(otherwise)
    for case, number in zip(reversed(cases), reversed(codes), strict=True):
        code = jax.lax.select(jnp.asarray(case), jnp.int32(number), code)
    return code


def count_values(entered: jax.Array, most: int) -> jax.Array:
    """How many of the newest `most` values there are, as a float; at least two, so that a deviation is defined."""
    return jax.lax.clamp(2, entered, most).astype(jnp.float32)


def as_entered(rule: Guard, values: jax.Array) -> jax.Array:
    """Losses or norms as they stand in the window."""
    return log_of(values) if DETECTORS[rule.detector].logs else values


def log_of(values: jax.Array) -> jax.Array:
    """The logarithm of losses or norms, of what is below TINY that of TINY."""
    return jnp.log(jnp.maximum(values, np.full(values.shape, TINY, values.dtype)))


def median(values: jax.Array, n: jax.Array | int) -> jax.Array:
    """The median of the `n` finite ones of `values`, whose others are inf; inf of none."""
    ordered = jnp.sort(values)
    return 0.5 * (ordered[jnp.maximum(n - 1, 0) // 2] + ordered[n // 2])


def median_norm(rule: Guard, window: jax.Array, entered: jax.Array) -> jax.Array:
    """The median gradient norm of the window; inf of an empty one."""
    n = jnp.minimum(entered, rule.window)
    middle = median(jnp.where(jnp.arange(rule.window) >= rule.window - n, window[1], jnp.inf), n)
    return jnp.exp(middle) if DETECTORS[rule.detector].logs else middle
