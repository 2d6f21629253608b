"""Schedules: pure functions of a traced step and traced hparams, so one compilation serves every horizon.

optax joins schedules by branching on Python numbers; these don't branch. Steps count from 0; step 0 already learns.
transformers' schedules give their step 0 an LR of 0: ours are one step ahead in the warm-up, and equal after it
(`inverse_sqrt` stays one ahead).
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Hparams, Static, replace_hparams
from scalelab.errors import BadInput
from scalelab.user_code import user_function

Schedule = Callable[[jax.Array, Hparams], jax.Array]
DecayShape = Callable[[jax.Array, jax.Array], jax.Array]  # (what is left of a decay, final_share) -> share of the peak
MAX_CYCLES = 64
MAX_STEPS_AT_ONCE = 2**20  # steps whose LR is computed together
MILESTONES = ((0.8, 10**-0.5), (0.9, 10**-0.5))  # (share of the run, factor from there on)


def warmup_factor(step: jax.Array, h: Hparams) -> jax.Array:
    """Factor in (0, 1]: linear from 1 / warmup_steps at step 0 to 1 at step warmup_steps - 1."""
    return jnp.minimum(1.0, (step + 1.0) / jnp.maximum(h.schedule.warmup_steps, 1.0))


def linear(step: jax.Array, h: Hparams) -> jax.Array:
    """Warm-up, then linear to final_share of the peak at fall_share of `steps`.

    Devlin et al. 2019; to 0: Bergsma et al. 2025.
    """
    return _fall(step, h, 1.0 - _progress(step, h))


def cosine(step: jax.Array, h: Hparams) -> jax.Array:
    """Warm-up, then half a cosine to final_share of the peak at fall_share of `steps`.

    Loshchilov & Hutter 2017, eq. 5.
    """
    return _fall(step, h, _half_cosine(_progress(step, h)))


def cosine_restarts(step: jax.Array, h: Hparams) -> jax.Array:
    """Warm-up, then `cycles` cosines that fill the run, each cycle_growth times as long as the one before.

    Loshchilov & Hutter 2017, eq. 5. The last step of a cycle is one step short of final_share, reached from `steps` on.
    """
    # In units of the first cycle, cycle i starts at 1 + g + … + g^(i-1).
    lengths = h.schedule.cycle_growth ** jnp.arange(MAX_CYCLES, dtype=jnp.float32)
    starts = jnp.cumsum(lengths) - lengths
    count = jnp.int32(h.schedule.cycles)
    first = jnp.maximum(h.train.steps - h.schedule.warmup_steps, 1.0) / jnp.sum(
        jnp.where(jnp.arange(MAX_CYCLES) < count, lengths, 0.0)
    )
    time = jnp.maximum(step - h.schedule.warmup_steps, 0.0) / first
    cycle = jnp.minimum(jnp.sum(time >= starts), count) - 1
    return _fall(step, h, _half_cosine(jnp.clip((time - starts[cycle]) / lengths[cycle], 0.0, 1.0)))


def wsd(step: jax.Array, h: Hparams, shape: DecayShape) -> jax.Array:
    """Warm-up, constant, then a decay to final_share over the last decay_steps of `steps` (Hu et al. 2024, eq. 2).

    `shape` is one of DECAYS. Before the decay the value doesn't depend on `steps`, to the last bit. A `constant` config
    is this schedule without a decay (`config.static`, `config.hparams`).
    """
    return h.optim.peak_lr * warmup_factor(step, h) * shape(_decay_left(step, h), h.schedule.final_share)


def wsd_s(step: jax.Array, h: Hparams, shape: DecayShape) -> jax.Array:
    """Like `wsd`, with `cycles` decays in one run, each followed by the peak at once (WSD-S: Wen et al. 2024, 4).

    Decays end at steps / cycle_growth^i, i = cycles - 1 … 0 (the paper's: 12.5, 25 and 50 billion tokens). Each takes
    the same share of the steps before its end, so up to there the LR is that of a `wsd` run, except for earlier decays.
    """
    powers = h.schedule.cycle_growth ** -jnp.arange(MAX_CYCLES, dtype=jnp.float32)  # last decay first
    ends = jnp.round(h.train.steps * powers)
    ahead = jnp.sum((step < ends) & (jnp.arange(MAX_CYCLES) < h.schedule.cycles))  # decays that are not over
    end = ends[jnp.maximum(ahead - 1, 0)]
    decay_steps = jnp.round(h.schedule.decay_steps * powers[jnp.maximum(ahead - 1, 0)])
    return wsd(step, replace_hparams(h, {"train.steps": end, "schedule.decay_steps": decay_steps}), shape)


def power(
    step: jax.Array, h: Hparams, shape: DecayShape, tokens_before: Callable[[jax.Array], jax.Array], batch: int
) -> jax.Array:
    """min(peak, batch x a x n^b) between warm-up and decay (Power scheduler: Shen et al. 2024, eq. 4 and 5).

    a = power_scale, b = power_exponent, `batch` in sequences, n = `tokens_before(step + 1)` tokens, this step included.
    The warm-up is linear to the value at its last step; the decay `shape` starts from the value at its first step.
    """
    first = jnp.maximum(h.schedule.warmup_steps - 1.0, 0.0)
    last = jnp.maximum(h.train.steps - h.schedule.decay_steps, first)
    n = jnp.maximum(tokens_before(jnp.clip(step, first, last) + 1.0), 1.0)
    height = jnp.minimum(h.optim.peak_lr, batch * h.schedule.power_scale * n**h.schedule.power_exponent)
    return height * warmup_factor(step, h) * shape(_decay_left(step, h), h.schedule.final_share)


def _decay_left(step: jax.Array, h: Hparams) -> jax.Array:
    """Share of the decay that is left: 1 before it (and without one), 0 from `steps` on."""
    left = jnp.clip((h.train.steps - step) / jnp.maximum(h.schedule.decay_steps, 1.0), 0.0, 1.0)
    return jnp.where(h.schedule.decay_steps > 0, left, 1.0)


def multi_step(step: jax.Array, h: Hparams) -> jax.Array:
    """Warm-up, constant, x 0.316 (10^-0.5) at 80 % and again at 90 % of the run (DeepSeek LLM 2024, section 2.3)."""
    factors = [jnp.where(step >= jnp.round(share * h.train.steps), factor, 1.0) for share, factor in MILESTONES]
    return h.optim.peak_lr * warmup_factor(step, h) * factors[0] * factors[1]


def inverse_sqrt(step: jax.Array, h: Hparams) -> jax.Array:
    """Warm-up, the peak up to hold_steps, then peak x sqrt(hold / (step + 1)), independent of `steps`.

    hold_steps = 0 is the warm-up's length: Vaswani et al. 2017, eq. 3. Without warm-up and hold_steps = 10,000: T5,
    PaLM.
    """
    hold = jnp.maximum(jnp.maximum(h.schedule.hold_steps, h.schedule.warmup_steps), 1.0)
    return h.optim.peak_lr * warmup_factor(step, h) * jnp.sqrt(hold / jnp.maximum(step + 1.0, hold))


def _progress(step: jax.Array, h: Hparams) -> jax.Array:
    """Progress from the end of the warm-up to the end of the fall, in [0, 1]."""
    end = h.train.steps * h.schedule.fall_share
    return jnp.clip((step - h.schedule.warmup_steps) / jnp.maximum(end - h.schedule.warmup_steps, 1.0), 0.0, 1.0)


def _half_cosine(progress: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def _fall(step: jax.Array, h: Hparams, height: jax.Array) -> jax.Array:
    """LR at `height`: 1 is the peak, 0 is final_share of it."""
    return h.optim.peak_lr * warmup_factor(step, h) * _share(height, h.schedule.final_share)


def _share(height: jax.Array, final: jax.Array) -> jax.Array:
    """Share of the peak: `final` at height 0, exactly 1 at height 1 (f + (1 - f) rounds to 1 for all f in [0, 1])."""
    return final + (1.0 - final) * height


# (What is left of the decay, 1 to 0; final_share) -> share of the peak, 1 to final_share.
DECAYS: dict[str, DecayShape] = {
    "linear": lambda left, final: _share(left, final),
    "cosine": lambda left, final: _share(_half_cosine(1.0 - left), final),
    "sqrt": lambda left, final: _share(1.0 - jnp.sqrt(1.0 - left), final),  # Hägele et al. 2024, eq. 1
    # Hu et al. 2024, section 4.2: 0.5^(steps of the decay / half-life), so final_share = 0.5^(decay_steps / half-life)
    "exponential": lambda left, final: final ** (1.0 - left),
    "inverse": lambda left, final: 1.0 / (left + (1.0 - left) / final),  # 1/LR rises evenly: Wen et al. 2024, section 4
}
# These take a decay shape, and `power` the tokens before a step.
DECAYING_SCHEDULES: dict[str, Callable[[Static, jax.Array, Hparams, DecayShape], jax.Array]] = {
    "constant": lambda static, step, h, shape: wsd(step, h, shape),  # without a decay
    "wsd": lambda static, step, h, shape: wsd(step, h, shape),
    "wsd_s": lambda static, step, h, shape: wsd_s(step, h, shape),
    "power": lambda static, step, h, shape: power(
        step, h, shape, functools.partial(traced_tokens_before, static), static.global_batch
    ),
}
SCHEDULES: dict[str, Schedule] = {
    "linear": linear, "cosine": cosine, "cosine_restarts": cosine_restarts,
    "multi_step": multi_step, "inverse_sqrt": inverse_sqrt,
}  # fmt: skip
# weight_decay of a step, which the optimizer multiplies by that step's LR: (step, h, LR) -> decay.
WEIGHT_DECAYS: dict[str, Callable[[jax.Array, Hparams, jax.Array], jax.Array]] = {
    "constant": lambda step, h, lr: h.optim.weight_decay,
    "cosine": lambda step, h, lr: (
        h.optim.weight_decay * _share(_half_cosine(jnp.clip(step / h.train.steps, 0.0, 1.0)), h.schedule.wd_final_share)
    ),
    "lr2": lambda step, h, lr: h.optim.weight_decay * lr,
    "independent": lambda step, h, lr: h.optim.weight_decay / jnp.maximum(h.optim.peak_lr, 1e-30),
}


def scheduled_beta1(step: jax.Array, h: Hparams) -> jax.Array:
    """beta1: linear from beta1_start at step 0 to beta1 at step beta1_steps (Jordan 2024, Muon)."""
    share = jnp.where(step < h.schedule.beta1_steps, step / jnp.maximum(h.schedule.beta1_steps, 1.0), 1.0)
    return (1.0 - share) * h.schedule.beta1_start + share * h.optim.beta1


def traced_micro_batches(static: Static, step: jax.Array) -> jax.Array:
    """Micro-batches of a step (a scalar), int32; on the host: `batch_ramp.micro_batches_per_step`."""
    return static.accumulate - len(static.batch_ramp) + jnp.sum(step >= jnp.asarray(static.batch_ramp, jnp.int32))


def traced_tokens_before(static: Static, step: jax.Array) -> jax.Array:
    """Tokens of the steps before `step` (a scalar), float32 with a relative error of 6e-8; of a run whose batch or
    length changed, the counted ones.
    """
    micro_tokens = static.global_batch // static.accumulate * static.model.seq_len
    if not static.past:
        return _traced_parts(static.accumulate, static.batch_ramp, jnp.float32(step)) * micro_tokens
    seen = jnp.float32(0)
    for past in static.past:
        parts = [_traced_parts(past.accumulate, past.ramp, jnp.float32(at)) for at in (step, past.step)]
        seen = jnp.where(step >= past.step, float(past.tokens) + (parts[0] - parts[1]) * past.micro_tokens, seen)
    return seen


def _traced_parts(accumulate: int, batch_ramp: tuple[int, ...], steps: jax.Array) -> jax.Array:
    """Micro-batches of so many steps (a scalar) from the first on, float32."""
    ramp = jnp.asarray(batch_ramp, jnp.float32)
    return steps * (accumulate - len(ramp)) + jnp.sum(jnp.maximum(steps - ramp, 0.0))


def scheduled_seq_len(static: Static, step: jax.Array, h: Hparams) -> jax.Array:
    """Length (tokens, int32) at which attention is cut at a step (a scalar): warm-up of Li et al. 2022, section 3.

    It grows linearly in the tokens seen, like the batch's warm-up (the paper: in steps), rounded down to multiples of 8
    as in the paper; without a warm-up it is the model's. The paper truncates sequences, so its batches are smaller
    meanwhile.
    """
    full = static.model.seq_len
    if not static.seq_warmup:
        return jnp.int32(full)
    seen = traced_tokens_before(static, step)
    grown = h.schedule.seq_start + (full - h.schedule.seq_start) * seen / h.schedule.seq_warmup_tokens
    rounded = jnp.maximum(8 * jnp.floor(grown / 8), h.schedule.seq_start)
    return jnp.where(seen < h.schedule.seq_warmup_tokens, rounded, full).astype(jnp.int32)


def make_schedule(static: Static) -> Schedule:
    """The run's LR as a function of (step, hparams)."""
    name, shape = static.schedule, DECAYS[static.decay_shape]
    if name in DECAYING_SCHEDULES:
        return lambda step, h: DECAYING_SCHEDULES[name](static, step, h, shape)
    return _load_user_schedule(name) if ":" in name else SCHEDULES[name]


def _load_user_schedule(name: str) -> Schedule:
    function = user_function(name, "schedule.name", "a function (step, h) -> LR")

    def checked(step: jax.Array, h: Hparams) -> jax.Array:
        lr = jnp.asarray(function(step, h), jnp.float32)
        if lr.shape != ():
            raise BadInput(f"schedule.name={name!r} gave an array of shape {lr.shape}: the LR of a step is one number")
        return lr

    return checked


def scheduled_values(static: Static, step: jax.Array, h: Hparams) -> dict[str, jax.Array]:
    """Values at a step (a scalar): `lr`, `weight_decay` (to be multiplied by `lr`), `beta1`, `seq_len` of attention.

    The training step and `scalelab schedule` both call this, so they can't disagree.
    """
    lr = make_schedule(static)(step, h)
    decay = WEIGHT_DECAYS[static.wd_shape](step, h, lr)
    return {
        "lr": lr,
        "weight_decay": decay,
        "beta1": scheduled_beta1(step, h),
        "seq_len": scheduled_seq_len(static, step, h),
    }


def scheduled_hparams(static: Static, step: jax.Array, h: Hparams) -> Hparams:
    """`h` with a step's `scheduled_values`: as `h.step.lr`, and in place of the config's weight decay and beta1."""
    values = scheduled_values(static, step, h)
    keys = {"step.lr": "lr", "optim.weight_decay": "weight_decay", "optim.beta1": "beta1"}
    return replace_hparams(h, {key: values[name] for key, name in keys.items()})


def schedule_curves(config: ConfigDict, steps: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    """`scheduled_values` at each of `steps` of a resolved config: float32 arrays of their length (`seq_len`: int32)."""
    h = jax.tree.map(np.float32, config_lib.hparams(config))
    curves = _compiled_curves(config_lib.static(config))(jnp.asarray(steps, jnp.int32), h)
    return {key: np.asarray(value) for key, value in curves.items()}


@functools.cache
def _compiled_curves(static: Static) -> Callable[[jax.Array, Hparams], dict[str, jax.Array]]:
    return jax.jit(jax.vmap(functools.partial(scheduled_values, static), in_axes=(0, None)))


def check_user_schedule(config: ConfigDict) -> None:
    """Raise BadInput where a user's own schedule gives a value below 0 or not finite at a step of the run.

    Built-in schedules are valid for every config that `validate` accepts and are not checked here.
    """
    name, steps = config.schedule.name, config.train.steps
    if ":" not in name:
        return
    for begin in range(0, steps, MAX_STEPS_AT_ONCE):
        for key, values in schedule_curves(config, np.arange(begin, min(begin + MAX_STEPS_AT_ONCE, steps))).items():
            bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
            if len(bad):
                raise BadInput(
                    f"schedule.name={name!r}: its {key} at step {begin + bad[0]} is {values[bad[0]]:g}, "
                    f"and invalid at {len(bad):,} of {steps:,} steps (they count from 0); "
                    "it must be finite and at least 0, e.g. a function of step + 1"
                )
