"""Stacks of unequal layers: their text, their parameters and counts, and the model of one stack cut into several."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config.mixture_text import format_stacks, parse_stacks, scale_stacks
from scalelab.errors import BadInput
from scalelab.model import count, pieces, transformer
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.declare import named_leaves
from scalelab.model.stacks import BLOCKS, Stack, by_stack, is_stack, join_stacks, kinds, stacks
from scalelab.precision.policy import FP32
from scalelab.sweep.scaling import proxy
from scalelab.sweep.scaling.resize import resize_config
from scalelab.sweep.scaling.shrink import shrink_recipe
from scalelab.train.activations import collect_activations
from tests.model.shapes import random_params, shape, tokens
from tests.quick import one_in
from tests.sweep.scaling.test_proxy import recipe

FLAGS = {"n_layers": 4, "window": 4, "global_every": 3, "nope_every": 2}
CUT = "sequential=1,sequential=3"


def cut(of, params):
    """The parameters of a model of one stack under the names of several."""
    return {name: part for name, part in params.items() if name != BLOCKS} | by_stack(of, params[BLOCKS])


def test_the_stacks_of_a_shape():
    assert stacks(shape(n_layers=3)) == (Stack("blocks", "sequential", 0, 3),)
    assert shape(n_layers=3, block=" parallel = 3 ").block == "parallel"  # one text for equal models
    of = shape(n_layers=6, block="parallel=1, sequential=3,parallel=2")
    assert of.block == "parallel=1,sequential=3,parallel=2"
    assert stacks(of) == (
        Stack("blocks_0", "parallel", 0, 1), Stack("blocks_1", "sequential", 1, 3), Stack("blocks_2", "parallel", 4, 2)
    )  # fmt: skip
    assert {kind.block: depth for kind, depth in kinds(of).items()} == {"parallel": 3, "sequential": 3}
    names = named_leaves(transformer.parameter_declarations(of))
    assert {name.split(".")[0] for name in names if is_stack(name.split(".")[0])} == {
        "blocks_0",
        "blocks_1",
        "blocks_2",
    }
    assert names["blocks_1.mlp_norm.g"].shape == (3, 32) and "blocks_2.mlp_norm.g" not in names


@pytest.mark.parametrize(
    ("text", "layers", "message"),
    [
        ("parallel=2", 4, "the layers sum to 2, not model.n_layers=4; nearest: parallel$"),
        ("parallel=2,sequential=2", 5, "sum to 4, not model.n_layers=5; nearest: parallel=3,sequential=2$"),
        ("parallel=1,sequential=1000000000", 4, "sum to 1,000,000,001, .* nearest: parallel=1,sequential=3$"),
        ("parallel=1,sequential=1,parallel=1", 2, "nearest: parallel, or model.n_layers=3$"),
        ("parallel=0", 4, "'parallel=0' is not a block and its number of layers, at least 1; nearest: parallel=1$"),
        ("parallel=1e9,sequential=1", 4, "'parallel=1e9' is not a block and its number of layers"),
        ("parallel=-1,sequential=5", 4, "'parallel=-1' is not a block and its number"),
        ("parallel,sequential=2", 4, "'parallel' is not a block and its number of layers, at least 1"),
        ("paralel=2,sequential=2", 4, "model.block='paralel' is not a choice; did you mean 'parallel'"),
        ("parallel*2", 4, "'parallel.2' is not a choice; did you mean 'parallel'"),
        ("=2,parallel=2", 4, "model.block='' is not a choice"),
        ("parallel=²,parallel=2", 4, "is not a block and its number of layers"),
    ],
)
def test_a_text_that_is_not_of_stacks_is_refused_in_one_line(text, layers, message):
    with pytest.raises(BadInput, match=message) as caught:
        shape(n_layers=layers, block=text)
    assert "\n" not in str(caught.value) and "model.block" in str(caught.value)


def test_scaled_stacks_have_a_layer_each_and_sum_up():
    for text, layers in (("a=1,b=99", 2), ("a=3,b=58", 7), ("a=1,b=1,c=1", 7), ("a=5,b=1", 3)):
        parts = parse_stacks(text, sum(int(part[2:]) for part in text.split(",")))
        scaled = scale_stacks(parts, layers)
        assert sum(part.depth for part in scaled) == layers and min(part.depth for part in scaled) >= 1
        assert parse_stacks(format_stacks(scaled), layers) == scaled


@functools.cache
def results(block, remat):
    of = shape(**FLAGS, remat=remat)
    params, of = random_params(of), dataclasses.replace(of, block=block)
    given, probes = tokens(of), jnp.zeros(4)

    due, split = jnp.bool_(True), SplitTokens(given[:, :-1], given[:, 1:])

    def objective(params, probes):
        end = pieces.end_in_loss(of, split, 1e-3, pieces.Observe(due, probes))
        of_batch = transformer.make_pieces(of, FP32, split, end, due)
        more = {name: {"probes": {"zeros": part}} for name, part in by_stack(of, probes).items()}
        sums = pieces.run_loss(of, of_batch, params, more)
        return sums.objective, sums

    (_, sums), grads = jax.jit(jax.value_and_grad(objective, has_aux=True))(
        cut(of, params) if "," in block else params, probes
    )
    return of, sums, grads


@pytest.mark.parametrize("remat", one_in(2, ["none", "full"]))
def test_a_model_cut_into_stacks_has_its_loss_gradients_and_measures(remat):
    (_, expected, whole), (two, sums, grads) = (results(block, remat) for block in ("sequential", CUT))
    np.testing.assert_allclose(sums.objective, expected.objective, rtol=1e-6)
    for name, part in join_stacks(two, grads).items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), part, whole[BLOCKS][name])
    for a, b in zip(sums.measures, expected.measures, strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), a, b)


@pytest.mark.full
def test_counts_and_activations_are_the_sum_and_the_order_of_layers():
    layers = {"n_layers": 4, "window": 4, "global_every": 3}
    mixed, pure = shape(**layers, block="parallel=1,sequential=3"), {}
    for block in ("parallel", "sequential"):
        pure[block] = shape(**layers, block=block)
    for counted in (
        count.count_parameters,
        count.count_parameters_by_group,
        count.flops_per_token,
        count.appendix_f_flops,
    ):
        each = {block: counted(of) for block, of in pure.items()}
        expected = {name: each["parallel"][name] / 4 + 3 * each["sequential"][name] / 4 for name in each["parallel"]}
        assert counted(mixed) == pytest.approx(expected, rel=1e-12), counted
    of = shape(**FLAGS)
    params, given = random_params(of), tokens(of)[:, :-1]
    two = dataclasses.replace(of, block=CUT)
    whole, parts = collect_activations(of, params, given), collect_activations(two, cut(two, params), given)
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


def test_a_resized_model_keeps_the_shares_of_its_stacks_and_a_twin_each_of_them():
    of = recipe("completep", model__block="parallel=1,sequential=3")
    assert resize_config(of, n_layers=8).model.block == "parallel=2,sequential=6"
    with pytest.raises(BadInput, match=r"n_layers=6 does not keep the shares of model.block=.*; nearest: 4, 8"):
        resize_config(of, n_layers=6)
    assert shrink_recipe(of, 64).model.block == "parallel=1,sequential=1"
    deep = config_lib.resolve(config_lib.override(of, {"model.n_layers": 12, "model.block": "parallel=3,sequential=9"}))
    twin = proxy._twin(deep, 64)  # 6 layers by the ratio of widths: 4 or 8 keep the shares
    assert (twin.model.n_layers, twin.model.block) in ((4, "parallel=1,sequential=3"), (8, "parallel=2,sequential=6"))
