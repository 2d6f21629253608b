"""Latent attention against DeepSeek-V2's equations in float64 numpy, its kernels, its cache, and what it refuses."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import Layout
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.evaluate import generate
from scalelab.model import count, decode, transformer
from scalelab.model.attention import kernels
from scalelab.model.attention.documents import document_segments
from scalelab.model.attention.latent import LatentAttention
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.model.declare import named_leaves
from scalelab.model.stacks import UNIFORM_LAYERS
from scalelab.parallel import rules
from scalelab.precision.policy import FP32, POLICIES
from scalelab.sweep.scaling.resize import resize_config
from scalelab.sweep.scaling.shrink import shrink_recipe
from tests.model.attention.test_kernels import gradient_error, segments, with_gradients
from tests.model.attention.test_lowered import cudnn_calls
from tests.model.shapes import distance, loss_and_grads, random_params, shape, tokens
from tests.quick import cross, one_in, others_slow

SIZES = {"d_kv_latent": 12, "d_head_rope": 6, "d_head_value": 5, "seq_len": 20}
MODELS = {
    "queries of a latent, yarn": SIZES | {"d_q_latent": 20, "rope_scaling": "yarn", "rope_factor": 4.0,
        "rope_original": 8, "rope_theta": 50.0},
    "queries from the stream": SIZES | {"d_head": 7},
    "a window and biases": SIZES | {"window": 6, "bias": True, "norm_eps": 1e-3},
    "no positions": SIZES | {"position": "none", "d_q_latent": 4},
    "muP": SIZES | {"parametrization": "mup", "base_width": 8},
}  # fmt: skip


def yarn_frequencies(of):
    """Peng et al. 2023, section 3.2, of the numbers that are rotated."""
    width, pairs = of.d_head_rope, np.arange(of.d_head_rope // 2)
    plain = of.rope_theta ** (-2.0 * pairs / width)
    if of.rope_scaling == "none":
        return plain, 1.0
    pair = lambda turns: width * math.log(of.rope_original / (turns * 2 * math.pi)) / (2 * math.log(of.rope_theta))  # noqa: E731
    first, last = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), width - 1)
    slow = np.clip((pairs - first) / max(last - first, 1e-3), 0, 1)
    return plain * (1 - slow) + plain / of.rope_factor * slow, (0.1 * math.log(of.rope_factor) + 1) ** 2


def by_hand(of, p, x, segment, position):
    """DeepSeek-V2 (2024), eqs. 9 to 19, head by head and query by query, in float64."""
    p = {name: np.float64(leaf) for name, leaf in named_leaves(p).items()}
    x, wide = np.float64(x), of.d_head
    (frequency, amplitude), rotates = yarn_frequencies(of), of.position == "rope"
    scale = amplitude if rotates else 1.0
    width = wide + of.d_head_rope
    follows = of.parametrization == "mup"
    scale *= math.sqrt(of.base_d_head / wide / width) if follows else width**-0.5

    def multiply(name, y):
        w = p[f"{name}.w"]
        return np.tensordot(y, w, 1) + p.get(f"{name}.b", 0.0)

    def normed(name, y):
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + of.norm_eps) * p[f"{name}.g"]

    def turned(y, at):
        if not rotates:
            return y
        a, b, angle = *np.split(y, 2), at * frequency
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)])

    q = multiply("q_up", normed("q_norm", multiply("q_down", x))) if of.d_q_latent else multiply("q", x)
    token = multiply("kv_down", x)
    latent, shared = normed("kv_norm", token[..., : of.d_kv_latent]), token[..., of.d_kv_latent :]
    both = multiply("kv_up", latent)
    heads = np.zeros((*x.shape[:2], of.n_heads, of.d_head_value))
    for row, i, head in np.ndindex(*x.shape[:2], of.n_heads):
        seen = [j for j in range(i + 1) if segment[row, j] == segment[row, i] and (not of.window or i - j < of.window)]
        content, rotated = q[row, i, head, :wide], turned(q[row, i, head, wide:], position[row, i])
        keys = [(both[row, j, head, :wide], turned(shared[row, j], position[row, j])) for j in seen]
        logits = scale * np.array([content @ key + rotated @ part for key, part in keys])
        weights = np.exp(logits - logits.max())
        heads[row, i, head] = weights / weights.sum() @ both[row, seen, head, wide:]
    o = p["o.w"]
    return np.tensordot(heads, o, 2) + p.get("o.b", 0.0)


@pytest.mark.parametrize("name", one_in(5, MODELS))
def test_the_output_is_that_of_the_paper_s_equations(name):
    of = shape(**MODELS[name])
    params = jax.tree.map(lambda w: w[0], random_params(of)["blocks"]["attention"])
    ids = tokens(of)[:, :-1].at[0, 7].set(5).at[1, 3].set(5)
    packed, x = document_segments(ids, 5), np.random.default_rng(3).normal(size=(2, of.seq_len, of.d_model))
    run = functools.partial(LatentAttention(of, FP32).apply, {"params": params})
    y = run(jnp.asarray(x, jnp.float32), UNIFORM_LAYERS, packed, None)
    expected = by_hand(of, params, x, packed.segment_BS, np.asarray(packed.position_BS))
    assert np.abs(y - expected).max() < 1e-6 * np.abs(expected).max()


def test_each_block_holds_the_matrices_of_the_paper():
    """DeepSeek-V2-Lite at its own sizes (its config.json): queries straight from the stream."""
    lite = {"d_head": 128, "d_kv_latent": 512, "d_head_rope": 64, "d_model": 2048, "n_heads": 16, "vocab_size": 8}
    declared = transformer.parameter_declarations(shape(**lite))["blocks"]["attention"]
    sizes = {name: d.shape[1:] for name, d in named_leaves(declared).items()}
    assert sizes == {
        "q.w": (2048, 16, 192), "kv_down.w": (2048, 576), "kv_norm.g": (512,), "kv_up.w": (512, 16, 256),
        "o.w": (16, 128, 2048),
    }  # fmt: skip


def test_its_flops_are_those_of_the_program_and_of_the_matrices():
    """Two layers of 20 tokens in a window of 6; keys of 8 + 6 numbers, values of 5."""
    of = shape(**SIZES, d_q_latent=20, window=6)
    terms = count.appendix_f_flops(of)
    assert terms["attention_logits"] == 2 * 20 * (2 * 6) * 4 * (8 + 6)
    assert terms["attention_values"] == 2 * 20 * (2 * 6) * 4 * 5
    per_block = 32 * (20 + 12 + 6) + 20 * 4 * (8 + 6) + 12 * 4 * (8 + 5)
    assert terms["qkv"] == 2 * 20 * 2 * per_block
    products = sum(flops for name, flops in terms.items() if name not in ("embedding", "softmax"))
    assert count.flops_per_token(of)["exact"] == 3 * products / 20


ALL, WINDOW = MaskInfo(), MaskInfo(is_global=jnp.array(False))
SIGHTS = {"all": ALL, "documents": MaskInfo(segments(50)), "a window": WINDOW}
PAIRS = cross(["blockwise", "xla"], one_in(3, [pytest.param(s, id=name) for name, s in SIGHTS.items()]))


@pytest.mark.parametrize(
    ("kernel", "sight"), others_slow(lambda k, sight: sight is ALL or (k == "xla") == (sight is WINDOW), PAIRS)
)
def test_values_of_another_width_than_keys(kernel, sight):
    random = np.random.default_rng(0)
    q, k, v, weights = (jnp.asarray(random.normal(size=(2, 50, 4, n)), jnp.float32) for n in (8, 8, 5, 5))
    scoring = Scoring(0.3, sight, 7)
    expected = with_gradients(lambda *x: kernels.compute_attention(*x, scoring, "plain"), q, k, v, weights)
    found = with_gradients(lambda *x: kernels.compute_attention(*x, scoring, kernel), q, k, v, weights)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=gradient_error(b))


@pytest.mark.full
def test_the_tpu_s_kernel_takes_keys_filled_up_to_its_lanes(monkeypatch):
    """Keys of 24 numbers and values of 16, in lanes of 128, interpreted."""
    interpreted = functools.partial(kernels.splash_attention, interpret=True)
    monkeypatch.setitem(kernels.KERNELS, "splash", interpreted)
    random = np.random.default_rng(0)
    q, k, v, weights = (jnp.asarray(random.normal(size=(1, 128, 2, n)), jnp.float32) for n in (24, 24, 16, 16))
    both = [
        with_gradients(lambda *x, how=how: kernels.compute_attention(*x, Scoring(0.1), how), q, k, v, weights)
        for how in ("plain", "splash")
    ]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


def test_kernels_of_one_width_take_values_and_keys_filled_up():
    """V3's heads: keys of 128 + 64, values of 128."""
    assert kernels.kernel_widths("cudnn", 192, 128) == (192, 192)
    assert kernels.kernel_widths("splash", 192, 128) == (256, 128)
    assert kernels.kernel_widths("blockwise", 192, 128) == (192, 128)
    assert kernels.kernel_widths("splash", 64, 64) == (64, 64)  # refused, as every d_head but multiples of 128
    of = shape(d_kv_latent=512, d_head=128, d_head_rope=64, seq_len=4096)
    chosen = {
        target: kernels.choose_kernel(of, jnp.dtype("bfloat16"), target=target)
        for target in (
            kernels.Target("gpu", (9, 0)), kernels.Target("gpu", (8, 0)), kernels.Target("tpu"), kernels.Target("cpu"),
        )
    }  # fmt: skip
    assert list(chosen.values()) == ["cudnn", "blockwise", "splash", "blockwise"]  # 192 is too wide for Ampere


