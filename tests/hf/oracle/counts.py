"""What transformers counts of published models, most of them mixtures, built without memory from their config.json.

    python -m venv .venv-hf && .venv-hf/bin/pip install torch transformers
    .venv-hf/bin/python tests/hf/oracle/counts.py

writes `counts.json` beside this file: of each recipe every parameter of transformers' own class on the meta device, in
all and by token, and how many of them are in parts that our model lacks (`ABSENT`). tests/test_recipes.py compares.
Values of a config.json that are the class's defaults are not repeated here; `source` says where the others were read.
"""

import datetime
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent

# Recipe: (model on the Hub, class, values of its config.json that are not the class's defaults, where they were read).
MODELS = {
    "mixtral_8x7b": ("mistralai/Mixtral-8x7B-v0.1", "Mixtral", {}, "the defaults of transformers' MixtralConfig"),
    "olmoe_1b_7b": (
        "allenai/OLMoE-1B-7B-0924", "Olmoe", {"intermediate_size": 1024},
        "OLMoE (arXiv 2409.02060), Table 10; the rest are the defaults of OlmoeConfig",
    ),
    "qwen3_30b_a3b": (
        "Qwen/Qwen3-30B-A3B", "Qwen3Moe",
        {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
         "head_dim": 128, "moe_intermediate_size": 768},
        "slime, scripts/models/qwen3-30B-A3B.sh",
    ),
    "qwen3_235b_a22b": (
        "Qwen/Qwen3-235B-A22B", "Qwen3Moe",
        {"hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
         "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536},
        "slime, scripts/models/qwen3-235B-A22B.sh",
    ),
    "deepseek_v3": ("deepseek-ai/DeepSeek-V3", "DeepseekV3", {}, "the defaults of transformers' DeepseekV3Config"),
    "kimi_k2": (
        "moonshotai/Kimi-K2-Base", "DeepseekV3",
        {"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
         "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "vocab_size": 163840},
        "Kimi K2 (arXiv 2507.20534), Table 2; vocabulary and scale as config.json",
    ),
    "deepseek_v2_lite": (
        "deepseek-ai/DeepSeek-V2-Lite", "DeepseekV2",
        {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
         "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
         "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
         "vocab_size": 102400},
        "deepseek-ai/DeepSeek-V3, inference/configs/config_16B.json",
    ),
    # Its own class is code on the Hub. Glm4Moe has the same parameters where it has neither biases nor query norms.
    "deepseek_moe_16b": (
        "deepseek-ai/deepseek-moe-16b-base", "Glm4Moe",
        {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "n_routed_experts": 64,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400},
        "configuration_deepseek.py of the model's own code, whose defaults they are",
    ),
    "glm_4_5": (
        "zai-org/GLM-4.5", "Glm4Moe",
        {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 92,
         "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 160,
         "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5,
         "use_qk_norm": True, "attention_bias": True, "vocab_size": 151552},
        "GLM-4.5 (arXiv 2508.06471), Table 1; biases and vocabulary as config.json",
    ),
    "gpt_oss_20b": (
        "openai/gpt-oss-20b", "GptOss", {"num_hidden_layers": 24, "num_local_experts": 32},
        "AMD-AGI/Primus, primus/configs/models/megatron/gpt_oss_20b.yaml",
    ),
    "gpt_oss_120b": ("openai/gpt-oss-120b", "GptOss", {}, "the defaults of transformers' GptOssConfig"),
    "llama4_scout": (
        "meta-llama/Llama-4-Scout-17B-16E", "Llama4", {}, "the defaults of transformers' Llama4TextConfig (text alone)"
    ),
    **{
        f"gemma3_{size}": (
            f"google/gemma-3-{size}-pt", "Gemma3",
            {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head,
             "num_key_value_heads": keys, "intermediate_size": hidden, "vocab_size": 262144},
            "google/gemma_pytorch, gemma/config.py (text alone)",
        )
        for size, width, layers, heads, keys, head, hidden in (
            ("1b", 1152, 26, 4, 1, 256, 6912), ("4b", 2560, 34, 8, 4, 256, 10240),
            ("12b", 3840, 48, 16, 8, 256, 15360), ("27b", 5376, 62, 32, 16, 128, 21504),
        )
    },
    "gemma2_27b": (
        "google/gemma-2-27b", "Gemma2",
        {"hidden_size": 4608, "num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16,
         "head_dim": 128, "intermediate_size": 36864},
        "google/gemma_pytorch, gemma/config.py",
    ),
    "stablelm_3b": (
        "stabilityai/stablelm-3b-4e1t", "StableLm", {},
        "the defaults of transformers' StableLmConfig; Stability-AI/StableLM, configs/stablelm-3b-4e1t.yml",
    ),
}  # fmt: skip

# Parameters that our model lacks, by name there, and what they are.
ABSENT = {
    "gpt_oss_20b": {
        r"\.sinks$": "sinks",
        r"router\.bias$": "router biases",
        r"o_proj\.bias$": "output biases",
        r"proj_bias$": "experts' biases",
    },
}
ABSENT["gpt_oss_120b"] = ABSENT["gpt_oss_20b"]


def count(name):
    """The parameters of a recipe's model as transformers builds it."""
    import torch
    import transformers

    model_name, kind, values, source = MODELS[name]
    config = getattr(transformers, f"{kind}TextConfig" if kind in ("Llama4", "Gemma3") else f"{kind}Config")(**values)
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    sizes = {key: leaf.numel() for key, leaf in model.named_parameters()}  # what is tied is named once
    each = getattr(config, "num_experts_per_tok", 1)  # a dense model has one expert, of which each token takes all
    experts = next(
        (
            getattr(config, key)
            for key in ("n_routed_experts", "num_experts", "num_local_experts")
            if hasattr(config, key)
        ),
        1,
    )
    absent = ABSENT.get(name, {})
    parts = {what: {key: n for key, n in sizes.items() if re.search(pattern, key)} for pattern, what in absent.items()}
    ours = {key: n for key, n in sizes.items() if not any(key in part for part in parts.values())}
    routed = sum(n for key, n in ours.items() if re.search(r"\.experts\.", key))
    return {
        "model": model_name, "class": f"{kind}ForCausalLM", "config": values, "source": source,
        "total": sum(sizes.values()), "absent": {what: sum(part.values()) for what, part in parts.items()},
        "without_absent": sum(ours.values()),
        "active_without_absent": sum(ours.values()) - routed // experts * (experts - each),
    }  # fmt: skip


def main():
    import torch
    import transformers

    counted = {name: count(name) for name in MODELS}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    result = {"date": datetime.date.today().isoformat(), "versions": versions, "models": counted}
    (HERE / "counts.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
