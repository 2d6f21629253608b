"""What cuDNN's attention is documented to compute, in numpy's float64, from the arrays and numbers that jax hands it.

Runs are read from memory by their lengths and offsets in elements; what cuDNN leaves unwritten is NaN here.
"""

import jax
import numpy as np
from jax._src.cudnn.fused_attention_stablehlo import MaskType

from scalelab.sharding import vary_like


def runs_of(q, k, lengths, offsets):
    """(run, slices of memory of queries and of keys, in elements); without offsets each row is a run."""
    if offsets[0].size == 0:
        for row in range(q.shape[0]):
            yield row, *(slice(row * x[0].size, (row + 1) * x[0].size) for x in (q, k))
        return
    n = lengths[0].size
    assert offsets[0].shape == (q.shape[0], n // q.shape[0] + 1) and n // q.shape[0] > 1  # else jax takes no offsets
    for sizes, starts, x in zip(lengths, offsets, (q, k), strict=True):
        assert sizes.dtype == starts.dtype == np.int32
        used = np.flatnonzero(sizes.ravel())
        assert (np.diff(used) == 1).all() and (used[:1] == 0).all()  # unused runs come last
        assert (np.diff(starts.ravel()[: n + 1]) >= 0).all() and starts.ravel()[n] == x.size
    for run in range(n):
        token = [x.shape[2] * x.shape[3] for x in (q, k)]
        first = [starts.ravel()[run] for starts in offsets]
        yield run, *(slice(a, a + sizes.ravel()[run] * t) for a, sizes, t in zip(first, lengths, token, strict=True))


def weights_and_logits(q, k, bias, params):
    """The logits [N, s, t] of a run, -inf where masked."""
    group = q.shape[1] // k.shape[1]
    logits = params["scale"] * np.einsum("snh,tnh->nst", q, np.repeat(k, group, axis=1))
    distance = np.arange(q.shape[0])[:, None] - np.arange(k.shape[0])
    if params["mask_type"] in (MaskType.CAUSAL, MaskType.PADDING_CAUSAL):
        logits = np.where(distance >= 0, logits, -np.inf)
    if params["sliding_window_length"]:
        logits = np.where(distance < params["sliding_window_length"], logits, -np.inf)
    return logits if bias is None else logits + bias


def forward(q, k, v, bias, *others, **params):
    """(y [B, S, N, H], log of the sum [R, N, S])."""
    (q, k, v), lengths, offsets = (np.asarray(x, np.float64) for x in (q, k, v)), others[:2], others[2:4]
    y, log_z = np.full(q.size, np.nan), np.full((max(lengths[0].size, q.shape[0]), q.shape[2], q.shape[1]), np.nan)
    for run, at, key_at in runs_of(q, k, lengths, offsets):
        q_, k_, v_ = (x.ravel()[s].reshape(-1, *x.shape[2:]) for x, s in ((q, at), (k, key_at), (v, key_at)))
        if not len(q_):
            continue
        logits = weights_and_logits(q_, k_, np.asarray(bias, np.float64)[run] if bias.size else None, params)
        z = np.log(np.sum(np.exp(logits - logits.max(-1, keepdims=True)), -1)) + logits.max(-1)
        values = np.repeat(v_, q.shape[2] // k.shape[2], axis=1)
        y[at] = np.einsum("nst,tnh->snh", np.exp(logits - z[..., None]), values).ravel()
        log_z[run, :, : len(q_)] = z
    return y.reshape(q.shape), log_z


def backward(q, k, v, bias, *others, **params):
    """(dq, dk, dv) from the given sums and output."""
    (*given, _, _, log_z, y, dy), (q, k, v) = others, (np.asarray(x, np.float64) for x in (q, k, v))
    log_z, y, dy = (np.asarray(x, np.float64) for x in (log_z, y, dy))
    grads = [np.full(x.size, np.nan) for x in (q, k, v)]
    group, heads = q.shape[2] // k.shape[2], k.shape[2]
    for run, at, key_at in runs_of(q, k, given[:2], given[2:4]):
        q_, y_, dy_ = (x.ravel()[at].reshape(-1, *x.shape[2:]) for x in (q, y, dy))
        k_, v_ = (x.ravel()[key_at].reshape(-1, *x.shape[2:]) for x in (k, v))
        if not len(q_):
            continue
        logits = weights_and_logits(q_, k_, np.asarray(bias, np.float64)[run] if bias.size else None, params)
        p = np.exp(logits - log_z[run, :, : len(q_), None])
        dp = np.einsum("snh,tnh->nst", dy_, np.repeat(v_, group, axis=1))
        ds = params["scale"] * p * (dp - np.sum(dy_ * y_, -1).T[..., None])
        grads[0][at] = np.einsum("nst,tnh->snh", ds, np.repeat(k_, group, axis=1)).ravel()
        for i, of_keys in ((1, np.einsum("nst,snh->tnh", ds, q_)), (2, np.einsum("nst,snh->tnh", p, dy_))):
            grads[i][key_at] = of_keys.reshape(len(k_), heads, group, -1).sum(2).ravel()
    return tuple(g.reshape(x.shape) for g, x in zip(grads, (q, k, v), strict=True))


class ByHand:
    """A primitive of jax that computes in numpy; `calls` counts how often."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def bind(self, q, k, v, bias, *others, **params):
        assert params["dropout_rate"] == 0 and params["variadic_args"] == (bias.size > 0, False)
        runs = max(others[0].size, q.shape[0])
        outs = [(q.shape, q.dtype), ((runs, q.shape[2], q.shape[1]), np.float32)]
        outs = outs if self.function is forward else [(x.shape, x.dtype) for x in (q, k, v)]
        params = params | {"layout": None, "is_training": None}

        def compute(*arrays):
            self.calls += 1
            results = self.function(*map(np.asarray, arrays), **params)
            return tuple(np.asarray(x, kind) for x, (_, kind) in zip(results, outs, strict=True))

        results = jax.pure_callback(compute, tuple(jax.ShapeDtypeStruct(*out) for out in outs), q, k, v, bias, *others)
        return [vary_like(x, q) for x in results]
