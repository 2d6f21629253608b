"""Mixtures of experts in transformers' files: what is read, what is refused by name, and the way in, on and out."""

import json
import math
import shutil
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.hf import FORMATS, read
from scalelab.hf.formats import from_hf_config, to_hf_config
from scalelab.hf.places import tensor_places
from scalelab.hf.write import WriteOptions, find_format, settle_bias, write_model
from scalelab.model.declare import named_leaves
from tests.hf import examples
from tests.hf.oracle.make import HERE, digest, write_text_model
from tests.hf.test_import import DEEPSEEK, MIXTRAL, WHOLE, edit, tensors
from tests.quick import one_in, others_slow
from tests.train.resume.test_compatibility import SMALL

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
STANDARD = [name for name in examples.MIXTURES if not name.endswith("completep")]
ANSWERS = json.loads((HERE / "answers.json").read_text())


@pytest.fixture
def mixtral(tmp_path):
    return shutil.copytree(MIXTRAL, tmp_path / "hf")


@pytest.fixture
def deepseek(tmp_path):
    return shutil.copytree(DEEPSEEK, tmp_path / "hf")


def refusal(folder):
    """The one line with which `import hf` refuses the folder."""
    with pytest.raises(BadInput) as caught:
        read.load_params(read.examine_folder(folder))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


def fused(old):
    """A Mixtral's tensors as transformers 5 names them in memory."""
    new = {name: tensor for name, tensor in old.items() if "block_sparse_moe" not in name}
    for layer in range(2):
        block, mlp = f"model.layers.{layer}.block_sparse_moe.", f"model.layers.{layer}.mlp."
        w1, w2, w3 = (np.stack([old[f"{block}experts.{e}.{w}.weight"] for e in range(5)]) for w in ("w1", "w2", "w3"))
        new |= {f"{mlp}gate.weight": old[f"{block}gate.weight"], f"{mlp}experts.down_proj": w2}
        new |= {f"{mlp}experts.gate_up_proj": np.concatenate([w1, w3], axis=1)}
    return new


def test_experts_one_by_one_and_all_of_a_layer_in_a_tensor_are_the_same(mixtral):
    one_by_one = read.load_params(read.examine_folder(mixtral))
    tensors(mixtral, fused)
    source = read.examine_folder(mixtral)
    assert len(source.places) == len(load_file(MIXTRAL / WHOLE)) - 2 * (15 - 2)
    jax.tree.map(np.testing.assert_array_equal, read.load_params(source), one_by_one)


