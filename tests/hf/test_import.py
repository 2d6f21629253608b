"""Folders that transformers wrote give its logits; folders that something else wrote, or cut, or forged, one line."""

import json
import shutil
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.hf import read
from scalelab.hf.write import write_model
from scalelab.untrusted import files
from tests.hf import examples
from tests.hf.oracle.make import HERE
from tests.model.shapes import logit_error
from tests.quick import others_slow

LOGITS = np.load(HERE / "answers.npz")
LLAMA, GPT2 = HERE / "their_llama", HERE / "their_gpt2"
MIXTRAL, OLMOE, DEEPSEEK = HERE / "their_mixtral", HERE / "their_olmoe", HERE / "their_deepseek_v3"
FAMILIES = [
    *(("qwen2", 27), ("qwen3", 24), ("olmo2", 25), ("olmo3", 58), ("smollm3", 67), ("phi3", 14), ("stablelm", 28)),
    *(("granite", 34), ("mistral", 21), ("gemma", 20), ("gemma2", 46), ("gemma3_text", 54), ("stablelm_partial", 26)),
]  # name, tensors


def quick(name):
    """Marks: one with multipliers, caps and layers of two kinds stands for all."""
    return [] if name == "gemma2" else [pytest.mark.full]


WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def loaded_logits(folder):
    source = read.examine_folder(folder)
    tokens = jnp.asarray(LOGITS["tokens"])
    return source, np.asarray(examples.logits(config_lib.static(source.config).model, read.load_params(source), tokens))


@pytest.mark.parametrize(
    ("folder", "dtypes", "files"),
    [
        pytest.param(LLAMA, {"bfloat16": 21}, 5, id="llama"),
        pytest.param(GPT2, {"float32": 28}, 2, id="gpt2"),
        pytest.param(HERE / "their_deepseek_v2", {"float32": 23}, 2, id="deepseek_v2", marks=pytest.mark.full),
        pytest.param(
            HERE / "their_deepseek_v3_dense", {"float32": 27}, 2, id="deepseek_v3_dense", marks=pytest.mark.full
        ),
        pytest.param(MIXTRAL, {"float32": 47}, 2, id="mixtral"),
        pytest.param(HERE / "their_qwen3_moe", {"bfloat16": 62}, 4, id="qwen3_moe", marks=pytest.mark.full),
        pytest.param(OLMOE, {"float32": 25}, 2, id="olmoe", marks=pytest.mark.full),
        pytest.param(DEEPSEEK, {"float32": 53}, 2, id="deepseek_v3", marks=pytest.mark.full),
        *(pytest.param(HERE / f"their_{name}", {"bfloat16": n}, 2, id=name, marks=quick(name)) for name, n in FAMILIES),
    ],
)
def test_models_that_transformers_drew_and_saved_have_its_logits(folder, dtypes, files):
    source, ours = loaded_logits(folder)
    assert np.abs(LOGITS[folder.name]).max() > 1
    shape = config_lib.static(source.config).model
    bound = logit_error(shape, LOGITS[folder.name])
    assert np.abs(ours - LOGITS[folder.name]).max() <= (min(bound, 1e-5) if shape.n_experts else bound)
    origin = source.origin()
    assert (origin["dtypes"], len(origin["files"]), origin["format"]) == (
        dtypes,
        files,
        folder.name.removeprefix("their_").removesuffix("_dense").removesuffix("_partial"),
    )
    assert "exported_from" not in origin


# --- variants that mean the same
# -----------------------------------------------------------------------------------------


@pytest.fixture
def llama(tmp_path):
    shape = examples.shape("llama_tied")
    write_model(tmp_path / "hf", shape, examples.params(shape), {"run": "r", "step": 0})
    return tmp_path / "hf"


@pytest.fixture
def gpt2(tmp_path):
    shutil.copytree(GPT2, tmp_path / "hf")
    return tmp_path / "hf"


def edit(folder, name="config.json", **changes):
    """Set keys of a JSON file; ... removes one."""
    path = folder / name
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def tensors(folder, change):
    """Write the tensors again, as `change` returns them."""
    save_file({name: np.ascontiguousarray(t) for name, t in change(load_file(folder / WHOLE)).items()}, folder / WHOLE)


