"""What we write is what transformers reads: its logits, committed, for these very tensors and this config.json."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from scalelab import config as config_lib
from scalelab.config import ModelShape
from scalelab.configs import base
from scalelab.errors import BadInput, WorkFailed
from scalelab.hf import FORMATS, read
from scalelab.hf.formats import (
    IRRELEVANT_KEYS,
    UNKNOWN,
    from_hf_config,
    to_hf_config,
    unsupported_keys,
)
from scalelab.hf.places import TensorRow, all_declarations, tensor_places
from scalelab.hf.write import WriteOptions, find_format, fold_multipliers, write_model
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import next_token_logits
from tests import forks
from tests.hf import examples
from tests.hf.oracle.make import HERE, digest
from tests.model.shapes import logit_error
from tests.quick import one_in, others_slow

ANSWERS = json.loads((HERE / "answers.json").read_text())
LOGITS = np.load(HERE / "answers.npz")
LINEAGE = {"run": "runs/a", "step": 7, "digest": "d"}


def written(folder, name, **options):
    shape = examples.shape(name)
    options = WriteOptions(family=examples.family(name), **options)
    return write_model(folder / name, shape, examples.params(shape), LINEAGE, options, examples.NONE)


def largest_difference(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


# Variants of a format whose options other examples have, each alone.
VARIANTS = {
    *("llama_tied", "llama_linear", "qwen2_windows", "qwen3_yarn", "qwen3_mup", "olmo3_yarn", "smollm3_bias"),
    *("stablelm_partial", "gemma_untied_mup", "deepseek_mup", "deepseek_v3_yarn", "deepseek_v3_completep"),
}


@pytest.mark.parametrize(
    "name",
    others_slow(lambda name: name not in VARIANTS, [*one_in(6, examples.DENSE), *one_in(8, examples.MIXTURES)]),
)
def test_transformers_computes_our_logits_from_what_we_write(tmp_path, name):
    shape = examples.shape(name)
    ours = examples.logits(shape, examples.params(shape), jnp.asarray(LOGITS["tokens"]))
    assert np.abs(LOGITS[name]).max() > 1  # large enough for a difference of 1e-5 to say something
    bound = logit_error(shape, LOGITS[name])
    assert largest_difference(ours, LOGITS[name]) <= (min(bound, 1e-5) if shape.n_experts else bound)
    result = written(tmp_path, name)
    asked = ANSWERS["exported"][name]
    assert digest(load_file(tmp_path / name / "model.safetensors")) == asked["tensors"], (
        "run tests/hf/oracle/make.py again"
    )
    assert json.loads((tmp_path / name / "config.json").read_text()) == asked["config"], (
        "run tests/hf/oracle/make.py again"
    )
    assert asked["config"]["architectures"] == [asked["class"]]
    assert result.tensors == len(tensor_places(FORMATS[result.format], shape))


@pytest.mark.full
def test_in_float64_we_and_transformers_agree_to_a_thousandth_of_what_fp32_rounds():
    """The two models that fp32 rounds most, one with experts, and one whose gains are folded out of its weights."""
    names = ["smollm3", "qwen2_windows", "mixtral", "their_gemma2"]
    done = subprocess.run([sys.executable, "-m", "tests.hf.float64", *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout)
    assert list(differences) == names
    for name, difference in differences.items():
        assert difference <= (5e-9 if name != "their_gemma2" else 2e-6), name  # exact.npz keeps 11 bits of 1e-5


def test_whoever_may_read_the_config_may_read_the_weights(tmp_path):
    written(tmp_path, "llama_tied", largest_file_bytes=8_000)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "llama_tied").iterdir()}
    assert len([name for name in modes if name.endswith(".safetensors")]) > 1
    assert set(modes.values()) == {modes["config.json"]} and modes["config.json"] & 0o400


NOTICED = [
    ("llama_grouped", {"rope_theta": 10_000.0}),
    ("llama_grouped", {"norm_eps": 1e-3}),
    ("llama_linear", {"rope_factor": 2.0}),
    ("llama_llama3", {"rope_original": 32}),
    ("llama_yarn", {"rope_original": 32}),
    ("deepseek", {"rope_mscale": 0.8}),
    ("mistral", {"window": 6}),
]


@pytest.mark.parametrize(
    ("name", "change"), [*NOTICED[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in NOTICED[2:])]
)
def test_the_answers_would_notice_another_rope_window_or_norm(name, change):
    shape = examples.shape(name)
    other = dataclasses.replace(shape, **change)
    ours = examples.logits(other, examples.params(shape), jnp.asarray(LOGITS["tokens"]))
    assert largest_difference(ours, LOGITS[name]) > 1e-4


@pytest.mark.parametrize(
    "name", ["llama_grouped", "llama_tied", "llama_linear", "llama_llama3", "llama_yarn", "mistral", "gpt2", "deepseek"]
)
def test_written_and_read_again_every_bit_is_the_same(tmp_path, name):
    written(tmp_path, name)
    source = read.examine_folder(tmp_path / name)
    before, after = named_leaves(examples.params(examples.shape(name))), named_leaves(read.load_params(source))
    assert list(before) == list(after)
    assert all(np.array_equal(before[leaf], after[leaf]) and after[leaf].dtype == np.float32 for leaf in before)
    theirs, ours = source.config.model, examples.config(name).model
    assert theirs.to_dict() == ours.to_dict()
    read.check_same_model(source, examples.config(name))


@pytest.mark.parametrize("name", ["llama_mup", "gpt2_mup_untied"])
def test_the_multipliers_of_mup_become_weights_of_the_same_function(tmp_path, name):
    shape = examples.shape(name)
    factors = written(tmp_path, name).folded
    ratio = shape.base_width / shape.d_model
    assert factors == {"blocks.attention.q": pytest.approx(ratio**0.5), "final_norm": pytest.approx(ratio)}
    plain = dataclasses.replace(shape, parametrization="standard")
    params, tokens = examples.params(shape), jnp.asarray(LOGITS["tokens"])
    folded = read.load_params(read.examine_folder(tmp_path / name))
    assert largest_difference(examples.logits(plain, folded, tokens), examples.logits(shape, params, tokens)) < 1e-5
    assert largest_difference(examples.logits(plain, params, tokens), examples.logits(shape, params, tokens)) > 0.1
    with pytest.raises(BadInput, match=r"parametrization.name='mup' with .*base_width=.*, there it is 'standard'"):
        read.check_same_model(read.examine_folder(tmp_path / name), examples.config(name))


def test_where_muPs_factors_are_powers_of_two_or_one_nothing_is_rounded():
    shape = dataclasses.replace(examples.shape("llama_mup"), base_width=8, base_d_head=2)  # queries / 2, final norm / 4
    params = examples.params(shape)
    folded, factors = fold_multipliers(shape, params)
    assert {k: np.float32(v) for k, v in factors.items()} == {"blocks.attention.q": 0.5, "final_norm": 0.25}
    assert np.array_equal(folded["blocks"]["attention"]["q"]["w"] * 2, params["blocks"]["attention"]["q"]["w"])
    assert np.array_equal(folded["final_norm"]["g"] * 4, params["final_norm"]["g"])
    assert fold_multipliers(dataclasses.replace(shape, base_width=32, base_d_head=8), params)[1] == {}


def test_the_branches_of_completep_become_weights_of_the_same_function():
    shape = dataclasses.replace(examples.shape("gpt2"), parametrization="completep", base_width=24)
    shape = dataclasses.replace(shape, base_layers=1, base_d_head=8)
    plain, params = dataclasses.replace(shape, parametrization="standard"), examples.params(shape)
    folded, factors = fold_multipliers(shape, params)
    assert factors == {"blocks.attention.o": pytest.approx(1 / 3), "blocks.mlp.down": pytest.approx(1 / 3)}
    tokens = jnp.asarray(LOGITS["tokens"])
    assert largest_difference(examples.logits(plain, folded, tokens), examples.logits(shape, params, tokens)) < 1e-5
    assert largest_difference(examples.logits(plain, params, tokens), examples.logits(shape, params, tokens)) > 0.1


def test_bfloat16_is_rounded_to_nearest_and_read_as_the_rounded_values(tmp_path):
    result = written(tmp_path, "llama_tied", dtype="bfloat16")
    assert json.loads((tmp_path / "llama_tied" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    source = read.examine_folder(tmp_path / "llama_tied")
    assert source.dtypes == {"bfloat16": result.tensors}
    params = examples.params(examples.shape("llama_tied"))
    rounded = jax.tree.map(lambda leaf: np.asarray(jnp.asarray(leaf, jnp.bfloat16), np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, read.load_params(source), rounded)


def test_large_models_are_cut_in_parts_that_an_index_lists(tmp_path):
    result = written(tmp_path, "gpt2", largest_file_bytes=9000)
    parts = sorted(path for path in (tmp_path / "gpt2").glob("model-*.safetensors"))
    assert len(parts) > 2 and parts[0].name == f"model-00001-of-{len(parts):05}.safetensors"
    index = json.loads((tmp_path / "gpt2" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == result.tensor_bytes
    for part in parts:
        tensors = load_file(part)
        assert {name for name, file in index["weight_map"].items() if file == part.name} == set(tensors)
        assert sum(t.nbytes for t in tensors.values()) <= 9000 or len(tensors) == 1
    params = examples.params(examples.shape("gpt2"))
    jax.tree.map(np.testing.assert_array_equal, read.load_params(read.examine_folder(tmp_path / "gpt2")), params)


def test_lineage_stands_in_every_file_and_beside_them(tmp_path):
    written(tmp_path, "gpt2", largest_file_bytes=30_000)
    for part in (tmp_path / "gpt2").glob("model-*.safetensors"):
        with safe_open(part, framework="np") as file:
            message = file.metadata()
        assert message["format"] == "pt"  # transformers refuses a file without
        assert (message["scalelab.run"], message["scalelab.step"], message["scalelab.digest"]) == ("runs/a", "7", "d")
    beside = json.loads((tmp_path / "gpt2" / "scalelab.json").read_text())
    assert {key: beside[key] for key in LINEAGE} == LINEAGE and beside["dtype"] == "float32" and beside["scalelab"]
    made = read.examine_folder(tmp_path / "gpt2").origin()["exported_from"]
    assert made == {"run": "runs/a", "step": "7", "digest": "d", "scalelab": beside["scalelab"]}


REFUSED = {
    "qk_norm": ("llama_grouped", {"qk_norm": True}, r"model.qk_norm=True \(llama: False, .*|model.bias=True \(qwen3"),
    "softcap": ("gpt2", {"logit_softcap": 30.0}, r"model.logit_softcap=30.0 \(gpt2: 0.0, llama: 0.0"),
    "relu2": ("llama_tied", {"mlp": "relu2"}, r"model.mlp='relu2' \(llama: 'swiglu'"),
    "relative": ("llama_tied", {"position": "relative"}, r"model.position='relative' \(llama: 'rope'"),
    "no position": ("llama_tied", {"position": "none"}, "model.position='none'"),
    "rms gpt2": ("gpt2", {"norm": "rmsnorm"}, r"model.norm='rmsnorm' \(gpt2: 'layernorm', llama: 'rmsnorm'"),
    "no bias": ("gpt2", {"bias": False}, "model.bias=False .*gpt2: True"),
    "grouped gpt2": ("gpt2", {"n_kv_heads": 1}, r"model.n_kv_heads=1 \(gpt2: 3, llama: 1"),
    "wide heads": ("gpt2", {"d_head": 10}, "model.d_head=10"),
    "odd width": ("llama_tied", {"d_model": 26}, r"model.d_model=26 \(llama: 24"),
    "ntk": ("llama_tied", {"rope_scaling": "ntk", "rope_factor": 2.0}, "model.rope_scaling='ntk' .llama: 'none'"),
    "yarn": ("llama_yarn", {"seq_len": 64}, r"model.seq_len=64 \(llama: 128"),
    "window and bias": ("mistral", {"bias": True}, r"model.window=5 \(llama: 0|model.bias=True \(mistral: False"),
    "alternating": ("mistral", {"global_every": 2}, "model.window=5|model.global_every=2"),
    "too rare": ("smollm3", {"nope_every": 9}, r"model.nope_every=9 \(llama: 0"),
    "qkv": ("qwen3", {"qkv_bias": True}, r"model.qkv_bias=True \(qwen3: False|model.qk_norm=True \(qwen2: False"),
    "scaled logits": ("llama_tied", {"logit_scale": "rsqrt_width"}, "model.logit_scale='rsqrt_width'"),
    "stacks": ("llama_tied", {"block": "sequential=1,sequential=2"}, "model.block='sequential=1,.*=2' .llama: 'seq"),
    "two": ("llama_tied", {"mlp": "relu", "logit_softcap": 1.0}, "model.mlp='relu' .*; model.logit_softcap=1.0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_format_can_say_is_refused_in_one_line_that_names_it(case):
    name, changes, message = REFUSED[case]
    with pytest.raises(BadInput, match=message) as caught:
        find_format(examples.shape(name, **changes))
    assert str(caught.value).startswith("no Hugging Face format can express model.") and "\n" not in str(caught.value)


def test_a_family_that_is_named_says_what_it_can_not_express():
    """Of layers with a window: another theta, which only transformers 5 has, or the scaling of the others."""
    for name, theta, could in (("olmo3", 9.0, 5e5), ("olmo3_yarn", 0.0, 100.0)):
        with pytest.raises(BadInput, match=f"olmo3 can't express model.rope_local_theta={theta} .olmo3: {could}"):
            find_format(examples.shape(name, rope_local_theta=theta), "olmo3")
    with pytest.raises(BadInput, match="family='phi' is not a family of models; did you mean 'phi3'"):
        find_format(examples.shape("phi3"), "phi")


def test_a_folder_that_holds_something_is_never_written_into(tmp_path):
    written(tmp_path, "gpt2")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="exists and is not an empty folder"):
        written(tmp_path, "gpt2")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_disk_that_does_not_take_it_is_told_in_one_line_and_nothing_is_left(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("scalelab.hf.write.save_file", full)
    with pytest.raises(WorkFailed, match=r"could not be written \(I/O error: No space left"):
        written(tmp_path, "gpt2")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(WorkFailed, match="Not a directory"):
        written(tmp_path / "file", "gpt2")


FIELDS = {field.name: field for field in dataclasses.fields(ModelShape)}
WORDS = {
    "position": "rope learned relative none",
    "norm": "rmsnorm layernorm layernorm_nobias",
    "qk_norm_over": "head projection",
    "logit_scale": "none rsqrt_width",
    "mlp": "swiglu gelu relu2 relu",
    "remat": "none dots full",
    "sums": "compute float32",
    "rope_scaling": "none linear ntk llama3 yarn",
    "block": "sequential parallel",
    "norm_place": "before after",
    "attention": "auto plain blockwise",
    "parametrization": "standard mup completep",
    "router_scores": "softmax sigmoid",
    "expert_products": "auto dense",
}


def flipped(shape, field):
    """The shape with every other value of an option, or another number."""
    value = getattr(shape, field)
    if isinstance(value, str):
        others = [other for other in WORDS[field].split() if other != value]
    else:
        others = [not value] if isinstance(value, bool) else [2 * value or 4]
    return [dataclasses.replace(shape, **{field: other}) for other in others]


def program(shape):
    """The text of the forward pass: what the weights compute, number by number."""
    like = jax.eval_shape(lambda: examples.params(shape))
    return str(jax.make_jaxpr(lambda p, t: next_token_logits(shape, p, t))(like, jnp.zeros((1, 16), int)))


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(2, ["llama_grouped", "gpt2"]))
def test_every_field_of_a_model_is_written_refused_or_changes_nothing(name):
    """Each option flipped: config.json tells it again, or the model is refused in words, or its program is the same."""
    old = examples.shape(name)
    before = program(old)
    for field in FIELDS:
        for shape in flipped(old, field):
            try:
                form = find_format(shape)
            except BadInput as refusal:
                assert str(refusal).startswith("no Hugging Face format can express model.")
                continue
            reported = from_hf_config(form, to_hf_config(form, shape, "float32", {}))
            # How attention is computed, what is recomputed and multipliers that are folded have tests of their own.
            if reported.get(field) != getattr(shape, field) and field not in ("remat", "attention", "parametrization"):
                assert program(shape) == before, f"{field}: {form.name} loses it"


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_an_option_that_a_format_has_never_heard_of_is_refused(form):
    """A field that a fork adds to the shape; and none is listed that the shape lacks."""
    limited = set(form.limits(examples.shape("gpt2")))
    assert {*form.keys, *form.ours, *form.told, *form.unused, *limited, *IRRELEVANT_KEYS} <= set(FIELDS)
    fork = dataclasses.make_dataclass("Fork", [("value_norm", bool, False)], bases=(ModelShape,), frozen=True)
    shape = fork(**dataclasses.asdict(examples.shape("gpt2")))
    assert unsupported_keys(form, shape)["value_norm"] == (False, UNKNOWN)
    with pytest.raises(BadInput, match=r"model\.value_norm=False"):
        find_format(shape)


def test_a_size_that_config_json_does_not_imply_is_refused():
    """A fork that fuses a gate into q: the names are Llama's, the tensor is not."""
    plain = 'Einsum(embed, queries, bias, self.policy, by_head, std=init.std, name="q")(x_BSD)'
    doubled = '(("heads", 2 * s.n_heads), queries[1])'
    wide = {plain: f'Einsum(embed, {doubled}, bias, self.policy, by_head, name="q")(x_BSD)[:, :, : s.n_heads]'}
    shape = examples.shape("llama_tied")
    with forks.attention_edited(pytest.MonkeyPatch(), wide), pytest.raises(BadInput) as refusal:
        tensor_places(FORMATS["llama"], shape)
    assert "axis 'heads' of blocks.attention.q.w has size 6" in str(refusal.value)
    assert "config.json implies 3" in str(refusal.value)


