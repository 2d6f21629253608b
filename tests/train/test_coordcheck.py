"""Coordinate checks: the measured activations are the model's, and mup and completep differ from standard."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.data.batches.batches import train_batches
from scalelab.errors import BadInput
from scalelab.model import layers, transformer
from scalelab.sweep.scaling.resize import resize_config
from scalelab.train import coordcheck
from scalelab.train.activations import collect_activations
from scalelab.train.single import load_run_dataset
from scalelab.train.step.program import sequential_program
from tests.model.shapes import distance, random_params, shape, tokens
from tests.quick import one_in


@pytest.mark.parametrize(
    ("preset", "name"), one_in(3, [("llama", "mup"), ("gpt2", "completep"), ("chinchilla", "standard")])
)
def test_activations_are_those_of_the_model(preset, name):
    of = shape(preset, name, base_width=8, base_layers=1, n_layers=3)
    params, batch = random_params(of), tokens(of)[:, :-1]
    result = jax.jit(functools.partial(collect_activations, of))(params, batch)
    assert distance(result["logits"], transformer.next_token_logits(of, params, batch)) < 3e-6
    added = layers.branch_multiplier(of) * (result["attention"] + result["mlp"]).sum(0)
    assert distance(result["stream"], result["embedding"] + added) < 3e-6
    head = params["embed"]["w"].T if of.tied_head else params["head"]["w"]
    assert distance(result["logits"], result["final_norm"] @ head / of.width_ratio) < 3e-6
    assert result["attention"].shape == result["mlp"].shape == (3, *result["stream"].shape)


@pytest.mark.full
def test_attention_logits_are_what_the_first_block_computes():
    of = shape("gpt2", "mup", base_width=8, window=5)
    params, batch = random_params(of), tokens(of)[:, :-1]
    logits = np.asarray(collect_activations(of, params, batch)["attention_logits"][0])
    block = jax.tree.map(lambda w: np.asarray(w[0], np.float64), params["blocks"])
    x = np.asarray(params["embed"]["w"], np.float64)[batch] + np.asarray(params["positions"]["w"])[: batch.shape[1]]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + of.norm_eps)
    x = x * block["attention_norm"]["g"] + block["attention_norm"]["b"]
    q, k = (np.einsum("bsd,dnh->bsnh", x, block["attention"][n]["w"]) + block["attention"][n]["b"] for n in "qk")
    expected = np.einsum("bsnh,btnh->bnst", q, k) * of.base_d_head**0.5 / of.d_head
    behind = np.subtract.outer(np.arange(batch.shape[1]), np.arange(batch.shape[1]))
    expected = np.where((behind >= 0) & (behind < 5), expected, np.nan)
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


def test_a_power_law_has_its_power_as_slope():
    sizes, factor = np.array([64, 128, 1024]), np.array([[1.0], [3.0]])
    assert coordcheck.log_log_slope(sizes, factor * sizes**0.5) == pytest.approx((0.5, 0))
    two, error = coordcheck.log_log_slope(sizes, np.stack([sizes**0.5, sizes**0.1]))
    assert (two, error) == pytest.approx((0.3, 0.2))


@pytest.mark.parametrize(
    ("slope", "change", "verdict"),
    [(0.3, 0, "growing"), (0, 0.3, "growing"), (-0.5, 0.1, "flat"), (0, -0.3, "shrinking"), (0.3, -0.3, "growing")],
)
def test_verdicts(slope, change, verdict):
    row = coordcheck.ActivationRow("x", np.ones(1), np.ones(1), slope, 0.0, change, 0.0)
    assert (
        row.verdict
        == verdict
        == coordcheck.growth_verdict([row, coordcheck.ActivationRow("y", row.rms, row.rms, 0, 0, 0, 0)])
    )


def config(name: str, **model):
    tree = base.get_config()
    tree.data.source, tree.data.n_tokens, tree.model.vocab_size = "synthetic", 20_000, 64
    tree.model.mlp, tree.model.tied_head = "gelu", True  # fewer parameters to compile for
    tree.model.update({"d_model": 32, "n_layers": 1, "n_heads": 2, "seq_len": 32} | model)
    tree.parametrization.update(name=name, base_width=32, base_layers=1)
    tree.optim.peak_lr = 1e-2
    return config_lib.resolve(tree)


def rows(name: str, **sizes):
    """{activation: row} over widths (d_model=) or depths (n_layers=); all are standard at the base, compiled once."""
    axis, (first, *others) = next(iter(sizes.items()))
    configs = {first: config("standard")} | {value: resize_config(config(name), **{axis: value}) for value in others}
    data = load_run_dataset(configs[first])
    assert configs[first].model[axis] == first
    return {row.activation: row for row in coordcheck.run_coordinate_check(configs, data, 4, [0, 1], 4)}


@pytest.mark.slow
def test_with_width_standard_grows_and_mup_does_not():
    mup, standard = (rows(name, d_model=(32, 192)) for name in ("mup", "standard"))
    assert list(mup) == [
        "embedding", "attention logits last", "attention logits max last", "attention last", "mlp last", "stream",
        "final_norm", "logits"
    ]  # fmt: skip
    assert {name: row.verdict for name, row in mup.items()} == dict.fromkeys(mup, "flat")
    assert {name for name, row in standard.items() if row.verdict == "growing"} == {
        "attention logits last", "attention logits max last", "attention last", "mlp last", "stream", "logits"
    }  # fmt: skip
    assert all(row.rms.shape == (2, 2, 5) and (row.change[..., 0] == 0).all() for row in mup.values())


@pytest.mark.slow
def test_with_depth_standard_grows_and_completep_does_not():
    standard, completep = (rows(name, n_layers=(1, 4)) for name in ("standard", "completep"))
    assert standard["stream"].verdict == coordcheck.growth_verdict(list(standard.values())) == "growing"
    assert completep["stream"].verdict == completep["logits"].verdict == "flat", completep["stream"]
    assert completep["stream"].slope < 0.1 < 0.4 < standard["stream"].slope


def test_resized_keeps_the_recipe():
    of = config("mup", d_model=48, n_heads=6, n_kv_heads=2, d_ff=100)
    wide = resize_config(of, 96, 3)
    assert (wide.model.n_heads, wide.model.n_kv_heads, wide.model.d_head, wide.model.n_layers) == (12, 4, 8, 3)
    assert wide.model.d_ff == 200
    assert wide.parametrization == of.parametrization and wide.optim == of.optim
    assert resize_config(of) == of
    with pytest.raises(BadInput, match=r"d_model=100 does not hold whole groups of 3 heads of 8; nearest: 96, 120"):
        resize_config(of, 100)
    scales = [layers.head_multiplier(config_lib.static(c).model) for c in (of, wide)]
    assert scales[1] == pytest.approx(scales[0] / 2)


@pytest.mark.slow
def test_what_flows_is_measured_on_the_trainers_own_steps():
    """The change of the embedding is that of the looked-up rows of the trainer's parameters."""
    of = config("standard")
    of.train.global_batch = 4
    data = load_run_dataset(of)
    batches = train_batches(data, of.model.seq_len, 4, of.train.seed)
    h = config_lib.replace_hparams(config_lib.hparams(of), {"schedule.warmup_steps": 0})
    program = sequential_program(config_lib.static(of), [h])
    states = program.init()
    before = states[0].params["embed"]["w"].copy()
    for step in range(2):
        states, _ = program.advance(states, [batches.chunk(step, 1)], 1)
    probe = batches.batch(0)[:, :-1]
    change = (states[0].params["embed"]["w"] - before)[probe]
    row = {row.activation: row for row in coordcheck.run_coordinate_check({32: of, 33: of}, data, 2, [0], 4)}[
        "embedding"
    ]
    assert row.change[0, 0, -1] == pytest.approx(float(jnp.sqrt(jnp.mean(change**2))), rel=1e-5)
