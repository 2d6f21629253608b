"""Hidden matrices for optimizers that need them whole: {name: [stack, small, large]}, batched by equal shape."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.declare import Declaration
from scalelab.optim import groups

Declarations = Mapping[str, Declaration]
Arrays = dict[str, jax.Array]


def fold_matrices(declared: Declarations, tree: Mapping[str, jax.Array]) -> Arrays:
    """Parameters (or gradients) as [stack, small, large]: heads folded, transposed where in > out.

    So `up` and `down` share a batch.
    """

    def fold(d: Declaration, x: jax.Array) -> jax.Array:
        matrices = groups.as_matrices(d, x)
        return matrices.mT if _is_tall(d) else matrices

    return {name: fold(d, tree[name]) for name, d in declared.items()}


def unfold_matrices(declared: Declarations, tree: Mapping[str, jax.Array]) -> Arrays:
    """Inverse of `fold_matrices`."""
    return {name: (tree[name].mT if _is_tall(d) else tree[name]).reshape(d.shape) for name, d in declared.items()}


def folded_shape(declaration: Declaration) -> tuple[int, int, int]:
    """(stack, small, large) of a folded parameter."""
    stack, ins, outs = groups.matrix_shape(declaration)
    return stack, min(ins, outs), max(ins, outs)


def map_batched(function: Callable[..., Any], *trees: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Apply `function` to arrays [stack, k, …] of k parameters with equal shapes; results by name, [stack, …].

    Parameters are stacked behind the layers, so that layers on several pipeline stages stay there.
    """
    names_by_shape: dict[Any, list[str]] = {}
    for name in trees[0]:
        names_by_shape.setdefault(tuple(tree[name].shape for tree in trees), []).append(name)
    results: dict[str, Any] = {}
    for names in names_by_shape.values():
        out = function(*(jnp.stack([tree[name] for name in names], axis=1) for tree in trees))
        results |= {name: jax.tree.map(lambda x, i=i: x[:, i], out) for i, name in enumerate(names)}
    return results


def fp32_matmul(*factors: jax.Array) -> jax.Array:
    """The matrix product in full fp32; a GPU's or TPU's default would be TF32 or bf16."""
    result, *others = factors
    for other in others:
        result = jnp.matmul(result, other, precision="highest")
    return result


def map_decomposition(function: Callable[[jax.Array], Any], x: jax.Array) -> Any:
    """Apply `function` (eigh, QR or SVD) to matrices [..., n, m]: in one batch, on CPU one by one, packed or not.

    jaxlib's LAPACK calls spread a batch over threads and wait for them. If a program makes as many such calls at once
    as there are threads (two on two cores), all threads wait and none works: a deadlock.
    """
    one_by_one = jax.custom_batching.sequential_vmap(lambda matrix: function(matrix))  # whose options are not arguments

    def in_turn(x: jax.Array) -> Any:
        results = jax.lax.map(one_by_one, x.reshape(-1, *x.shape[-2:]))
        return jax.tree.map(lambda y: y.reshape(*x.shape[:-2], *y.shape[1:]), results)

    return jax.lax.platform_dependent(x, cpu=in_turn, default=function)


def _is_tall(declaration: Declaration) -> bool:
    _, ins, outs = groups.matrix_shape(declaration)
    return ins > outs