def test_cudnn_is_called_with_values_as_wide_as_keys():
    """Lowered for a Hopper, forward and backward, documents by their offsets."""
    like = lambda *shape, dtype="bfloat16": jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731

    def loss(q, k, v, segment_BS):
        y = kernels.compute_attention(q, k, v, Scoring(0.1, MaskInfo(segment_BS)), "cudnn")
        assert y.shape[-1] == 128
        return y.astype(jnp.float32).sum()

    heads = [like(2, 1024, 4, width) for width in (192, 192, 128)]
    program = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*heads, like(2, 1024, dtype=jnp.int32))
    calls = cudnn_calls(program.lower(lowering_platforms=("cuda",)).as_text())
    assert [name for name, _, _ in calls] == ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]
    for _, config, types in calls:
        assert types[:3] == ["tensor<2x1024x4x192xbf16>"] * 3
        assert config["mask_type"] == "PADDING_CAUSAL"


CACHED = {"queries of a latent": "queries of a latent, yarn", "biases": "a window and biases", "muP": "muP"}


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name != "muP", CACHED))
def test_a_cache_of_latents_gives_the_logits_of_the_whole_sequence(name):
    of, separator = shape(**MODELS[CACHED[name]]), 5
    params, ids = random_params(of), tokens(of)[:, :-1].at[0, 3].set(5).at[1, 8].set(5)
    expected = transformer.next_token_logits(of, params, ids, packed=document_segments(ids, separator))
    cache, pieces = decode.empty_cache(of, 2, 24), []
    assert {key: leaf.shape for key, leaf in cache.keys.items()} == {"latent": (2, 2, 24, 1, 12 + 6)}
    extend = jax.jit(decode.decode_tokens, static_argnums=(0, 4))
    for part in jnp.split(ids, [7, 8, 9], axis=1):
        logits, cache = extend(of, params, part, cache, FP32, decode.DocumentStarts(separator))
        pieces.append(logits)
    difference = np.abs(np.concatenate(pieces, axis=1) - expected).max()
    assert difference < 3e-6 * np.abs(expected).max()


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bf16", "fp8", pytest.param("tf32", marks=pytest.mark.slow)])
def test_other_formats_come_near(precision):
    of = shape(**MODELS["queries of a latent, yarn"])
    params, ids, policy = random_params(of, noise=0.05), tokens(of), POLICIES[precision]
    (_, exact), (_, rounded) = (loss_and_grads(of, params, ids, policy=each) for each in (FP32, policy))
    assert distance(rounded, exact) < {"bf16": 0.05, "fp8": 0.5, "tf32": 0.01}[precision]


