"""SmolLM3 (Hugging Face 2025): a Llama whose every fourth layer has no positions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import LLAMA, OURS, whole_heads
from scalelab.hf.layer_types import FULL, check_layer_count, list_layer_types, special_every, window_from_hf
from scalelab.model.stacks import all_layer_flags

EVERY = 4  # no_rope_layer_interval where config.json has none


def _write(shape: ModelShape) -> dict[str, Any]:
    has_rope = all_layer_flags(shape).has_rope
    listed = [1] * shape.n_layers if has_rope is None else [int(one) for one in has_rope]
    interval = shape.nope_every or shape.n_layers + 1  # transformers takes the list; without an interval its own is 4
    layers = {"no_rope_layers": listed, "no_rope_layer_interval": interval, "layer_types": list_layer_types(shape)}
    return options.rope_to_hf(shape) | layers


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Rope, and the layers without positions: no_rope_layers has a 1 for each layer with positions."""
    count, interval = check_layer_count(values), content.get("no_rope_layer_interval", EVERY)
    listed = content.get("no_rope_layers")
    if listed is None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise BadInput(f"no_rope_layer_interval={repr(interval)[:40]} is not a whole number from 1")
        listed = [int((layer + 1) % interval != 0) for layer in range(count)]
    if not isinstance(listed, list) or len(listed) != count or not all(one in (0, 1) for one in listed):
        raise BadInput(f"no_rope_layers={repr(listed)[:60]} is not a list of {count} times 0 or 1")
    nope = {"nope_every": special_every([not one for one in listed], "no_rope_layers")}
    if window_from_hf(content, values, 1, [FULL] * count)["window"]:
        raise BadInput("layer_types has layers with a window, and use_sliding_window is false: only full ones are read")
    return options.rope_from_hf(content, values["seq_len"]) | nope


SMOLLM3 = dataclasses.replace(
    LLAMA,
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    absent=LLAMA.absent
    | {"num_key_value_heads": 4, "max_position_embeddings": 32_768, "rope_theta": 2e6, "tie_word_embeddings": True}
    | {"use_sliding_window": False},
    ours={key: value for key, value in OURS.items() if key != "nope_every"} | {"window": 0},
    theirs=LLAMA.theirs | {"use_sliding_window": False},
    limits=lambda shape: (
        whole_heads(shape)
        | options.rope_constraints(shape)
        | {"nope_every": shape.nope_every if shape.nope_every <= shape.n_layers else 0}
    ),
    told=(*options.ROPE_KEYS, "nope_every"),
    write=_write,
    read=_read,
    extra={"pad_token_id": None},  # else one beyond small vocabularies
    also=("no_rope_layers", "no_rope_layer_interval", "layer_types"),
    neutral=("sliding_window", "max_window_layers"),  # of a window that is not used
)
