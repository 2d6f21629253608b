"""Checks of a resolved config: values that contradict each other or have no effect, each with a good value."""

from typing import TYPE_CHECKING

from scalelab.config import mixture_text
from scalelab.config.checks.experts import check_experts
from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.config.choices import GUARD_POLICIES, table_names
from scalelab.errors import BadInput
from scalelab.record.identity import PASSIVE_GUARDS

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# Schedules that end in a decay of decay_steps and decay_shape; a constant one is a wsd without it.
DECAYING = tuple(name for name in table_names("optim/schedules.py:DECAYING_SCHEDULES") if name != "constant")


def check_combinations(config: "ConfigDict") -> None:
    """Raise BadInput for the first impossible combination of values."""
    model, train = config.model, config.train
    _check_heads(model)
    _check_latent(model)
    _check_layers(model)
    _check_parts(model)
    check_experts(model)
    _check_groups(config.optim.groups, model)
    _check_schedule(config)
    _check_guard(config)
    for stage in mixture_text.parse_mixture(config.data.mixture)[1:]:
        if stage.step >= train.steps:
            raise BadInput(
                f"data.mixture changes at step {stage.step}, and the run ends with step {train.steps - 1}; "
                f"nearest: {train.steps - 1}"
            )
    if config.data.source == "prepared" and not config.data.path:
        raise BadInput("data.source='prepared' needs data.path: a folder that `scalelab prepare --out=` made")
    if config.data.source == "text" and not config.data.path:
        raise BadInput("data.source='text' needs data.path: files or globs, separated by commas, e.g. 'notes/*.txt'")


def _check_heads(model: "ConfigDict") -> None:
    """Check the heads against each other and against the kind of positions."""
    if model.n_heads % model.n_kv_heads:
        good = min((k for k in range(1, model.n_heads + 1) if model.n_heads % k == 0), key=_near(model.n_kv_heads))
        raise BadInput(
            f"model.n_kv_heads={model.n_kv_heads} does not divide model.n_heads={model.n_heads}; nearest: {good}"
        )
    rotated = {"rope": "d_head_rope" if model.d_kv_latent else "d_head", "relative": "d_model"}
    if (name := rotated.get(model.position)) and (value := model[name]) % 2:
        raise BadInput(
            f"model.position={model.position!r} rotates pairs of dimensions, so model.{name}={value} must be even; "
            f"nearest: {value + 1}"
        )
    if model.position == "relative" and model.n_kv_heads != model.n_heads:
        raise BadInput(
            f"model.position='relative' needs a key for every query head: "
            f"model.n_kv_heads={model.n_kv_heads}, nearest: {model.n_heads}"
        )


def _check_latent(model: "ConfigDict") -> None:
    """Check the options of latent attention, and those that it has no place for."""
    if not model.d_kv_latent:
        for key, off in (("d_q_latent", 0), ("d_head_value", model.d_head)):
            if model[key] != off:
                raise BadInput(
                    f"model.{key}={model[key]} without model.d_kv_latent: only latent attention has it; "
                    f"nearest: model.{key}={off}, or model.d_kv_latent={4 * model.d_head}"
                )
        return
    if model.n_kv_heads != model.n_heads:
        raise BadInput(
            f"model.n_kv_heads={model.n_kv_heads} with model.d_kv_latent={model.d_kv_latent}: each of model.n_heads="
            f"{model.n_heads} heads has keys and values of its own, made of one latent; nearest: {model.n_heads}"
        )
    if model.position == "relative":
        raise BadInput(
            f"model.position='relative' with model.d_kv_latent={model.d_kv_latent}: the position of latent attention "
            "stands in keys of model.d_head_rope numbers; nearest: rope"
        )
    if model.qk_norm:
        raise BadInput(
            f"model.qk_norm=True with model.d_kv_latent={model.d_kv_latent}: a norm of each key could not be absorbed "
            "into the queries, so that no latent could be cached; latents have norms of their own; nearest: False"
        )