def test_a_parameter_that_a_row_lacks_or_holds_twice_is_refused():
    shape, llama = examples.shape("llama_tied"), FORMATS["llama"]
    fewer = dataclasses.replace(llama, tensors=llama.tensors[1:])
    with pytest.raises(BadInput, match=r"llama has no place for the parameter embed\.w: give it a row"):
        tensor_places(fewer, shape)
    twice = dataclasses.replace(llama, tensors=(*llama.tensors, TensorRow("more", ("embed.w",))))
    with pytest.raises(BadInput, match=r"llama has 2 places for the parameter embed\.w"):
        tensor_places(twice, shape)
    fused = dataclasses.replace(llama, tensors=(*llama.tensors, TensorRow("more", ("final_norm.g", "final_norm.b"))))
    with pytest.raises(BadInput, match=r"more holds final_norm\.g and final_norm\.b; this model has no final_norm\.b"):
        tensor_places(fused, shape)


@pytest.mark.parametrize("name", [*one_in(4, examples.DENSE), *one_in(4, examples.MIXTURES)])
def test_the_table_names_every_parameter_once(name):
    shape = examples.shape(name)
    chosen = [(leaf, place.index) for place in tensor_places(find_format(shape), shape).values() for leaf in place.ours]
    assert len(chosen) == len(set(chosen))
    assert {leaf for leaf, _ in chosen} == set(all_declarations(shape))


def test_a_real_size_has_the_names_and_shapes_of_llama_2_7b():
    """Touvron et al. 2023, Llama 2 7B: 32 layers, width 4096, 32 heads, feed-forward 11008, 32000 pieces."""
    tree = base.get_config()
    tree.model = base.llama(4096, 32, 32)
    tree.model.update({"vocab_size": 32000, "d_ff": 11008})
    places = tensor_places(FORMATS["llama"], config_lib.static(config_lib.resolve(tree)).model)
    assert len(places) == 32 * 9 + 3
    assert places["model.layers.31.mlp.down_proj.weight"].shape == (4096, 11008)
    assert places["lm_head.weight"].shape == (32000, 4096)
    assert sum(int(np.prod(place.shape)) for place in places.values()) == 6_738_415_616
