"""What published recipes differ in, against formulas and a model written out in numpy float64."""

import functools
import math

import jax
import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.model import count, transformer
from scalelab.model.attention.positions.rotary import rope_frequencies, yarn_amplitude
from tests.model.shapes import logit_error, random_params, shape, tokens
from tests.model.test_decode import in_pieces
from tests.quick import one_in, others_slow

HEAD, THETA = 128, 500_000.0


def stretched(name, factor, original):
    """Frequencies of `transformers` for a config.json with this `rope_scaling`, pair by pair, in Python's floats."""
    rows = []
    for i in range(HEAD // 2):
        base = THETA ** (-2 * i / HEAD)
        wavelength = 2 * math.pi / base
        if name == "linear":
            rows.append(base / factor)
        elif name == "ntk":
            rows.append((THETA * factor ** (HEAD / (HEAD - 2))) ** (-2 * i / HEAD))
        elif name == "llama3":  # low_freq_factor 1, high_freq_factor 4
            smooth = (original / wavelength - 1) / (4 - 1)
            between = (1 - smooth) * base / factor + smooth * base
            rows.append(base if wavelength < original / 4 else base / factor if wavelength > original else between)
        else:  # yarn: beta_fast 32, beta_slow 1
            at = lambda turns: HEAD * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(THETA))  # noqa: E731
            low, high = math.floor(at(32)), math.ceil(at(1))
            ramp = min(max((i - low) / (high - low), 0), 1)
            rows.append(base / factor * ramp + base * (1 - ramp))
    return rows


@pytest.mark.parametrize("name", ["linear", "ntk", "llama3", "yarn"])
def test_frequencies_are_those_of_transformers(name):
    of = shape(d_head=HEAD, rope_theta=THETA, rope_scaling=name, rope_factor=8.0, rope_original=8192)
    actual = np.asarray(rope_frequencies(of))
    np.testing.assert_allclose(actual, stretched(name, 8.0, 8192), rtol=3e-6)
    assert not np.allclose(actual, stretched("linear", 1.0, 8192))
    assert yarn_amplitude(of) == (pytest.approx(0.1 * math.log(8) + 1) if name == "yarn" else 1.0)