def _check_schedule(config: "ConfigDict") -> None:
    """Check what changes over the run against its length and its optimizer."""
    train = config.train
    if config.schedule.warmup_steps > train.steps:
        raise BadInput(
            f"schedule.warmup_steps={config.schedule.warmup_steps} is longer than train.steps={train.steps}; "
            f"nearest: {train.steps} (or unset it: then warm-up is a share of the run)"
        )
    if config.schedule.name in DECAYING and config.schedule.decay_steps > train.steps:
        raise BadInput(
            f"schedule.decay_steps={config.schedule.decay_steps} is longer than train.steps={train.steps}; "
            f"nearest: {train.steps}"
        )
    schedule = config.schedule
    if schedule.name in DECAYING and schedule.decay_shape in ("exponential", "inverse") and not schedule.final_share:
        raise BadInput(
            f"schedule.final_share=0 with schedule.decay_shape={schedule.decay_shape!r}, which never gets to 0; "
            "nearest: schedule.final_share=0.01"
        )
    if schedule.name == "wsd_s" and (schedule.cycles < 2 or schedule.cycle_growth <= 1):
        raise BadInput(
            f"schedule.name='wsd_s' decays at least twice, each at a later step: schedule.cycles={schedule.cycles}, "
            f"schedule.cycle_growth={schedule.cycle_growth:g}; "
            f"nearest: cycles={max(2, schedule.cycles)}, cycle_growth=2 (or wsd)"
        )
    if config.schedule.fall_share != 1 and config.schedule.name not in ("linear", "cosine"):
        raise BadInput(
            f"schedule.fall_share={schedule.fall_share:g} is for linear and cosine, not {schedule.name!r}; nearest: 1"
        )
    if config.schedule.beta1_steps and config.optim.beta1 is None:
        raise BadInput(
            f"schedule.beta1_steps={schedule.beta1_steps}: optim.name={config.optim.name!r} has no beta1 to change; "
            "nearest: 0"
        )
    if config.optim.name == "schedule_free_adamw":
        _check_schedule_free(config)


def _check_guard(config: "ConfigDict") -> None:
    """Check the guard's options against each other and against the checkpoints it needs."""
    guard, every, steps = config.guard, config.checkpoint.every_steps, config.train.steps
    if guard.minimum > guard.window:
        raise BadInput(
            f"guard.window={guard.window} is shorter than guard.minimum={guard.minimum}, so no step would ever be "
            f"judged; nearest: guard.minimum={guard.window}"
        )
    for key, default in (("spike", "skip"), ("skip", "step")):
        if guard[key] != default and guard.policy in PASSIVE_GUARDS:
            raise BadInput(
                f"guard.{key}={guard[key]!r} has no effect with guard.policy={guard.policy!r}; "
                "nearest: guard.policy=skip"
            )
    if guard.skip == "micro_batch" and config.train.accumulate == 1:
        raise BadInput(
            "guard.skip='micro_batch': with train.accumulate=1 the only micro-batch is the step; "
            "nearest: guard.skip=step"
        )
    if GUARD_POLICIES[guard.policy].rewinds and every >= steps:
        raise BadInput(
            f"guard.policy='rewind' goes back to a checkpoint, and checkpoint.every_steps={every} saves none before "
            f"the last of {steps} steps; nearest: checkpoint.every_steps={max(1, steps // 10)}"
        )


def _check_schedule_free(config: "ConfigDict") -> None:
    """Check what an optimizer that evaluates an average of its own can't have."""
    if config.train.ema:
        raise BadInput(
            f"train.ema={config.train.ema}: schedule_free_adamw evaluates an average of its own; nearest: train.ema=0"
        )
    shares = {"optim.beta1": config.optim.beta1}
    if config.schedule.beta1_steps:
        shares["schedule.beta1_start"] = config.schedule.beta1_start
    for key, share in shares.items():
        if not share:
            raise BadInput(f"{key}=0: schedule_free_adamw's average is known by its share beta1; nearest: {key}=0.9")


def _check_layers(model: "ConfigDict") -> None:
    """Check for options of attention that have no effect or contradict each other."""
    _check_rope(model)
    if model.global_every and not model.window:
        raise BadInput(
            f"model.global_every={model.global_every} without model.window: all layers use full attention; nearest: 0"
        )
    for key, instead in (("global_every", "model.window=0"), ("nope_every", "model.position=none")):
        if model[key] == 1:
            raise BadInput(f"model.{key}=1 is every layer; nearest: {instead} and model.{key}=0, or 2")
    if model.rope_local_theta and not model.global_every:
        raise BadInput(
            f"model.rope_local_theta={model.rope_local_theta:g} without model.global_every: all layers are alike; "
            "nearest: model.rope_local_theta=0, and that number as model.rope_theta"
        )
    if ":" in model.block and model.norm_place != "before":
        raise BadInput(
            f"model.norm_place={model.norm_place!r} has no effect with model.block={model.block!r}, which places its "
            "norms itself; nearest: 'before'"
        )
    blocks = [stack.block for stack in mixture_text.parse_stacks(model.block, model.n_layers)]
    if "parallel" in blocks and model.norm_place != "before":
        raise BadInput("model.block='parallel' has one norm, before both; nearest: model.norm_place='before'")


