"""What transformers says to our exports, and models of its own for us to read. Two steps, in two environments:

    .venv/bin/python -m tests.hf.oracle.make write exported
    python -m venv .venv-hf && .venv-hf/bin/pip install torch transformers
    .venv-hf/bin/python tests/hf/oracle/make.py ask exported

The first writes every model of tests/hf/examples.py. The second loads them, and writes beside this file: `answers.npz`
(the tokens and everybody's logits), `answers.json` (versions, config.json and a hash of the tensors that were asked
about, so that a changed export can't pass by old answers), and `their_llama/`, `their_gpt2/`, …: models that
transformers drew and saved. What is there already and not in the folder stays: `write exported deepseek` writes the
examples whose names begin so, and `ask` then asks about these and about models of its own that are not there.
`ask_exact exported` asks for float64's answers to all of them: `exact.npz` has their differences from fp32's.
`write_tokenizers` and `ask_tokenizers` (which needs no torch) do the same of every kind of tokenizer:
`tokenizers.json`.
"""

import hashlib
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
EXACT_UNIT = 2.0**-20  # of the differences in exact.npz, which are stored in float16


def digest(tensors):
    """SHA-256 over names, shapes and bytes of a file's tensors."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(f"{name} {list(tensors[name].shape)}".encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return sha.hexdigest()


def write(folder, beginning=""):
    """Our side: every example whose name begins so as a folder, and the tokens to ask about."""
    from scalelab.hf.write import WriteOptions, write_model
    from tests.hf import examples

    for name in (name for name in examples.MODELS if name.startswith(beginning)):
        shape, options = examples.shape(name), WriteOptions(family=examples.family(name))
        write_model(folder / name, shape, examples.params(shape), {"run": name, "step": 0}, options, examples.NONE)
    for name in (name for name in examples.TEXTS if name.startswith(beginning)):
        write_text_model(folder / "texts" / name, name)
    np.save(folder / "tokens.npy", examples.tokens())


def write_text_model(folder, name):
    """Our side: an example whose tokens are bytes, with its tokenizer, and the prompt in its lineage."""
    from scalelab.data.tokenizers.tokenizer import byte_tokenizer
    from scalelab.hf.write import write_model
    from tests.hf import examples

    shape = examples.shape(name, vocab_size=256, seq_len=64)
    lineage = {"run": name, "step": 0, "prompt": examples.PROMPT, "tokens": examples.NEW_TOKENS}
    write_model(folder, shape, examples.params(shape), lineage, tokenizer=byte_tokenizer())


def ask(folder):
    """Their side."""
    import torch
    import transformers
    from safetensors.numpy import load_file

    tokens = np.load(folder / "tokens.npy")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    before = json.loads((HERE / "answers.json").read_text())
    answers, asked = {**np.load(HERE / "answers.npz"), "tokens": tokens}, before["exported"]
    exported = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "texts")
    for path in [*exported, *_own_models(torch, transformers)]:
        model, problems = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, output_loading_info=True
        )
        assert not any(problems.values()), (path, problems)
        with torch.no_grad():
            answers[path.name] = model.eval()(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
        if path in exported:
            kind = type(model).__name__
            content = json.loads((path / "config.json").read_text())
            asked[path.name] = {
                "class": kind,
                "config": content,
                "tensors": digest(load_file(path / "model.safetensors")),
                "versions": versions,
            }
    np.savez_compressed(HERE / "answers.npz", **answers)
    texts = before.get("texts", {}) | _continue_texts(torch, transformers, folder / "texts")
    content = {"versions": before["versions"], "exported": asked, "texts": texts}
    (HERE / "answers.json").write_text(json.dumps(content, indent=1) + "\n")


def ask_exact(folder):
    """Their side in float64: transformers casts to fp32 in many places, which here means float64, too."""
    import torch
    import transformers

    answers = np.load(HERE / "answers.npz")
    tokens = torch.tensor(answers["tokens"], dtype=torch.long)
    paths = [folder / name if (folder / name).exists() else HERE / name for name in answers.files if name != "tokens"]
    options = {"dtype": torch.float32, "experts_implementation": "eager"}
    models = {path.name: transformers.AutoModelForCausalLM.from_pretrained(path, **options) for path in paths}
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    exact = {}
    for name, model in models.items():
        model.config.dtype = torch.float64
        again = type(model)(model.config).double().eval()  # its frequencies are computed in float64
        again.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
        with torch.no_grad():
            logits = again(tokens).logits.numpy()
        assert logits.dtype == np.float64
        exact[name] = ((logits - answers[name]) / EXACT_UNIT).astype(np.float16)
    np.savez_compressed(HERE / "exact.npz", **exact)


def _continue_texts(torch, transformers, folder):
    """The ids with which each model greedily goes on after the beginning of a document; the hash of its tensors."""
    from safetensors.numpy import load_file

    texts = {}
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        lineage = json.loads((path / "scalelab.json").read_text())
        prompt, count = lineage["prompt"], lineage["tokens"]
        model = transformers.AutoModelForCausalLM.from_pretrained(path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt)["input_ids"]]])
        mask = torch.ones_like(ids)
        out = model.eval().generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count, max_length=None)
        tensors = digest(load_file(path / "model.safetensors"))
        texts[path.name] = {"tensors": tensors, "ids": out[0, ids.shape[1] :].tolist()}
    return texts


def write_tokenizers(folder):
    """Our side: a model with a tokenizer of every kind, and the texts to ask about."""
    from scalelab.hf.write import WriteOptions, write_model
    from tests.hf import examples, test_tokenizer

    shape = examples.shape("llama_tied", vocab_size=1024)
    for name, tokenizer in test_tokenizer.kinds():
        lineage, options = {"run": name, "step": 0}, WriteOptions(begins=True)
        write_model(folder / name, shape, examples.params(shape), lineage, options, tokenizer)
    (folder / "texts.json").write_text(json.dumps(test_tokenizer.texts(12)))


def ask_tokenizers(folder):
    """Their side: ids of the texts, and every special id, from the files of each folder."""
    import tokenizers
    import transformers

    asked, texts = {}, json.loads((folder / "texts.json").read_text())
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        config, generation = (
            transformers.AutoConfig.from_pretrained(path),
            transformers.GenerationConfig.from_pretrained(path),
        )
        asked[path.name] = {
            "files": text_digest(path),
            "ids": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
            "begun": [tokenizer(text)["input_ids"] for text in texts[:3]],
            "tokenizer": [
                tokenizer.bos_token_id,
                tokenizer.eos_token_id,
                tokenizer.pad_token_id,
                tokenizer.model_max_length,
            ],
            "config": [config.bos_token_id, config.eos_token_id, config.pad_token_id],
            "generation": [
                generation.bos_token_id,
                generation.eos_token_id,
                generation.pad_token_id,
                generation.max_length,
            ],
        }
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    (HERE / "tokenizers.json").write_text(json.dumps({"versions": versions, "asked": asked}) + "\n")


def text_digest(folder):
    """SHA-256 over what a folder says of its tokenizer."""
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()


def _own_models(torch, transformers):
    """Of those that are not here yet: none of their parameters is 0 or 1.

    Dense families of families.py in bf16. A Llama in bf16 and in parts; a GPT-2 in fp32 in one file; DeepSeek's models
    in fp32 with all layers dense; mixtures, of which Qwen3-MoE is in bf16 and in parts, and OLMoE as transformers 5
    holds it: the experts of a layer in two tensors.
    """
    import families

    llama = transformers.LlamaConfig(
        vocab_size=48,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        rope_theta=777.0,
        rms_norm_eps=1e-4,
    )
    gpt2 = transformers.GPT2Config(vocab_size=48, n_positions=16, n_embd=24, n_layer=2, n_head=3)
    latent = {
        "vocab_size": 48, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 3, "first_k_dense_replace": 2, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 8, "v_head_dim": 5, "max_position_embeddings": 64, "num_experts_per_tok": 1,
    }  # fmt: skip
    yarn = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707,
    }  # fmt: skip
    v2 = transformers.DeepseekV2Config(**latent, q_lora_rank=None, rope_parameters=yarn)
    v3 = transformers.DeepseekV3Config(
        **latent, q_lora_rank=14, num_mtp_layers=0, rope_parameters=yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}
    )
    small = {"vocab_size": 48, "hidden_size": 24, "num_attention_heads": 4, "max_position_embeddings": 16}
    small |= {"num_experts_per_tok": 2, "eos_token_id": None}
    mixtral = transformers.MixtralConfig(
        **small,
        num_hidden_layers=2,
        num_key_value_heads=2,
        intermediate_size=16,
        num_local_experts=5,
        sliding_window=6,
    )
    qwen = transformers.Qwen3MoeConfig(
        **small,
        num_hidden_layers=3,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=20,
        norm_topk_prob=True,
        moe_intermediate_size=16,
        num_experts=5,
        mlp_only_layers=[0],
        rope_theta=1e6,
    )
    olmoe = transformers.OlmoeConfig(**small, num_hidden_layers=2, intermediate_size=16, num_experts=5, pad_token_id=0)
    deepseek = transformers.DeepseekV3Config(
        **small,
        num_hidden_layers=2,
        intermediate_size=20,
        moe_intermediate_size=16,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=6,
        v_head_dim=5,
        num_key_value_heads=4,
        first_k_dense_replace=1,
        n_shared_experts=2,
    )
    bf16, fp32 = torch.bfloat16, torch.float32
    for name, config, dtype, part in (
        *(("llama", llama, bf16, "8KB"), ("gpt2", gpt2, fp32, "1GB")),
        *(("deepseek_v2", v2, fp32, "1GB"), ("deepseek_v3_dense", v3, fp32, "1GB"), ("mixtral", mixtral, fp32, "1GB")),
        *(("qwen3_moe", qwen, bf16, "20KB"), ("olmoe", olmoe, fp32, "1GB"), ("deepseek_v3", deepseek, fp32, "1GB")),
        *((name, config, bf16, "1GB") for name, config in families.configs(transformers).items()),
    ):
        folder = HERE / f"their_{name}"
        if folder.exists():
            continue
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        size = 0.2 if config in (mixtral, qwen, olmoe, deepseek) else 0.3
        with torch.no_grad():
            biases = [tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")]
            for parameter in (*model.parameters(), *biases):
                parameter.add_(size * torch.randn_like(parameter))
        model.to(dtype).save_pretrained(folder, max_shard_size=part, save_original_format=config is not olmoe)
        yield folder


if __name__ == "__main__":
    steps = {
        "write": write,
        "ask": ask,
        "ask_exact": ask_exact,
        "write_tokenizers": write_tokenizers,
        "ask_tokenizers": ask_tokenizers,
    }
    steps[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
