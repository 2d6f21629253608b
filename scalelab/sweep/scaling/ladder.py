"""The ladder: (size, budget) -> a run. One function and one named rule (`rules.py`) define every run of a study."""

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import mixture_text
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.sweep.scaling.resize import scale_width
from scalelab.sweep.scaling.rules import LadderRule


def resize_width(base: ConfigDict, d_model: int) -> ConfigDict:
    """`base` at another width; depth, number of heads and all other choices stay."""
    config = base.copy_and_resolve_references()
    with config.model.ignore_type():
        config.model.d_model = int(d_model)
        config.model.d_head = config.model.d_head_value = config.model.d_ff = None
        equal = base.model.d_expert == base.model.d_ff
        config.model.d_expert = None if equal else scale_width(base.model.d_expert, int(d_model), base.model.d_model)
    return config_lib.resolve(config)


def check_fixed_schedule(config: ConfigDict, chooser: str) -> None:
    """Refuse warm-ups and changes made for one batch and length, if `chooser` chooses others: BadInput."""
    reason = f"{chooser} chooses another batch and length, for which"
    for kind in ("batch", "seq"):
        if (start := config.schedule[f"{kind}_start"]) is not None:
            raise BadInput(
                f"schedule.{kind}_start={start}: {reason} this warm-up isn't meant; "
                f"nearest: {kind}_start=none and {kind}_warmup_tokens=none"
            )
    if config.schedule.batch_stages:
        raise BadInput(
            f"schedule.batch_stages={config.schedule.batch_stages!r}: {reason} these steps aren't meant; "
            "nearest: batch_stages="
        )
    if later := mixture_text.parse_mixture(config.data.mixture)[1:]:
        raise BadInput(
            f"data.mixture changes at step {later[0].step}: {reason} this change isn't meant; "
            "nearest: one mixture for the whole run"
        )


def flops_per_step(config: ConfigDict) -> float:
    """Exact training FLOPs of one optimizer step of the full batch."""
    per_token = count.flops_per_token(config_lib.static(config).model)["exact"]
    return per_token * config.train.global_batch * config.model.seq_len


def rule_inputs(config: ConfigDict, budget_flops: float) -> dict[str, float]:
    """The inputs of a rule for a run of this model with this budget: `d_model`, `N` (non-embedding), `D` (tokens)."""
    shape = config_lib.static(config).model
    tokens = budget_flops / count.flops_per_token(shape)["exact"]
    return {"d_model": config.model.d_model, "N": count.count_parameters(shape)["non_embedding"], "D": tokens}


def make_rung(
    base: ConfigDict,
    d_model: int,
    budget_flops: float,
    by: LadderRule,
    role: str = "fit",
    lr_factor: float = 1.0,
    batch_factor: float = 1.0,
) -> ConfigDict:
    """The run of width `d_model` that spends `budget_flops`, with the LR and batch of the rule `by` times the factors.

    A changed batch changes the number of steps, and its LR grows as the root of `batch_factor` (Malladi et al. 2022, on
    Adam). BadInput if the budget is too small for a meaningful run, or if the run is outside the rule's range.
    """
    check_fixed_schedule(base, f"the ladder rule {by.name!r}")
    base = base.copy_and_resolve_references()
    schedule_steps.forget_derived_steps(base)
    config = resize_width(base, d_model)
    values = rule_inputs(config, budget_flops)
    if refusal := by.refusal(**values):
        raise BadInput(refusal)
    rule_batch = by.batch(values["D"], config.model.seq_len)
    batch = max(1, round(rule_batch * batch_factor))
    rule_steps, steps = (round(values["D"] / (size * config.model.seq_len)) for size in (rule_batch, batch))
    if steps < 2 * by.warmup_least:
        raise BadInput(
            f"{budget_flops:.3g} FLOPs are only {steps} steps at d_model={d_model}: "
            "take a smaller size or a larger budget"
        )
    peak_lr = lr_factor * (batch / rule_batch) ** 0.5 * by.peak_lr(**values, steps=rule_steps)
    schedule_steps.forget_derived_steps(config)
    config.eval.batches = max(1, round(config.eval.batches * config.train.global_batch / batch))  # same token count
    config.train.global_batch = batch
    config.train.steps = steps
    config.optim.peak_lr = peak_lr
    if by.beta2 is not None:
        config.optim.beta2 = by.beta2
    config.schedule.warmup_tokens = config.schedule.warmup_share = None
    config.schedule.warmup_steps = max(by.warmup_least, round(by.warmup_share * steps))
    config.eval.every_steps = steps
    config.checkpoint.every_steps = max(500, -(-steps // 4))
    config.log.role = role
    config.log.every_steps = max(1, steps // 200)
    return config_lib.resolve(config)
