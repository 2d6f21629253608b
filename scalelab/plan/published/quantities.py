"""Numbers of teaching texts that follow from formats, schedules, optimizers and shapes: stated, ours, verdict."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from scalelab.laws.published.verdict import ComparisonRow, cite_sentence, judge_near, make_comparison_row
from scalelab.model import count
from scalelab.optim import adam
from scalelab.optim.clip import clip_global_norm
from scalelab.plan.published import claims
from scalelab.plan.published.closed_forms import build_shape
from scalelab.plan.published.sizes import state_bytes
from scalelab.precision.exponent_histograms import float_range
from scalelab.precision.policy import POLICIES

PARAMETERS = 7e9
GB = 1e9
FIELDS = {  # bits of exponent and of mantissa, as stated
    "float32": ("8", "23"), "float16": ("5", "10"), "bfloat16": ("8", "7"), "float8_e4m3fn": ("4", "3"),
    "float8_e5m2": ("5", "2"),
}  # fmt: skip
HORIZONS = {"0.9": "10", "0.95": "20", "0.999": "1000"}  # beta: steps
LISTING = {0: "0", 1000: "1.5e-4", 2000: "3e-4", 99_999: "3e-5"}  # step: LR
ONE_STEP = 1.51e-7  # of the listing's warm-up: ours is one step ahead of transformers', see below
GPT3_WIDTHS = {256: ("40e6", 5e6), 4096: ("6.7e9", 5e7)}  # parameters of 32 layers as stated, and their rounding

row = functools.partial(make_comparison_row, judge=judge_near)


def quantity_rows() -> list[ComparisonRow]:
    """Every number: stated, ours, verdict."""
    return [*_memory(), *_clipping(), *_averages(), *_formats(), *_listing(), *_shapes()]


def _memory() -> list[ComparisonRow]:
    inference = PARAMETERS * jnp.dtype(POLICIES["bf16"].compute).itemsize / GB
    weights = jnp.dtype(POLICIES["fp32"].parameters).itemsize
    training = 2 * weights + state_bytes("adamw", "7B")
    recipe = "bytes of fp32 weights and gradients and of AdamW's state (`scalelab optim`), over the weights"
    return [
        *cite_sentence(
            "Memory: training and inference",
            "A 7B takes 14 GB in 16 bits; training in fp32 takes four times its weights.",
            row("7B in 16 bits, GB", inference, "14", "bytes of precision bf16's products", tolerance=0.5),
            row("fp32: weights, gradients and moments over weights", training / weights, "4", recipe, tolerance=0.05),
        ),
    ]


def _clipping() -> list[ComparisonRow]:
    gradient = jnp.array([3.0, 7.0**0.5])  # of norm 4
    clip = clip_global_norm(jnp.float32(1.0))
    clipped, _ = clip.update(gradient, clip.init(gradient))
    recipe = "optim/clip.py: min(1, most / norm) of all gradients"
    return cite_sentence(
        "Clipping",
        "A gradient of norm 4 clipped at 1 is multiplied by .25: a component of 3.0 becomes .75.",
        row("factor", float(jnp.linalg.norm(clipped) / jnp.linalg.norm(gradient)), "0.25", recipe, tolerance=1e-6),
        row("component of 3.0", float(clipped[0]), "0.75", recipe, tolerance=1e-6),
    )


def horizon(beta: float, steps: int = 20_000) -> float:
    """Steps over which Adam's average spreads one gradient: its moments after an impulse, over the first."""
    moments = adam.scale_by_adam(jnp.float32(beta), jnp.float32(0.999), jnp.float32(1e-8))

    def step(state: Any, g: jax.Array) -> tuple[Any, jax.Array]:
        _, state = moments.update(g, state)
        return state, state.mu

    impulse = jnp.zeros(steps).at[0].set(1.0)
    means = np.asarray(jax.lax.scan(step, moments.init(jnp.zeros(())), impulse)[1], np.float64)
    return float(means.sum() / means[0])


def _averages() -> list[ComparisonRow]:
    moments = adam.scale_by_adam(jnp.float32(0.9), jnp.float32(0.999), jnp.float32(1e-8))
    direction, state = moments.update(jnp.ones(1), moments.init(jnp.ones(1)))
    stepping = "optim/adam.py: one step on a gradient of 1"
    recipe = "optim/adam.py: the first moment after a single gradient, summed over steps, over its first value"
    sentence = "An average with beta remembers about 1 / (1 - beta) steps: 10, 20 and 1,000."
    horizons = [
        row(f"beta {beta}: steps", horizon(float(beta)), steps, recipe, tolerance=0.005 * float(steps))
        for beta, steps in HORIZONS.items()
    ]
    return [
        *cite_sentence(
            "Adam: one step by hand",
            "A first gradient of 1 gives a moment of .1 (beta 0.9), corrected to 1.",
            row("first moment after one step", float(state.mu[0]), "0.1", stepping, tolerance=1e-6),
            row("bias corrected", float(direction[0]), "1", stepping, tolerance=1e-6),
        ),
        *cite_sentence("Adam: averages", sentence, *horizons),
    ]


def _formats() -> list[ComparisonRow]:
    recipe, rows = "fields of the format (ml_dtypes)", []
    for form, (exponent, mantissa) in FIELDS.items():
        info = ml_dtypes.finfo(form)
        bits = {"exponent": (info.bits - 1 - info.nmant, exponent), "mantissa": (info.nmant, mantissa)}
        rows += [row(f"{form}: bits of {name}", n, text, recipe, tolerance=0) for name, (n, text) in bits.items()]
    largest = "largest finite number of the format (ml_dtypes)"
    return [
        *cite_sentence("Precision: formats", "Formats differ in bits of exponent and mantissa (a table).", *rows),
        *cite_sentence(
            "Precision: fp8",
            "e4m3 reaches 448, e5m2 57,344.",
            row("largest number of fp8 e4m3", float_range("float8_e4m3fn")[2], "448", largest, tolerance=0.5),
            row("largest number of fp8 e5m2", float_range("float8_e5m2")[2], "57344", largest, tolerance=0.5),
        ),
    ]


def _listing() -> list[ComparisonRow]:
    recipe = (
        "optim/schedules.py, within one step of warm-up: our step 0 already learns, at 1/2,000 of the peak; in "
        "transformers' schedules step 0 has LR 0, so that ours is one step ahead until the peak and equal after it"
    )
    rates = claims.lr_at_steps(list(LISTING))
    rows = [
        row(f"LR at step {step:,}", rate, text, recipe, tolerance=ONE_STEP)
        for (step, text), rate in zip(LISTING.items(), rates, strict=True)
    ]
    return cite_sentence(
        "Schedules: code of a cosine", "A listing prints its LR at four steps: 0, 1.5e-4, 3e-4, 3e-5.", *rows
    )


def _shapes() -> list[ComparisonRow]:
    rows = []
    for width, (text, rounding) in GPT3_WIDTHS.items():
        ours = count.count_parameters(build_shape("gpt2", 32, width, 32, 2048, 50_257).model)["total"]
        recipe = "model/count.py: 32 layers as GPT-3's, 50,257 tokens, 2,048 positions; Yang et al. 2022, abstract"
        rows.append(row(f"parameters at width {width}", ours, text, recipe, tolerance=rounding))
    sentence = "muP carried a learning rate from 40M to 6.7B parameters."
    return cite_sentence("muP", sentence, *rows)
