"""Check keys together: schedules that contradict each other, and values without effect.

Each key alone is in its range (`validate`), and nothing here is impossible to compute; but the run would not be the one
that its config describes. Contradictions are refused. Values without effect are reported when the run starts, since a
config may be made for several values of another key. Configs of existing runs are read without these checks.
"""

from typing import TYPE_CHECKING, Any

from scalelab.config.checks.combinations import DECAYING
from scalelab.config.checks.validate import check_profile
from scalelab.config.choices import GUARD_POLICIES
from scalelab.config.keys import default_values
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FIRST_MILESTONE = 0.8  # share of train.steps at which multi_step's LR falls first (scalelab/optim/schedules.py)


def check_plans(config: "ConfigDict") -> None:
    """Raise BadInput for schedules whose parts don't fit into the run or into each other."""
    schedule, steps = config.schedule, config.train.steps
    check_profile(config.log.profile, steps)
    first_fall = _first_fall(config)
    if schedule.warmup_steps - 1 > first_fall:
        room = max(first_fall + 1, 0)
        ways, verb = f"schedule.warmup_steps={room}", "ends" if schedule.fall_share != 1 else "begins"
        if schedule.name in ("wsd", "power"):
            ways = f"schedule.decay_steps={max(steps - schedule.warmup_steps + 1, 0)}, or {ways}"
        raise BadInput(
            f"schedule.warmup_steps={schedule.warmup_steps} of train.steps={steps} are not over at step {first_fall}, "
            f"where the fall of {schedule.name!r} {verb}: the LR would never be "
            f"optim.peak_lr={config.optim.peak_lr:g}; nearest: {ways}"
        )
    if schedule.beta1_steps > steps:
        raise BadInput(
            f"schedule.beta1_steps={schedule.beta1_steps} is longer than train.steps={steps}: the run would never have "
            f"optim.beta1={config.optim.beta1}; nearest: {steps}"
        )
    if schedule.name == "cosine_restarts" and (most := _most_cycles(config)) < schedule.cycles:
        raise BadInput(
            f"schedule.cycles={schedule.cycles} with schedule.cycle_growth={schedule.cycle_growth:g}: the first of "
            f"them would be shorter than a step; nearest: {most}"
        )


def _first_fall(config: "ConfigDict") -> int:
    """The last step up to which the LR may still rise to its peak, counted from 0; train.steps if it never falls."""
    schedule, steps = config.schedule, config.train.steps
    if schedule.name in ("wsd", "power"):
        return steps - schedule.decay_steps
    if schedule.name == "wsd_s":
        share = schedule.cycle_growth ** (1 - schedule.cycles)
        return round(steps * share) - round(schedule.decay_steps * share)
    if schedule.name in ("linear", "cosine"):
        return max(round(schedule.fall_share * steps), 1)
    if schedule.name == "multi_step":
        return max(round(FIRST_MILESTONE * steps) - 1, 0)
    return steps


def _most_cycles(config: "ConfigDict") -> int:
    """Most cycles of a cosine_restarts whose first is at least a step long; at least 1."""
    room, growth = config.train.steps - config.schedule.warmup_steps, config.schedule.cycle_growth
    cycles = 1
    while cycles < config.schedule.cycles and sum(growth**i for i in range(cycles + 1)) <= room:
        cycles += 1
    return cycles


def effect_warnings(config: "ConfigDict") -> list[str]:
    """Describe values that were set and have no effect, or not the one that their number suggests."""
    warnings = [f"{key}={_value(config, key)!r} has no effect {why}" for key, why in _without_effect(config)]
    return [*warnings, *_other_effects(config)]


