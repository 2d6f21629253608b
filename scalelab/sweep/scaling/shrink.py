"""Shrink a recipe for a laptop: the recipe's choices at small sizes. To find its learning rate, see `proxy.py`."""

import itertools
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import mixture_text
from scalelab.config.steps import batch_ramp
from scalelab.errors import BadInput
from scalelab.optim.registry import find_optimizer
from scalelab.sweep.scaling.proxy import shorten_twin
from scalelab.sweep.scaling.resize import SCALED_WIDTHS, scale_width

VOCAB, SEQ_LEN, SEQUENCES = 256, 128, 16  # bytes; tokens; sequences of a batch
LARGEST_LR = 1e-2  # tiny models train stably up to here with optimizers like Adam
LEAST_D_MODEL = 16


def shrink_recipe(recipe: ConfigDict, d_model: int = 64, steps: int = 500) -> ConfigDict:
    """A resolved config at `d_model` and `steps` on bytes, with two layers (or one cycle of its layer kinds, or
    one layer or more of each of its stacks).

    It keeps the recipe's choices and ratios: query heads per key head (up to 4), d_ff and attention's width over
    d_model, the shares of warm-up, decay and batch warm-up, and the ratios of its batch sizes. The learning rate of an
    optimizer like Adam grows as 1/d_model (Yang et al. 2022, Table 8), up to 1e-2. BadInput if `d_model` is not a
    possible width.
    """
    if not LEAST_D_MODEL <= d_model < recipe.model.d_model or d_model % 8:
        low = max(LEAST_D_MODEL, min(recipe.model.d_model - 8, round(d_model / 8) * 8))
        raise BadInput(
            f"d_model={d_model} is not a width to shrink to: it must be a multiple of 8, at least {LEAST_D_MODEL} and "
            f"below the recipe's {recipe.model.d_model}; nearest: {low}"
        )
    twin = recipe.copy_and_resolve_references()
    with twin.unlocked(), twin.ignore_type():
        twin.model.update(_model(recipe.model, d_model))
        twin.parametrization.base_d_head = None
        if find_optimizer(recipe.optim.name).like == "adam":
            twin.optim.peak_lr = min(
                max(LARGEST_LR, recipe.optim.peak_lr), recipe.optim.peak_lr * recipe.model.d_model / d_model
            )
        _batch(twin, recipe, steps)
        shorten_twin(twin, recipe, steps)
    return config_lib.resolve(twin)


def _model(model: ConfigDict, d_model: int) -> dict[str, Any]:
    """The sizes of the small model, which has each of the stacks."""
    group, length = min(model.n_heads // model.n_kv_heads, 4), min(model.seq_len, SEQ_LEN)
    keys = min(model.n_kv_heads, 2 if group > 1 else 4)
    stacks = mixture_text.parse_stacks(model.block, model.n_layers)
    n_layers = max(2, model.nope_every, model.global_every, len(stacks))
    attended = model.n_heads * model.d_head * d_model / model.d_model
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "block": mixture_text.format_stacks(mixture_text.scale_stacks(stacks, n_layers)),
        "n_heads": keys * group,
        "n_kv_heads": keys,
        **_head_sizes(model, max(2, 2 * round(attended / (2 * keys * group)))),
        **{key: scale_width(model[key], d_model, model.d_model) for key in SCALED_WIDTHS},
        "vocab_size": min(model.vocab_size, VOCAB),
        "seq_len": length,
        "window": -(-model.window * length // model.seq_len),
    }


def _head_sizes(model: ConfigDict, d_head: int) -> dict[str, int]:
    """The sizes of a head; what latent attention has beside d_head keeps its ratio to it."""
    if not model.d_kv_latent:
        return {"d_head": d_head, "d_head_value": d_head}
    rest = {key: max(2, 2 * round(model[key] * d_head / (2 * model.d_head))) for key in ("d_head_rope", "d_head_value")}
    return {"d_head": d_head, **rest}


def _batch(twin: ConfigDict, recipe: ConfigDict, steps: int) -> None:
    """Set a batch of 16 sequences; a batch or length warm-up keeps its share of the run and its relative start."""
    old, schedule = recipe.schedule, twin.schedule
    scale = SEQUENCES / recipe.train.global_batch
    tokens = scale * twin.model.seq_len / recipe.model.seq_len * steps / recipe.train.steps
    twin.train.update(global_batch=SEQUENCES, accumulate=SEQUENCES if old.batch_stages or old.batch_start else 1)
    if old.batch_stages:
        schedule.batch_stages = _stages(
            batch_ramp.parse_batch_stages(old.batch_stages), scale, steps / recipe.train.steps
        )
    if old.batch_start:
        schedule.batch_start = min(SEQUENCES - 1, max(1, round(old.batch_start * scale)))
        schedule.batch_warmup_tokens = max(1, round(old.batch_warmup_tokens * tokens))
    if old.seq_start:
        schedule.seq_start = max(8, round(old.seq_start * twin.model.seq_len / recipe.model.seq_len))
        schedule.seq_warmup_tokens = max(1, round(old.seq_warmup_tokens * tokens))


def _stages(stages: list[tuple[int, int]], scale: float, shorter: float) -> str:
    """The text of `stages` at other sizes; each stage starts at least one step after the one before."""
    steps = itertools.accumulate(
        (round(step * shorter) for step, _ in stages[1:]), lambda a, b: max(a + 1, b), initial=0
    )
    pairs = [f"{step}: {max(1, round(batch * scale))}" for step, (_, batch) in zip(steps, stages, strict=True)]
    return "; ".join([pairs[0].removeprefix("0: "), *pairs[1:]])
