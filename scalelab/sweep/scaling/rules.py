"""Rules of the ladder: how learning rate and batch follow from size and length, each with its source and its range.

A fitted exponent is only as good as the rule that chose the learning rates of the runs. So a rule has a name, a source
and the range in which it was measured, is refused outside this range, and is printed in the report.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput, nearest_hint
from scalelab.sweep.scaling import fitted
from scalelab.sweep.scaling.fitted import FITTED_PREFIX

INPUT_LABELS = {"N": "N (non-embedding)", "D": "D (tokens)"}


@dataclasses.dataclass(frozen=True)
class LadderRule:
    """How hyperparameters follow from size and length.

    peak LR = `lr` x the product of (value / reference)^exponent over `powers` {value: (reference, exponent)}. Values
    are `steps`, `d_model`, `N` (non-embedding parameters) and `D` (tokens). The base config's parametrization acts on
    top of the peak LR (under mup, hidden matrices get base_width / d_model of it). A batch is `global_batch` sequences
    or, if that is None, c x D^e tokens with `batch_tokens` = (c, e). Warm-up is `warmup_share` of the steps, at least
    `warmup_least`; `beta2` suits that batch (None: the base config's). The rule was measured within `ranges` {value:
    (low, high)} and with `needs` {config key: values}.
    """

    name: str
    source: str
    lr: float
    powers: Mapping[str, tuple[float, float]]
    global_batch: int | None = None
    batch_tokens: tuple[float, float] | None = None
    warmup_share: float = 0.08
    warmup_least: int = 10
    beta2: float | None = None
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def peak_lr(self, **values: float) -> float:
        """Peak learning rate of a run with these `steps`, `d_model`, `N`, `D`; values without a power are optional."""
        return self.lr * math.prod((values[key] / ref) ** exponent for key, (ref, exponent) in self.powers.items())

    def batch(self, tokens: float, seq_len: int) -> int:
        """Sequences per step of a run of `tokens` tokens, at least one."""
        if self.global_batch is not None:
            return self.global_batch
        assert self.batch_tokens
        factor, exponent = self.batch_tokens
        return max(1, round(factor * tokens**exponent / seq_len))

    def refusal(self, **values: float) -> str:
        """Why a run with these values is outside the rule's range; "" if it is inside."""
        for key, (low, high) in self.ranges.items():
            if not low <= values[key] <= high:
                near = low if values[key] < low else high
                return (
                    f"the ladder rule {self.name!r} was measured for {INPUT_LABELS.get(key, key)} {low:g} to {high:g}, "
                    f"not {values[key]:.4g}; nearest: {near:g}, or another rule: {other_rules(self.name)}"
                )
        return ""

    def text(self) -> str:
        """The rule in one line, for reports."""
        powers = "".join(f" x ({key} / {ref:g})^{exponent:g}" for key, (ref, exponent) in self.powers.items())
        batch = f"{self.global_batch} sequences"
        if self.batch_tokens:
            batch = f"{self.batch_tokens[0]:g} x D^{self.batch_tokens[1]:g} tokens"
        beta2 = "" if self.beta2 is None else f"beta2 {self.beta2:g}, "
        ranges = ", ".join(
            f"{INPUT_LABELS.get(key, key)} {low:g} to {high:g}" for key, (low, high) in self.ranges.items()
        )
        return (
            f"{self.name}: peak LR {self.lr:.4g}{powers}, warm-up {self.warmup_share:.0%} of the steps (at least "
            f"{self.warmup_least}), {beta2}batch {batch}; for {ranges or 'any size'}; source: {self.source}"
        )


def small_bytes_rule(base: ConfigDict) -> LadderRule:
    """The rule for the quickstart's family: small transformers on bytes."""
    return LadderRule(
        name="small-bytes",
        source="30 runs on split 0, seed 0 of configs/quickstart.py: best of five LRs at six (d_model 16 to 80, "
        "1.25e11 and 5e11 FLOPs), smoothed by eye in steps and width; frozen before the confirming studies. "
        "Half the batch is better by 0.6 % at d_model 16, 1e11 FLOPs and by 2.8 % at 80, 4e11 (one seed): "
        "exponents are those at this batch",
        lr=3.7e-3,
        powers={"steps": (1500, -0.12), "d_model": (48, -0.35)},
        global_batch=8,
        beta2=0.95,
        ranges={"d_model": (16, 80)},
        needs={"optim.name": ("adamw",)},
    )


