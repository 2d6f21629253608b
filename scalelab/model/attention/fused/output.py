"""The output of attention as the backward of a part of it takes it."""

from typing import NamedTuple

import jax


class PartOutput(NamedTuple):
    """Of a part's queries, over all keys: log of the softmax's sum [B, N, S] in fp32, attention and its gradient."""

    log_z: jax.Array
    y: jax.Array
    dy: jax.Array
