"""Decompositions of stacks: numpy's numbers, and on a CPU never more than one matrix in a LAPACK call."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.optim.matrices import map_decomposition


@pytest.mark.parametrize("packed", [False, True], ids=["alone", "packed"])
@pytest.mark.parametrize("function", [jnp.linalg.eigh, jnp.linalg.qr, jnp.linalg.svd], ids=["eigh", "qr", "svd"])
def test_one_matrix_a_call_and_numpys_numbers(function, packed):
    """jaxlib shares out a batch among threads and waits for them: two such calls on two cores wait for ever."""
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 4)).astype(np.float32)
    x = x + x.mT

    def once(x: jax.Array) -> jax.Array:
        return map_decomposition(function, x)

    whole = jax.jit(jax.vmap(once) if packed else once)
    calls = re.findall(r"custom_call @lapack\w+\(.*?\) .*?: \((.*?)\) ->", whole.lower(x).as_text())
    shapes = [
        list(map(int, s.rstrip("x").split("x"))) for call in calls for s in re.findall(r"tensor<([\dx]+)xf32>", call)
    ]
    assert shapes and all(np.prod(shape[:-2]) == 1 for shape in shapes), shapes
    actual, wanted = whole(x), getattr(np.linalg, function.__name__)(x.astype(np.float64))
    # Eigenvalues, singular values: vectors have a sign to choose.
    values = [i for i, leaf in enumerate(wanted) if leaf.ndim == 3]
    for i in values:
        np.testing.assert_allclose(actual[i], wanted[i], rtol=1e-4, atol=1e-5)
    if not values:
        np.testing.assert_allclose(actual[0] @ actual[1], x, atol=1e-5)
