"""Count a stored config's parameters in closed form, without jax, as the unedited package does.

`scalelab.model.count` counts the declarations themselves; tests/soundness/test_size.py compares the two.
"""

import functools
from collections.abc import Mapping
from typing import Any


def count_parameters(config: Mapping[str, Any]) -> dict[str, int] | None:
    """Count the parameters of a run's config {group: {key: value}} by convention, as `scalelab.model.count`.

    None if the count can't be known: a user's own block, or keys that this version does not have.
    """
    model = _complete_model(config)
    if model is None:
        return None
    tables = {"weight": model["vocab_size"] * model["d_model"] * (1 if model["tied_head"] else 2), "position": 0}
    if model["position"] == "learned":
        tables["position"] = model["seq_len"] * model["d_model"]
    stacks = [(depth, _count_block(model | {"block": block})) for block, depth in _list_stacks(model)]
    layers = {kind: sum(depth * sizes[kind] for depth, sizes in stacks) for kind in stacks[0][1]}
    final = _count_norm(model)
    inactive = layers.pop("inactive")
    hidden = sum(layers.values()) + sum(final.values())
    return {
        "total": hidden + sum(tables.values()),
        "active": hidden + sum(tables.values()) - inactive,
        "non_embedding": hidden,
        "kaplan": layers["matrix"],
        "chinchilla": hidden - layers["gain"] - final["gain"] - layers["vector"] + sum(tables.values()),
    }


@functools.cache
def _known_keys() -> dict[str, Any]:
    """Keys of a model with their defaults."""
    from scalelab.configs import base  # here and not above: the tree is configuration, not part of the library

    return {name: key.default for name, key in base.MODEL.items()}


@functools.cache
def _gated_mlps() -> tuple[str, ...]:
    """Values of `mlp` with two products into the hidden units."""
    from scalelab.configs import base

    return base.MODEL["mlp"].choices_in("GATED")


def _complete_model(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The model's values, with defaults for keys that an older version lacked; None if they don't imply its size."""
    stored, known = config.get("model", {}), _known_keys()
    if not stored.keys() <= known.keys():
        return None
    model = known | stored
    sizes = ["n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size", "seq_len"]
    sizes += ["d_kv_latent", "d_q_latent", "d_head_rope", "d_head_value"] if model["d_kv_latent"] else []
    sizes += ["n_experts", "experts_per_token", "d_expert", "n_shared_experts"] if model["n_experts"] else []
    if ":" in str(model["block"]) or any(type(model[name]) is not int for name in sizes):
        return None
    return model if sum(depth for _, depth in _list_stacks(model)) == model["n_layers"] else None


def _list_stacks(model: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(block, number of layers) of each stack, as `config.mixture_text.parse_stacks` says; 0 where it is not a number.

    That file stands above this room.
    """
    parts = [part.partition("=") for part in str(model["block"]).split(",")]
    if len(parts) == 1 and not parts[0][1]:
        return [(parts[0][0], model["n_layers"])]
    return [(name.strip(), int(depth[:20]) if depth.strip().isdecimal() else 0) for name, _, depth in parts]


def _count_norm(model: Mapping[str, Any]) -> dict[str, int]:
    return {"gain": model["d_model"], "bias": model["d_model"] if model["norm"] == "layernorm" else 0}


def _count_block(model: Mapping[str, Any]) -> dict[str, int]:
    """Count a block's scalars: `matrix`, `gain`, `bias`; of relative positions a `position` matrix and `vector`s.

    `inactive`: those of the matrices that a token does not use.
    """
    d, relative, norm = model["d_model"], model["position"] == "relative", _count_norm(model)
    norms = (1 if model["block"] == "parallel" else 2) * (2 if model["norm_place"] == "around" else 1)
    attention = _count_latent(model) if model["d_kv_latent"] else _count_attention(model)
    mlp = _count_experts(model) if model["block"] == "experts" else _count_mlp(model, model["d_ff"])
    return {
        "matrix": attention["matrix"] + mlp["matrix"],
        "gain": norms * norm["gain"] + attention["gain"],
        "bias": norms * norm["bias"]
        + attention["bias"] * bool(model["bias"] or model["qkv_bias"])
        + (d + mlp["bias"]) * bool(model["bias"]),
        "position": d * model["n_heads"] * model["d_head"] * relative,
        "vector": 2 * model["n_heads"] * model["d_head"] * relative,
        "inactive": mlp.get("inactive", 0),
    }


def _count_mlp(model: Mapping[str, Any], width: int) -> dict[str, int]:
    products = 2 if model["mlp"] in _gated_mlps() else 1  # into the hidden units
    return {"matrix": model["d_model"] * width * (products + 1), "bias": model["d_model"] + products * width}


def _count_experts(model: Mapping[str, Any]) -> dict[str, int]:
    """Count the router, the routed experts, which have no biases, and the shared one."""
    one = _count_mlp(model, model["d_expert"])["matrix"]
    shared = _count_mlp(model, model["n_shared_experts"] * model["d_expert"])
    return {
        "matrix": model["n_experts"] * (model["d_model"] + one) + shared["matrix"],
        "bias": shared["bias"] if model["n_shared_experts"] else 0,
        "inactive": (model["n_experts"] - model["experts_per_token"]) * one,
    }


def _count_attention(model: Mapping[str, Any]) -> dict[str, int]:
    """Count the scalars of attention but for relative positions; `bias`: of queries, keys and values, if they have."""
    d_head = model["d_head"]
    queries, keys = model["n_heads"] * d_head, model["n_kv_heads"] * d_head
    gains = 0
    if model["qk_norm"]:
        gains = queries + keys if model["qk_norm_over"] == "projection" else 2 * d_head
    return {"matrix": model["d_model"] * (2 * queries + 2 * keys), "gain": gains, "bias": queries + 2 * keys}


def _count_latent(model: Mapping[str, Any]) -> dict[str, int]:
    """Count the scalars of latent attention (DeepSeek-V2, sec. 2.1) in the same way."""
    d, heads, rope = model["d_model"], model["n_heads"], model["d_head_rope"]
    latent, of_queries, values = model["d_kv_latent"], model["d_q_latent"], model["d_head_value"]
    queries, both = heads * (model["d_head"] + rope), heads * (model["d_head"] + values)
    query_matrices = (d + queries) * of_queries if of_queries else d * queries
    return {
        "matrix": query_matrices + d * (latent + rope) + latent * both + heads * values * d,
        "gain": of_queries + latent,
        "bias": of_queries + queries + latent + rope + both,
    }