def by_hand(of, params, row):
    """Logits [S, V] of one sequence of a Llama with the options of `of`: layer by layer, query by query, in float64."""
    p = jax.tree.map(np.float64, params)

    def rms(x, g, over=-1):
        return g * x / np.sqrt((x * x).mean(over, keepdims=True) + of.norm_eps)

    def norm(x, g):
        return rms(x - x.mean(-1, keepdims=True) if of.norm == "layernorm_nobias" else x, g)

    def attention(x, w, layer):
        q, k, v = (np.einsum("sd,dnh->snh", x, w[name]["w"]) + w[name].get("b", 0) for name in "qkv")
        if of.qk_norm:
            over = -1 if of.qk_norm_over == "head" else (-2, -1)
            q, k = rms(q, w["q_norm"]["g"], over), rms(k, w["k_norm"]["g"], over)
        k, v = (np.repeat(z, of.n_heads // of.n_kv_heads, axis=1) for z in (k, v))
        local = of.window and not (of.global_every and (layer + 1) % of.global_every == 0)
        if not (of.nope_every and (layer + 1) % of.nope_every == 0):
            turned = int(of.rope_share * of.d_head)
            (q, k), rest = (z[..., :turned] for z in (q, k)), [z[..., turned:] for z in (q, k)]
            turns, longer = np.asarray(rope_frequencies(of), np.float64), yarn_amplitude(of)
            if local and of.rope_local_theta:
                turns, longer = of.rope_local_theta ** (-2 * np.arange(len(turns)) / turned), 1.0
            turn = np.exp(1j * np.arange(len(x))[:, None] * turns)[:, None]
            q, k = (np.split(z, 2, axis=-1) for z in (q, k))
            q, k = ((z[0] + 1j * z[1]) * turn for z in (q, k))
            q, k = (longer * np.concatenate([z.real, z.imag], axis=-1) for z in (q, k))
            q, k = (np.concatenate(both, axis=-1) for both in zip((q, k), rest, strict=True))
        y = np.zeros(q.shape)
        for i, n in np.ndindex(q.shape[:2]):
            first = max(0, i - of.window + 1) if local else 0
            scores = k[first : i + 1, n] @ q[i, n] / math.sqrt(of.d_head)
            if of.attention_softcap:
                scores = of.attention_softcap * np.tanh(scores / of.attention_softcap)
            weights = np.exp(scores - scores.max())
            y[i, n] = weights / weights.sum() @ v[first : i + 1, n]
        return np.einsum("snh,nhd->sd", y, w["o"]["w"])

    def mlp(x, w):
        if of.mlp == "relu":
            return np.maximum(x @ w["up"]["w"], 0) @ w["down"]["w"]
        gate = x @ w["gate"]["w"]
        if of.mlp == "geglu":  # Hendrycks & Gimpel 2016, section 2
            gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
            return (gelu * (x @ w["up"]["w"])) @ w["down"]["w"]
        return (gate / (1 + np.exp(-gate)) * (x @ w["up"]["w"])) @ w["down"]["w"]

    x = p["embed"]["w"][row]
    for layer in range(of.n_layers):
        w = jax.tree.map(lambda each: each[layer], p["blocks"])  # noqa: B023
        g = {name: leaves["g"] for name, leaves in w.items() if "g" in leaves}
        if of.block == "parallel":
            y = norm(x, g["attention_norm"])
            x = x + attention(y, w["attention"], layer) + mlp(y, w["mlp"])
        elif of.norm_place == "after":
            x = x + norm(attention(x, w["attention"], layer), g["attention_norm"])
            x = x + norm(mlp(x, w["mlp"]), g["mlp_norm"])
        elif of.norm_place == "around":
            y = attention(norm(x, g["attention_norm"]), w["attention"], layer)
            x = x + norm(y, g["attention_out_norm"])
            x = x + norm(mlp(norm(x, g["mlp_norm"]), w["mlp"]), g["mlp_out_norm"])
        else:
            x = x + attention(norm(x, g["attention_norm"]), w["attention"], layer)
            x = x + mlp(norm(x, g["mlp_norm"]), w["mlp"])
    x = norm(x, p["final_norm"]["g"]) / (math.sqrt(of.d_model) if of.logit_scale == "rsqrt_width" else 1)
    return x @ (p["embed"]["w"].T if of.tied_head else p["head"]["w"])


YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original": 64}
OPTIONS = {
    "window": {"window": 4},
    "alternating": {"window": 4, "global_every": 2, "n_layers": 3},
    "nope": {"nope_every": 2, "window": 6, **YARN},
    "two thetas": {"window": 4, "global_every": 2, "n_layers": 3, "rope_local_theta": 50.0, **YARN},
    "parallel": {"block": "parallel"},
    "reordered norm": {"norm_place": "after", **YARN},
    "qwen 2.5": {"qkv_bias": True, "n_kv_heads": 2},
    "qwen 3": {"qk_norm": True, "n_kv_heads": 2},
    "olmo 2": {"qk_norm": True, "qk_norm_over": "projection", "norm_place": "after", "n_kv_heads": 2},
    "palm": {
        "norm": "layernorm_nobias",
        "block": "parallel",
        "n_kv_heads": 1,
        "tied_head": True,
        "logit_scale": "rsqrt_width",
    },
    "relu": {"mlp": "relu"},
    "gemma 2": {
        "mlp": "geglu", "norm_place": "around", "attention_softcap": 1.5, "window": 4, "global_every": 2,
        "n_kv_heads": 2, "n_layers": 3,
    },
    "stablelm": {"rope_share": 0.5},
}  # fmt: skip
PARTS_OF_OTHERS = {"parallel", "reordered norm"}  # palm, olmo 2
logits = jax.jit(transformer.next_token_logits, static_argnums=0)


@functools.cache
def setting(name, **changes):
    of = shape(**OPTIONS[name] | changes)
    return of, random_params(of), tokens(of)[:, :-1]


@pytest.mark.parametrize("name", others_slow(lambda name: name not in PARTS_OF_OTHERS, one_in(3, OPTIONS)))
def test_the_model_is_the_one_written_out(name):
    of, params, given = setting(name)
    np.testing.assert_allclose(logits(of, params, given)[0], by_hand(of, params, np.asarray(given[0])), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["gemma 2", pytest.param("alternating", marks=pytest.mark.slow), "nope", "two thetas", "stablelm"]
)
def test_a_cache_knows_windows_and_layers_without_positions(name):
    of, params, given = setting(name)
    expected = logits(of, params, given)
    atol = logit_error(of, expected)
    np.testing.assert_allclose(in_pieces(of, params, given, [7, 5]), expected, atol=atol)


@pytest.mark.parametrize(("over", "more"), [("head", 2 * 8), ("projection", 32 + 16)])
def test_gains_of_qk_norm_and_biases_of_qkv_are_counted(over, more):
    grouped = count.count_parameters(shape(n_kv_heads=2))["total"]
    assert count.count_parameters(shape(n_kv_heads=2, qk_norm=True, qk_norm_over=over))["total"] == grouped + 2 * more
    assert count.count_parameters(shape(n_kv_heads=2, qkv_bias=True))["total"] == grouped + 2 * (32 + 2 * 16)


def stds(**changes):
    """The declared standard deviation of each projection."""
    blocks = transformer.parameter_declarations(shape(**changes))["blocks"]
    return {name: d["w"].std for part in ("attention", "mlp") for name, d in blocks[part].items()}


def test_projections_begin_as_asked_and_smaller_the_deeper_the_model():
    """Radford et al. 2019, section 2.3: 1/sqrt(N) with N residual layers, two a block. OPT: 0.006 and so scaled."""
    inner, last = {"q", "k", "v", "up", "gate"}, {"o", "down"}
    plain, deep = stds(n_layers=8), stds(n_layers=8, depth_scaled_init=True)
    assert plain == {name: 88**-0.5 if name == "down" else 32**-0.5 for name in inner | last}
    assert deep == {name: std / (4 if name in last else 1) for name, std in plain.items()}
    opt = stds(n_layers=8, depth_scaled_init=True, projection_std=0.006)
    assert opt == {name: pytest.approx(0.006 / (4 if name in last else 1)) for name in plain}
    wide = stds(parametrization="mup", base_width=8, projection_std=0.006)
    assert set(wide.values()) == {0.003}
    scaled = {"depth_scaled_init": True, "n_layers": 8}
    based = stds(parametrization="completep", base_width=32, base_layers=2, **scaled)
    assert based["o"] == pytest.approx(32**-0.5 / 2)


@pytest.mark.full
def test_a_window_lowers_the_flops_of_its_layers():
    """Twelve S d_attn a layer for attention in full; with a window of four, 4 in place of S = 12."""
    full = shape(n_layers=3)
    one, every = shape(n_layers=3, window=4, global_every=2), shape(n_layers=3, window=4)
    for of, layers in ((one, 2), (every, 3)):
        assert count.flops_per_token(full)["exact"] - count.flops_per_token(of)["exact"] == layers * 12 * (12 - 4) * 32
    assert count.flops_per_token(shape(n_layers=3, window=40)) == count.flops_per_token(full)
    attention = [count.appendix_f_flops(of)["attention_logits"] for of in (full, one)]
    assert attention == [3 * 2 * 12 * 12 * 32, 2 * 12 * (12 + 4 + 4) * 32]
    assert count.count_parameters(shape(block="parallel"))["total"] == count.count_parameters(shape())["total"] - 2 * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_every": 2}, "without model.window"),
        ({"window": 4, "global_every": 1}, "every layer"),
        ({"nope_every": 1}, "every layer"),
        ({"nope_every": 2, "position": "learned"}, "for model.position='rope'"),
        ({"rope_scaling": "llama3"}, "go together"),
        ({"rope_factor": 8.0}, "go together"),
        ({"rope_scaling": "ntk", "rope_factor": 8.0, "d_head": 2}, "has one pair"),
        ({"rope_scaling": "yarn", "rope_factor": 8.0, "rope_theta": 1.0}, "a model.rope_theta above 1"),
        ({"rope_local_theta": 1e4, "window": 4}, "all layers are alike"),
        ({"rope_local_theta": 1e4, "position": "learned"}, "for model.position='rope'"),
        ({"block": "parallel", "norm_place": "after"}, "one norm"),
        ({"block": "parallel", "norm_place": "around"}, "one norm"),
        ({"rope_share": 0.4}, "is 3 numbers, and rope rotates pairs; nearest: 0.5"),
        ({"rope_share": 0.1}, "is 0 numbers, and rope rotates pairs; nearest: 0.25"),
        ({"rope_share": 0.5, "position": "none"}, "for model.position='rope'"),
        ({"rope_share": 0.5, "d_kv_latent": 16}, "there d_head_rope"),
        ({"window": -1}, "outside"),
        ({"qk_norm_over": "projection"}, "without model.qk_norm"),
        ({"qkv_bias": True, "bias": True}, "has a bias already"),
        ({"logit_scale": "rsqrt_width"}, "also the head"),
        ({"projection_std": -0.02}, "outside"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes, message):
    with pytest.raises(BadInput, match=message) as refused:
        shape(**changes)
    assert "\n" not in str(refused.value)
