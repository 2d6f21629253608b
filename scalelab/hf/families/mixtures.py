"""Mixtures of experts in the layouts of transformers: Mixtral (Jiang et al. 2024), Qwen3-MoE (2025), OLMoE (2024).

A file names each expert's matrices, as published checkpoints do and as transformers 4 and 5 write and read them.
transformers 5 holds all experts of a layer in two tensors; a file of those is read, too. The router has no bias there,
so a bias that is not zero is refused (`write.settle_bias`).
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from scalelab.config import ModelShape
from scalelab.config.mixture_text import StackText, format_stacks, parse_stacks
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import (
    ATTENTION,
    EMBEDDING,
    KINDS,
    LAYER,
    LLAMA,
    MLP,
    NORMS_AND_HEAD,
    QK_NORMS,
    weights,
)
from scalelab.hf.formats import COMMON_BLOCK, REQUIRED_KEY, Format
from scalelab.hf.layer_types import check_layer_count
from scalelab.hf.places import TensorRow

ROUTED = "blocks.experts."
BIAS = f"{ROUTED}bias.v"  # of the experts' ranks
DENSE, SPARSE = "sequential", "experts"  # kinds of blocks

# Options of a mixture that none of these models has.
PLAIN_MIXTURE = KINDS | COMMON_BLOCK | {
    "logit_softcap": 0.0, "rope_mscale": 1.0, "bias": False, "d_kv_latent": 0, "n_shared_experts": 0,
    "router_scores": "softmax", "router_scale": 1.0, "router_groups": 1, "router_groups_per_token": 1,
}  # fmt: skip


def expert_rows(place: str, gate: str, up: str, down: str) -> tuple[TensorRow, ...]:
    """Rows of a file with a tensor for each matrix of each expert."""
    names = {"gate": gate, "up": up, "down": down}
    return tuple(
        TensorRow(f"{LAYER}{place}.experts.{{}}.{theirs}.weight", (f"{ROUTED}{ours}.w",), True)
        for ours, theirs in names.items()
    )


def router_row(place: str) -> TensorRow:
    """The row of the router's weight."""
    return TensorRow(f"{LAYER}{place}.gate.weight", (f"{ROUTED}router.w",), True)


EXPERTS = expert_rows("mlp", "gate_proj", "up_proj", "down_proj")
FUSED = (  # transformers 5 in memory: all experts of a layer, the gate before the other matrix
    TensorRow(f"{LAYER}mlp.experts.gate_up_proj", (f"{ROUTED}gate.w", f"{ROUTED}up.w"), True),
    TensorRow(f"{LAYER}mlp.experts.down_proj", (f"{ROUTED}down.w",), True),
)
KEYS = {key: LLAMA.keys[key] for key in LLAMA.keys if key not in ("d_ff", "bias")} | {
    "experts_per_token": ("num_experts_per_tok",)
}


def limit_mixture(shape: ModelShape) -> dict[str, Any]:
    """Values required of a mixture: experts, none of whose tokens is dropped."""
    return {"n_experts": max(shape.n_experts, 1), "expert_capacity": 0.0} | options.rope_constraints(shape)


def blocks_of(sparse: list[bool]) -> str:
    """`model.block` of layers that have experts or none."""
    runs = ((SPARSE if key else DENSE, len(list(group))) for key, group in groupby(sparse))
    return format_stacks(tuple(StackText(*run) for run in runs))


def sparse_layers(shape: ModelShape) -> list[bool]:
    """Whether each layer has experts."""
    return [stack.block == SPARSE for stack in parse_stacks(shape.block, shape.n_layers) for _ in range(stack.depth)]


def _read_qwen_blocks(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`model.block` from decoder_sparse_step and mlp_only_layers."""
    count, step, dense = check_layer_count(values), content.get("decoder_sparse_step"), content.get("mlp_only_layers")
    step, dense = 1 if step is None else step, [] if dense is None else dense
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        raise BadInput(f"decoder_sparse_step={repr(step)[:40]} is not a whole number from 1")
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < count for layer in dense):
        raise BadInput(f"mlp_only_layers={repr(dense)[:40]} is not a list of layers from 0 to {count - 1}")
    sparse = [layer not in set(dense) and (layer + 1) % step == 0 for layer in range(count)]
    if not any(sparse):
        raise BadInput(f"mlp_only_layers and decoder_sparse_step={step} leave no layer of {count} with experts")
    return {"block": blocks_of(sparse)}


def _write_qwen_blocks(shape: ModelShape) -> dict[str, Any]:
    dense = [layer for layer, sparse in enumerate(sparse_layers(shape)) if not sparse]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense}


def _without_bias(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What is read alike from each of them."""
    return options.rope_from_hf(content, values["seq_len"]) | {"balance_rate": 0.0}


def _read_window(content: Mapping[str, Any]) -> dict[str, Any]:
    """Mixtral's window of all layers; none unless config.json has one."""
    window = content.get("sliding_window")
    return {"window": 0 if window is None else window}


_ABSENT = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), REQUIRED_KEY),
    **dict.fromkeys(("intermediate_size", "num_local_experts", "num_experts", "num_experts_per_tok"), REQUIRED_KEY),
    **{"num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": False, "hidden_act": "silu"},
    **{"rope_theta": 10_000.0, "layer_types": None},
}
_AROUND = (EMBEDDING, *weights(ATTENTION))