def test_an_expert_s_numbers_are_read_one_expert_at_a_time(mixtral):
    """Beyond the model itself, reading takes less than a quarter of the tensor that holds all experts of a layer."""
    edit(mixtral, num_local_experts=64, intermediate_size=64, num_hidden_layers=1, vocab_size=48)
    large = np.ones((64, 128, 24), ml_dtypes.bfloat16)
    rest = {name: tensor for name, tensor in fused(load_file(mixtral / WHOLE)).items() if "layers.1." not in name}
    rest["model.layers.0.mlp.gate.weight"] = np.ones((64, 24), np.float32)
    rest |= {"model.layers.0.mlp.experts.gate_up_proj": large}
    rest |= {"model.layers.0.mlp.experts.down_proj": np.ones((64, 24, 64), ml_dtypes.bfloat16)}
    save_file(rest, mixtral / WHOLE)
    source = read.examine_folder(mixtral)
    tracemalloc.start()
    params = read.load_params(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - sum(leaf.nbytes for leaf in jax.tree.leaves(params)) < large.size  # a quarter of its size in fp32


# As published: huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json, but for its fp8 and keys not read.
PUBLISHED = {
    "model_type": "deepseek_v3", "attention_bias": False, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
    "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
CODE = {"AutoConfig": "configuration_deepseek.DeepseekV3Config", "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}  # fmt: skip


def test_deepseek_v3_s_published_config_is_read():
    values = from_hf_config(FORMATS["deepseek_v3"], PUBLISHED)
    assert values["block"] == "sequential=3,experts=58" and values["n_experts"] == 256
    assert (values["d_q_latent"], values["d_kv_latent"], values["d_head_rope"]) == (1536, 512, 64)
    assert (values["router_groups"], values["router_groups_per_token"], values["router_scale"]) == (8, 4, 2.5)
    assert (values["rope_scaling"], values["rope_factor"], values["router_scores"]) == ("yarn", 40.0, "sigmoid")


def test_qwen3_moe_s_two_keys_of_dense_layers_become_stacks():
    """Every second layer has experts, counted from 1, but for those that are listed, counted from 0."""
    content = json.loads((HERE / "their_qwen3_moe" / "config.json").read_text())
    content |= {"num_hidden_layers": 7, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    values = from_hf_config(FORMATS["qwen3_moe"], content)
    assert values["block"] == "sequential=1,experts=1,sequential=3,experts=1,sequential=1"
    shape = examples.shape("qwen3_moe", n_layers=7, block=values["block"])
    written = to_hf_config(FORMATS["qwen3_moe"], shape, "float32", {})
    assert (written["decoder_sparse_step"], written["mlp_only_layers"]) == (1, [0, 2, 3, 4, 6])


@pytest.mark.full
@pytest.mark.parametrize("name", ["mixtral_8x7b", "olmoe_1b_7b", "qwen3_30b_a3b", "deepseek_v3"])
def test_a_recipe_in_its_real_size_has_as_many_numbers_as_transformers_counts(name):
    shape = config_lib.static(config_lib.load(f"configs/recipes/{name}.py")).model
    form = find_format(shape)
    places = tensor_places(form, shape)
    counts = json.loads((HERE / "counts.json").read_text())
    bias = sum(place.declared[0].shape[-1] for tensor, place in places.items() if tensor.endswith("correction_bias"))
    assert sum(math.prod(place.shape) for place in places.values()) - bias == counts["models"][name]["total"]
    if name == "deepseek_v3":
        free = {"max_position_embeddings", "rope_scaling", "num_nextn_predict_layers"}  # of later stages, or left out
        ours = to_hf_config(form, shape, "bfloat16", {})
        assert {key: ours[key] for key in PUBLISHED if key not in free} == {
            key: value for key, value in PUBLISHED.items() if key not in free
        }
        assert places["model.layers.60.mlp.experts.255.down_proj.weight"].shape == (7168, 2048) and bias == 58 * 256


def test_the_first_release_s_code_is_not_needed_and_other_code_is_refused(deepseek):
    edit(deepseek, auto_map=CODE)
    assert read.examine_folder(deepseek).form.name == "deepseek_v3"
    edit(deepseek, auto_map=CODE | {"AutoModel": "evil.Model"})
    assert "auto_map is set" in refusal(deepseek)


def test_layers_for_multi_token_prediction_are_left_out_and_said(deepseek, capsys):
    more = {"model.layers.2.eh_proj.weight": np.ones((24, 48), np.float32), "model.layers.2.x": np.ones(3, np.float32)}
    tensors(deepseek, lambda old: old | more)
    assert main(["import", "hf", str(deepseek)]) == 0
    assert "  2 tensors of layers for multi-token prediction are left out\n" in capsys.readouterr().out
    edit(deepseek, num_nextn_predict_layers=0)
    assert "holds a tensor 'model.layers.2.eh_proj.weight' (and 1 more) that no part of the model takes" in refusal(
        deepseek
    )


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 1e4}
REFUSED = {
    "window": ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window=True: only False can be read"),
    "biases": ("qwen3_moe", {"attention_bias": True}, "attention_bias=True: only False can be read"),
    "kinds of layers": ("mixtral", {"layer_types": ["full_attention"]}, "layer_types=['full_attention']: only None"),
    "no layer list": ("qwen3_moe", {"mlp_only_layers": [9]}, "mlp_only_layers=[9] is not a list of layers from 0 to 2"),
    "no experts": ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}, "leave no layer of 3 with experts"),
    "no step": ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0 is not a whole number from 1"),
    "two counts": ("qwen3_moe", {"num_experts": 7}, "num_experts=7 and num_local_experts=5: they must agree"),
    "clip": ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0: only None can be read from olmoe"),
    "more a token": ("olmoe", {"num_experts_per_tok": 6}, "model.experts_per_token=6 is more than model.n_experts=5"),
    "many experts": ("mixtral", {"num_local_experts": 30}, "2 layers of 30 experts each are more than the files' 47"),
    "scores": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func='softmax': only 'sigmoid' can be read"),
    "way": ("deepseek_v3", {"topk_method": "greedy"}, "topk_method='greedy': only 'noaux_tc' can be read"),
    "every other": ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq=2: only 1 can be read from deepseek_v3"),
    "halves": ("deepseek_v3", {"rope_interleave": False}, "rope_interleave=False: only True can be read"),
    "groups": ("deepseek_v3", {"n_group": 3}, "model.router_groups=3 does not divide model.n_experts=8; nearest: 2"),
    "no groups": ("deepseek_v3", {"n_group": None, "topk_group": 9}, "model.router_groups_per_token=9 is more than"),
    "eps": ("deepseek_v3", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05: the latents' norms add 1e-06 all the same"),
    "one scale": (
        "deepseek_v3",
        {"rope_parameters": YARN},
        "mscale=None and mscale_all_dim=None: with yarn both must be one positive",
    ),
    "scales": (
        "deepseek_v3",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
        "rope_parameters.mscale=0.7 and mscale_all_dim=1.0: with yarn both must be one positive number",
    ),
    "dense": ("deepseek_v3", {"first_k_dense_replace": -1}, "first_k_dense_replace=-1 is not a number of layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_our_layer_does_not_know_is_refused_by_name(tmp_path, case):
    name, changes, message = REFUSED[case]
    folder = shutil.copytree(HERE / f"their_{name}", tmp_path / "hf")
    edit(folder, **changes)
    assert message in refusal(folder)


def test_a_file_without_the_bias_is_refused_in_one_line(deepseek):
    tensors(deepseek, lambda old: {name: tensor for name, tensor in old.items() if name != BIAS})
    assert f"lacks the tensor {BIAS!r} that its config.json asks for" in refusal(deepseek)


def train(folder, out, start="", **changes):
    """The exit code of `train` on the weights in `folder`, or in `start`, two steps of the model that it holds."""
    model = read.examine_folder(folder).config.model.to_dict()
    options = SMALL | {"train.steps": 2, "eval.every_steps": 2} | {f"model.{key}": model[key] for key in model}
    options = {key: value for key, value in options.items() if value != ""} | changes
    given = [f"--config.{key}={value}" for key, value in options.items()]
    return main(
        ["train", "--config=configs/tiny.py", f"--workdir={out}", f"--init-from={start or f'hf:{folder}'}", *given]
    )


def small_head(folder):
    """Divide the head, so that the model is no worse than a uniform guess: its run would count as diverged."""
    tensors(folder, lambda old: old | {"lm_head.weight": old["lm_head.weight"] / 100})


def test_a_bias_to_be_moved_needs_one_in_the_imported_weights(mixtral, tmp_path, capsys):
    assert train(mixtral, tmp_path / "run", **{"model.balance_rate": 0.001}) == 2
    line = capsys.readouterr().err
    assert "model.balance_rate=0.001 moves a bias of the experts, and these weights have none (there it is 0)" in line
    assert "nearest: model.balance_rate=0" in line and line.count("\n") == 1


def test_a_bias_that_is_there_needs_a_balance_that_reads_it(deepseek, tmp_path, capsys):
    assert train(deepseek, tmp_path / "run", **{"model.balance_rate": 0.0}) == 2
    line = capsys.readouterr().err
    assert "model.balance_rate=0 has no bias of the experts, and these weights have one (there it is 0.001)" in line
    assert line.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.full
def test_weights_that_were_imported_before_are_judged_alike(deepseek, tmp_path, capsys):
    """A bias is refused where it is missing or not read; the load of the experts, a count of the last step, is not."""
    mixtral = shutil.copytree(MIXTRAL, tmp_path / "mixtral")
    small_head(mixtral)
    for folder, rate, message in (
        (mixtral, 0.001, "rate=0.001 moves a bias of the experts, and these weights have none (there it is 0)"),
        (deepseek, 0.0, "rate=0 has no bias of the experts, and these weights have one (there it is 0.001)"),
    ):
        weights = tmp_path / f"{folder.name} imported"
        assert main(["import", "hf", str(folder), f"--out={weights}"]) == 0
        capsys.readouterr()
        assert train(folder, tmp_path / "run", str(weights), **{"model.balance_rate": rate}) == 2
        line = capsys.readouterr().err
        assert message in line and line.count("\n") == 1 and not (tmp_path / "run").exists()
    start = str(tmp_path / "mixtral imported")
    assert train(mixtral, tmp_path / "run", start, **{"model.balance_weight": 0.01}) == 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_imported_trained_two_steps_and_exported_names_and_shapes_are_the_same(tmp_path, name, capsys):
    before = shutil.copytree(HERE / f"their_{name}", tmp_path / "before")
    small_head(before)
    assert train(before, tmp_path / "run", **{"model.balance_weight": 0.01}) == 0
    assert main(["export", "hf", f"{tmp_path}/run", f"--out={tmp_path}/hf"]) == 0
    assert f": {name}, {len(load_file(before / WHOLE))} tensors of float32" in capsys.readouterr().out
    old, new = load_file(before / WHOLE), load_file(tmp_path / "hf" / WHOLE)
    assert {key: tensor.shape for key, tensor in new.items()} == {key: tensor.shape for key, tensor in old.items()}
    moved = {key for key in old if not np.array_equal(old[key], new[key])}
    assert len(moved) > len(old) / 2 and (BIAS in moved) == (name == "deepseek_v3")
    if BIAS in old:  # by the sign of the load's error at two steps
        assert set(np.round((new[BIAS] - old[BIAS]) * 1000)) <= {-2, -1, 0, 1, 2}


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name == "deepseek_v3", examples.TEXTS))
def test_an_imported_model_goes_on_greedily_as_transformers_does(tmp_path, name, capsys):
    write_text_model(tmp_path / "hf", name)
    answer = ANSWERS["texts"][name]
    assert digest(load_file(tmp_path / "hf" / WHOLE)) == answer["tensors"], "run tests/hf/oracle/make.py again"
    assert main(["import", "hf", f"{tmp_path}/hf", f"--out={tmp_path}/run"]) == 0
    capsys.readouterr()
    sample = ["sample", f"{tmp_path}/run", f"--prompt={examples.PROMPT}", f"--tokens={examples.NEW_TOKENS}"]
    assert main([*sample, "--temperature=0", "--json=-"]) == 0
    (drawn,) = json.loads(capsys.readouterr().out)["samples"]
    assert drawn["ids"] == answer["ids"]
    assert len(set(answer["ids"])) >= 5


def test_a_bias_goes_only_where_the_family_has_one():
    shape = examples.shape("olmoe", balance_rate=1e-3)
    params = examples.params(shape)
    with pytest.raises(BadInput, match=r"olmoe has no place for the experts' bias, which is up to 0\.\d+ here \(model"):
        settle_bias(FORMATS["olmoe"], shape, params)
    params["blocks"]["experts"]["bias"]["v"][:] = 0
    assert settle_bias(FORMATS["olmoe"], shape, params) == (shape, params)
    without = examples.shape("deepseek_v3", balance_rate=0.0)
    shape, params = settle_bias(FORMATS["deepseek_v3"], without, examples.params(without))
    assert shape.balance_rate and not params["blocks_1"]["experts"]["bias"]["v"].any()


def test_the_bias_stays_in_fp32_in_an_export_to_bf16(tmp_path):
    shape = examples.shape("deepseek_v3")
    params = examples.params(shape)
    write_model(tmp_path / "hf", shape, params, {"run": "r", "step": 0}, WriteOptions("bfloat16"))
    source = read.examine_folder(tmp_path / "hf")
    assert source.dtypes == {"bfloat16": 89, "float32": 2}
    before, after = named_leaves(params), named_leaves(read.load_params(source))
    assert np.array_equal(before["blocks_1.experts.bias.v"], after["blocks_1.experts.bias.v"])


@pytest.mark.parametrize("name", one_in(4, STANDARD))
def test_written_and_read_again_every_bit_is_the_same(tmp_path, name):
    shape = examples.shape(name)
    write_model(tmp_path / "hf", shape, examples.params(shape), {"run": "r", "step": 0})
    source = read.examine_folder(tmp_path / "hf")
    before, after = named_leaves(examples.params(shape)), named_leaves(read.load_params(source))
    assert before.keys() == after.keys() and all(np.array_equal(before[leaf], after[leaf]) for leaf in before)
    assert config_lib.static(source.config).model == shape
    read.check_same_model(source, examples.config(name))
