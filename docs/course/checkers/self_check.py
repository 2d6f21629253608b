"""The self-check of index.md: questions, and answers that the library computes when the page is written."""

from collections.abc import Callable, Iterator

import numpy as np

from scalelab.hardware import chips
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law.forms import effective_data
from scalelab.plan.budget.allocate import allocate_budget
from scalelab.plan.budget.lawbook import REPETITION
from scalelab.plan.published import claims, textbook
from scalelab.plan.run import batch, goodput
from scalelab.precision.exponent_histograms import float_range


def first_steps() -> str:
    """Adam's first uncorrected step with two values of beta2."""
    sizes = [claims.uncorrected_adam_steps(0.9, beta2, np.ones(1))[0] for beta2 in (0.95, 0.999)]
    return f"{sizes[0]:.3g} learning rates with 0.95, {sizes[1]:.3g} with 0.999"


def noise_step() -> str:
    """The RMS of Adam's step on noise, in closed form and measured."""
    noise = claims.uncorrected_adam_steps(0.9, 0.95, np.random.default_rng(0).choice([-1.0, 1.0], 20_000))[1000:]
    return (
        f"{np.sqrt(np.mean(noise**2)):.2f} learning rates: sqrt((1 - beta1) / (1 + beta1)) = {(0.1 / 1.9) ** 0.5:.3f}"
    )


def state_sizes() -> str:
    """GB of optimizer state of 7B parameters."""
    return ", ".join(
        f"{name} {textbook.state_gb('7B', name):.1f}" for name in ("adamw", "lion", "adam8bit", "adafactor")
    )


def cosine_middle() -> str:
    """The LR in the middle of a cosine with warm-up."""
    return f"{textbook.lr_at(50_000):.4g}; half way between peak and end only without a warm-up"


def fp16_ends() -> str:
    """The range of fp16."""
    small, normal, large = float_range("float16")
    return f"{small:.3g} (normal ones from {normal:.3g}) to {large:.0f}"


def tensor_cores() -> str:
    """bf16 over fp32 on an H100."""
    flops = chips.find_chip("H100").flops  # type: ignore[union-attr]
    ratios = [flops["bfloat16"] / flops[unit] for unit in ("tensorfloat32", "float32")]
    return f"{ratios[0]:.2g} times where TF32 is allowed, {ratios[1]:.3g} times where it is not"


def best_split() -> str:
    """Tokens a parameter at Chinchilla's budget by three laws."""
    laws = ("chinchilla_1", "chinchilla_3", "besiroglu")
    ratios = [allocate_budget(flops=5.76e23, law=law).tokens_per_parameter for law in laws]
    return ", ".join(f"{law} {ratio:.1f}" for law, ratio in zip(laws, ratios, strict=True))


def exponents() -> str:
    """Exponents of the best N and D."""
    n, d = chinchilla_optimum.allocation_exponents(textbook.PRINTED)
    return f"N by {10**n:.2f}, D by {10**d:.2f} (exponents {n:.3f} and {d:.3f})"


def four_epochs() -> str:
    """The worth of four epochs."""
    return f"{float(effective_data(4.0, 1.0, REPETITION[0][0])):.2f} epochs of fresh data"


def failures() -> str:
    """Mean time between failures of a large job, and Daly's interval."""
    job = goodput.job_mtbf(16_384)
    return f"every {job / 3600:.1f} h; every {goodput.daly_interval(30, job) / 60:.0f} minutes"


def critical_batch() -> str:
    """Kaplan's critical batch at two losses."""
    return ", ".join(f"{batch.kaplan_critical_batch(loss) / 1e6:.2f} M tokens at {loss} nats" for loss in (4.0, 2.5))


def newton_schulz() -> str:
    """Singular values after five steps of Newton-Schulz."""
    least, largest = claims.singular_values()
    return f"{least:.2f} to {largest:.2f}, for values from 0.01 of the norm on"


QUESTIONS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("How large is Adam's first step without bias correction (beta2 0.95 or 0.999)?", first_steps, "theory, 1"),
    ("How large are Adam's steps where the gradient is only noise?", noise_step, "`scalelab reproduce textbook`"),
    ("How many GB of state has a 7B model?", state_sizes, "`scalelab optim`"),
    ("What does Newton-Schulz make of singular values?", newton_schulz, "`scalelab reproduce textbook`"),
    ("Peak 3e-4, end 3e-5, 2,000 of 100,000 steps of warm-up: which LR has a cosine at step 50,000?", cosine_middle,
     "`scalelab schedule`"),
    ("Which numbers can fp16 hold?", fp16_ends, "theory, 5"),
    ("How much faster is bf16 than fp32 on an H100?", tensor_cores, "`scalelab reproduce textbook`"),
    ("How many tokens a parameter are best at 5.76e23 FLOPs?", best_split, "`scalelab plan --flops=5.76e23 --law=…`"),
    ("Ten times the compute: by which factors do N and D grow (Hoffmann et al. 2022, eq. 10)?", exponents, "laws, 1"),
    ("What are four epochs over the same tokens worth?", four_epochs, "laws, 2"),
    ("How large is the critical batch by Kaplan et al. (2020)?", critical_batch, "`scalelab plan`"),
    ("16,384 GPUs, saves that block 30 s: how often do they fail, how often should they save?", failures, "problem 9"),
)  # fmt: skip


def self_check_lines() -> Iterator[str]:
    """The lines of the page: a table of questions, answers and where they come from."""
    yield from ("| question | answer | from |", "|---|---|---|")
    for question, answer, source in QUESTIONS:
        yield f"| {question} | {answer()} | {source} |"
