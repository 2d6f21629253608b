"""Blocks of splash attention's masks against jax's own masks, entry by entry."""

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from scalelab.model.attention.fused.splash_masks import causal_mask

SHAPE, ROWS, COLUMNS = (64, 48), 8, 16


@pytest.mark.parametrize("window", [0, 1, 2, 7, 8, 10, 15, 16, 17, 18, 40, 64, 100])
def test_every_block_is_that_of_jaxs_mask(window):
    theirs = masks.LocalMask(SHAPE, (window - 1, 0), 0) if window else masks.CausalMask(SHAPE)
    ours = causal_mask(SHAPE, window)
    for row in range(0, SHAPE[0], ROWS):
        for column in range(0, SHAPE[1], COLUMNS):
            block = slice(row, row + ROWS), slice(column, column + COLUMNS)
            assert np.array_equal(ours[block], theirs[block]), block
    assert isinstance(ours, type(theirs))  # so that the kernel computes the blocks on the border by jax's function


def test_equal_masks_are_equal_so_that_jax_reads_one_of_them():
    assert causal_mask(SHAPE, 8) == causal_mask(SHAPE, 8) != causal_mask(SHAPE, 9)
    assert hash(causal_mask(SHAPE)) == hash(causal_mask(SHAPE))
