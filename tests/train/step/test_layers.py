"""The layer metrics of a step, against a model written in numpy (float64) and gradients taken outside the step."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import Layout, replace_hparams
from scalelab.model import transformer
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.pieces import end_in_loss
from scalelab.model.stacks import all_layer_flags, select_layers
from scalelab.precision.policy import FP32
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import loss_sums
from scalelab.train.step.guard import Counts
from scalelab.train.step.metrics import LAYERS
from scalelab.train.step.report.layers import DUE, OFF
from scalelab.train.step.step import many_steps, train_step
from tests.train.runs import ROOT
from tests.train.step.test_step import BATCH, SEQ_LEN, assert_same, batches, setting

EVERY = 2
step = jax.jit(train_step, static_argnums=0)
steps = jax.jit(many_steps, static_argnums=0)
LLAMA = {"model.n_layers": 3, "model.n_kv_heads": 1, "optim.clip_norm": 1e-3, "optim.eps": 1e-5}
RELU = {
    "model.n_layers": 2, "model.mlp": "relu", "model.position": "learned", "model.norm": "layernorm",
    "model.bias": True, "model.tied_head": True, "model.window": 5,
}  # fmt: skip
MODELS = {"llama": LLAMA, "relu": RELU}


@functools.cache
def made(name, **changes):
    """(static, hparams, a state after some steps) of a model that measures its layers at every second step."""
    static, h = setting(**MODELS[name], **{"log.layers_every": EVERY}, **changes)
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)
    if name == "relu":  # one unit of the second layer that no token turns on
        up = state.params["blocks"]["mlp"]["up"]
        state.params["blocks"]["mlp"]["up"] = up | {"b": up["b"].at[1, 3].set(-100.0)}
    return static, h, steps(static, state, batches(), jnp.int32(3), h)[0]


def norm(x, gain, bias, kind, eps):
    x = x - x.mean(-1, keepdims=True) if kind == "layernorm" else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain + bias


def rotated(x, theta):
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def look_inside(shape, params, tokens, targets):
    """{name: value} of the activations, from a forward pass in float64 that shares no code with the model."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    seq = tokens.shape[1]
    x = p["embed"]["w"][tokens] + (p["positions"]["w"][:seq] if shape.position == "learned" else 0)
    index = np.arange(seq)
    distance = index[:, None] - index[None]
    seen = (distance >= 0) & (distance < (shape.window or seq))
    expected = {"residual_rms": [], "attention_logit_max": [], "attention_entropy": [], "dead_units": []}
    for i in range(shape.n_layers):
        b = jax.tree.map(lambda w: w[i], p["blocks"])  # noqa: B023
        normed = lambda y, g: norm(y, g["g"], g.get("b", 0), shape.norm, shape.norm_eps)  # noqa: E731
        y = normed(x, b["attention_norm"])
        q, k, v = (np.einsum("bsd,dnh->bsnh", y, b["attention"][n]["w"]) + b["attention"][n].get("b", 0) for n in "qkv")
        if shape.position == "rope":
            q, k = rotated(q, shape.rope_theta), rotated(k, shape.rope_theta)
        k, v = (np.repeat(each, shape.n_heads // shape.n_kv_heads, axis=2) for each in (k, v))
        logits = np.where(seen, np.einsum("bsnh,btnh->bnst", q, k) / np.sqrt(shape.d_head), -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        heads = np.einsum("bnst,btnh->bsnh", weights, v)
        x = x + np.einsum("bsnh,nhd->bsd", heads, b["attention"]["o"]["w"]) + b["attention"]["o"].get("b", 0)
        y = normed(x, b["mlp_norm"])
        h = y @ b["mlp"]["up"]["w"] + b["mlp"]["up"].get("b", 0)
        if shape.mlp == "swiglu":
            gate = y @ b["mlp"]["gate"]["w"]
            h = gate / (1 + np.exp(-gate)) * h
        else:
            h = np.maximum(h, 0)
        x = x + h @ b["mlp"]["down"]["w"] + b["mlp"]["down"].get("b", 0)
        off = OFF * np.sqrt((h * h).mean()) if shape.mlp == "swiglu" else 0
        expected["residual_rms"].append(np.sqrt((x * x).mean()))
        expected["attention_logit_max"].append(logits.max())
        expected["attention_entropy"].append(-(weights * np.log(np.maximum(weights, 1e-300))).sum(-1)[..., 7::8].mean())
        expected["dead_units"].append((np.abs(h).max((0, 1)) <= off).mean())
    logits = normed(x, p["final_norm"]) @ (p["embed"]["w"].T if shape.tied_head else p["head"]["w"])
    most = logits.max(-1)
    log_z = most + np.log(np.exp(logits - most[..., None]).sum(-1))
    expected |= {
        "logits/rms": np.sqrt((logits * logits).mean()),
        "logits/log_z": log_z.mean(),
        "logits/max": most.max(),
    }
    nll = log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    quantiles = {
        name: np.quantile(nll, q, method="inverted_cdf") for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }
    expected |= {f"token_loss/{name}": value for name, value in quantiles.items()}
    rows = np.argsort(-nll.mean(-1))[:4]
    for i, row in enumerate(rows):
        expected |= {f"worst/row_{i + 1}": row, f"worst/loss_{i + 1}": nll[row].mean()}
    return expected


def outside(static, h, new, tokens):
    """{name: value} of the embedding and the second moments after the step, in numpy."""
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=static.model.vocab_size)
    order = sorted(range(len(counts)), key=lambda row: (-counts[row], row))
    sizes = np.linalg.norm(np.float64(new.params["embed"]["w"]), axis=1)[order]
    edges = [0, len(order) // 3, 2 * len(order) // 3, len(order)]
    names = ("embedding/frequent", "embedding/middle", "embedding/rare")
    expected = {name: sizes[a:b].mean() for name, a, b in zip(names, edges[:-1], edges[1:], strict=True)}
    moments = new.opt_state[1]
    root = jax.tree.map(lambda v: np.sqrt(np.float64(v) / (1 - 0.95 ** int(moments.count))), moments.nu)
    for group, part in root.items():
        leaves = [np.float64(v) < float(h.optim.eps) for v in jax.tree.leaves(part)]
        if group == "blocks":
            small = [leaf.reshape(len(leaf), -1) for leaf in leaves]
            expected["eps_share"] = np.concatenate(small, axis=1).mean(1)
        else:
            expected[f"{group}/eps_share"] = np.concatenate([leaf.ravel() for leaf in leaves]).mean()
    return expected


def norms(tree):
    """{"blocks": [L], other groups: one number}, in float64."""
    squares = lambda x, axes: np.sum(np.square(np.float64(x)), axis=axes)  # noqa: E731
    expected = {
        name: np.sqrt(sum(squares(x, None) for x in jax.tree.leaves(part)))
        for name, part in tree.items()
        if name != "blocks"
    }
    by_layer = sum(squares(x, tuple(range(1, x.ndim))) for x in jax.tree.leaves(tree["blocks"]))
    return expected | {"blocks": np.sqrt(by_layer)}


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", pytest.param("relu", marks=pytest.mark.slow)])
def test_every_value_is_that_of_a_model_written_out(name):
    static, h, state = made(name)
    tokens = batches(seed=1)[0]
    new, metrics = step(static, state, tokens, h)
    layers = metrics[LAYERS]
    assert layers.pop(DUE)

    def loss(params):
        sums = loss_sums(dataclasses.replace(static, layers=False), params, tokens, h.train.z_loss)
        return sums.objective / sums.tokens

    inputs, targets = np.asarray(tokens[:, :-1]), np.asarray(tokens[:, 1:])
    expected = look_inside(static.model, state.params, inputs, targets) | outside(static, h, new, tokens)
    moved = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), new.params, state.params)
    each = {"grad_norm": jax.jit(jax.grad(loss))(state.params), "update_norm": moved, "weight_norm": new.params}
    for kind, tree in each.items():
        for group, value in norms(tree).items():
            expected[kind if group == "blocks" else f"{group}/{kind}"] = value
    assert expected.keys() == layers.keys()
    for key, value in expected.items():
        tolerance = (
            1e-3 if "update_norm" in key else 1e-5
        )  # an update is known only up to the rounding of new - old weights
        np.testing.assert_allclose(layers[key], value, rtol=tolerance, err_msg=key)
    whole = sum(np.sum(np.square(v)) for key, v in layers.items() if key.split("/")[-1] == "grad_norm")
    np.testing.assert_allclose(np.sqrt(whole), metrics["grad_norm"], rtol=1e-6)  # no parameter is left out
    if name == "relu":
        np.testing.assert_array_equal(layers["dead_units"][1] * static.model.d_ff >= 1, True)


@pytest.mark.full
def test_every_step_for_a_while_after_the_guard_flagged_one():
    static, h, state = made("llama")  # at step 3; the one after is due
    h = replace_hparams(h, {"log.layers_after_alarm": jnp.float32(2)})
    tokens, place = batches(seed=1)[0], Counts._fields.index("last_flag")
    due = {}
    for at in (4, 5, 6, 7):
        for flag in (-1, 4):
            counts = state.guard.counts.at[place].set(flag)
            past = state._replace(step=jnp.int32(at), guard=state.guard._replace(counts=counts))
            due[at, flag] = bool(step(static, past, tokens, h)[1][LAYERS][DUE])
    assert [due[at, -1] for at in (4, 5, 6, 7)] == [False, True, False, True]
    assert [due[at, 4] for at in (4, 5, 6, 7)] == [True, True, True, True]
    h = replace_hparams(h, {"log.layers_after_alarm": jnp.float32(1)})
    assert not step(static, past._replace(step=jnp.int32(6)), tokens, h)[1][LAYERS][DUE]


@pytest.mark.full
def test_it_changes_no_bit_of_what_is_trained():
    """Also on the steps between: the program with measuring in it takes the same way."""
    static, h, state = made("llama")
    off = dataclasses.replace(static, layers=False)
    run = [steps(s, state, batches(6, seed=3), jnp.int32(6), h) for s in (static, off)]
    (measured, log), (plain, plain_log) = run
    layers = log.pop(LAYERS)
    assert_same(measured, plain)
    assert_same(log, plain_log)
    assert np.isfinite(layers["grad_norm"]).all(axis=1).tolist() == [True, False] * 3  # the state is at step 3


@pytest.mark.full
def test_zeros_in_gradients_that_come_back_are_counted_in_the_format_they_come_in():
    """The gradient at the last block's output, taken in fp32 outside the step and cast by numpy."""
    static, h = setting(**{"model.n_layers": 1, "precision.name": "fp16", "log.layers_every": EVERY})
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)._replace(step=jnp.int32(1))
    tokens = batches(seed=1)[0]
    split = SplitTokens(tokens[:, :-1], tokens[:, 1:])
    end = end_in_loss(static.model, split, h.train.z_loss)
    pieces = transformer.make_pieces(static.model, FP32, split, end)
    one = jax.tree.map(lambda w: w[0], state.params["blocks"])
    flags = select_layers(all_layer_flags(static.model), 0)
    after, _ = pieces.block({"params": one}, pieces.enter(state.params), flags)

    def loss(x):
        sums = pieces.leave(state.params, x)
        return sums.objective / sums.tokens

    gradient, shares = np.asarray(jax.grad(loss)(after)), []
    for scale in (2.0**10, 2.0**-10, 2.0**-14):
        scaled = state._replace(precision=state.precision._replace(scale=jnp.float32(scale)))
        shares.append(float(step(static, scaled, tokens, h)[1][LAYERS]["gradient_zeros"][0]))
        expected = (np.float16(np.float64(gradient) * scale) == 0).mean()
        np.testing.assert_allclose(shares[-1], expected, atol=0.03)
    assert shares[0] < 0.01 < shares[1] < shares[2]


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"train.accumulate": 4, "model.remat": "full"},
        pytest.param({"model.remat": "dots"}, marks=pytest.mark.slow),
        pytest.param({"model.attention": "blockwise"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_does_not_depend_on_how_the_step_is_computed(changes):
    static, h, state = made("llama")
    other, _ = setting(**LLAMA, **{"log.layers_every": EVERY}, **changes)
    tokens = batches(seed=1)[0]
    expected, layers = (step(s, state, tokens, h)[1][LAYERS] for s in (static, other))
    assert other != static and other.layers and static.layout == Layout()
    for key, value in expected.items():
        np.testing.assert_allclose(layers[key], value, rtol=1e-5, err_msg=key)


@pytest.mark.full
def test_each_packed_trial_has_its_own():
    static, h, state = made("llama")
    rates = jnp.float32([1e-3, 1e-2])
    together = jax.jit(
        jax.vmap(
            functools.partial(train_step, static),
            in_axes=(None, 0, replace_hparams(jax.tree.map(lambda _: None, h), {"optim.peak_lr": 0})),
        )
    )
    tokens = jnp.stack([batches(seed=seed)[0] for seed in (1, 2)])
    layers = together(state, tokens, replace_hparams(h, {"optim.peak_lr": rates}))[1][LAYERS]
    for i in range(2):
        alone = step(static, state, tokens[i], replace_hparams(h, {"optim.peak_lr": rates[i]}))[1][LAYERS]
        for key, value in alone.items():
            np.testing.assert_allclose(layers[key][i], value, rtol=1e-5, err_msg=key)
    assert layers["dead_units"].shape == (2, 3) and tokens[0, :, 1:].size == BATCH * SEQ_LEN


MESH = """
import dataclasses, sys
import jax, numpy as np
from scalelab.config import Layout, replace_hparams
from scalelab.train.step.metrics import LAYERS
from scalelab.train.step.program import PACKINGS
from tests.train.step.test_step import setting

shape = {"model.n_layers": 4, "model.n_heads": 4, "model.n_kv_heads": 2, "model.d_head": 4, "model.seq_len": 32}
static, h = setting(**shape, **{"log.layers_every": 2, "precision.name": sys.argv[2]})
h = jax.tree.map(float, h)
tokens = np.cumsum(np.random.default_rng(0).integers(1, 3, (2, 8, 33)), axis=-1) % 32
start = PACKINGS["turn"](static, [h]).init()
if sys.argv[2] == "fp16":  # a loss scale so small that gradients become zero
    start = [start[0]._replace(precision=start[0].precision._replace(scale=np.float32(2.0**-12)))]

def layers(layout):
    program = PACKINGS["turn"](dataclasses.replace(static, layout=layout), [h])
    _, (log,) = program.advance(program.join(jax.device_get(start)), [tokens[:, program.rows]], 2)
    return {key: value[1] for key, value in jax.device_get(log[LAYERS]).items()}

expected = layers(Layout())
got = layers(Layout(**eval(sys.argv[1])))
for key, value in expected.items():
    if sys.argv[2] == "fp32":
        np.testing.assert_allclose(got[key], value, rtol=1e-5, err_msg=key)
if sys.argv[2] != "fp32":
    zeros = expected["gradient_zeros"]
    np.testing.assert_allclose(got["gradient_zeros"], zeros, atol=0.02)
    assert 0.05 < zeros.min() and zeros.max() < 1, zeros
print(len(expected))
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "layout",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"context": 2, "fsdp": 2, "tensor": 2, "sequence": True},
        {"stage": 2, "fsdp": 2, "tensor": 2, "microbatches": 4},
        {"stage": 2, "data": 2, "fsdp": 2, "zero": 1, "microbatches": 2},
        {"stage": 2, "fsdp": 2, "tensor": 2, "microbatches": 2, "schedule": "circular", "rounds": 2},
    ],
    ids=str,
)
def test_a_mesh_measures_what_one_device_does(layout, precision):
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", MESH, repr(layout), precision]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == 17 + 4 + 2 + 3 + 3 + 8 + 1 + (precision != "fp32")