@pytest.mark.full
@pytest.mark.parametrize("remat", [pytest.param("dots", marks=pytest.mark.slow), "full"])
def test_recomputed_blocks_have_the_same_gradients(remat):
    of = shape(**MODELS["a window and biases"])
    params, ids = random_params(of, noise=0.05), tokens(of)
    (_, grads), (_, again) = (loss_and_grads(dataclasses.replace(of, remat=r), params, ids) for r in ("none", remat))
    assert distance(again, grads) < 1e-6


@pytest.mark.full
def test_a_run_s_likeliest_tokens_are_those_without_a_cache(tmp_path, capsys, monkeypatch):
    """Trained with documents, windows and bf16 weights' fp32 masters; greedy, by `scalelab sample`."""
    run, values = tmp_path / "run", {
        "d_kv_latent": 16, "d_q_latent": 24, "d_head_rope": 4, "d_head_value": 12, "d_model": 32, "seq_len": 48,
        "window": 16, "global_every": 2,
    }  # fmt: skip
    settings = [f"--config.model.{key}={value}" for key, value in values.items()]
    settings += ["--config.train.steps=8", "--config.train.global_batch=4", "--config.data.documents=mask"]
    assert main(["train", "--config=configs/tiny.py", f"--workdir={run}", *settings]) == 0
    command = ["sample", str(run), "--prompt=def ", "--tokens=24", "--temperature=0", "--json"]
    capsys.readouterr()
    assert main(command) == 0
    cached = json.loads(capsys.readouterr().out)["samples"]
    monkeypatch.setattr(generate, "keeps_tokens", lambda static: True)
    for compiled in (generate.begin, generate.go_on):
        compiled.clear_cache()
    assert main(command) == 0
    assert [each["ids"] for each in json.loads(capsys.readouterr().out)["samples"]] == [each["ids"] for each in cached]


