"""DeepSeek's models with latent attention (DeepSeek-V2 and V3, 2024) in the layout of transformers; V2 is dense here.

The files hold RoPE's pairs side by side, ours as halves. Multi-token prediction is further layers behind the last,
which neither transformers nor we load.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import EMBEDDING, KINDS, LAYER, LLAMA, MLP, NORMS_AND_HEAD, weights
from scalelab.hf.families.mixtures import (
    BIAS,
    DENSE,
    EXPERTS,
    FUSED,
    ROUTED,
    blocks_of,
    router_row,
    sparse_layers,
)
from scalelab.hf.formats import COMMON_BLOCK, EXPERT_KEYS, NULL, REQUIRED_KEY, UNSET, Format
from scalelab.hf.layer_types import check_layer_count
from scalelab.hf.places import TensorRow

GAMMA = 1e-3  # section 4.2: the step of the experts' bias for most of the run
NORM_EPS = 1e-6  # of the latents' norms, whatever rms_norm_eps is

_SHARED = {f"mlp.shared_experts.{name}_proj": f"{ROUTED}shared.{name}" for name in ("gate", "up", "down")}
_LATENTS = {
    "self_attn.q_a_proj": "blocks.attention.q_down",
    "self_attn.kv_b_proj": "blocks.attention.kv_up",
    "self_attn.o_proj": "blocks.attention.o",
}
_ROTATED = {  # without a latent of queries the first, else the second
    "self_attn.q_proj": "blocks.attention.q",
    "self_attn.q_b_proj": "blocks.attention.q_up",
    "self_attn.kv_a_proj_with_mqa": "blocks.attention.kv_down",
}
_AROUND = (
    EMBEDDING,
    *weights(_LATENTS | MLP | _SHARED),
    *(
        TensorRow(f"{LAYER}{theirs}.weight", (f"{ours}.w",), True, interleaved=True)
        for theirs, ours in _ROTATED.items()
    ),
    *(TensorRow(f"{LAYER}self_attn.{x}_a_layernorm.weight", (f"blocks.attention.{x}_norm.g",)) for x in ("q", "kv")),
    router_row("mlp"),
    TensorRow(f"{LAYER}mlp.gate.e_score_correction_bias", (BIAS,), exact=True),
)

# config.json's values, where another would be another function; as released (huggingface.co/deepseek-ai/DeepSeek-V3).
_THEIRS = {
    "hidden_act": "silu", "attention_bias": False, "rope_interleave": True, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "moe_layer_freq": 1,
}  # fmt: skip
_ROUTER_KEYS = {
    "n_experts": ("n_routed_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "d_expert": ("moe_intermediate_size",),
    "n_shared_experts": ("n_shared_experts",),
    "router_renormalize": ("norm_topk_prob",),
    "router_scale": ("routed_scaling_factor",),
    "router_groups": ("n_group",),
    "router_groups_per_token": ("topk_group",),
}
_REQUIRED = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)


def _limits(shape: ModelShape) -> dict[str, Any]:
    """Values required of this shape; of one with experts a shared one, and two in each group, by which it is judged."""
    routed = {
        "router_scores": "sigmoid", "expert_capacity": 0.0, "n_shared_experts": max(shape.n_shared_experts, 1),
        "router_groups": min(shape.router_groups, max(shape.n_experts // 2, 1)),
        "block": blocks_of(sorted(sparse_layers(shape))),
    }  # fmt: skip
    return (
        options.rope_constraints(shape)
        | {"d_kv_latent": max(shape.d_kv_latent, 1), "norm_eps": NORM_EPS, "n_kv_heads": shape.n_heads}
        | {"rope_mscale": shape.rope_mscale or 1.0}  # 0 means none
        | (routed if shape.n_experts else {"block": "sequential"})
    )


def _write(shape: ModelShape) -> dict[str, Any]:
    dense = shape.n_layers - sum(sparse_layers(shape)) if shape.n_experts else shape.n_layers
    content = options.rope_to_hf(shape)
    if shape.rope_scaling == "yarn":  # with both, yarn's factor is on whole logits, as in ours
        content |= {f"{group}.{key}": shape.rope_mscale for group in options.HF_ROPE_GROUPS for key in options.MSCALES}
    return content | {
        "first_k_dense_replace": dense,
        "q_lora_rank": shape.d_q_latent or NULL,
        "num_nextn_predict_layers": 0,
    }


def _read_dense(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """V2's, whose layers must all be dense: its router has other rules."""
    count, dense = check_layer_count(values), content.get("first_k_dense_replace", 0)
    if not isinstance(dense, int) or dense < count:
        raise BadInput(
            f"first_k_dense_replace={repr(dense)[:40]}: only a deepseek_v2 whose {count} layers are all dense is read"
        )
    return _read({**content, "first_k_dense_replace": dense}, values)


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    count, dense = check_layer_count(values), content.get("first_k_dense_replace", 3)
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        raise BadInput(f"first_k_dense_replace={repr(dense)[:40]} is not a number of layers from 0")
    if values["norm_eps"] != NORM_EPS:
        raise BadInput(
            f"rms_norm_eps={repr(values['norm_eps'])[:40]}: the latents' norms add {NORM_EPS:g} all the same"
        )
    read = options.rope_from_hf(content, values["seq_len"], with_mscale=True)
    rank = content.get("q_lora_rank", 1536)
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank < 2**31):
        raise BadInput(f"q_lora_rank={repr(rank)[:40]} is not a whole number from 1, or null")
    read |= {"d_q_latent": rank or 0}
    if dense >= count:  # no experts: their keys mean nothing
        return read | {"block": "sequential", "n_experts": 0} | dict.fromkeys(EXPERT_KEYS, UNSET)
    block = blocks_of([layer >= dense for layer in range(count)])
    return read | {"block": block, "balance_rate": GAMMA, "router_scores": "sigmoid"}


DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    prefix="model.",
    keys={key: names for key, names in LLAMA.keys.items() if key not in ("bias", "d_head")}
    | {"d_kv_latent": ("kv_lora_rank",), "d_head": ("qk_nope_head_dim",), "d_head_rope": ("qk_rope_head_dim",)}
    | {"d_head_value": ("v_head_dim",)}
    | _ROUTER_KEYS,
    absent={
        **dict.fromkeys(_REQUIRED, REQUIRED_KEY),
        **{"num_key_value_heads": None, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
        **{"tie_word_embeddings": False, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
        **{"n_group": 8, "topk_group": 4},
        **_THEIRS,
    },
    ours=KINDS | COMMON_BLOCK | {"bias": False, "qk_norm": False, "logit_softcap": 0.0, "window": 0},
    theirs=_THEIRS,
    limits=_limits,
    tensors=(*_AROUND, *EXPERTS, *NORMS_AND_HEAD),
    fused=(*_AROUND, *FUSED, *NORMS_AND_HEAD),
    buffers=(".rotary_emb.inv_freq",),
    code={
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    beyond="num_nextn_predict_layers",
    also=("first_k_dense_replace", "q_lora_rank"),
    # of training, and sums of other keys
    neutral=("ep_size", "seq_aux", "aux_loss_alpha", "head_dim", "qk_head_dim"),
    told=(*options.ROPE_KEYS, "block", "balance_rate", "router_scores", "d_q_latent", "rope_mscale"),
    write=_write,
    read=_read,
)

_V3_ONLY = ("rope_interleave", "scoring_func", "topk_method", "moe_layer_freq")  # V2 has no choice of the first
DEEPSEEK_V2 = dataclasses.replace(
    DEEPSEEK_V3,
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    keys={key: names for key, names in DEEPSEEK_V3.keys.items() if key not in _ROUTER_KEYS},
    absent=DEEPSEEK_V3.absent | {"max_position_embeddings": 2048, "mlp_bias": False},
    ours=DEEPSEEK_V3.ours | {"block": DENSE, "n_experts": 0},
    theirs={key: value for key, value in _THEIRS.items() if key not in _V3_ONLY} | {"mlp_bias": False},
    limits=lambda shape: _limits(dataclasses.replace(shape, n_experts=0)),
    code={},
    beyond="",
    told=(*options.ROPE_KEYS, "d_q_latent", "rope_mscale"),
    write=lambda shape: {key: value for key, value in _write(shape).items() if key != "num_nextn_predict_layers"},
    read=_read_dense,
    neutral=(*DEEPSEEK_V3.neutral, *(name for names in _ROUTER_KEYS.values() for name in names)),  # without experts
)