def test_a_config_of_transformers_4_and_one_of_5_mean_the_same(llama):
    before = read.examine_folder(llama).config.model.to_dict()
    edit(llama, rope_parameters=...)  # 4
    assert read.examine_folder(llama).config.model.to_dict() == before
    edit(llama, rope_theta=..., rope_parameters={"rope_theta": 5e5, "rope_type": "default"})  # 5
    assert read.examine_folder(llama).config.model.to_dict() == before


def test_scaling_is_read_where_transformers_4_or_5_has_it(llama):
    edit(llama, rope_parameters=..., rope_scaling=LLAMA3)
    four = read.examine_folder(llama).config.model
    assert (four.rope_scaling, four.rope_factor, four.rope_original) == ("llama3", 8.0, 8192)
    edit(llama, rope_theta=..., rope_scaling=..., rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert read.examine_folder(llama).config.model.to_dict() == four.to_dict()


def test_mistral_has_a_window_unless_it_says_null(tmp_path):
    shape = examples.shape("mistral")
    write_model(tmp_path / "hf", shape, examples.params(shape), {"run": "r", "step": 0})
    assert read.examine_folder(tmp_path / "hf").config.model.window == 5
    for message, window in ((..., 4096), (None, 0)):
        edit(tmp_path / "hf", sliding_window=message)
        assert read.examine_folder(tmp_path / "hf").config.model.window == window
    edit(tmp_path / "hf", layer_types=["full_attention", "sliding_attention"])
    refused(tmp_path / "hf", "layer_types is set")


def test_what_old_configs_leave_out_has_the_value_that_transformers_assumes(gpt2):
    # the fields of the first GPT-2's config.json; none of what came later
    names = ("model_type", "n_embd", "n_head", "n_layer", "n_positions", "vocab_size", "layer_norm_epsilon")
    config = json.loads((GPT2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({name: config[name] for name in names}))
    assert np.abs(loaded_logits(gpt2)[1] - LOGITS["their_gpt2"]).max() <= 1e-5


def test_names_of_the_bare_model_and_saved_constants_are_understood(gpt2):
    masks = {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 16, 16), np.uint8)) for i in range(2)}
    tensors(gpt2, lambda old: {k.removeprefix("transformer."): v for k, v in old.items()} | masks)
    assert np.abs(loaded_logits(gpt2)[1] - LOGITS["their_gpt2"]).max() <= 1e-5


def test_a_tied_head_may_be_repeated_but_not_differ(gpt2):
    tensors(gpt2, lambda old: old | {"lm_head.weight": old["transformer.wte.weight"]})
    assert np.abs(loaded_logits(gpt2)[1] - LOGITS["their_gpt2"]).max() <= 1e-5
    tensors(gpt2, lambda old: old | {"lm_head.weight": old["transformer.wte.weight"] + 1})
    with pytest.raises(BadInput, match=r"lm_head.weight differs from the embedding that its config.json ties it to"):
        read.load_params(read.examine_folder(gpt2))


def test_half_precision_becomes_fp32_exactly(gpt2):
    tensors(gpt2, lambda old: {k: v.astype(np.float16) for k, v in old.items()})
    source = read.examine_folder(gpt2)
    assert source.dtypes == {"float16": 28}
    embed = read.load_params(source)["embed"]["w"]
    assert embed.dtype == np.float32
    assert np.array_equal(embed, load_file(gpt2 / WHOLE)["transformer.wte.weight"].astype(np.float32))


# --- mistakes and malice
# -------------------------------------------------------------------------------------------------


def refused(folder, *expected):
    """The one line with which this folder is refused."""
    with pytest.raises(BadInput) as caught:
        read.load_params(read.examine_folder(folder))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    assert all(part in message for part in expected), message


