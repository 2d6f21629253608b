"""Fit Chinchilla's law to runs (Hoffmann et al. 2022, approach 3), and say how sure the optimiser is of the optimum."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws import solve
from scalelab.laws.forms import Params, chinchilla, exponents

SEED_EXPONENTS = np.geomspace(0.05, 2.0, 8)  # wider than any published alpha or beta (.05 to 1.2)
AGREE = 1e-6  # two starts found the same optimum where their objectives differ by less than this share
MIN_POINTS, MIN_SIZES = 5, 3


class FitError(RuntimeError):
    """A fit that did not converge. Its numbers are not handed out."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Evidence that a fit is the optimum it claims to be.

    `agree` of `starts` polished starts (all seeded by variable projection) ended within 1e-6 of the best objective; the
    next basin lies `next_basin` (a share of the objective; None: no other seen) higher. `gradient_norm` and `condition`
    are of the objective and its exact Hessian in (log E, log A, log B, alpha, beta), centred, over the parameters
    not at a bound; `at_bounds` names those that are.
    """

    converged: bool
    starts: int
    starts_converged: int
    agree: int
    next_basin: float | None
    gradient_norm: float
    condition: float
    at_bounds: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A fitted law. `residuals` [P] are log loss minus log law, in the order of the points given."""

    params: Params
    objective: float
    delta: float
    certificate: Certificate
    residuals: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """The fit as plain JSON values."""
        a, b = exponents(self.params)
        return {
            "law": "chinchilla",
            "equation": "L = E + A/N^alpha + B/D^beta",
            "params": {name: float(value) for name, value in self.params._asdict().items()},
            "exponents": {"a": float(a), "b": float(b)},
            "objective": self.objective,
            "delta": self.delta,
            "residual_rms": float(np.sqrt(np.mean(self.residuals**2))),
            "certificate": dataclasses.asdict(self.certificate) | {"at_bounds": list(self.certificate.at_bounds)},
        }


def positive(**columns: ArrayLike) -> list[np.ndarray]:
    """The columns as float64 arrays of one length; BadInput names the first value that isn't finite and positive."""
    arrays = {name: np.asarray(value, float) for name, value in columns.items()}
    shapes = {name: value.shape for name, value in arrays.items()}
    if len(set(shapes.values())) > 1 or any(value.ndim != 1 for value in arrays.values()):
        raise BadInput(f"{', '.join(arrays)} must be lists of one length, not of shapes {list(shapes.values())}")
    for name, value in arrays.items():
        bad = np.flatnonzero(~(np.isfinite(value) & (value > 0)))
        if len(bad):
            raise BadInput(f"{name}[{bad[0]}] = {value[bad[0]]:g}: each must be finite and positive")
    return list(arrays.values())


def checked(N: ArrayLike, D: ArrayLike, loss: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points as float64 [P] arrays; BadInput says why no law can be fitted to them."""
    N, D, loss = positive(N=N, D=D, loss=loss)
    if len(N) < MIN_POINTS:
        raise BadInput(f"{len(N)} runs: a law with five parameters needs at least {MIN_POINTS}")
    for name, values in (("N", N), ("D", D)):
        if (different := len(np.unique(values))) < MIN_SIZES:
            raise BadInput(f"{different} different {name}: a power law in {name} needs at least {MIN_SIZES}")
    return N, D, loss


def seed_grid(values: np.ndarray) -> np.ndarray:
    """All pairs (alpha, beta) of `values` [G]: [G*G, 2]."""
    return np.stack(np.meshgrid(values, values, indexing="ij"), axis=-1).reshape(-1, 2)


def fit_chinchilla(N: ArrayLike, D: ArrayLike, loss: ArrayLike, delta: float = 1e-3) -> Fit:
    """Fit L = E + A/N^alpha + B/D^beta to runs with N parameters, D tokens and loss in nats per token, each [P].

    Minimises the sum of Huber(delta) of log-loss residuals (Hoffmann et al. 2022, eq. 3) with E, A, B >= 0 and both
    exponents in [0.01, 3]: 64 variable-projection seeds, each polished to a stationary point in float64.
    BadInput for points that no law can be fitted to, FitError where the optimum is not certain.
    """
    N, D, loss = checked(N, D, loss)
    if not delta > 0:
        raise BadInput(f"delta = {delta:g}: Huber's threshold must be positive (1e-3 is Hoffmann's)")
    data = solve.centred(N, D, loss, delta)
    weights = np.ones((1, len(N)))
    starts = solve.seeds(data, weights, seed_grid(SEED_EXPONENTS))[0]
    found = solve.descend(starts, data, np.broadcast_to(weights, (len(starts), len(N))))
    best = int(found.objective.argmin())
    if not found.converged[best]:
        raise FitError(
            f"the fit did not converge: the best of {len(starts)} starts (objective {found.objective[best]:.6g}, "
            f"{int(found.converged.sum())} others converged) is not at a stationary point"
        )
    params = Params(*(float(value) for value in solve.to_params(found.x[best], data)))
    return Fit(
        params=params,
        objective=float(found.objective[best]),
        delta=float(delta),
        certificate=certify(found, best, data, weights),
        residuals=np.log(loss) - np.log(chinchilla(params, N, D)),
    )


def certify(found: solve.Solutions, best: int, data: solve.Data, weights: np.ndarray) -> Certificate:
    """The certificate of solution `best` among all polished starts."""
    least = found.objective[best]
    excess = found.objective - least
    same = excess <= AGREE * least + solve.ROUNDING * weights.sum()
    others = excess[found.converged & ~same]
    x = found.x[best : best + 1]
    gradient, _, hessian = solve.derivatives(x, data, weights)
    bound = (x <= solve.LOWER) | (x >= solve.UPPER)
    free = ~bound[0]
    scale = np.append(x[0, :3], [1.0, 1.0])[free]
    eigenvalues = np.abs(np.linalg.eigvalsh(hessian[0][np.ix_(free, free)] * np.outer(scale, scale)))
    return Certificate(
        converged=bool(found.converged[best]),
        starts=len(found.x),
        starts_converged=int(found.converged.sum()),
        agree=int(same.sum()),
        next_basin=float(others.min() / least) if len(others) and least > 0 else None,
        gradient_norm=float(np.linalg.norm(gradient[0, free] * scale)),
        condition=float(eigenvalues.max() / max(eigenvalues.min(), np.finfo(float).tiny)),
        at_bounds=tuple(name for name, held in zip(Params._fields, bound[0], strict=True) if held),
    )