def _without_effect(config: "ConfigDict") -> list[tuple[str, str]]:
    """Yield (key, why) for keys with a value of their own that another key leaves without effect."""
    schedule, model, name = config.schedule, config.model, config.schedule.name
    under = f"with schedule.name={name!r}"
    unless: list[tuple[str, bool, str]] = [  # keys, whether they act, why they don't
        ("schedule.decay_shape schedule.decay_tokens schedule.decay_share", name in (*DECAYING, "constant"), under),
        ("schedule.final_share", name not in ("multi_step", "inverse_sqrt"), under),
        ("schedule.cycles schedule.cycle_growth", name in ("cosine_restarts", "wsd_s"), under),
        ("schedule.power_scale schedule.power_exponent", name == "power", under),
        ("schedule.hold_steps", name == "inverse_sqrt", under),
        ("schedule.wd_final_share", schedule.wd_shape == "cosine", f"with schedule.wd_shape={schedule.wd_shape!r}"),
        ("schedule.beta1_start", schedule.beta1_steps > 0, "without schedule.beta1_steps"),
        ("model.window", model.window < model.seq_len, f"on sequences of model.seq_len={model.seq_len}"),
        ("model.global_every", model.global_every <= model.n_layers, f"with model.n_layers={model.n_layers}"),
        ("model.nope_every", model.nope_every <= model.n_layers, f"with model.n_layers={model.n_layers}"),
        ("model.experts_per_token model.n_shared_experts model.router_scores model.router_renormalize "
            "model.router_scale model.router_groups model.router_groups_per_token model.router_z_weight "
            "model.balance_rate model.balance_weight model.balance_sequence_weight model.expert_capacity "
            "model.expert_products", model.n_experts > 0, "without model.n_experts"),
        ("model.d_expert", model.n_experts > 0 or model.d_expert == model.d_ff, "without model.n_experts"),
        ("model.d_head_rope", model.d_kv_latent > 0, "without model.d_kv_latent"),
        ("model.rope_theta", model.position == "rope", f"with model.position={model.position!r}"),
        ("data.path", config.data.source in ("text", "prepared") or ":" in config.data.source, _source(config)),
        ("data.language_seed data.n_tokens", config.data.source == "synthetic", _source(config)),
        ("guard.window guard.minimum guard.sigmas guard.rerun", GUARD_POLICIES[config.guard.policy].watches,
            f"with guard.policy={config.guard.policy!r}"),
        ("schedule.hold_steps", not 0 < schedule.hold_steps < schedule.warmup_steps or name != "inverse_sqrt",
            f"within schedule.warmup_steps={schedule.warmup_steps}"),
    ]  # fmt: skip
    keys = [(key, why) for names, acts, why in unless if not acts for key in names.split()]
    if ":" in name:  # a user's own schedule may read any of these
        keys = [(key, why) for key, why in keys if why != under]
    return [(key, why) for key, why in keys if _value(config, key) != default_values()[key]]


def _source(config: "ConfigDict") -> str:
    return f"with data.source={config.data.source!r}"


def _value(config: "ConfigDict", key: str) -> Any:
    group, _, name = key.partition(".")
    return config[group][name]


def _other_effects(config: "ConfigDict") -> list[str]:
    """Describe values that act otherwise than their number suggests, as another key is too small or too large."""
    train, every, keep = config.train, config.checkpoint.every_steps, config.checkpoint.keep_every
    lines = []
    if train.ema and 1 / (1 - train.ema) > train.steps:
        lines.append(
            f"train.ema={train.ema:g} averages over {1 / (1 - train.ema):,.0f} steps, and the run has {train.steps:,}: "
            "the average weighs its first steps nearly as much as its last"
        )
    if keep and keep % every and every % keep:
        lines.append(
            f"checkpoint.keep_every={keep} keeps steps that are saved, and checkpoint.every_steps={every} saves "
            f"multiples of both alone; nearest: {max(1, round(keep / every)) * every}"
        )
    if GUARD_POLICIES[config.guard.policy].acts and config.guard.minimum >= train.steps:
        lines.append(
            f"guard.minimum={config.guard.minimum} of train.steps={train.steps}: no step is judged by the window; "
            "only losses that are not finite are met"
        )
    evaluations = -(-train.steps // config.eval.every_steps)
    if config.eval.patience and config.eval.patience >= evaluations:
        lines.append(
            f"eval.patience={config.eval.patience} never ends a run of {evaluations} evaluations "
            f"(eval.every_steps={config.eval.every_steps})"
        )
    return lines
