"""Sentences of teaching texts about optimizers and schedules that a computation can refute.

A sentence without a number of its own is held to the number that it implies, which the row's name states in brackets.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab.laws.published.verdict import (
    ComparisonRow,
    cite_sentence,
    judge_above,
    judge_below,
    judge_near,
    make_comparison_row,
)
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import adam, muon, schedules
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.clip import clip_global_norm

STEPS = 60  # of a toy that compares two sums of gradients
MICRO_BATCHES = 8
LLAMA3_8B = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14_336,
    "vocab_size": 128_256,
    "seq_len": 8192,
}
RUN = {"train.steps": 100_000, "optim.peak_lr": 3e-4, "schedule.warmup_steps": 2000, "schedule.final_share": 0.1}
TOY = {"model.n_layers": 1, "model.d_model": 8, "model.n_heads": 1, "model.vocab_size": 32, "optim.peak_lr": 0.1}
NOISY_STEPS = 1000


def optimizer_rows() -> list[ComparisonRow]:
    """Every claim about an optimizer or a schedule: stated, ours, verdict."""
    return [*_adam(), *_accumulation(), *_decay(), *_matrix_updates(), *_lr(), *_llama3_schedule()]


def adam_steps(beta1: float, beta2: float, gradients: np.ndarray, corrected: bool = True) -> np.ndarray:
    """Adam's steps in LRs on these gradients of one parameter, [T]."""
    moments = adam.scale_by_adam(jnp.float32(beta1), jnp.float32(beta2), jnp.float32(1e-12), corrected)

    def step(state: optax.OptState, g: jax.Array) -> tuple[optax.OptState, jax.Array]:
        direction, state = moments.update(g, state)
        return state, direction

    return np.asarray(jax.lax.scan(step, moments.init(jnp.zeros(())), jnp.asarray(gradients, jnp.float32))[1])


def uncorrected_adam_steps(beta1: float, beta2: float, gradients: np.ndarray) -> np.ndarray:
    """Adam's steps in LRs without bias correction, [T], on these gradients of one parameter, [T]."""
    return adam_steps(beta1, beta2, gradients, corrected=False)


def _adam() -> list[ComparisonRow]:
    recipe = "optim/adam.py without bias correction (Kingma & Ba 2015, section 3), a gradient of 1 at every step"
    chapter, usual = uncorrected_adam_steps(0.9, 0.95, np.ones(200)), uncorrected_adam_steps(0.9, 0.999, np.ones(200))
    noise = uncorrected_adam_steps(0.9, 0.95, np.random.default_rng(0).choice([-1.0, 1.0], 20_000))[1000:]
    pure = "the same, a gradient of +1 or -1 by chance: sqrt((1 - beta1) / (1 + beta1))"
    first = float(adam_steps(0.9, 0.999, np.ones(1))[0])
    above = functools.partial(make_comparison_row, recipe=recipe, judge=judge_above)
    return [
        *cite_sentence(
            "Adam: bias correction",
            "Without bias correction the first steps are explosively large.",
            above("betas .9, .95: first step, LRs (explosively large: over 1)", chapter[0], "1"),
            above("betas .9, .95: the largest of 200 steps, LRs (over 2)", chapter.max(), "2"),
            above("betas .9, .999: first step, LRs (over 1)", usual[0], "1"),
            above("betas .9, .999: the largest of 200 steps, LRs (over 2)", usual.max(), "2"),
        ),
        *cite_sentence(
            "Schedules: why warm up",
            "Without warm-up, bias correction makes the first steps too large.",
            make_comparison_row("with correction: first step, LRs (too large: over 1)", round(first, 6), "1",
                                "optim/adam.py with bias correction, betas .9, .999: m / sqrt(v) = 1", judge_above),
        ),
        *cite_sentence(
            "Adam: size of steps",
            "Every parameter moves by about one learning rate a step.",
            make_comparison_row("RMS of Adam's step on noise, LRs (as on a signal: 1)",
                                float(np.sqrt(np.mean(noise**2))), "1", pure, judge_near, 0.05),
        ),
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
    sentence = "Forgetting to divide the loss by K makes the effective learning rate K times too large."
    return cite_sentence("Gradient accumulation", sentence, *rows)


def noisy_norm(changes: dict[str, Any]) -> float:
    """RMS of a toy's embedding after 1,000 steps of pure noise under the trainer's own AdamW chain."""
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), TOY | changes))
    static, h = config_lib.static(config), config_lib.hparams(config)
    zeros = jax.tree.map(lambda d: jnp.zeros(d.shape), parameter_declarations(static.model))
    chain = build_optimizer_chain(static, h, jnp.float32(TOY["optim.peak_lr"]))
    names = list(named_leaves(zeros))
    at = next(i for i, name in enumerate(names) if "embed" in name)
    leaves, treedef = jax.tree.flatten(zeros)

    def step(carry: tuple, noise: jax.Array) -> tuple[tuple, None]:
        state, params = carry
        gradients = jax.tree.unflatten(treedef, [*leaves[:at], noise, *leaves[at + 1 :]])
        updates, state = chain.update(gradients, state, params)
        return (state, optax.apply_updates(params, updates)), None

    noise = np.random.default_rng(0).normal(size=(NOISY_STEPS, *leaves[at].shape))
    (_, params), _ = jax.lax.scan(step, (chain.init(zeros), zeros), jnp.asarray(noise, jnp.float32))
    return float(jnp.sqrt(jnp.mean(jax.tree.leaves(params)[at] ** 2)))


