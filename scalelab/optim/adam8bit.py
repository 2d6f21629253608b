"""8-bit Adam (Dettmers et al. 2022): AdamW whose moments are stored as 8-bit codes, with one scale per 256 codes.

Block-wise dynamic quantisation (sections 2.1 and 2.2, appendix A): a block is divided by its largest magnitude, and
each value becomes the nearest of 256: powers of ten, each cut into as many equal parts as the remaining bits can count.
Codes of the first moment have a sign; the second moment uses that bit for precision. A step decodes to fp32, takes
AdamW's step and encodes again. As in the authors' bitsandbytes, tensors of fewer than 4096 numbers (each of a stack
separately) stay in fp32. Their stable embedding layer is left out: tables are coded like the rest.
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
from scalelab.sharding import target_platform

CODE_BLOCK = 256
MIN_CODED_SIZE = 4096  # numbers in the smallest tensor that is coded: bitsandbytes' min_8bit_size


class CodedMoment(NamedTuple):
    """A moment: codes [layers, blocks, 256] (uint8) and scales [layers, blocks]; no `layers` if nothing is stacked."""

    codes: Any
    scales: Any


class Moments(NamedTuple):
    """Trees like the parameters: of `CodedMoment`, or of fp32 arrays where a tensor is small."""

    step: jax.Array
    m: Any
    v: Any


def code_values(signed: bool) -> np.ndarray:
    """The 256 code values in order.

    0, 1 and, for each exponent e = 0 … 6, the centres of 2^e (unsigned: 2^(e+1)) equal parts of 10^(e-7) to 10^(e-6).
    """
    parts = [np.array([0.0, 1.0])]
    for e in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (e if signed else e + 1) + 1)
        centres = 10.0 ** (e - 6) * (edges[:-1] + edges[1:]) / 2
        parts += [centres, -centres] if signed else [centres]
    return np.sort(np.concatenate(parts)).astype(np.float32)


def encode_moment(x: jax.Array, stack: int, signed: bool) -> CodedMoment:
    """Encode an array with `stack` leading stacked axes; the last block is padded with zeros."""
    table = code_values(signed)
    lead = x.shape[:stack]
    rows = x.reshape(*lead, -1)
    rows = jnp.pad(rows, [(0, 0)] * stack + [(0, -rows.shape[-1] % CODE_BLOCK)]).reshape(*lead, -1, CODE_BLOCK)
    scales = jnp.max(jnp.abs(rows), axis=-1)
    middles = jnp.asarray((table[:-1] + table[1:]) / 2)
    shares = rows / jnp.where(scales > 0, scales, 1.0)[..., None]
    if target_platform() == "cpu":
        codes = jnp.searchsorted(middles, shares).astype(jnp.uint8)
    else:  # compared with all 255 in registers: a search by halves keeps arrays of indices, of four bytes a number
        codes = jnp.sum(shares[..., None] > middles, axis=-1, dtype=jnp.uint8)
    return CodedMoment(codes, scales)


def decode_moment(coded: CodedMoment, shape: tuple[int, ...], signed: bool) -> jax.Array:
    """Decode to an fp32 array of this shape."""
    rows = jnp.asarray(code_values(signed))[coded.codes] * coded.scales[..., None]
    lead = coded.scales.shape[:-1]
    return rows.reshape(*lead, -1)[..., : math.prod(shape[len(lead) :])].reshape(shape)


def _zeros(d: Declaration, signed: bool) -> CodedMoment:
    """`encode_moment` of zeros without the coding, which XLA would do when it compiles, for seconds."""
    lead, size = d.shape[: len(d.stack)], math.prod(d.shape[len(d.stack) :])
    blocks, code = (*lead, -(-size // CODE_BLOCK)), int(np.argmin(np.abs(code_values(signed))))
    return CodedMoment(jnp.full((*blocks, CODE_BLOCK), code, jnp.uint8), jnp.zeros(blocks))


def _is_coded(d: Declaration) -> bool:
    return math.prod(d.shape[len(d.stack) :]) >= MIN_CODED_SIZE


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del o, lr
    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def zeros(params: Tree, signed: bool) -> Tree:
        return jax.tree.map(lambda d, x: _zeros(d, signed) if _is_coded(d) else jnp.zeros_like(x), declared, params)

    def encode(moment: Tree, signed: bool) -> Tree:
        return jax.tree.map(
            lambda d, x: encode_moment(x, len(d.stack), signed) if _is_coded(d) else x, declared, moment
        )

    def decode(moment: Tree, signed: bool) -> Tree:
        return jax.tree.map(lambda d, x: decode_moment(x, d.shape, signed) if _is_coded(d) else x, declared, moment)

    def init(params: Tree) -> Moments:
        return Moments(jnp.zeros((), jnp.int32), zeros(params, True), zeros(params, False))

    def update(grads: Tree, state: Moments, params: Tree = None) -> tuple[Tree, Moments]:
        del params
        decoded = optax.ScaleByAdamState(state.step, decode(state.m, True), decode(state.v, False))
        updates, new = adam.update(grads, decoded)
        return updates, Moments(new.count, encode(new.mu, True), encode(new.nu, False))

    return optax.GradientTransformation(init, update)


ADAM8BIT = Optimizer(_build)
