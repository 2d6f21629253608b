"""Hidden matrices for the optimizers that take them whole: {name: [stack, small, large]}, worked on in batches of equal shape."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.declare import Declaration
from scalelab.optim import groups

Declarations = Mapping[str, Declaration]
Arrays = dict[str, jax.Array]


def fold_matrices(declared: Declarations, tree: Mapping[str, jax.Array]) -> Arrays:
    """Parameters (or gradients) as [stack, small, large]: heads folded, transposed where in > out, so that `up` goes with `down`."""

    def fold(d: Declaration, x: jax.Array) -> jax.Array:
        matrices = groups.as_matrices(d, x)
        return matrices.mT if _is_tall(d) else matrices

    return {name: fold(d, tree[name]) for name, d in declared.items()}


def unfold_matrices(declared: Declarations, tree: Mapping[str, jax.Array]) -> Arrays:
    """The inverse of `fold_matrices`."""
    return {name: (tree[name].mT if _is_tall(d) else tree[name]).reshape(d.shape) for name, d in declared.items()}


def folded_shape(declaration: Declaration) -> tuple[int, int, int]:
    """(stack, small, large) of a folded parameter."""
    stack, ins, outs = groups.matrix_shape(declaration)
    return stack, min(ins, outs), max(ins, outs)


def map_batched(function: Callable[..., Any], *trees: Mapping[str, jax.Array]) -> dict[str, Any]:
    """`function` of arrays [stack, k, …], each of k parameters whose arrays have equal shapes; its results by name, [stack, …].

    They are stacked behind the layers, so that layers which lie on several stages stay there.
    """
    alike: dict[Any, list[str]] = {}
    for name in trees[0]:
        alike.setdefault(tuple(tree[name].shape for tree in trees), []).append(name)
    found: dict[str, Any] = {}
    for names in alike.values():
        out = function(*(jnp.stack([tree[name] for name in names], axis=1) for tree in trees))
        found |= {name: jax.tree.map(lambda x, i=i: x[:, i], out) for i, name in enumerate(names)}
    return found


def fp32_matmul(*factors: jax.Array) -> jax.Array:
    """The matrix product in full fp32: a GPU's or TPU's own choice would be TF32 or bf16."""
    result, *others = factors
    for other in others:
        result = jnp.matmul(result, other, precision="highest")
    return result


def map_decomposition(function: Callable[[jax.Array], Any], x: jax.Array) -> Any:
    """`function` (eigh, QR or SVD) of matrices [..., n, m]: all at once, but on a CPU one after the other, packed or not.

    jaxlib's LAPACK calls share out a batch among threads, and wait for them. Where a program makes as many such calls at once
    as there are threads (two are enough on two cores), all wait and none is left to work: for ever.
    """
    alone = jax.custom_batching.sequential_vmap(lambda matrix: function(matrix))  # whose options are not arguments

    def in_turn(x: jax.Array) -> Any:
        found = jax.lax.map(alone, x.reshape(-1, *x.shape[-2:]))
        return jax.tree.map(lambda y: y.reshape(*x.shape[:-2], *y.shape[1:]), found)

    return jax.lax.platform_dependent(x, cpu=in_turn, default=function)


def _is_tall(declaration: Declaration) -> bool:
    _, ins, outs = groups.matrix_shape(declaration)
    return ins > outs
