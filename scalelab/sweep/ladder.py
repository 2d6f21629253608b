"""The ladder: (size, budget) -> a run. One function and one named rule decide every run of a scaling study.

A fitted exponent is only as good as the rule that chose the learning rates along the way, so the rule has a name, a
source, and stands in the report.
"""

import dataclasses

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import lengths, shares
from scalelab.errors import BadInput, nearest
from scalelab.model import count


@dataclasses.dataclass(frozen=True)
class Rule:
    """How hyperparameters follow from size and length.

    peak_lr = lr x (steps / lr_steps)^-steps_decay x (d_model / lr_width)^-width_decay; the base config's parametrization
    acts on top of it (under mup, hidden matrices take base_width / d_model of it). warm-up = warmup_share of the steps, at
    least warmup_least. beta2 is for batches of `global_batch`.
    """

    name: str
    source: str
    lr: float
    lr_steps: float
    steps_decay: float
    lr_width: float
    width_decay: float
    warmup_share: float
    warmup_least: int
    beta2: float
    global_batch: int

    def peak_lr(self, d_model: int, steps: int) -> float:
        """Peak learning rate of a run of this width and so many steps."""
        return self.lr * (steps / self.lr_steps) ** -self.steps_decay * (d_model / self.lr_width) ** -self.width_decay

    def text(self) -> str:
        """The rule in one line, for reports."""
        return (
            f"{self.name}: peak LR {self.lr:g} x (steps / {self.lr_steps:g})^-{self.steps_decay:g} x "
            f"(d_model / {self.lr_width:g})^-{self.width_decay:g}, warm-up {self.warmup_share:.0%} of the steps (at least "
            f"{self.warmup_least}), beta2 {self.beta2:g}, batch {self.global_batch} sequences; source: {self.source}"
        )


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            name="small-bytes",
            source="30 runs on split 0, seed 0 of configs/quickstart.py: best of five LRs at six (d_model 16 to 80, 1.25e11 "
            "and 5e11 FLOPs), smoothed by eye in steps and width; frozen before the confirming studies",
            lr=3.7e-3,
            lr_steps=1500,
            steps_decay=0.12,
            lr_width=48,
            width_decay=0.35,
            warmup_share=0.08,
            warmup_least=10,
            beta2=0.95,
            global_batch=8,
        ),
    )
}


def rule(name: str) -> Rule:
    """A rule by name; BadInput for an unknown one."""
    if name not in RULES:
        raise BadInput(f"no ladder rule {name!r}{nearest(name, RULES)}")
    return RULES[name]


def sized(base: ConfigDict, d_model: int) -> ConfigDict:
    """`base` at another width; depth, number of heads and every other choice stay."""
    config = base.copy_and_resolve_references()
    with config.ignore_type():
        config.model.d_model = int(d_model)
        config.model.d_head = config.model.d_ff = None
    return config_lib.resolve(config)


def of_no_length(config: ConfigDict, who: str) -> None:
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
    if later := shares.mixture(config.data.mixture)[1:]:
        raise BadInput(
            f"data.mixture changes at step {later[0].step}: {who} chooses another batch and length, for which this change "
            "isn't meant; nearest: one mixture all along"
        )


def flops_per_step(config: ConfigDict) -> float:
    """Exact training FLOPs of one optimizer step of the full batch."""
    per_token = count.flops_per_token(config_lib.static(config).model)["exact"]
    return per_token * config.train.global_batch * config.model.seq_len


def rung(
    base: ConfigDict, d_model: int, budget_flops: float, by: Rule, role: str = "fit", lr_factor: float = 1.0
) -> ConfigDict:
    """The run of width `d_model` that spends `budget_flops`; BadInput where that is less than a meaningful run."""
    of_no_length(base, f"the ladder rule {by.name!r}")
    base = base.copy_and_resolve_references()
    lengths.forget(base)
    base.train.global_batch = by.global_batch
    config = sized(base, d_model)
    steps = round(budget_flops / flops_per_step(config))
    if steps < 2 * by.warmup_least:
        raise BadInput(
            f"{budget_flops:.3g} FLOPs are only {steps} steps at d_model={d_model}: take a smaller size or a larger budget"
        )
    lengths.forget(config)
    config.train.steps = steps
    config.optim.peak_lr = lr_factor * by.peak_lr(d_model, steps)
    config.optim.beta2 = by.beta2
    config.schedule.warmup_tokens = config.schedule.warmup_share = None
    config.schedule.warmup_steps = max(by.warmup_least, round(by.warmup_share * steps))
    config.eval.every_steps = steps
    config.checkpoint.every_steps = max(500, -(-steps // 4))
    config.log.role = role
    config.log.every_steps = max(1, steps // 200)
    return config_lib.resolve(config)