# As Llama 3.1 8B has it.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
CONFIGS = {
    "another model": (
        {"model_type": "bloom"},
        "model_type='bloom' is not a format that can be read; known: deepseek_v2, deepseek_v3, gemma, gemma2, "
        "gemma3_text",
    ),
    "no model type": ({"model_type": ...}, "model_type=None"),
    "custom code": ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map is set: custom code"),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
    "no factor": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}},
        "rope_parameters.factor=None is not a number",
    ),
    "two ways to scale": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling is 'linear' and rope_parameters is 'default': they must agree",
    ),
    "unknown rope": (
        {"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling.rope_type='dynamic': only linear, llama3, yarn and 'default' can be read",
    ),
    "rope of a word": ({"rope_parameters": ..., "rope_scaling": "linear"}, "rope_scaling='linear' is not an object"),
    "other bounds": (
        {"rope_parameters": ..., "rope_scaling": LLAMA3 | {"high_freq_factor": 8.0}},
        "rope_scaling.high_freq_factor=8.0: only 4.0 can be read",
    ),
    "no bounds": (
        {"rope_parameters": ..., "rope_scaling": {"type": "llama3", "factor": 8}},
        ".low_freq_factor is missing",
    ),
    "another amplitude": (
        {"rope_parameters": ..., "rope_scaling": {"type": "yarn", "factor": 1.0, "attention_factor": 2.0}},
        "rope_scaling.attention_factor=2.0: only None can be read",
    ),
    "yarn of two factors": (
        {"rope_parameters": ..., "rope_scaling": {"type": "yarn", "factor": 4.0}},
        "transformers 4 and 5 read that as two models",
    ),
    "an endless past": (
        {"rope_parameters": ..., "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 10**40}},
        "is not a number from 0 to 2^31",
    ),
    "no turn": ({"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 0.5}}, "model.rope_factor=0.5"),
    "two wavelengths": (
        {"rope_theta": 1e4},
        "rope_theta=10000.0 and rope_parameters.rope_theta=500000.0: they must agree",
    ),
    "biases apart": ({"mlp_bias": True}, "attention_bias=False and mlp_bias=True: they must agree"),
    "relu": ({"hidden_act": "relu"}, "hidden_act='relu': only 'silu' can be read from llama"),
    "no width": ({"hidden_size": ...}, "hidden_size is missing"),
    "text": ({"hidden_size": "24"}, "model.d_model='24' must be of type int"),
    "list": ({"hidden_size": [24]}, "hidden_size=[24] is not a number"),
    "fraction": ({"num_hidden_layers": 3.5}, "model.n_layers=3.5 must be of type int"),
    "negative": ({"num_hidden_layers": -1}, "model.n_layers=-1 must be finite and above zero"),
    "nan": ({"rms_norm_eps": float("nan")}, "model.norm_eps=nan must be finite"),
    "huge width": ({"hidden_size": 10**12}, "hidden_size=1000000000000 is beyond 18600; there are 29 tensors"),
    "object": ({"head_dim": {}}, "head_dim={} is not a number"),
    "an essay": ({"hidden_act": "silu", "hidden_size": "x" * 10**6}, "hidden_size='xxxxx"),
    "many layers": ({"num_hidden_layers": 100}, "num_hidden_layers=100 is beyond 29; there are 29 tensors"),
    "huge context": (
        {"max_position_embeddings": 10**15},
        "max_position_embeddings=1000000000000000 is beyond 2.14748e+09",
    ),
    "uneven groups": ({"num_key_value_heads": 2}, "model.n_kv_heads=2 does not divide model.n_heads=3"),
    "another width": ({"hidden_size": 30}, "model.embed_tokens.weight is [48, 24], its config.json says [48, 30]"),
    "one layer more": ({"num_hidden_layers": 4}, "lacks the tensor 'model.layers.3.self_attn.q_proj.weight'"),
    "one layer less": ({"num_hidden_layers": 2}, "holds a tensor 'model.layers.2.", "(and 8 more)"),
    "untied": ({"tie_word_embeddings": False}, "lacks the tensor 'lm_head.weight'"),
    "biased": ({"attention_bias": True, "mlp_bias": True}, "lacks the tensor 'model.layers.0.self_attn.q_proj.bias'"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_means_another_model_or_none_is_refused(llama, case):
    changes, *expected = CONFIGS[case]
    edit(llama, **changes)
    refused(llama, "config.json", *expected) if case != "one layer less" else refused(llama, *expected)


FULL, SLIDING = "full_attention", "sliding_attention"
FAMILY_CONFIGS = {
    "an unknown key": ("mistral", {"mystery": 2.0}, "mystery=2.0: mistral as known here has no such key"),
    "no names of kinds": ("olmo3", {"layer_types": [{}] * 5}, "layer_types=[{}, {}, {}, {}, {}] is not a list of 5"),
    "no period": ("olmo3", {"layer_types": [FULL, SLIDING, FULL, FULL, SLIDING]}, "differ without a period"),
    "some windows": (
        "qwen2",
        {"layer_types": ..., "max_window_layers": 1},
        "max_window_layers=1 of 2 layers: read are windows of all layers",
    ),
    "a word": ("qwen2", {"use_sliding_window": "no"}, "use_sliding_window='no' is not true or false"),
    "no flags of layers": ("smollm3", {"no_rope_layers": [[1]] * 4}, "is not a list of 4 times 0 or 1"),
    "another word": (
        "stablelm",
        {"use_parallel_residual": "false"},
        "use_parallel_residual='false' is not true or false",
    ),
    "a share of a head": (
        "stablelm",
        {"partial_rotary_factor": 0.25},
        "partial_rotary_factor=0.25 and 1.0: one number",
    ),
    "a share above one": (
        "stablelm_partial",
        {"partial_rotary_factor": 1.5},
        "partial_rotary_factor=0.25 and 1.5: one",
    ),
    "no scale of queries": (
        "gemma2",
        {"query_pre_attn_scalar": 0},
        "query_pre_attn_scalar=0 is not a number from 1e-9",
    ),
    "a cap in words": (
        "gemma2",
        {"attn_logit_softcapping": "50"},
        "attn_logit_softcapping='50' is not a number from 0",
    ),
    "a cap that is not applied": (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping=50.0: only None",
    ),
    "both ways": (
        "gemma3_text",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention=True: gemma3_text as",
    ),
    "two local thetas": ("gemma3_text", {"rope_local_base_freq": 9.0}, "they must agree"),
    "another gelu": ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation='gelu': only 'gelu_pytorch_tanh'"),
    "no logits": ("granite", {"logits_scaling": 0}, "logits_scaling=0 is not a number from 1e-9"),
    "longrope": (
        "phi3",
        {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}},
        "transformers reads none but longrope",
    ),
}


@pytest.mark.parametrize("case", FAMILY_CONFIGS)
def test_a_config_of_a_family_that_means_another_model_is_refused(tmp_path, case):
    family, changes, expected = FAMILY_CONFIGS[case]
    folder = shutil.copytree(HERE / f"their_{family}", tmp_path / "hf")
    edit(folder, **changes)
    refused(folder, "config.json", expected)


NORM = "model.norm.weight"
TENSORS = {
    "missing": (lambda old: {k: v for k, v in old.items() if k != NORM}, "lacks the tensor 'model.norm.weight'"),
    "extra": (lambda old: old | {"model.norm.extra\n": old[NORM]}, "holds a tensor 'model.norm.extra\\n' that no part"),
    "integers": (
        lambda old: old | {NORM: old[NORM].astype(np.int32)},
        "model.norm.weight is I32; read are F32, BF16, F16",
    ),
    "doubles": (lambda old: old | {NORM: old[NORM].astype(np.float64)}, "model.norm.weight is F64"),
    "one value more": (lambda old: old | {NORM: np.ones(25, np.float32)}, "is [25], its config.json says [24]"),
    "nothing in it": (lambda old: old | {NORM: np.ones((24, 0), np.float32)}, "is [24, 0]"),
    "not finite": (lambda old: old | {NORM: old[NORM] * np.inf}, "model.norm.weight holds values that are not finite"),
    "empty": (lambda old: {}, "is beyond 0; there are 0 tensors"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_not_the_models_are_refused(llama, case):
    change, *expected = TENSORS[case]
    tensors(llama, change)
    refused(llama, *expected)


def header(content, length=None, body=b""):
    """The bytes of a safetensors file with this header, whatever it says of its own length."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def one(**changes):
    return {NORM: {"dtype": "F32", "shape": [24], "data_offsets": [0, 96]} | changes}


FORGED = {
    "nothing": b"",
    "half a length": b"\x00\x01",
    "a huge header": header(b"{}", length=2**63 - 1),
    "a header of 200 MB": header(b"{}", length=200_000_000),
    "no JSON": header(b"\x80\x04 pickle"),
    "deep JSON": header(b'{"a":' * 100_000),
    "a huge shape": header(one(shape=[2**62, 2**62])),
    "terabytes": header(one(shape=[2**40], data_offsets=[0, 2**42])),
    "no data": header(one()),
    "offsets backwards": header(one(data_offsets=[96, 0]), body=bytes(96)),
    "offsets past the end": header(one(data_offsets=[96, 192]), body=bytes(96)),
    "a negative size": header(one(shape=[-24]), body=bytes(96)),
    "an unknown dtype": header(one(dtype="P32"), body=bytes(96)),
    "a web page": b"<!DOCTYPE html><html>Entry not found</html>",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_file_is_refused_before_anything_is_allocated(llama, case):
    (llama / WHOLE).write_bytes(FORGED[case])
    refused(llama, f"{WHOLE} is not an intact safetensors file")


def test_a_truncated_or_overlong_file_is_refused(llama):
    whole = (llama / WHOLE).read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:100], whole + b"\x00"):
        (llama / WHOLE).write_bytes(content)
        refused(llama, f"{WHOLE} is not an intact safetensors file")


def test_pickles_are_never_opened_and_the_way_out_is_named(llama, monkeypatch):
    (llama / WHOLE).rename(llama / "pytorch_model.bin")
    monkeypatch.setattr("pickle.load", None)
    refused(
        llama, "only pickled weights (pytorch_model.bin)", "never opened here; convert them", "save_pretrained(OUT)"
    )


def test_a_folder_without_config_or_weights_or_at_all(llama, tmp_path):
    refused(tmp_path / "none", "no folder")
    (llama / WHOLE).unlink()
    refused(llama, f"holds no {WHOLE}: neither that nor an index of parts")
    (llama / "config.json").write_text("{")
    refused(llama, "config.json is not JSON: ")
    (llama / "config.json").write_text("[" * 100_000)
    refused(llama, "config.json is not JSON: ")
    (llama / "config.json").write_text("[]")
    refused(llama, "config.json holds a list where an object is expected")
    (llama / "config.json").write_bytes(b"\xff\xfe")
    refused(llama, "config.json is not JSON: ")
    (llama / "config.json").write_text(" " * 50_000_001)
    refused(llama, "config.json has 50,000,001 bytes; at most 50,000,000 are read")
    (llama / "config.json").unlink()
    refused(llama, "config.json can't be read: No such file")


INDEXES = {
    "outside": ({NORM: "../../etc/passwd.safetensors"}, "not the name of a safetensors file beside it"),
    "a pickle": ({NORM: "pytorch_model.bin"}, "not the name of a safetensors file beside it"),
    "a number": ({NORM: 1}, "in 1: not the name"),
    "empty": ({}, "has no weight_map"),
    "absent part": (
        {NORM: "model-00009-of-00009.safetensors"},
        "model-00009-of-00009.safetensors is missing, or no file",
    ),
}


@pytest.fixture
def parts(tmp_path):
    shutil.copytree(LLAMA, tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_that_leads_elsewhere_or_nowhere_is_refused(parts, case):
    weight_map, *expected = INDEXES[case]
    edit(parts, INDEX, weight_map=weight_map)
    refused(parts, *expected)


def test_an_index_and_its_parts_must_agree(parts):
    weight_map = json.loads((parts / INDEX).read_text())["weight_map"]
    edit(parts, INDEX, weight_map=weight_map | {"ghost": weight_map[NORM]})
    refused(parts, f"places 'ghost' in {weight_map[NORM]}, which lacks it")
    edit(parts, INDEX, weight_map={name: file for name, file in weight_map.items() if name != NORM})
    refused(parts, f"holds {NORM!r}, which {INDEX} doesn't place there")
    edit(parts, INDEX, weight_map=weight_map)
    shutil.copy(GPT2 / WHOLE, parts / WHOLE)
    refused(parts, "holds both")


def test_another_model_than_the_runs_is_refused_with_both_sides_of_every_value(llama):
    source = read.examine_folder(llama)
    with pytest.raises(BadInput) as caught:
        read.check_same_model(source, examples.config("llama_tied", d_model=48, rope_theta=1e4, norm_eps=1e-5))
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("is another model than the config's:")
    assert "  model.d_model=48, there it is 24 (hidden_size)" in lines
    assert "  model.rope_theta=10000.0, there it is 500000.0 (rope_theta, rope_parameters.rope_theta)" in lines
    assert "  model.norm_eps=1e-05, there it is 1e-06 (rms_norm_eps)" in lines
    assert len(lines) == 5 and "`scalelab import hf` prints its values" in lines[-1]


def test_the_length_of_a_sequence_is_free_with_rope_and_fixed_where_positions_are_learned(llama):
    read.check_same_model(read.examine_folder(llama), examples.config("llama_tied", seq_len=32))
    with pytest.raises(
        BadInput, match=r"config's: model.seq_len=8, there it is 16 \(n_positions\); `scalelab import hf`"
    ):
        read.check_same_model(read.examine_folder(GPT2), examples.config("gpt2", n_layers=2, seq_len=8))


def test_reading_touches_nothing_but_the_folder(llama, monkeypatch):
    """No socket is opened and no file outside: what a folder says can't send us anywhere."""
    opened = []
    monkeypatch.setattr("socket.socket", None)
    open_file = files.open_file
    monkeypatch.setattr(files, "open_file", lambda path, *how: opened.append(path) or open_file(path, *how))
    jax.tree.map(np.shape, read.load_params(read.examine_folder(llama)))
    assert opened == [llama / "config.json"]


HOSTILE = ("x", "", -1, 0, 1.5, 2**31, 2**80, 1e308, float("nan"), float("inf"), [], {}, [1], {"a": 1}, True, None)


@pytest.mark.full
@pytest.mark.parametrize(
    "folder",
    others_slow(lambda folder: folder in (GPT2, DEEPSEEK), [LLAMA, GPT2, DEEPSEEK, MIXTRAL]),
    ids=lambda f: f.name,
)
def test_whatever_a_key_of_a_config_holds_the_folder_is_read_or_refused_in_one_line(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "hf")
    config, refusals = json.loads((folder / "config.json").read_text()), 0
    for key in config:
        for value in HOSTILE:
            (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {key: value}))
            try:
                read.examine_folder(tmp_path / "hf")
            except BadInput as mistake:
                refusals += 1
                assert "\n" not in str(mistake) and len(str(mistake)) < 600
    assert refusals > 100


@pytest.mark.parametrize("folder", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("prefix", "cause"),
    [
        ("_orig_mod.", "torch.compile"),
        ("module.", "DistributedDataParallel"),
        ("module._orig_mod.", "torch.compile"),
        ("_fsdp_wrapped_module.", "FullyShardedDataParallel"),
    ],
)
def test_names_of_a_model_within_a_wrapper_of_torch_name_the_wrapper(folder, prefix, cause, request, tmp_path, capsys):
    place = request.getfixturevalue(folder)
    out = tmp_path / "out"
    tensors(place, lambda held: {f"{prefix}{name}": tensor for name, tensor in held.items()})
    assert main(["import", "hf", str(place), f"--out={out}"]) == 2
    line = capsys.readouterr().err
    assert f"as the model within a {cause}" in line and "out of every name" in line, line
    assert f"{prefix}" in line and line.count("\n") == 1 and not out.exists()
    tensors(place, lambda held: {name.removeprefix(prefix): tensor for name, tensor in held.items()})
    assert main(["import", "hf", str(place), f"--out={out}", "--json=-"]) == 0


def test_a_wrapper_s_part_within_a_name_is_named_too(llama, capsys):
    """As torch.compile of each layer, and activation checkpointing, leave them."""
    for old, new in (
        ("layers.0.", "layers.0._orig_mod."),
        ("layers.0._orig_mod.", "layers.0._checkpoint_wrapped_module."),
    ):
        tensors(llama, lambda held, old=old, new=new: {name.replace(old, new): t for name, t in held.items()})
        assert main(["import", "hf", str(llama)]) == 2
        assert f"has {new.removeprefix('layers.0.')!r} in its name" in capsys.readouterr().err
