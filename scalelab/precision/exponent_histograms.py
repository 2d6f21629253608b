"""Histograms of numbers over powers of two, layer by layer, and the shares that each narrow format would lose."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np

from scalelab.precision.rounding import STACKED

NARROW_FORMATS = ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn")


def float_range(form: str) -> tuple[float, float, float]:
    """(smallest subnormal, smallest normal, largest) of a format."""
    info = ml_dtypes.finfo(form)
    return float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)


def exponent_histogram(x: np.ndarray) -> dict[int, int]:
    """{e: number of finite, non-zero entries with 2^e <= |x| < 2^(e+1)}, for every e from the lowest to the highest."""
    _, powers = np.frexp(np.abs(x[np.isfinite(x) & (x != 0)]))  # |x| = m 2^p with m in [0.5, 1)
    if not len(powers):
        return {}
    low = int(powers.min())
    return {low - 1 + i: int(n) for i, n in enumerate(np.bincount(powers - low))}


def cast_loss_shares(x: np.ndarray, form: str) -> dict[str, float]:
    """Shares of the non-zero entries that an unscaled cast to `form` turns into zero, and that overflow it.

    Rounding is to nearest even: values up to half the smallest subnormal become zero; values that round to more than
    the largest number overflow.
    """
    size = np.abs(np.asarray(x, np.float64))
    size = size[size > 0]
    if not len(size):
        return {"zero": 0.0, "overflow": 0.0}
    small, _, most = float_range(form)
    spacing = 2.0 ** (np.floor(np.log2(most)) - ml_dtypes.finfo(form).nmant)
    over = (size >= most + spacing / 2) if form != "float8_e4m3fn" else (size > most + spacing / 2)
    return {"zero": float(np.mean(size <= small / 2)), "overflow": float(np.mean(over | ~np.isfinite(size)))}


def values_by_layer(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Group a tree like the parameters by layer: {"embed": values, "block 0": …, "head": …}, in the model's order."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, leaf in _leaves(tree):
        parts.setdefault(name, []).append(np.asarray(leaf, np.float32).ravel())
    order = ("embed", "positions", "block", "final_norm", "head")
    names = sorted(parts, key=lambda name: (order.index(name.split()[0]), int(name.split()[1]) if " " in name else 0))
    return {name: np.concatenate(parts[name]) for name in names}


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    first = 0  # layers are numbered across stacks
    for name in sorted(tree, key=lambda name: (len(name), name)):  # blocks_2 before blocks_10
        leaves = jax.tree.leaves(tree[name])
        if name.startswith(STACKED):
            yield from ((f"block {first + i}", one) for leaf in leaves for i, one in enumerate(np.asarray(leaf)))
            first += len(leaves[0])
        else:
            yield from ((name, leaf) for leaf in leaves)


def zero_shares(tree: Mapping[str, Any]) -> dict[str, float]:
    """The share of exact zeros in each layer; for gradients, the share that underflowed."""
    return {name: float(np.mean(values == 0)) for name, values in values_by_layer(tree).items()}


def histogram_rows(kind: str, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per layer: its histogram, its share of exact zeros, and the shares lost by each of NARROW_FORMATS."""
    return [
        {"kind": kind, "layer": name, "exponents": exponent_histogram(values), "zeros": float(np.mean(values == 0)),
         "lost": {form: cast_loss_shares(values, form) for form in NARROW_FORMATS}}
        for name, values in values_by_layer(tree).items()
    ]  # fmt: skip