MIXTRAL = Format(
    name="mixtral",
    architecture="MixtralForCausalLM",
    prefix="model.",
    keys=KEYS | {"n_experts": ("num_local_experts",), "d_expert": ("intermediate_size",)},
    absent=_ABSENT
    | {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    ours=PLAIN_MIXTURE | {"block": SPARSE, "qk_norm": False, "router_renormalize": True},
    theirs={"hidden_act": "silu", "layer_types": None},
    limits=lambda shape: limit_mixture(shape) | {"global_every": 0},
    tensors=(
        *_AROUND,
        router_row("block_sparse_moe"),
        *expert_rows("block_sparse_moe", "w1", "w3", "w2"),
        *NORMS_AND_HEAD,
    ),
    fused=(*_AROUND, router_row("mlp"), *FUSED, *NORMS_AND_HEAD),
    buffers=(".rotary_emb.inv_freq",),
    unused=("d_ff",),
    told=(*options.ROPE_KEYS, "window", "balance_rate"),
    also=("sliding_window",),
    write=lambda shape: options.rope_to_hf(shape) | {"sliding_window": shape.window or None},
    read=lambda content, values: _without_bias(content, values) | _read_window(content),
)

QWEN3_MOE = Format(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    prefix="model.",
    keys=KEYS
    | {
        "n_experts": ("num_experts", "num_local_experts"),  # as published, and as transformers 5 writes it
        "d_expert": ("moe_intermediate_size",),
        "d_ff": ("intermediate_size",),
        "router_renormalize": ("norm_topk_prob",),
    },
    absent=_ABSENT
    | {"num_key_value_heads": 4, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "norm_topk_prob": False}
    | {"moe_intermediate_size": 768, "use_sliding_window": False, "attention_bias": False},
    ours=PLAIN_MIXTURE | {"qk_norm": True, "qk_norm_over": "head", "window": 0},
    theirs={"hidden_act": "silu", "layer_types": None, "use_sliding_window": False, "attention_bias": False},
    limits=lambda shape: limit_mixture(shape) | {"block": blocks_of(sparse_layers(shape))},
    tensors=(*_AROUND, *QK_NORMS, *weights(MLP), router_row("mlp"), *EXPERTS, *NORMS_AND_HEAD),
    fused=(*_AROUND, *QK_NORMS, *weights(MLP), router_row("mlp"), *FUSED, *NORMS_AND_HEAD),
    buffers=(".rotary_emb.inv_freq",),
    told=(*options.ROPE_KEYS, "block", "balance_rate"),
    also=("decoder_sparse_step", "mlp_only_layers"),
    neutral=("sliding_window", "max_window_layers"),  # of a window that is not used
    write=lambda shape: options.rope_to_hf(shape) | _write_qwen_blocks(shape),
    read=lambda content, values: _without_bias(content, values) | _read_qwen_blocks(content, values),
)

OLMOE = Format(
    name="olmoe",
    architecture="OlmoeForCausalLM",
    prefix="model.",
    keys={key: names for key, names in KEYS.items() if key != "d_head"}
    | {
        "n_experts": ("num_experts",),
        "d_expert": ("intermediate_size",),
        "router_renormalize": ("norm_topk_prob",),
    },
    absent=_ABSENT
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "norm_topk_prob": False, "attention_bias": False}
    | {"clip_qkv": None},
    ours=PLAIN_MIXTURE | {"block": SPARSE, "qk_norm": True, "qk_norm_over": "projection", "window": 0},
    theirs={"hidden_act": "silu", "layer_types": None, "head_dim": None, "attention_bias": False, "clip_qkv": None},
    # its norms of queries and keys have the model's width
    limits=lambda shape: limit_mixture(shape) | {"d_head": shape.d_model / shape.n_heads},
    tensors=(*_AROUND, *QK_NORMS, router_row("mlp"), *EXPERTS, *NORMS_AND_HEAD),
    fused=(*_AROUND, *QK_NORMS, router_row("mlp"), *FUSED, *NORMS_AND_HEAD),
    buffers=(".rotary_emb.inv_freq",),
    extra={"pad_token_id": None},  # else id 1
    unused=("d_ff",),
    told=(*options.ROPE_KEYS, "balance_rate"),
    write=options.rope_to_hf,
    read=_without_bias,
)
