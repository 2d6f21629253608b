"""Masks of splash attention whose blocks are known from their corners.

jax reads a mask block by block when it makes a kernel, and computes every entry of each: 65,536 blocks of 512 x 512 at
131,072 tokens, once forward and once backward. All but those on the border of what is seen are all true or all false.
"""

import functools
from typing import Any

import numpy as np

Block = tuple[slice, slice]


def causal_mask(shape: tuple[int, int], window: int = 0) -> Any:
    """Each query sees the keys up to its own; with `window` the last so many of them."""
    causal, local = _mask_classes()
    return local(shape, (window - 1, 0), 0) if window else causal(shape)


class _ByCorners:
    """Answers for blocks that are alike in all entries, before jax's own mask of those that are not."""

    shape: tuple[int, int]

    def __getitem__(self, block: Block) -> np.ndarray:
        queries, keys = (range(size)[part] for size, part in zip(self.shape, block, strict=True))
        nearest, farthest = queries[0] - keys[-1], queries[-1] - keys[0]  # from a key to a later query
        window = getattr(self, "window_size", (self.shape[0], 0))[0] + 1
        whole, none = nearest >= 0 and farthest < window, farthest < 0 or nearest >= window
        if whole or none:
            return np.full((len(queries), len(keys)), whole)
        own: Any = super()
        return own.__getitem__(block)


@functools.cache
def _mask_classes() -> tuple[type, type]:
    """jax's causal and local mask, made once: it keeps what it read of equal masks of one class."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    class Causal(_ByCorners, masks.CausalMask):
        pass

    class Local(_ByCorners, masks.LocalMask):
        pass

    return Causal, Local
