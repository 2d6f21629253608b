"""The layouts that are compared with one device, and the models: two variants for each layout, and models of options.

Each layout comes with two variants of the model that differ in everything (heads, head, remat, accumulation, positions,
a block with a loss of its own), so that the list covers all pairs of levels; with stages also with one more layer than
these divide.
"""

from typing import Any

from checks.numerics.parallelism import side_loss
from scalelab.config import Layout

LAYOUTS = {
    "data": Layout(data=8),
    "zero0": Layout(fsdp=8, zero=0),
    "zero1": Layout(fsdp=8, zero=1),
    "zero2": Layout(fsdp=8, zero=2),
    "fsdp": Layout(fsdp=8),
    "hsdp": Layout(data=2, fsdp=4),
    "tensor": Layout(data=2, tensor=4),
    "tensor+sequence": Layout(data=2, tensor=4, sequence=True),
    "fsdp+tensor": Layout(fsdp=4, tensor=2),
    "fsdp+tensor+sequence": Layout(fsdp=4, tensor=2, sequence=True, parts=4),
    "hsdp+tensor+sequence": Layout(data=2, fsdp=2, tensor=2, sequence=True),
    "zero1+tensor+sequence": Layout(fsdp=2, tensor=4, sequence=True, zero=1),
    "context": Layout(context=8),
    "context+fsdp": Layout(fsdp=2, context=4),
    "context+fsdp+tensor+sequence": Layout(fsdp=2, context=2, tensor=2, sequence=True, parts=2),
    "gpipe+data": Layout(stage=4, data=2, schedule="gpipe", microbatches=8),
    "gpipe+fsdp": Layout(stage=2, fsdp=4, schedule="gpipe", microbatches=4),
    "circular+data": Layout(stage=2, data=4, schedule="circular", microbatches=4, rounds=2),
    "circular+hsdp": Layout(stage=2, data=2, fsdp=2, schedule="circular", microbatches=2, rounds=2),
    "1f1b+data": Layout(stage=2, data=4, microbatches=8),
    "1f1b+fsdp": Layout(stage=4, fsdp=2, microbatches=4),
    "1f1b+zero1": Layout(stage=2, fsdp=4, microbatches=4, zero=1),
    "1f1b+fsdp+tensor+sequence": Layout(stage=2, fsdp=2, tensor=2, sequence=True, microbatches=4),
    "interleaved+data": Layout(stage=2, data=4, microbatches=4, rounds=2),
    "interleaved+fsdp+tensor": Layout(stage=2, fsdp=2, tensor=2, microbatches=4, rounds=2),
}
EXPERT_LAYOUTS = {
    "expert": Layout(expert=8),
    "expert+data": Layout(data=2, expert=4),
    "expert+fsdp": Layout(fsdp=2, expert=4),
    "expert+zero1": Layout(fsdp=4, expert=2, zero=1),
    "expert+tensor": Layout(expert=4, tensor=2),
    "expert+fsdp+tensor+sequence": Layout(expert=2, fsdp=2, tensor=2, sequence=True),
    "expert+context+fsdp": Layout(expert=2, context=2, fsdp=2),
    "1f1b+expert+fsdp": Layout(stage=2, expert=2, fsdp=2, microbatches=4),
    "gpipe+expert+tensor": Layout(stage=2, expert=2, tensor=2, schedule="gpipe", microbatches=4),
    "experts by data": Layout(data=8),
    "experts by fsdp+tensor+sequence": Layout(fsdp=4, tensor=2, sequence=True),
    "experts by tensor": Layout(data=2, tensor=4),
}
# Models with experts: two that differ in everything; the second's loads are skewed.
EXPERTS: tuple[dict[str, Any], dict[str, Any]] = (
    {"model.remat": "full", "train.accumulate": 2, "model.n_shared_experts": 1, "model.router_z_weight": 1e-2},
    {
        "family": "llama", "data.documents": "mask", "model.router_scores": "sigmoid", "model.router_scale": 2.5,
        "model.router_groups": 4, "model.router_groups_per_token": 2, "model.balance_sequence_weight": 1e-2,
        "model.balance_weight": 1e-2, "model.mlp": "relu2", "model.tied_head": True,
    },
)  # fmt: skip
EXPERTS_BOTH = {"model.block": "experts", "model.n_experts": 8, "model.d_expert": 32}
MODEL_FACTORS: dict[str, tuple[Any, Any]] = {
    "family": ("llama", "gpt2"),
    "model.n_kv_heads": (8, 4),
    "model.tied_head": (False, True),
    "model.remat": ("none", "full"),
    "train.accumulate": (1, 2),
    "data.documents": ("cross", "mask"),
    "model.block": ("sequential", side_loss.NAME),
}
# Models with options of blocks and attention that recipes use, compared with one device like the variants (--options).
FOUR_LAYERS = {"model.n_layers": 4}
MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "parallel block": {"model.block": "parallel"},
    "stacks": {
        "model.block": f"parallel=1,{side_loss.NAME}=2,sequential=1", "model.window": 5, "model.global_every": 2,
        **FOUR_LAYERS,
    },
    "norms after": {"model.norm_place": "after", "model.qk_norm": True},
    "norms around": {"model.norm_place": "around", "model.mlp": "geglu", "model.rope_share": 0.5},
    "capped attention": {"model.attention_softcap": 2.0, "model.window": 5, "model.global_every": 2, **FOUR_LAYERS},
    "window": {"model.window": 5, "model.global_every": 2, **FOUR_LAYERS},
    "no positions": {"model.nope_every": 2, "model.window": 12, "data.documents": "mask", **FOUR_LAYERS},
    "short sequences": {"schedule.seq_start": 8, "schedule.seq_warmup_tokens": 10**6},
    "distances": {"family": "chinchilla", "data.documents": "mask"},
    "distances in blocks": {"family": "chinchilla", "model.attention": "blockwise", "model.window": 9},
    "scaled logits": {
        "model.block": "parallel", "model.norm": "layernorm_nobias", "model.mlp": "relu", "model.tied_head": True,
        "model.logit_scale": "rsqrt_width", "model.projection_std": 0.2, "model.depth_scaled_init": True,
    },
    "latents": {
        "model.d_kv_latent": 24, "model.d_q_latent": 16, "model.d_head_rope": 6, "model.d_head_value": 10,
        "data.documents": "mask",
    },
    "latents in a window": {
        "model.d_kv_latent": 16, "model.d_head_rope": 2, "model.d_head_value": 4, "model.bias": True,
        "model.window": 9, "model.global_every": 2, "model.remat": "dots", **FOUR_LAYERS,
    },
    "all": {
        "model.qk_norm": True, "model.qk_norm_over": "projection", "model.qkv_bias": True, "model.norm_place": "after",
        "model.window": 9, "model.global_every": 4, "model.nope_every": 3,
        "model.n_kv_heads": 4, "data.documents": "mask", "schedule.seq_start": 12, "schedule.seq_warmup_tokens": 10**6,
        "train.accumulate": 2, **FOUR_LAYERS,
    },
}  # fmt: skip


def model_variants(index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two variants of the model for the layout of this index, which differ in every factor."""
    levels = [index >> bit & 1 for bit in range(4)]
    levels += [levels[0] ^ levels[1] ^ levels[2] ^ levels[3], levels[0] ^ levels[1] ^ levels[2]]
    levels += [levels[1] ^ levels[2] ^ levels[3]]
    first = {name: MODEL_FACTORS[name][level] for name, level in zip(MODEL_FACTORS, levels, strict=True)}
    return first, {name: MODEL_FACTORS[name][1 - level] for name, level in zip(MODEL_FACTORS, levels, strict=True)}


def expert_variants() -> tuple[dict[str, Any], dict[str, Any]]:
    """Both models with experts."""
    first, second = (EXPERTS_BOTH | part for part in EXPERTS)
    return first, second


def uneven_variants(index: int, layout: Layout) -> list[dict[str, Any]]:
    """For a layout with stages the second variant with layers that these don't divide: one more than chunks."""
    chunks = layout.stage * layout.rounds
    return [model_variants(index)[1] | {"model.n_layers": chunks + 1}] if layout.stage > 1 else []
