"""Sentences of teaching texts about memory, sizes and budgets that a computation can refute."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.published import besiroglu, kaplan
from scalelab.laws.published.verdict import (
    ComparisonRow,
    cite_sentence,
    judge_below,
    judge_near,
    make_comparison_row,
)
from scalelab.model import count
from scalelab.model.layers import Norm
from scalelab.optim import table
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.step.time import step_time

LLAMA2 = {  # Touvron et al. 2023, table 1; 2 T tokens each
    "7B": {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11_008, "vocab_size": 32_000},
    "70B": {"n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28_672, "vocab_size": 32_000},
}
SMALL = {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 2048, "vocab_size": 50_304}  # with a head: 162M
TOKENS = 2e12
YEAR_S = 365.25 * 86_400
KEYS = 2048  # keys that a query sees


def size_rows() -> list[ComparisonRow]:
    """Every claim about memory, sizes and budgets: stated, ours, verdict."""
    return [*_optimizer_memory(), *_tokens(), *_kaplan(), *_saturation(), *_galore()]


@functools.cache
def state_bytes(optimizer: str, model: str) -> float:
    """Bytes a parameter that an optimizer keeps between steps, of Llama 2's sizes or of `SMALL`."""
    shape = SMALL if model == "small" else LLAMA2[model]
    rows = table.optimizer_rows(_resolved(shape, {"optim.name": optimizer}), _hparams(shape, optimizer))
    return sum(each.state_bytes for each in rows) / sum(each.parameters for each in rows)


def _changes(shape: dict[str, int], changes: dict[str, Any]) -> dict[str, Any]:
    return {f"model.{key}": value for key, value in shape.items()} | {"optim.peak_lr": 1e-4} | changes


def _resolved(shape: dict[str, int], changes: dict[str, Any]) -> Static:
    tree = config_lib.override(config_lib.default_tree(), _changes(shape, changes))
    return config_lib.static(config_lib.resolve(tree))


def _hparams(shape: dict[str, int], optimizer: str) -> config_lib.Hparams:
    tree = config_lib.override(config_lib.default_tree(), _changes(shape, {"optim.name": optimizer}))
    return config_lib.hparams(config_lib.resolve(tree))


def _optimizer_memory() -> list[ComparisonRow]:
    recipe = "bytes of the optimizer's state (`scalelab optim`) for Llama 2 7B's matrices"
    row = functools.partial(make_comparison_row, judge=judge_near)
    adamw, muon, small = state_bytes("adamw", "7B"), state_bytes("muon", "7B"), "a model of 162M, vocabulary 50,304"
    share = state_bytes("muon", "small") / state_bytes("adamw", "small")
    return [
        *cite_sentence(
            "Memory: optimizer states",
            "An optimizer takes three times the memory of the weights.",
            row("AdamW's state over weights in fp32", adamw / 4, "3", recipe, tolerance=0.05),
            row("AdamW's state over weights in 16 bits", adamw / 2, "3", recipe, tolerance=0.05),
        ),
        *cite_sentence(
            "Muon: memory",
            "Muon halves the optimizer's memory.",
            row("7B: its state over AdamW's", muon / adamw, "0.5", recipe, tolerance=0.05),
            row("162M: its state over AdamW's", share, "0.5", f"{recipe.split(' for ')[0]}: {small}", tolerance=0.05),
        ),
        *cite_sentence(
            "Memory: 8-bit Adam",
            "8-bit states take 75 % less than AdamW's.",
            row("7B: share saved", 1 - state_bytes("adam8bit", "7B") / adamw, "0.75", recipe, tolerance=0.01),
        ),
        *cite_sentence(
            "Lion",
            "Lion needs half of AdamW's optimizer memory.",
            row("7B: its state over AdamW's", state_bytes("lion", "7B") / adamw, "0.5", recipe, tolerance=0.01),
        ),
    ]


def _tokens() -> list[ComparisonRow]:
    recipe = "2 T tokens over the parameters of Touvron et al. 2023, table 1 (model/count.py)"
    rows = []
    for name, shape in LLAMA2.items():
        ratio = TOKENS / count.count_parameters(_resolved(shape, {}).model)["total"]
        rows.append(
            make_comparison_row(f"Llama 2 {name}: tokens a parameter", ratio, "20", recipe, judge_near, tolerance=2.0)
        )
    return cite_sentence("Scaling laws: what they changed", "The 20-token rule shaped Llama 2.", *rows)


def _kaplan() -> list[ComparisonRow]:
    law = besiroglu.HOFFMANN["Hoffmann's unrounded"]
    _, exponent = chinchilla_optimum.allocation_exponents(law)
    growth = 1000 ** (float(exponent) - float(kaplan.OPTIMAL["D"]))
    recipe = (
        "1,000 times the compute: best tokens by Chinchilla's law grow so many times more than by Kaplan's C^0.27; "
        "reasons: counting, warm-up and tuning (Porian et al. 2024; `scalelab reproduce kaplan`)"
    )
    name = "Chinchilla's over Kaplan's best tokens: 1e24 FLOPs over 1e21 (one factor: 1)"
    row = make_comparison_row(name, growth, "1", recipe, judge_near, 0.1)
    return cite_sentence("Scaling laws: Kaplan", "Kaplan's law was off by a multiplier of the data.", row)


def saturated_weight(d_head: int = 128, gain: float = 1.0) -> float:
    """The attention weight of the best key under QK-norm, where the other keys of 2,048 are orthogonal to the query."""
    norm = Norm("rmsnorm", (("head_dim", d_head),), 1e-6, jnp.float32)
    query = jnp.asarray(norm.apply({"params": {"g": jnp.full(d_head, gain)}}, jnp.arange(1.0, d_head + 1)))
    logit = float(jnp.sum(query * query)) / d_head**0.5
    return float(jax.nn.softmax(jnp.zeros(KEYS).at[0].set(logit))[0])


def _saturation() -> list[ComparisonRow]:
    recipe = (
        "model/layers.py, q and k of RMS 1 in a head of 128: logit sqrt(128) = 11.3; the others of 2,048 keys "
        "orthogonal; gains learn, and logits of 30 were seen"
    )
    name = "largest attention weight at gains of 1 (cannot saturate: under .9)"
    row = make_comparison_row(name, saturated_weight(), "0.9", recipe, judge_below)
    return cite_sentence("Stability: QK-norm", "With QK-norm the softmax cannot saturate.", row)


def _galore() -> list[ComparisonRow]:
    from scalelab.configs import galore_7b

    static = config_lib.static(config_lib.resolve(galore_7b.get_config()))
    years = 140e9 / step_time(static, load_machine("rtx4090")).tokens_per_s / YEAR_S
    recipe = "configs/galore_7b.py on one RTX 4090 (plan/step/time.py), 140 G tokens: 20 a parameter; it does fit"
    row = make_comparison_row("years of pre-training a 7B (possible: under 1)", years, "1", recipe, judge_below)
    return cite_sentence("GaLore", "GaLore makes full pre-training of a 7B possible on a consumer's GPU.", row)
