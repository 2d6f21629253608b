"""The pieces of a model, driven by hand, and the scan that drives them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model import pieces as pieces_lib
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.stacks import all_layer_flags, select_layers
from scalelab.precision.policy import FP32
from tests.model.shapes import random_params, shape, tokens
from tests.quick import one_in


@pytest.mark.parametrize("remat", one_in(2, ["none", "full"]))
def test_the_scan_is_every_block_in_turn(remat):
    """Layers that differ by flags, so that each piece gets its own."""
    of = shape(n_layers=3, window=3, global_every=2, d_model=16, n_heads=2, remat=remat)
    params, split = random_params(of), documents.split_inputs_targets(tokens(of), None)
    end = pieces_lib.end_in_loss(of, split, 1e-3)
    pieces = transformer.make_pieces(of, FP32, split, end)

    @jax.jit
    def by_hand(params):
        x_BSD = pieces.enter(params)
        for layer in range(of.n_layers):
            weights = jax.tree.map(functools.partial(jnp.take, indices=layer, axis=0), params["blocks"])
            x_BSD, written = pieces.block({"params": weights}, x_BSD, select_layers(all_layer_flags(of), layer))
            assert written == {}
        return pieces.leave(params, x_BSD)

    sums, written = jax.jit(functools.partial(pieces_lib.run_pieces, of, pieces))(params)
    assert written == {} and sums.tokens > 0
    np.testing.assert_allclose(sums.objective, by_hand(params).objective, rtol=1e-6)
