"""GPT-2 (Radford et al. 2019) in the layout of `GPT2LMHeadModel`: ins x outs, with q, k and v fused side by side."""

from scalelab.hf.formats import PLAIN_BLOCK, REQUIRED_KEY, Format
from scalelab.hf.places import TensorRow, layer_norms

_LAYER = "transformer.h.{}."
_PROJECTIONS = {
    "attn.c_attn": ("blocks.attention.q", "blocks.attention.k", "blocks.attention.v"),
    "attn.c_proj": ("blocks.attention.o",),
    "mlp.c_fc": ("blocks.mlp.up",),
    "mlp.c_proj": ("blocks.mlp.down",),
}
_NORMS = {
    f"{_LAYER}ln_1": "blocks.attention_norm",
    f"{_LAYER}ln_2": "blocks.mlp_norm",
    "transformer.ln_f": "final_norm",
}

GPT2 = Format(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    keys={
        "vocab_size": ("vocab_size",),
        "d_model": ("n_embd",),
        "n_layers": ("n_layer",),
        "n_heads": ("n_head",),
        "d_ff": ("n_inner",),
        "seq_len": ("n_positions",),
        "norm_eps": ("layer_norm_epsilon",),
        "tied_head": ("tie_word_embeddings",),
    },
    absent={
        **dict.fromkeys(("vocab_size", "n_embd", "n_layer", "n_head", "n_positions"), REQUIRED_KEY),
        **{"n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        **{"activation_function": "gelu_new", "scale_attn_weights": True},
        **{"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    },
    ours={
        "position": "learned",
        "norm": "layernorm",
        "mlp": "gelu",
        "bias": True,
        "qk_norm": False,
        "logit_softcap": 0.0,
        "rope_scaling": "none",
        "window": 0,
    }
    | {key: value for key, value in PLAIN_BLOCK.items() if key != "rope_share"},
    theirs={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    limits=lambda shape: {"n_kv_heads": shape.n_heads, "d_head": shape.d_model / shape.n_heads},
    tensors=(
        TensorRow("transformer.wte.weight", ("embed.w",)),
        TensorRow("transformer.wpe.weight", ("positions.w",)),
        *(
            TensorRow(f"{_LAYER}{theirs}.{kind}", tuple(f"{name}.{leaf}" for name in ours))
            for theirs, ours in _PROJECTIONS.items()
            for kind, leaf in (("weight", "w"), ("bias", "b"))
        ),
        *layer_norms(_NORMS),
        TensorRow("lm_head.weight", ("head.w",), True),
    ),
    buffers=(".attn.bias", ".attn.masked_bias"),
    unused=("rope_theta", "rope_factor", "rope_original", "rope_mscale", "rope_share"),
    extra={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
)
