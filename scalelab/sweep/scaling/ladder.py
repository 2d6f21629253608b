"""The ladder: (size, budget) -> a run. One function and one named rule (`rules.py`) decide every run of a scaling study."""

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import mixture_text, schedule_steps
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.sweep.scaling.rules import LadderRule


def resize_width(base: ConfigDict, d_model: int) -> ConfigDict:
    """`base` at another width; depth, number of heads and every other choice stay."""
    config = base.copy_and_resolve_references()
    with config.ignore_type():
        config.model.d_model = int(d_model)
        config.model.d_head = config.model.d_ff = None
    return config_lib.resolve(config)


def check_fixed_schedule(config: ConfigDict, who: str) -> None:
    """BadInput for what is planned for a batch and a length where `who` sets these by a rule of its own."""
    for what in ("batch", "seq"):
        if (start := config.schedule[f"{what}_start"]) is not None:
            raise BadInput(
                f"schedule.{what}_start={start}: {who} chooses another batch and length, for which this warm-up isn't meant; "
                f"nearest: {what}_start=none and {what}_warmup_tokens=none"
            )
    if config.schedule.batch_stages:
        raise BadInput(
            f"schedule.batch_stages={config.schedule.batch_stages!r}: {who} chooses another batch and length, for which these "
            "steps aren't meant; nearest: batch_stages="
        )
    if later := mixture_text.parse_mixture(config.data.mixture)[1:]:
        raise BadInput(
            f"data.mixture changes at step {later[0].step}: {who} chooses another batch and length, for which this change "
            "isn't meant; nearest: one mixture all along"
        )


def flops_per_step(config: ConfigDict) -> float:
    """Exact training FLOPs of one optimizer step of the full batch."""
    per_token = count.flops_per_token(config_lib.static(config).model)["exact"]
    return per_token * config.train.global_batch * config.model.seq_len


def rule_inputs(config: ConfigDict, budget_flops: float) -> dict[str, float]:
    """What a rule goes by, of a run of this model that spends the budget: `d_model`, `N` (non-embedding), `D` (tokens)."""
    shape = config_lib.static(config).model
    tokens = budget_flops / count.flops_per_token(shape)["exact"]
    return {"d_model": config.model.d_model, "N": count.count_parameters(shape)["non_embedding"], "D": tokens}


def make_rung(
    base: ConfigDict, d_model: int, budget_flops: float, by: LadderRule, role: str = "fit", lr_factor: float = 1.0,
    batch_factor: float = 1.0,
) -> ConfigDict:  # fmt: skip
    """The run of width `d_model` that spends `budget_flops`, its LR and batch those of the rule times the factors.

    Another batch takes another number of steps, and its LR grows as the root of `batch_factor` (Malladi et al. 2022, on
    Adam). BadInput where the budget is less than a meaningful run, and outside the rule's range.
    """
    check_fixed_schedule(base, f"the ladder rule {by.name!r}")
    base = base.copy_and_resolve_references()
    schedule_steps.forget_derived_steps(base)
    config = resize_width(base, d_model)
    values = rule_inputs(config, budget_flops)
    if refusal := by.refusal(**values):
        raise BadInput(refusal)
    of_rule = by.batch(values["D"], config.model.seq_len)
    batch = max(1, round(of_rule * batch_factor))
    steps_of_rule, steps = (round(values["D"] / (size * config.model.seq_len)) for size in (of_rule, batch))
    if steps < 2 * by.warmup_least:
        raise BadInput(
            f"{budget_flops:.3g} FLOPs are only {steps} steps at d_model={d_model}: take a smaller size or a larger budget"
        )
    peak_lr = lr_factor * (batch / of_rule) ** 0.5 * by.peak_lr(**values, steps=steps_of_rule)
    schedule_steps.forget_derived_steps(config)
    config.eval.batches = max(1, round(config.eval.batches * config.train.global_batch / batch))  # of as many tokens
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
