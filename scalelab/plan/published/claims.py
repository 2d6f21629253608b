"""Sentences of teaching texts that a computation can refute: rows for `textbook.py`, each with its source.

A sentence without a number of its own is held to the number that it implies, which the row's name states in brackets.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab.laws.published.verdict import ComparisonRow, Interval, Verdict, make_comparison_row
from scalelab.model import count
from scalelab.optim import adam, muon, schedules, table
from scalelab.optim.clip import clip_global_norm
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.run.goodput import plan_checkpointing
from scalelab.plan.step.time import step_time

FINDINGS = (
    "Llama 3, DeepSeek-V3 and Qwen 2.5 did not all train with WSD: cosine, then annealing (Dubey et al. 2024, "
    "section 3.4); constant, "
    "cosine, two constants (DeepSeek-AI 2024, section 4.2); undisclosed.",
    "The z-loss acts on the output softmax (Chowdhery et al. 2022, section 5): it does not keep attention's entropy "
    "from collapsing.",
)
STEPS = 60  # of a toy that compares two sums of gradients
MICRO_BATCHES = 8
LLAMA2 = {  # Touvron et al. 2023, table 1; 2 T tokens each
    "7B": {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11_008},
    "70B": {"n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28_672},
}
LLAMA3_8B = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14_336,
    "vocab_size": 128_256,
    "seq_len": 8192,
}
TOKENS = 2e12
RUN = {"train.steps": 100_000, "optim.peak_lr": 3e-4, "schedule.warmup_steps": 2000, "schedule.final_share": 0.1}


def claim_rows() -> tuple[ComparisonRow, ...]:
    """Every claim: stated, ours, verdict."""
    return (
        *_adam(),
        *_accumulation(),
        *_lr(),
        *_llama3_schedule(),
        *_lost(),
        *_adafactor(),
        *_tokens(),
        *_muon(),
        *_saves(),
    )


def judge_above(ours: float, stated: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """match where ours is over what is stated, else wrong."""
    return "match" if ours > stated else "wrong"


def judge_near(ours: float, stated: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """match within the tolerance, else wrong."""
    return "match" if abs(ours - stated) <= tolerance else "wrong"


def uncorrected_adam_steps(beta1: float, beta2: float, gradients: np.ndarray) -> np.ndarray:
    """Adam's steps in LRs without bias correction, [T], on these gradients of one parameter, [T]."""
    moments = adam.scale_by_adam(jnp.float32(beta1), jnp.float32(beta2), jnp.float32(1e-12), corrected=False)

    def step(state: optax.OptState, g: jax.Array) -> tuple[optax.OptState, jax.Array]:
        direction, state = moments.update(g, state)
        return state, direction

    return np.asarray(jax.lax.scan(step, moments.init(jnp.zeros(())), jnp.asarray(gradients, jnp.float32))[1])


def _adam() -> list[ComparisonRow]:
    recipe = "optim/adam.py without bias correction (Kingma & Ba 2015, section 3), a gradient of 1 at every step"
    chapter, usual = uncorrected_adam_steps(0.9, 0.95, np.ones(200)), uncorrected_adam_steps(0.9, 0.999, np.ones(200))
    noise = uncorrected_adam_steps(0.9, 0.95, np.random.default_rng(0).choice([-1.0, 1.0], 20_000))[1000:]
    pure = "the same, a gradient of +1 or -1 by chance: sqrt((1 - beta1) / (1 + beta1))"
    return [
        make_comparison_row("no bias correction, betas .9, .95: first step, LRs (explosively large: over 1)",
                            chapter[0], "1", recipe, judge_above),
        make_comparison_row("no bias correction, betas .9, .95: the largest of 200 steps, LRs (over 2)",
                            chapter.max(), "2", recipe, judge_above),
        make_comparison_row("no bias correction, betas .9, .999: first step, LRs (over 1)",
                            usual[0], "1", recipe, judge_above),
        make_comparison_row("no bias correction, betas .9, .999: the largest of 200 steps, LRs (over 2)",
                            usual.max(), "2", recipe, judge_above),
        make_comparison_row("RMS of Adam's step on noise, LRs (as on a signal: 1)",
                            float(np.sqrt(np.mean(noise**2))), "1", pure, judge_near, 0.05),
    ]  # fmt: skip


def parameter_movement(rule: optax.GradientTransformation, gradients: np.ndarray) -> np.ndarray:
    """How far `gradients` [T, d] move the parameters under `rule`, in LRs, [d]."""

    def step(state: optax.OptState, g: jax.Array) -> tuple[optax.OptState, jax.Array]:
        direction, state = rule.update(g, state)
        return state, direction

    return np.asarray(
        jax.lax.scan(step, rule.init(jnp.zeros(gradients.shape[1])), jnp.asarray(gradients, jnp.float32))[1].sum(0)
    )


