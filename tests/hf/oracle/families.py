"""Configs of small dense models that transformers draws and saves for us to read (make.py): one or two of a family."""

SMALL = {
    "vocab_size": 48, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 16, "num_hidden_layers": 2, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 100.0,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip


def configs(t):
    """{name: config} in the classes of transformers, `t`; options have other values than their defaults."""
    window = {"use_sliding_window": True, "sliding_window": 5}
    gemma = {"num_hidden_layers": 4, "pad_token_id": None, "head_dim": 8, "query_pre_attn_scalar": 3}
    gemma |= {"sliding_window": 5}
    return {
        "qwen2": t.Qwen2Config(**SMALL | window | {"max_window_layers": 0}, rms_norm_eps=1e-5, rope_theta=1e3),
        "qwen3": t.Qwen3Config(**SMALL, head_dim=8, rope_theta=1e3, tie_word_embeddings=True, **window),
        "olmo2": t.Olmo2Config(**SMALL, pad_token_id=None, rope_theta=1e3, rms_norm_eps=1e-4),
        "olmo3": t.Olmo3Config(
            **SMALL | {"num_hidden_layers": 5}, pad_token_id=None, sliding_window=5,
            rope_parameters={"full_attention": dict(YARN), "sliding_attention": {"rope_theta": 100.0}},
        ),
        "smollm3": t.SmolLM3Config(
            **SMALL | {"num_hidden_layers": 4}, pad_token_id=None, attention_bias=True, mlp_bias=True,
            no_rope_layer_interval=3, rope_theta=1e3, tie_word_embeddings=False,
        ),
        "phi3": t.Phi3Config(**SMALL, pad_token_id=None, sliding_window=5, rope_theta=1e3, tie_word_embeddings=True),
        "stablelm": t.StableLmConfig(
            **SMALL, use_parallel_residual=True, use_qkv_bias=True, layer_norm_eps=1e-4,
            rope_parameters={"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
        ),
        "stablelm_partial": t.StableLmConfig(**SMALL | {"hidden_size": 32}, rope_theta=1e3, layer_norm_eps=1e-4),
        "gemma": t.GemmaConfig(
            **SMALL | {"num_key_value_heads": 1}, pad_token_id=None, head_dim=8, rope_theta=1e3, hidden_act="gelu",
        ),
        "gemma2": t.Gemma2Config(
            **SMALL | gemma, attn_logit_softcapping=2.0, final_logit_softcapping=6.0, rope_theta=1e3,
        ),
        "gemma3_text": t.Gemma3TextConfig(
            **SMALL | gemma, sliding_window_pattern=3, final_logit_softcapping=9.0,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
        "granite": t.GraniteConfig(
            **SMALL, embedding_multiplier=3.0, logits_scaling=0.7, residual_multiplier=0.6, attention_multiplier=0.2,
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_theta=1e3,
        ),
        "mistral": t.MistralConfig(**SMALL, head_dim=10, sliding_window=5, rope_theta=1e3),
    }  # fmt: skip
