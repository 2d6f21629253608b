"""Granite (IBM 2024): a Llama with multipliers of embedding, branches, attention and logits, here in the weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import LLAMA

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def _factors(content: Mapping[str, Any], shape: ModelShape) -> dict[str, float]:
    """The multipliers as factors on weights: logits are divided by theirs, attention's replaces 1/sqrt(d_head)."""
    of = {name: content.get(name, 1.0) for name in MULTIPLIERS}
    for name, value in of.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-9 < value < 1e9:
            raise BadInput(f"{name}={repr(value)[:40]} is not a number from 1e-9 to 1e9")
    embedding, branch, attention, logits = of.values()
    head = logits * (embedding if shape.tied_head else 1.0)
    branches = dict.fromkeys(("blocks.attention.o", "blocks.mlp.down"), branch)
    return {"embed": embedding, "blocks.attention.q": attention * shape.d_head**0.5, **branches, "final_norm": 1 / head}


def _write(shape: ModelShape) -> dict[str, Any]:
    """Multipliers that change nothing, since ours are part of the weights."""
    content = options.rope_to_hf(shape) | dict.fromkeys(MULTIPLIERS, 1.0)
    return content | {"attention_multiplier": shape.d_head**-0.5}


GRANITE = dataclasses.replace(
    LLAMA,
    name="granite",
    architecture="GraniteForCausalLM",
    write=_write,
    also=MULTIPLIERS,
    factors=_factors,
)