def _decay() -> list[ComparisonRow]:
    kept = {"optim.name": "adamw", "optim.weight_decay": 0.1}
    ratio = noisy_norm(kept | {"optim.decay_embeddings": False}) / noisy_norm(kept)
    recipe = (
        f"optim/chain.py, AdamW: {NOISY_STEPS:,} steps on pure noise, LR .1, decay .1: RMS of the embedding without "
        "its decay over that with it"
    )
    return [
        *cite_sentence(
            "Weight decay: which parameters",
            "Leaving embeddings out of weight decay lowers their norms.",
            make_comparison_row(
                "norm without decay over that with it (lower: under 1)", ratio, "1", recipe, judge_below
            ),
        ),
        *cite_sentence(
            "Lion",
            "Every parameter moves by exactly the learning rate, up or down.",
            make_comparison_row(
                "the largest step of weights of 1 under a decay of .1, LRs",
                lion_step(0.1),
                "1",
                "optim/chain.py, Lion: sign(...) + decay x weight",
                judge_near,
                1e-3,
            ),
        ),
    ]


def lion_step(decay: float) -> float:
    """The largest first step of weights of 1 under Lion, in LRs."""
    changes = {"optim.name": "lion", "optim.weight_decay": decay}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), TOY | changes))
    static, h, lr = config_lib.static(config), config_lib.hparams(config), jnp.float32(TOY["optim.peak_lr"])
    ones = jax.tree.map(lambda d: jnp.ones(d.shape), parameter_declarations(static.model))
    chain = build_optimizer_chain(static, h, lr)
    updates, _ = jax.jit(chain.update)(ones, chain.init(ones), ones)
    return float(max(jnp.abs(u).max() for u in jax.tree.leaves(updates)) / lr)


def singular_values() -> tuple[float, float]:
    """The least and the largest that Newton-Schulz makes of singular values of .01 to 1 of the matrix's norm."""
    small = np.linspace(0.01, 0.7, 2000)
    pairs = np.stack([small, np.sqrt(1 - small**2)], -1)
    x = jnp.asarray(pairs[:, :, None] * np.eye(2), jnp.float32)
    values = np.abs(np.asarray(jnp.diagonal(muon.newton_schulz(x), axis1=-2, axis2=-1)))
    return float(values.min()), float(values.max())


def row_cosine(steps: int = 100, lr: float = 0.02) -> float:
    """The largest |cosine| of two rows of a matrix that began orthogonal, after Muon's steps on random gradients."""
    rng = np.random.default_rng(0)
    gradients = jnp.asarray(rng.normal(size=(steps, 16, 32)), jnp.float32)
    w = jnp.eye(16, 32) - lr * muon.newton_schulz(gradients).sum(0)
    rows = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    return float(jnp.abs(rows @ rows.T - jnp.eye(16)).max())


def _matrix_updates() -> list[ComparisonRow]:
    least, largest = singular_values()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 32)), jnp.float32)
    ratio = float(jnp.linalg.norm(muon.newton_schulz(1000 * x)) / jnp.linalg.norm(muon.newton_schulz(x)))
    recipe = "optim/muon.py, five steps (Jordan et al. 2024), singular values from .01 of the norm on"
    size = "optim/muon.py: the update of a gradient 1,000 times as large, over the update"
    drift = "optim/muon.py: rows of [16, 32] that began orthogonal, after 100 updates of LR .02 on random gradients"
    row = functools.partial(make_comparison_row, judge=judge_near)
    return [
        *cite_sentence(
            "Muon: Newton-Schulz",
            "Newton-Schulz drives all singular values to 1.",
            row("the least singular value", least, "1", recipe, tolerance=0.05),
            row("the largest singular value", largest, "1", recipe, tolerance=0.05),
        ),
        *cite_sentence(
            "Muon: the update",
            "The update preserves the magnitude of the gradient.",
            row("1,000 times the gradient: how many times the update", ratio, "1000", size, tolerance=1.0),
        ),
        *cite_sentence(
            "Muon: the update",
            "The update preserves the orthogonality of a weight's rows.",
            row("largest |cosine| of two rows after 100 updates", row_cosine(), "0", drift, tolerance=0.05),
        ),
    ]


def lr_at_steps(steps: list[int], **changes: object) -> np.ndarray:
    """The LR at these steps of the texts' run with `changes` (keys with "__" for the point)."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), RUN | named))
    return np.asarray(schedules.schedule_curves(config, steps)["lr"], float)


def _lr() -> list[ComparisonRow]:
    middle, last = lr_at_steps([50_000, 99_999], schedule__final_share=0.0)
    fragment = "cosine to 0, as transformers' get_cosine_schedule_with_warmup ends (optim/schedules.py)"
    row = functools.partial(make_comparison_row, judge=judge_near)
    return cite_sentence(
        "Schedules: code of a cosine",
        "get_cosine_schedule_with_warmup falls to 10 % of the peak.",
        row("LR at step 50,000 (as to 10 %)", middle, "1.65e-4", fragment, tolerance=5e-7),
        row("LR at the last step (10 % of 3e-4)", last, "3e-5", fragment, tolerance=1e-6),
    )


def _llama3_schedule() -> list[ComparisonRow]:
    from scalelab.configs.recipes import llama3_8b

    config = config_lib.resolve(llama3_8b.get_config())
    half = float(schedules.schedule_curves(config, [config.train.steps // 2])["lr"][0]) / config.optim.peak_lr
    recipe = "configs/recipes/llama3_8b.py (Dubey et al. 2024, section 3.4): a cosine"
    row = make_comparison_row("Llama 3: LR half way over the peak (stable: 1)", half, "1", recipe, judge_near, 0.05)
    return cite_sentence("Schedules: who uses what", "Llama 3, DeepSeek-V3 and Qwen 2.5 all used WSD.", row)
