"""Derivatives of any law by autodiff, in float64 (other files have those of some laws by hand).

Legend: R problems, K parameters, L linear ones, P points, G seeds.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem

CHUNK = 32  # problems a call: batches are padded to it, so that each law compiles once for any number of problems


class FitRows(NamedTuple):
    """Data of the compiled functions: columns [P] each, target [P], the columns' centre, which params are direct."""

    columns: tuple[np.ndarray, ...]
    target: np.ndarray
    centre: tuple[np.ndarray, ...]
    direct: np.ndarray


class LawOfCoordinates(NamedTuple):
    """A law as jax functions of one problem's coordinates x [K]; residuals are of logs if `log`."""

    law: Law
    log: bool

    def params_at(self, x: Any, rows: FitRows) -> dict[str, Any]:
        """Parameters of x: linear ones divided by the size of their term at the centre, unless direct."""
        values = self._exp_scales(self.law.params, x)
        sizes = self._term_sizes(values, rows)
        return values | {name: values[name] / sizes[name] for name in sizes}

    def residual(self, x: Any, rows: FitRows) -> Any:
        """Law minus target [P]."""
        value = self._evaluate(self.params_at(x, rows), rows)
        return jnp.log(value) - jnp.log(rows.target) if self.log else value - rows.target

    def slopes(self, x: Any, rows: FitRows) -> tuple[Any, Any]:
        """Residuals [P] and their derivatives [P, K]."""
        return self.residual(x, rows), jax.jacfwd(self.residual)(x, rows)

    def curvature(self, x: Any, pull: Any, rows: FitRows) -> Any:
        """Second derivatives of the residuals [K, K], summed over points with weights `pull` [P]."""
        return jax.hessian(lambda at: jnp.vdot(pull, self.residual(at, rows)))(x)

    def terms(self, searched: Any, rows: FitRows) -> tuple[Any, Any]:
        """The linear coordinates' terms [L, P] and the rest of the law [P]."""
        values = self._exp_scales(self.law.searched, searched)
        zero = {**values, **dict.fromkeys(self.law.linear, 0.0)}
        sizes = self._term_sizes(values, rows)
        offset = self._evaluate(zero, rows)
        each = [(self._evaluate(zero | {name: 1.0}, rows) - offset) / sizes[name] for name in self.law.linear]
        return jnp.stack(each) if each else jnp.zeros((0, *offset.shape)), offset

    def to_params(self, x: Any, rows: FitRows) -> Any:
        """Parameters [K] in the law's order."""
        params = self.params_at(x, rows)
        return jnp.stack([params[name] for name in self.law.params])

    def from_params(self, params: Any, rows: FitRows) -> Any:
        """Coordinates [K] of parameters [K]."""
        values = dict(zip(self.law.params, params, strict=True))
        sizes = self._term_sizes(values, rows)
        kinds = self.law.params.items()
        return jnp.stack(
            [jnp.log(values[n]) if kind.how == "log" else values[n] * sizes.get(n, 1.0) for n, kind in kinds]
        )

    def _exp_scales(self, names: Any, x: Any) -> dict[str, Any]:
        kinds = self.law.params
        return {name: jnp.exp(at) if kinds[name].how == "log" else at for name, at in zip(names, x, strict=True)}

    def _evaluate(self, params: Mapping[str, Any], rows: FitRows) -> Any:
        return jnp.broadcast_to(self.law.function(*rows.columns, **params), rows.target.shape)

    def _term_sizes(self, values: Mapping[str, Any], rows: FitRows) -> dict[str, Any]:
        """The size of each linear term at the centre with coefficient 1; 1.0 for direct ones."""
        function, linear = self.law.function, self.law.linear
        at_zero = {**values, **dict.fromkeys(linear, 0.0)}

        def term(name: str) -> Any:
            return function(*rows.centre, **at_zero | {name: 1.0}) - function(*rows.centre, **at_zero)

        place = list(self.law.params).index
        return {name: jnp.where(rows.direct[place(name)], 1.0, jnp.abs(term(name)) + 1e-300) for name in linear}


