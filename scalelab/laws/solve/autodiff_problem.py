"""Derivatives of any law by autodiff, in float64 (other files have those of some laws by hand).

Legend: R problems, K parameters, L linear ones, P points, G seeds.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, coordinate_bounds

CHUNK = 32  # problems a call: batches are padded to it, so that each law compiles once for any number of problems


class FitRows(NamedTuple):
    """Data of the compiled functions: columns [P] each, target [P], the columns' centre, which params are direct."""

    columns: tuple[np.ndarray, ...]
    target: np.ndarray
    centre: tuple[np.ndarray, ...]
    direct: np.ndarray


def _params_at(law: Law, x_K: Any, rows: FitRows) -> dict[str, Any]:
    """Parameters from coordinates x: linear ones divided by the size of their term at the centre, unless direct."""
    values = {
        name: jnp.exp(at) if kind.how == "log" else at for (name, kind), at in zip(law.params.items(), x_K, strict=True)
    }
    sizes = _term_sizes(law, values, rows)
    return values | {name: values[name] / sizes[name] for name in sizes}


def _term_sizes(law: Law, values: Mapping[str, Any], rows: FitRows) -> dict[str, Any]:
    """The size of each linear term at the centre with coefficient 1; 1.0 for direct ones."""
    at_zero = {**values, **dict.fromkeys(law.linear, 0.0)}

    def term(name: str) -> Any:
        return law.function(*rows.centre, **at_zero | {name: 1.0}) - law.function(*rows.centre, **at_zero)

    place = list(law.params).index
    return {name: jnp.where(rows.direct[place(name)], 1.0, jnp.abs(term(name)) + 1e-300) for name in law.linear}


@functools.cache
def _compiled(spec: Law, log: bool) -> tuple[Callable, ...]:
    """(residuals, derivatives, basis, to_params, from_params), each over a chunk of problems."""

    def residual(x_K: Any, rows: FitRows) -> Any:
        value = spec.function(*rows.columns, **_params_at(spec, x_K, rows))
        value = jnp.broadcast_to(value, rows.target.shape)
        return jnp.log(value) - jnp.log(rows.target) if log else value - rows.target

    def curvature(x_K: Any, pull_P: Any, rows: FitRows) -> Any:
        """Second derivatives of the residuals, summed over points with weights `pull_P`: [K, K]."""
        return jax.hessian(lambda x: jnp.vdot(pull_P, residual(x, rows)))(x_K)

    def terms(searched: Any, rows: FitRows) -> tuple[Any, Any]:
        values = dict(zip(spec.searched, searched, strict=True))
        values = {n: jnp.exp(v) if spec.params[n].how == "log" else v for n, v in values.items()}
        zero = {**values, **dict.fromkeys(spec.linear, 0.0)}
        sizes = _term_sizes(spec, values, rows)

        def row(given: Mapping[str, Any]) -> Any:
            return jnp.broadcast_to(spec.function(*rows.columns, **given), rows.target.shape)

        offset = row(zero)
        each = [(row(zero | {name: 1.0}) - offset) / sizes[name] for name in spec.linear]
        return jnp.stack(each) if each else jnp.zeros((0, *offset.shape)), offset

    def inverse(params_K: Any, rows: FitRows) -> Any:
        values = dict(zip(spec.params, params_K, strict=True))
        sizes = _term_sizes(spec, values, rows)
        kinds = spec.params.items()
        return jnp.stack(
            [jnp.log(values[n]) if kind.how == "log" else values[n] * sizes.get(n, 1.0) for n, kind in kinds]
        )

    def forward(x_K: Any, rows: FitRows) -> Any:
        given = _params_at(spec, x_K, rows)
        return jnp.stack([given[name] for name in spec.params])

    def over(function: Callable, *axes: int | None) -> Callable:
        return jax.jit(jax.vmap(function, in_axes=axes))

    slopes = over(lambda x, rows: (residual(x, rows), jax.jacfwd(residual)(x, rows)), 0, None)
    return (over(residual, 0, None), slopes, over(curvature, 0, 0, None), over(terms, 0, None), over(forward, 0, None),
            over(inverse, 0, None))  # fmt: skip


def _chunked(function: Callable, rows: FitRows, *arrays: np.ndarray) -> list[np.ndarray]:
    """Map `function` over arrays [R, ...] in chunks of CHUNK, the last padded with its first row; returns float64."""
    count, chunks = len(arrays[0]), []
    for first in range(0, count, CHUNK):
        parts = [a[first : first + CHUNK] for a in arrays]
        short = CHUNK - len(parts[0])
        parts = [np.concatenate([p, np.repeat(p[:1], short, axis=0)]) if short else p for p in parts]
        with jax.enable_x64(True):
            result = function(*parts, rows)
        chunks.append([np.asarray(leaf)[: CHUNK - short] for leaf in jax.tree.leaves(result)])
    return [np.concatenate(leaves) for leaves in zip(*chunks, strict=True)]


def build_autodiff_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...],
    centre_at: Columns | None = None,
) -> Problem:  # fmt: skip
    """Build the problem for any law; arguments as in `pose.pose_problem`."""
    given = tuple(np.asarray(columns[name], float) for name in law.columns)
    centre = tuple(np.exp(np.mean(np.log(np.asarray((centre_at or columns)[name], float)))) for name in law.columns)
    rows = FitRows(given, np.asarray(target, float), centre, np.array([name in direct for name in law.params]))
    residual, slopes, curvature, terms, forward, inverse = _compiled(law, objective.log)

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        (r,) = _chunked(residual, rows, x)
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.sum(weights * objective.penalty(r - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        r, jac = _chunked(slopes, rows, x)  # [R, P], [R, P, K]
        r = r - moved
        pull = weights * objective.slope(r)
        (second,) = _chunked(curvature, rows, x, pull)

        def gram(scale: np.ndarray) -> np.ndarray:
            return jac.transpose(0, 2, 1) @ (jac * scale[..., None])

        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            gradient = (pull[:, None] @ jac)[:, 0]
            return gradient, gram(weights * objective.weight(r)), gram(weights * objective.bend(r)) + second

    def basis(searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        term_values, offset = _chunked(terms, rows, searched)
        return term_values, offset

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        (params,) = _chunked(forward, rows, x.reshape(-1, x.shape[-1]))
        return {name: params[:, i].reshape(x.shape[:-1]) for i, name in enumerate(law.params)}

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        values = np.stack(np.broadcast_arrays(*[np.asarray(params[name], float) for name in law.params]), axis=-1)
        (x,) = _chunked(inverse, rows, values.reshape(-1, len(law.params)))
        return x.reshape(values.shape)

    def linearise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r, jac = _chunked(slopes, rows, x)
        return r, jac.transpose(0, 2, 1)

    return Problem(
        law, objective, columns, target, *coordinate_bounds(law), value, derivatives, basis, to_params, from_params,
        linearise,
    )  # fmt: skip