def test_a_resized_model_and_a_twin_keep_the_ratios_of_latents():
    """The parts of a head stay with the width; a twin's keep their ratio to d_head."""
    tree = base.get_config()
    tree.model = base.llama(512, 4, 4)
    sizes = {"d_kv_latent": 128, "d_q_latent": 192, "d_head": 128, "d_head_rope": 64, "d_head_value": 96}
    with tree.model.ignore_type():
        tree.model.update(sizes)
    config = config_lib.resolve(tree)
    wide, twin = resize_config(config, 1024).model, shrink_recipe(config, 64).model
    assert [wide[key] for key in sizes] == [256, 384, 128, 64, 96]
    assert [twin[key] for key in sizes] == [16, 24, 16, 8, 12]


def test_fsdp_splits_latents_and_is_refused_where_it_can_not():
    of = shape(d_kv_latent=24, d_q_latent=16)
    specs = rules.parameter_specs(of, Layout(fsdp=8))["blocks"]["attention"]
    assert {name: list(part["w"]).index("fsdp") for name, part in specs.items() if "w" in part} == {
        "q_down": 1, "q_up": 1, "kv_down": 1, "kv_up": 1, "o": 3,
    }  # fmt: skip
    tiny = config_lib.static(config_lib.resolve(base.get_config()))
    split = dataclasses.replace(tiny, model=dataclasses.replace(of, d_kv_latent=20), global_batch=8)
    with pytest.raises(BadInput, match=r"model.d_kv_latent=20 is not divisible by parallel.fsdp=8.*nearest.*24"):
        rules.check_layout(split, Layout(fsdp=8))


REFUSED = {
    "relative": ({"position": "relative"}, "model.position='relative' with model.d_kv_latent=16", "nearest: rope"),
    "qk_norm": ({"qk_norm": "true"}, "could not be absorbed", "nearest: False"),
    "grouped": ({"n_kv_heads": 2}, "model.n_kv_heads=2 with model.d_kv_latent=16", "model.n_heads=4 heads"),
    "odd": ({"d_head_rope": 7}, "model.d_head_rope=7 must be even", "nearest: 8"),
    "no latent": ({"d_kv_latent": 0, "d_q_latent": 8}, "model.d_q_latent=8 without model.d_kv_latent", "nearest"),
    "no value": ({"d_kv_latent": 0, "d_head_value": 8}, "model.d_head_value=8 without model.d_kv_latent", "=16"),
    "ntk": ({"d_head_rope": 2, "rope_scaling": "ntk", "rope_factor": 2}, "model.d_head_rope=2", "model.d_head_rope=4"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_is_refused_by_name(case, capsys, tmp_path):
    values, *words = REFUSED[case]
    settings = [f"--config.model.{key}={value}" for key, value in ({"d_kv_latent": 16} | values).items()]
    assert main(["train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}", *settings]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert not (tmp_path / "run").exists()