def mup_rule(base: ConfigDict) -> LadderRule:
    """The base config's own LR and batch at any width (muTransfer); the influence of the length is left out."""
    config = config_lib.resolve(base)
    return LadderRule(
        name="mup",
        source="Yang et al. 2022, section 6: under muP the best LR of a narrow model is that of a wide one; the LR is "
        "optim.peak_lr of the config, which should be the best at its base_width and at lengths like the study's",
        lr=config.optim.peak_lr,
        powers={},
        global_batch=config.train.global_batch,
        warmup_share=config.schedule.warmup_steps / config.train.steps,
        beta2=config.optim.beta2,
        needs={"parametrization.name": ("mup", "completep")},
    )


def own_rule(base: ConfigDict) -> LadderRule:
    """The base config's own LR, batch and share of warm-up at any size and length: for studies that tune the LR."""
    config = config_lib.resolve(base)
    return LadderRule(
        name="own",
        source="the config itself: nothing says that its LR suits other sizes, so tune it there (scalelab ablate does)",
        lr=config.optim.peak_lr,
        powers={},
        global_batch=config.train.global_batch,
        warmup_share=config.schedule.warmup_steps / config.train.steps,
        beta2=config.optim.beta2,
    )


def step_law_rule(base: ConfigDict) -> LadderRule:
    """LR and batch from N and D, by the fit of Li et al. to 3,700 models."""
    return LadderRule(
        name="step_law",
        source="Li et al. 2025 (arXiv 2503.04715): LR 1.79 N^-0.713 D^0.307, batch 0.58 D^0.571 tokens; "
        "their dense models (step-law.github.io) have N 214,663,680 to 1,073,741,824 and D 4e9 to 1e11",
        lr=1.79,
        powers={"N": (1.0, -0.713), "D": (1.0, 0.307)},
        batch_tokens=(0.58, 0.571),
        warmup_share=0.02,
        beta2=0.95,
        ranges={"N": (2.14e8, 1.08e9), "D": (4e9, 1e11)},
        needs={"optim.name": ("adamw",), "parametrization.name": ("standard",)},
    )


RULES: dict[str, Callable[[ConfigDict], LadderRule]] = {
    "small-bytes": small_bytes_rule,
    "mup": mup_rule,
    "own": own_rule,
    "step_law": step_law_rule,
}


def other_rules(name: str) -> str:
    """The names of all rules except this one."""
    return ", ".join(
        [*(other for other in RULES if other != name), f"{FITTED_PREFIX}DIR (fitted to LR checks of your own)"]
    )


def find_rule(name: str, base: ConfigDict) -> LadderRule:
    """The rule of this name for the family of `base`; `fitted:DIR` is fitted to the runs in DIR, `fitted:FILE` is the
    answer of `scalelab fit --best-of … --json=FILE`.

    BadInput if the name is unknown, or if the rule was measured with another family.
    """
    if name.startswith(FITTED_PREFIX):
        rule = LadderRule(**fitted.read_fields(pathlib.Path(name.removeprefix(FITTED_PREFIX)).expanduser()))
    elif name in RULES:
        rule = RULES[name](base)
    else:
        raise BadInput(f"no ladder rule {name!r}{nearest_hint(name, [*RULES, FITTED_PREFIX])}")
    leaves = config_lib.leaves(config_lib.resolve(base))
    for key, allowed in rule.needs.items():
        if leaves[key] not in allowed:
            raise BadInput(
                f"the ladder rule {rule.name!r} was measured with {key}={' or '.join(allowed)}, not {leaves[key]!r}; "
                f"nearest: --config.{key}={allowed[0]}, or another rule: {other_rules(rule.name)}"
            )
    return rule
