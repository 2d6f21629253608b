"""Resolve lengths of warm-up and decay, given in steps, tokens or shares of the run, into steps.

Under a batch-size warm-up, warmup_tokens counts the tokens really seen, a share counts steps, and decay_tokens counts
full batches. So a decay that reaches into the batch's warm-up must be given in steps.
"""

import bisect
from typing import TYPE_CHECKING

from scalelab import set_by
from scalelab.config.checks.combinations import DECAYING
from scalelab.config.steps import batch_ramp, stretches
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# Steps by default: warm-up 5 %, at most the 2000 of Llama; decay 20 % (Hägele et al. 2024, section 4).
SCHEDULE_DEFAULTS = {
    "warmup": lambda steps: min(2000, max(1, round(0.05 * steps))),
    "decay": lambda steps: round(0.2 * steps),
}


def resolve_schedule_steps(config: "ConfigDict") -> None:
    """Fill in schedule.warmup_steps and schedule.decay_steps. BadInput if two ways to give a length disagree."""
    for what in SCHEDULE_DEFAULTS:
        schedule, requested = config.schedule, requested_steps(config, what)
        if (steps := schedule[f"{what}_steps"]) is not None:
            requested[f"{what}_steps"] = steps
        if len(set(requested.values())) > 1:
            text = " and ".join(f"schedule.{key}={schedule[key]} ({steps} steps)" for key, steps in requested.items())
            raise BadInput(f"{text} are given at once and disagree: keep one, set the others to none")
        schedule[f"{what}_steps"] = next(iter(requested.values()), SCHEDULE_DEFAULTS[what](config.train.steps))
    first, full = config.train.steps - schedule.decay_steps, max(batch_ramp.batch_ramp_steps(config), default=0)
    if schedule.decay_tokens is not None and 0 <= first < full:
        raise BadInput(
            f"schedule.decay_tokens={schedule.decay_tokens} would begin at step {first}, and the batch is full "
            f"from step {full} on; nearest: {(config.train.steps - full) * tokens_per_step(config)} "
            "(or set schedule.decay_steps)"
        )


def check_seq_warmup(config: "ConfigDict") -> None:
    """Raise BadInput for a warm-up of the sequence length that the run has no room for."""
    schedule, full = config.schedule, config.model.seq_len
    start, tokens = schedule.seq_start, schedule.seq_warmup_tokens
    if (start is None) != (tokens is None):
        given, lacks = ("seq_start", "seq_warmup_tokens") if tokens is None else ("seq_warmup_tokens", "seq_start")
        raise BadInput(f"schedule.{given}={schedule[given]} needs schedule.{lacks}: set both, or {given}=none")
    if start is None:
        return
    if start >= full:
        raise BadInput(f"schedule.seq_start={start} is not below model.seq_len={full}; nearest: {max(1, full - 1)}")
    if tokens > (most := tokens_before(config, config.train.steps - 1)):
        raise BadInput(
            f"schedule.seq_warmup_tokens={tokens}: sequences are not full before the run's last step, "
            f"{most} tokens in; nearest: {most}"
        )


def forget_derived_steps(config: "ConfigDict") -> None:
    """Unset derived steps (from tokens, a share or the default) before a config gets another length or batch.

    Steps that a user set stay, even if they equal the derived number.
    """
    who = set_by.parse_origin_notes(config.log.set_by)
    for what in SCHEDULE_DEFAULTS:
        key = f"{what}_steps"
        derived = requested_steps(config, what) or {"": SCHEDULE_DEFAULTS[what](config.train.steps)}
        chosen = "" in derived and who.get(f"schedule.{key}") in [
            (user, config.schedule[key]) for user in set_by.USER_ORIGINS
        ]
        if config.schedule[key] in derived.values() and not chosen:
            config.schedule[key] = None


def describe_schedule(config: "ConfigDict") -> str:
    """Describe a resolved config's schedule in one line that marks what was derived."""
    schedule, steps = config.schedule, config.train.steps
    text = f"{schedule.name} over {steps:,} steps of {_batch(config)}: {_phrase(config, 'warmup', 'warm-up')}"
    if schedule.name in DECAYING:
        text += (
            f", {_phrase(config, 'decay', schedule.decay_shape + ' decay')} from step {steps - schedule.decay_steps:,}"
        )
        text += f" on, to {schedule.final_share:g} of the peak"
    if schedule.fall_share != 1:
        text += (
            f"; the LR falls up to step {round(schedule.fall_share * steps):,}, to {schedule.final_share:g} of the peak"
        )
    if schedule.seq_start is not None:
        text += (
            f"; sequences of {schedule.seq_start:,} tokens at first, of {config.model.seq_len:,} after "
            f"{schedule.seq_warmup_tokens:,} tokens (step {_full_sequences(config):,})"
        )
    return text


def _full_sequences(config: "ConfigDict") -> int:
    """The first step of full sequences."""
    tokens = config.schedule.seq_warmup_tokens
    return bisect.bisect_left(range(config.train.steps), tokens, key=lambda step: tokens_before(config, step))