@functools.cache
def _compile(law: Law, log: bool) -> Mapping[str, Callable[..., Any]]:
    """The functions of `LawOfCoordinates`, each compiled over a chunk of problems."""
    each = LawOfCoordinates(law, log)
    over_x = [each.residual, each.slopes, each.terms, each.to_params, each.from_params]
    compiled = {function.__name__: jax.jit(jax.vmap(function, in_axes=(0, None))) for function in over_x}
    return compiled | {"curvature": jax.jit(jax.vmap(each.curvature, in_axes=(0, 0, None)))}


@dataclasses.dataclass(frozen=True, eq=False)
class AutodiffProblem(Problem):
    """The fit of any law; arguments as in `pose.pose_problem`."""

    direct: tuple[str, ...] = ()
    centre_at: Columns | None = None

    @functools.cached_property
    def rows(self) -> FitRows:
        """The points as the compiled functions take them, put on the device once for some thousand calls."""
        columns, centred = (
            [np.asarray(each[name], float) for name in self.law.columns]
            for each in (self.columns, self.centre_at or self.columns)
        )
        centre = tuple(np.exp(np.mean(np.log(c))) if np.all(c > 0) else np.mean(c) for c in centred)
        direct = np.array([name in self.direct for name in self.law.params])
        with jax.enable_x64(True):
            return jax.device_put(FitRows(tuple(columns), np.asarray(self.target, float), centre, direct))

    def misfits(self, x: np.ndarray) -> np.ndarray:
        """The residuals [R, P]."""
        return self._chunked("residual", x)[0]

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals [R, P] and their derivatives [R, K, P]."""
        r, jac = self._chunked("slopes", x)
        return r, jac.transpose(0, 2, 1)

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Gradient, IRLS majoriser and exact Hessian."""
        objective = self.objective
        r, jac = self._chunked("slopes", x)  # [R, P], [R, P, K]
        r = r - moved
        pull = weights * objective.slope(r)
        (second,) = self._chunked("curvature", x, pull)

        def gram(scale: np.ndarray) -> np.ndarray:
            return jac.transpose(0, 2, 1) @ (jac * scale[..., None])

        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            gradient = (pull[:, None] @ jac)[:, 0]
            return gradient, gram(weights * objective.weight(r)), gram(weights * objective.bend(r)) + second

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The linear coordinates' terms [G, L, P] and the rest of the law [G, P]."""
        terms, offset = self._chunked("terms", searched)
        return terms, offset

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters of coordinates x."""
        (params,) = self._chunked("to_params", x.reshape(-1, x.shape[-1]))
        return {name: params[:, i].reshape(x.shape[:-1]) for i, name in enumerate(self.law.params)}

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        each = [np.asarray(params[name], float) for name in self.law.params]
        values = np.stack(np.broadcast_arrays(*each), axis=-1)
        (x,) = self._chunked("from_params", values.reshape(-1, len(each)))
        return x.reshape(values.shape)

    def _chunked(self, name: str, *arrays: np.ndarray) -> list[np.ndarray]:
        """Map a compiled function over arrays [R, ...] in chunks, the last padded with its first row, in float64."""
        function, count, chunks = _compile(self.law, self.objective.log)[name], len(arrays[0]), []
        for first in range(0, count, CHUNK):
            parts = [a[first : first + CHUNK] for a in arrays]
            short = CHUNK - len(parts[0])
            parts = [np.concatenate([p, np.repeat(p[:1], short, axis=0)]) if short else p for p in parts]
            with jax.enable_x64(True):
                result = function(*parts, self.rows)
            chunks.append([np.asarray(leaf)[: CHUNK - short] for leaf in jax.tree.leaves(result)])
        return [np.concatenate(leaves) for leaves in zip(*chunks, strict=True)]
