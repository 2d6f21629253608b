"""Loss landscapes: barriers of known curves, norms of filters by hand, losses on a line against the models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.experiments.studies.landscape import paths
from scalelab.train.resume.weights import Weights
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import loss_sums


@pytest.fixture(scope="module")
def models():
    """(static, two models' weights, tokens)."""
    values = {"model.d_model": 8, "model.n_layers": 2, "model.n_heads": 2, "model.seq_len": 8, "train.global_batch": 2}
    config = config_lib.resolve(config_lib.override(tiny.get_config(), values))
    static = config_lib.static(config)
    h = jax.tree.map(jnp.float32, config_lib.hparams(config))
    init = jax.jit(lambda h: state_lib.init_state(static, h).params)
    drawn = [init(config_lib.replace_hparams(h, {"train.seed": jnp.uint32(seed)})) for seed in (0, 1)]
    tokens = np.random.default_rng(0).integers(0, 256, (4, 9)).astype(np.int32)
    return static, [Weights(config, params, {}) for params in drawn], tokens


def test_a_barrier_is_the_height_over_the_chord():
    shares = np.linspace(0, 1, 21)
    assert paths.find_barrier(1 + 2 * shares, shares) == pytest.approx(0, abs=1e-12)
    assert paths.find_barrier(1 + 2 * shares + 4 * shares * (1 - shares), shares) == pytest.approx(1)
    assert paths.find_barrier((shares - 0.5) ** 2, shares) == 0  # a valley between two runs is none


@pytest.mark.full
def test_the_ends_and_the_middle_of_a_line_are_models(models):
    static, (first, last), tokens = models
    along = paths.line_losses(first, last, tokens, np.array([0.0, 0.5, 1.0]))
    middle = jax.tree.map(lambda a, b: (a + b) / 2, first.params, last.params)
    for loss, params in zip(along, (first.params, middle, last.params), strict=True):
        sums = loss_sums(static, params, tokens, 0.0)
        assert loss == pytest.approx(float(sums.nll / sums.tokens), rel=1e-5)


@pytest.mark.full
def test_filters_of_a_direction_have_the_norms_of_the_weights(models):
    static, (first, _), _ = models
    direction = paths.draw_direction(static, first.params, 3)
    table, matrix = (tree["embed"]["w"] for tree in (direction, first.params))
    np.testing.assert_allclose(
        np.linalg.norm(table, axis=1), np.linalg.norm(matrix, axis=1), rtol=1e-5
    )  # a token's row
    flat = dict(jax.tree_util.tree_leaves_with_path(direction))
    weights = dict(jax.tree_util.tree_leaves_with_path(first.params))
    down = next(path for path in flat if jax.tree_util.keystr(path).endswith("['mlp']['down']['w']"))
    # [layers, mlp, embed]: an output's weights over all inputs
    np.testing.assert_allclose(np.linalg.norm(flat[down], axis=1), np.linalg.norm(weights[down], axis=1), rtol=1e-5)
    assert all(not np.any(flat[path]) for path in flat if "norm" in jax.tree_util.keystr(path))