def _batch(config: "ConfigDict") -> str:
    text, steps = f"{tokens_per_step(config):,} tokens", full_batch_step(config)
    if not steps:
        return text
    first, before = tokens_before(config, 1), tokens_before(config, steps)
    return f"{text} ({first:,} at first, all from step {steps:,} on, {before:,} tokens in)"


def _phrase(config: "ConfigDict", what: str, name: str) -> str:
    values = {unit: config.schedule[f"{what}_{unit}"] for unit in ("tokens", "share")}
    ways = [f"{unit} {value:,}" for unit, value in values.items() if value is not None]
    given = config.schedule[f"{what}_steps"]
    default = set_by.parse_origin_notes(config.log.set_by).get(f"schedule.{what}_steps") == (set_by.DEFAULT, given)
    return f"{name} {given:,} steps" + (f" ({', '.join(ways)})" if ways else " (default)" if default else "")


def schedule_warnings(config: "ConfigDict") -> list[str]:
    """Warn of schedules against an advice of the optimizer's authors."""
    name = config.schedule.name
    if config.optim.name == "schedule_free_adamw" and name != "constant":
        return [
            f"schedule.name={name}: schedule_free_adamw averages where others decay, its authors hold the LR "
            "(Defazio et al. 2024): schedule.name=constant"
        ]
    return []


def landmark_steps(config: "ConfigDict") -> list[int]:
    """Steps at which the schedule bends, and every tenth of the run: the rows of `scalelab schedule`."""
    steps, schedule = config.train.steps, config.schedule
    bends = (
        [schedule.warmup_steps - 1, steps - schedule.decay_steps, *_earlier_decays(config)]
        if schedule.name in DECAYING
        else [schedule.warmup_steps - 1]
    )
    bends += batch_ramp.batch_ramp_steps(config)[:1] + batch_ramp.batch_ramp_steps(config)[-1:]
    bends += [round(schedule.fall_share * steps)] if schedule.fall_share != 1 else []
    bends += [_full_sequences(config)] if schedule.seq_start is not None else []
    tenths = [i * steps // 10 for i in range(10)]
    return sorted({step for step in [*tenths, *bends, steps - 1] if 0 <= step < steps})


def _earlier_decays(config: "ConfigDict") -> list[int]:
    """First step of each decay of a wsd_s except the last, and the step after that decay."""
    schedule, steps = config.schedule, config.train.steps
    shares = [schedule.cycle_growth**-i for i in range(1, schedule.cycles)] if schedule.name == "wsd_s" else []
    ends = [(round(steps * share), round(schedule.decay_steps * share)) for share in shares]
    return [step for end, length in ends for step in (end - length, end)]


def tokens_per_step(config: "ConfigDict") -> int:
    """Tokens predicted in a step of the full batch, over all devices."""
    return config.train.global_batch * config.model.seq_len


def tokens_before(config: "ConfigDict", step: int) -> int:
    """Tokens predicted in the steps before `step`, exact also if the batch changed."""
    return stretches.tokens_before(run_stretches(config), int(step))


def run_stretches(config: "ConfigDict") -> tuple[stretches.Stretch, ...]:
    """The stretches of a run under `config`: the noted ones, or a single one from step 0."""
    noted = stretches.noted_stretches(config)
    return noted or (stretches.first_stretch(config, batch_ramp.ramp_from(config)),)


def full_batch_step(config: "ConfigDict") -> int:
    """The first step after which all batches are full: 0 without a batch-size warm-up or a changed batch."""
    return max(*batch_ramp.batch_ramp_steps(config), run_stretches(config)[-1].step, 0)


def _steps_of(config: "ConfigDict", tokens: int) -> int:
    """The number of steps, from the first on, whose tokens are nearest to `tokens`."""
    full = tokens_per_step(config)
    more = tokens - tokens_before(config, full_batch_step(config))
    if more >= 0:
        return full_batch_step(config) + round(more / full)
    above = bisect.bisect_left(range(full_batch_step(config)), tokens, key=lambda step: tokens_before(config, step))
    below = max(above - 1, 0)
    return min(below, above, key=lambda step: abs(tokens_before(config, step) - tokens))


def _last_steps_of(config: "ConfigDict", tokens: int) -> int:
    """The number of steps, up to the last one, whose tokens are nearest to `tokens`: full batches, or as counted."""
    start, steps = run_stretches(config)[-1].step, config.train.steps
    if not start or tokens <= tokens_before(config, steps) - tokens_before(config, start):
        return round(tokens / tokens_per_step(config))
    return steps - _steps_of(config, max(0, tokens_before(config, steps) - tokens))


def requested_steps(config: "ConfigDict", what: str) -> dict[str, int]:
    """`{key: steps}` of the lengths given in tokens or as a share. A share of the warm-up is at least one step."""
    schedule, requested = config.schedule, {}
    if (tokens := schedule[f"{what}_tokens"]) is not None:
        steps = _steps_of(config, tokens) if what == "warmup" else _last_steps_of(config, tokens)
        requested[f"{what}_tokens"] = max(steps, int(tokens > 0))
    if (share := schedule[f"{what}_share"]) is not None:
        requested[f"{what}_share"] = max(round(share * config.train.steps), int(what == "warmup"))
    return requested