def _check_rope(model: "ConfigDict") -> None:
    """Check the options of RoPE."""
    for key, off in (("rope_scaling", "none"), ("nope_every", 0), ("rope_local_theta", 0), ("rope_share", 1)):
        if model[key] != off and model.position != "rope":
            raise BadInput(
                f"model.{key}={model[key]!r} is for model.position='rope', not {model.position!r}; nearest: {off}"
            )
    if (model.rope_scaling == "none") != (model.rope_factor == 1):
        raise BadInput(
            f"model.rope_factor={model.rope_factor:g} with model.rope_scaling={model.rope_scaling!r}: "
            "a factor other than 1 and a way to scale go together; nearest: rope_factor=1, rope_scaling=none"
        )
    if model.rope_mscale != 1 and model.rope_scaling != "yarn":
        raise BadInput(
            f"model.rope_mscale={model.rope_mscale:g} is for model.rope_scaling='yarn', not {model.rope_scaling!r}; "
            "nearest: 1"
        )
    rotated = "d_head_rope" if model.d_kv_latent else "d_head"
    _check_rope_share(model)
    if model.rope_scaling == "ntk" and model[rotated] < 4:
        raise BadInput(
            f"model.rope_scaling='ntk' slows the slowest pair and keeps the fastest, and model.{rotated}="
            f"{model[rotated]} has one pair; nearest: model.{rotated}=4"
        )
    if model.rope_scaling == "yarn" and model.rope_theta <= 1:
        raise BadInput(
            f"model.rope_scaling='yarn' goes by wavelengths that grow from pair to pair, and with model.rope_theta="
            f"{model.rope_theta:g} they don't; nearest: a model.rope_theta above 1"
        )


def _check_rope_share(model: "ConfigDict") -> None:
    """Check that the share is of whole pairs, and of the numbers that attention has no other key for."""
    if model.rope_share == 1:
        return
    if model.d_kv_latent:
        raise BadInput(
            f"model.rope_share={model.rope_share:g} with model.d_kv_latent={model.d_kv_latent}: there d_head_rope "
            "numbers of a head are rotated; nearest: 1"
        )
    if (rotated := int(model.rope_share * model.d_head)) % 2 or not rotated:
        pairs = max(1, round(model.rope_share * model.d_head / 2))
        raise BadInput(
            f"model.rope_share={model.rope_share:g} of model.d_head={model.d_head} is {rotated} numbers, and rope "
            f"rotates pairs; nearest: {2 * pairs / model.d_head!r}"
        )


def _check_parts(model: "ConfigDict") -> None:
    """Check for options of projections and norms that have no effect."""
    if model.qk_norm_over != "head" and not model.qk_norm:
        raise BadInput(
            f"model.qk_norm_over={model.qk_norm_over!r} without model.qk_norm: nothing is normed; nearest: 'head'"
        )
    if model.qkv_bias and model.bias:
        raise BadInput("model.qkv_bias=True with model.bias=True: every projection has a bias already; nearest: False")
    if model.logit_scale != "none" and not model.tied_head:
        raise BadInput(
            f"model.logit_scale={model.logit_scale!r} is for an embedding that is also the head; nearest: 'none'"
        )


def _check_groups(text: str, model: "ConfigDict") -> None:
    """Check for LR multipliers of groups in which this model has no parameter."""
    for name in parse_group_multipliers(text):
        if name == "head" and model.tied_head:
            raise BadInput(
                f"optim.groups={text!r}: with model.tied_head the head is in the group embed; leave head out"
            )
        if name == "position" and model.position != "learned":
            raise BadInput(
                f"optim.groups={text!r}: model.position={model.position!r} has no table of positions; "
                "leave position out"
            )


def _near(value: int):
    return lambda candidate: abs(candidate - value)