def _accumulation() -> list[ComparisonRow]:
    gradients = np.random.default_rng(0).normal(1.0, 1.0, (STEPS, 64))
    adamw = adam.scale_by_adam(jnp.float32(0.9), jnp.float32(0.95), jnp.float32(1e-8))
    recipe = f"{STEPS} steps on gradients {MICRO_BATCHES} times as large, how far parameters move"
    clipped = optax.chain(clip_global_norm(jnp.float32(1.0)), adamw)
    rules = {"SGD": optax.identity(), "AdamW (optim/adam.py)": adamw, "AdamW after a clip at 1": clipped}
    rows = []
    for name, rule in rules.items():
        ratio = np.median(parameter_movement(rule, MICRO_BATCHES * gradients) / parameter_movement(rule, gradients))
        claim = f"1/K forgotten, K = 8, {name}: the effective LR is so many times too large"
        rows.append(make_comparison_row(claim, ratio, "8", recipe, judge_near, 0.01))
    # Two micro-batches with 256 and 768 tokens that count: a mean of means gives each half of the weight.
    weight = (1 / 2 / 256) / (1 / (256 + 768))
    means = (
        "two micro-batches of 256 and 768 tokens: a token's weight in a mean of means over 1 / 1,024 (transformers "
        "issues 34191, 35203)"
    )
    claim = "accumulation is numerically identical: a token's weight over the big batch's"
    return [*rows, make_comparison_row(claim, weight, "1", means, judge_near, 1e-6)]


def lr_at_steps(steps: list[int], **changes: object) -> np.ndarray:
    """The LR at these steps of the texts' run with `changes` (keys with "__" for the point)."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), RUN | named))
    return np.asarray(schedules.schedule_curves(config, steps)["lr"], float)


def _lr() -> list[ComparisonRow]:
    middle, last = lr_at_steps([50_000, 99_999], schedule__final_share=0.0)
    held = {"schedule__name": "inverse_sqrt", "schedule__hold_steps": 10_000, "schedule__warmup_steps": 0}
    before, after = lr_at_steps([99_900, 99_999], **held, optim__peak_lr=1e-2)
    cold, warm = lr_at_steps([0], schedule__warmup_steps=0)[0], lr_at_steps([0])[0]
    fragment = "cosine to 0, as transformers' get_cosine_schedule_with_warmup ends (optim/schedules.py)"
    palm = (
        "1 / sqrt(k) after 10,000 steps (Chowdhery et al. 2022, section 5): they went back about 100 steps and "
        "skipped batches"
    )
    free = (
        "Defazio et al. 2024, algorithm 1: c_1 = 1, so the average's first step is the LR's own; its authors advise a "
        "warm-up"
    )
    row = functools.partial(make_comparison_row, judge=judge_near)
    cosine_middle = "get_cosine_schedule_with_warmup: LR at step 50,000 (as to 10 %)"
    cosine_end = "get_cosine_schedule_with_warmup: LR at the last step (10 % of 3e-4)"
    palm_back = "PaLM's LR 100 steps back, over that before (its LR restarts: 3.16)"
    first_step = "Schedule-Free: first step without warm-up over that with 2,000 steps (no need of it: 1)"
    return [
        row(cosine_middle, middle, "1.65e-4", fragment, tolerance=5e-7),
        row(cosine_end, last, "3e-5", fragment, tolerance=1e-6),
        row(palm_back, before / after, "3.16", palm, tolerance=0.01),
        row(first_step, cold / warm, "1", free, tolerance=0.5),
    ]


def _llama3_schedule() -> list[ComparisonRow]:
    from scalelab.configs.recipes import llama3_8b

    config = config_lib.resolve(llama3_8b.get_config())
    half = float(schedules.schedule_curves(config, [config.train.steps // 2])["lr"][0]) / config.optim.peak_lr
    recipe = "configs/recipes/llama3_8b.py (Dubey et al. 2024, section 3.4): a cosine"
    name = "Llama 3 trained with WSD: LR half way over the peak (stable: 1)"
    return [make_comparison_row(name, half, "1", recipe, judge_near, 0.05)]


def _lost() -> list[ComparisonRow]:
    back, price = 45_500 - 44_000, 180_000 / 45_000
    recipe = "from step 45,500 to the checkpoint of 44,000; $180,000 for 45,000 steps"
    return [
        make_comparison_row("rollback from 45,500 to 44,000: steps lost", back, "1000", recipe, judge_near, 0),
        make_comparison_row("rollback from 45,500 to 44,000: its cost, $", back * price, "3600", recipe, judge_near, 0),
    ]


def _adafactor() -> list[ComparisonRow]:
    shape = {f"model.{key}": value for key, value in LLAMA2["7B"].items()} | {"model.vocab_size": 32_000}

    def state(**optim: object) -> float:
        values = shape | {f"optim.{key}": value for key, value in optim.items()} | {"optim.peak_lr": 1e-4}
        config = config_lib.resolve(config_lib.override(config_lib.default_tree(), values))
        groups = table.optimizer_rows(config_lib.static(config), config_lib.hparams(config))
        return sum(each.state_bytes for each in groups) / sum(each.parameters for each in groups)

    adamw = state(name="adamw")
    palm = state(name="adafactor", factored=False, averaged=True, beta1=0.9) / adamw
    factored = "bytes of state (`scalelab optim`): rows and columns, no first moment (Shazeer & Stern 2018)"
    recipe = "bytes of state (`scalelab optim`): unfactored, with a first moment (Chowdhery et al. 2022, section 5)"
    return [
        make_comparison_row(
            "PaLM's Adafactor: state over AdamW's (about .5, factored)", palm, "0.5", recipe, judge_near, 0.05
        ),
        make_comparison_row(
            "T5's Adafactor: state over AdamW's (about .5)",
            state(name="adafactor") / adamw,
            "0.5",
            factored,
            judge_near,
            0.05,
        ),
    ]


def _tokens() -> list[ComparisonRow]:
    recipe = "2 T tokens over the parameters of Touvron et al. 2023, table 1 (model/count.py)"
    rows = []
    for name, shape in LLAMA2.items():
        named = {f"model.{key}": value for key, value in shape.items()} | {
            "model.vocab_size": 32_000,
            "optim.peak_lr": 1e-4,
        }
        static = config_lib.static(config_lib.resolve(config_lib.override(config_lib.default_tree(), named)))
        ratio = TOKENS / count.count_parameters(static.model)["total"]
        rows.append(
            make_comparison_row(
                f"Llama 2 {name}, shaped by 20 tokens a parameter: tokens a parameter",
                ratio,
                "20",
                recipe,
                judge_near,
                2.0,
            )
        )
    return rows


def singular_values() -> tuple[float, float]:
    """The least and the largest that Newton-Schulz makes of singular values of .01 to 1 of the matrix's norm."""
    small = np.linspace(0.01, 0.7, 2000)
    pairs = np.stack([small, np.sqrt(1 - small**2)], -1)
    x = jnp.asarray(pairs[:, :, None] * np.eye(2), jnp.float32)
    values = np.abs(np.asarray(jnp.diagonal(muon.newton_schulz(x), axis1=-2, axis2=-1)))
    return float(values.min()), float(values.max())


