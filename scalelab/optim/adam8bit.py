"""8-bit Adam (Dettmers et al. 2022): AdamW whose moments are kept as 8-bit codes, with one scale for every 256 of them.

Block-wise dynamic quantisation (sections 2.1 and 2.2, appendix A): a block is divided by its largest magnitude, and each value
becomes the nearest of 256: powers of ten, each cut into as many equal parts as the bits left over tell apart. The first moment's
codes have a sign, the second's spend that bit on precision. A step takes the codes back to fp32, is AdamW's, and then codes
anew. As in the authors' bitsandbytes, tensors of fewer than 4096 numbers (each of a stack for itself) stay in fp32; their
stable embedding layer is not part of this: tables are coded as all else.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.schedules import Hparams

CODE_BLOCK = 256
MIN_CODED_SIZE = 4096  # numbers in a tensor that is coded: bitsandbytes' min_8bit_size


class CodedMoment(NamedTuple):
    """A moment: codes [layers, blocks, 256] (uint8) and scales [layers, blocks], without `layers` where nothing is stacked."""

    codes: Any
    scales: Any


class Moments(NamedTuple):
    """Trees like the parameters: of `CodedMoment`, or of fp32 arrays where a tensor is small."""

    step: jax.Array
    m: Any
    v: Any


def code_values(signed: bool) -> np.ndarray:
    """The 256 values in order: 0, 1 and, for each exponent e = 0 … 6, the centres of 2^e (2^(e+1) unsigned) parts of 10^(e-7) to 10^(e-6)."""
    found = [np.array([0.0, 1.0])]
    for e in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (e if signed else e + 1) + 1)
        centres = 10.0 ** (e - 6) * (edges[:-1] + edges[1:]) / 2
        found += [centres, -centres] if signed else [centres]
    return np.sort(np.concatenate(found)).astype(np.float32)


def encode_moment(x: jax.Array, stack: int, signed: bool) -> CodedMoment:
    """An array with `stack` leading stacked axes -> its codes; the last block is filled up with zeros."""
    table = code_values(signed)
    lead = x.shape[:stack]
    rows = x.reshape(*lead, -1)
    rows = jnp.pad(rows, [(0, 0)] * stack + [(0, -rows.shape[-1] % CODE_BLOCK)]).reshape(*lead, -1, CODE_BLOCK)
    scales = jnp.max(jnp.abs(rows), axis=-1)
    middles = jnp.asarray((table[:-1] + table[1:]) / 2)
    shares = rows / jnp.where(scales > 0, scales, 1.0)[..., None]
    return CodedMoment(jnp.searchsorted(middles, shares).astype(jnp.uint8), scales)


def decode_moment(coded: CodedMoment, shape: tuple[int, ...], signed: bool) -> jax.Array:
    """The fp32 array of that shape."""
    rows = jnp.asarray(code_values(signed))[coded.codes] * coded.scales[..., None]
    lead = coded.scales.shape[:-1]
    return rows.reshape(*lead, -1)[..., : math.prod(shape[len(lead) :])].reshape(shape)


def _zeros(d: Declaration, signed: bool) -> CodedMoment:
    """What `encode_moment` makes of zeros, without coding them: XLA does that when it compiles, and takes seconds for millions."""
    lead, size = d.shape[: len(d.stack)], math.prod(d.shape[len(d.stack) :])
    blocks, code = (*lead, -(-size // CODE_BLOCK)), int(np.argmin(np.abs(code_values(signed))))
    return CodedMoment(jnp.full((*blocks, CODE_BLOCK), code, jnp.uint8), jnp.zeros(blocks))


def _is_coded(d: Declaration) -> bool:
    return math.prod(d.shape[len(d.stack) :]) >= MIN_CODED_SIZE


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del o, lr
    adam = optax.scale_by_adam(h["beta1"], h["beta2"], h["eps"])

    def nothing(params: Tree, signed: bool) -> Tree:
        return jax.tree.map(lambda d, x: _zeros(d, signed) if _is_coded(d) else jnp.zeros_like(x), declared, params)

    def coded(moment: Tree, signed: bool) -> Tree:
        return jax.tree.map(
            lambda d, x: encode_moment(x, len(d.stack), signed) if _is_coded(d) else x, declared, moment
        )

    def plain(moment: Tree, signed: bool) -> Tree:
        return jax.tree.map(lambda d, x: decode_moment(x, d.shape, signed) if _is_coded(d) else x, declared, moment)

    def init(params: Tree) -> Moments:
        return Moments(jnp.zeros((), jnp.int32), nothing(params, True), nothing(params, False))

    def update(grads: Tree, state: Moments, params: Tree = None) -> tuple[Tree, Moments]:
        del params
        kept = optax.ScaleByAdamState(state.step, plain(state.m, True), plain(state.v, False))
        updates, new = adam.update(grads, kept)
        return updates, Moments(new.count, coded(new.mu, True), coded(new.nu, False))

    return optax.GradientTransformation(init, update)


def _state_bytes(d: Declaration, o: Optim) -> float:
    """2 x (1 + 4/256) bytes a number, the last block's filling included; 8 in a small tensor."""
    del o
    lead, size = math.prod(d.shape[: len(d.stack)]), math.prod(d.shape[len(d.stack) :])
    return 2 * lead * -(-size // CODE_BLOCK) * (CODE_BLOCK + 4) if _is_coded(d) else 8 * d.size


ADAM8BIT = Optimizer(_build, _state_bytes)