def _muon() -> list[ComparisonRow]:
    least, largest = singular_values()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 32)), jnp.float32)
    ratio = float(jnp.linalg.norm(muon.newton_schulz(1000 * x)) / jnp.linalg.norm(muon.newton_schulz(x)))
    recipe = "optim/muon.py, five steps (Jordan et al. 2024), singular values from .01 of the norm on"
    size = "optim/muon.py: the update of a gradient 1,000 times as large, over the update"
    return [
        make_comparison_row(
            "Newton-Schulz drives singular values to 1: the least", least, "1", recipe, judge_near, 0.05
        ),
        make_comparison_row(
            "Newton-Schulz drives singular values to 1: the largest", largest, "1", recipe, judge_near, 0.05
        ),
        make_comparison_row(
            "Muon preserves the gradient's magnitude: 1,000 times the gradient, times the update",
            ratio,
            "1000",
            size,
            judge_near,
            1.0,
        ),
    ]


def _saves() -> list[ComparisonRow]:
    values = {f"model.{key}": value for key, value in LLAMA3_8B.items()} | {
        "model.remat": "full", "precision.name": "bf16", "parallel.fsdp": 64, "train.global_batch": 2048,
        "optim.peak_lr": 3e-4,
        "train.accumulate": 32,
    }  # fmt: skip
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), values))
    static, on = config_lib.static(config), load_machine("h100")
    step_s = step_time(static, on).total_s
    best = plan_checkpointing(static, on, step_s=step_s)
    recipe = (
        "plan/run/goodput.py: Llama 3 8B, 16 M tokens a step, on 64 H100; Daly 2006 with the failures of Dubey et al. "
        "2024"
    )
    claims = {"every few thousand": ("2000", 1000), "every 500": ("500", 250)}
    return [
        make_comparison_row(
            f"steps between saves ({claim})", best.every_steps or 0, stated, recipe, judge_near, tolerance
        )
        for claim, (stated, tolerance) in claims.items()
    ]
