"""Many small robust fits of L(N, D) = E + A/N^alpha + B/D^beta at once, in float64 numpy.

Inside this file a law is x = (E, a, b, alpha, beta) with a = A exp(-alpha mean log N), b = B exp(-beta mean log D): the
two terms at the centre of the data. The centred form is far better conditioned than (A, B), and E, a, b >= 0 are plain
box bounds. Legend: R problems (starts or resamples), P points, G grid seeds.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from scalelab.laws.forms import Params

EXPONENT_BOUNDS = (0.01, 3.0)
LOWER = np.array([0.0, 0.0, 0.0, EXPONENT_BOUNDS[0], EXPONENT_BOUNDS[0]])
UPPER = np.array([np.inf, np.inf, np.inf, EXPONENT_BOUNDS[1], EXPONENT_BOUNDS[1]])
TOLERANCE = 1e-10  # converged: no step can lower the objective by more than this share of it
SINGULAR = 1e-14  # curvature below this, relative to the parameter's own, is none
ROUNDING = 1e-28  # ... or by more than this a point (noise-free data: the objective itself goes to zero)


class Data(NamedTuple):
    """The points in centred logs (n, d) and log loss (y), each [P]; the means taken off; the Huber threshold."""

    n: np.ndarray
    d: np.ndarray
    y: np.ndarray
    n_mean: float
    d_mean: float
    delta: float


def centred(N: np.ndarray, D: np.ndarray, loss: np.ndarray, delta: float) -> Data:
    """Parameters, tokens and losses [P] as the solver wants them."""
    n, d = np.log(N), np.log(D)
    return Data(n - n.mean(), d - d.mean(), np.log(loss), float(n.mean()), float(d.mean()), delta)


def to_params(x: np.ndarray, data: Data) -> Params:
    """The law behind centred x [..., 5]."""
    E, a, b, alpha, beta = np.moveaxis(x, -1, 0)
    return Params(E, a * np.exp(alpha * data.n_mean), b * np.exp(beta * data.d_mean), alpha, beta)


def from_params(params: Params, data: Data) -> np.ndarray:
    """Centred x [..., 5] of a law: the inverse of `to_params`."""
    E, A, B, alpha, beta = (np.asarray(value, float) for value in params)
    return np.stack([E, A * np.exp(-alpha * data.n_mean), B * np.exp(-beta * data.d_mean), alpha, beta], axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Solutions:
    """What `descend` found: x [R, 5], objective [R], converged [R]."""

    x: np.ndarray
    objective: np.ndarray
    converged: np.ndarray


def log_model(x: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(loss of the law, N^-alpha, D^-beta), each [R, P], the powers centred."""
    u = np.exp(-x[:, 3:4] * data.n)
    v = np.exp(-x[:, 4:5] * data.d)
    return x[:, 0:1] + x[:, 1:2] * u + x[:, 2:3] * v, u, v


def huber(r: np.ndarray, delta: float) -> np.ndarray:
    """Huber's function: r^2/2 up to delta, then delta (|r| - delta/2) (Huber 1964)."""
    size = np.abs(r)
    return np.where(size <= delta, 0.5 * r * r, delta * (size - 0.5 * delta))


def objective(x: np.ndarray, data: Data, weights: np.ndarray) -> np.ndarray:
    """Sum over points of weight x Huber(log law - log loss): [R]. A sum, never a mean (Besiroglu et al. 2024)."""
    model = log_model(x, data)[0]
    with np.errstate(divide="ignore", invalid="ignore"):  # a law that is 0 everywhere is refused, not computed
        value = np.sum(weights * huber(np.log(model) - data.y, data.delta), axis=1)
    return np.where(np.isfinite(value), value, np.inf)


def derivatives(x: np.ndarray, data: Data, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(gradient [R, 5], IRLS majoriser [R, 5, 5], exact Hessian [R, 5, 5]) of `objective`."""
    model, u, v = log_model(x, data)
    r = np.log(model) - data.y
    pull = weights * np.clip(r, -data.delta, data.delta)
    jac = np.stack([np.ones_like(u), u, v, -x[:, 1:2] * data.n * u, -x[:, 2:3] * data.d * v], axis=1) / model[:, None]
    gradient = np.einsum("rip,rp->ri", jac, pull)

    def gram(scale: np.ndarray) -> np.ndarray:
        return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)

    size = np.abs(r)
    majoriser = gram(weights * np.minimum(1.0, data.delta / np.maximum(size, data.delta)))
    hessian = gram(weights * (size <= data.delta) - pull)
    for term, slope, log_size, power in ((1, 3, data.n, u), (2, 4, data.d, v)):
        share = pull / model * power * log_size
        hessian[:, term, slope] -= share.sum(axis=1)
        hessian[:, slope, term] -= share.sum(axis=1)
        hessian[:, slope, slope] += x[:, term] * (share @ log_size)
    return gradient, majoriser, hessian


def seeds(data: Data, weights: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Variable projection: for each (alpha, beta) in `exponents` [G, 2] the best non-negative E, a, b: x [R, G, 5].

    Given the exponents the law is linear, and relative error stands in for log error (Golub & Pereyra 1973). The
    non-negative least squares is exact: all seven supports of three coefficients are tried.
    """
    alpha, beta = exponents[:, 0:1], exponents[:, 1:2]
    basis = np.stack([np.ones((len(exponents), len(data.n))), np.exp(-alpha * data.n), np.exp(-beta * data.d)], axis=1)
    basis = basis * np.exp(-data.y)
    products = (basis[:, :, None] * basis[:, None]).reshape(-1, basis.shape[-1])
    gram = (weights @ products.T).reshape(len(weights), len(exponents), 3, 3)
    target = np.einsum("rp,gip->rgi", weights, basis)
    best = np.full(gram.shape[:2], np.inf)
    x = np.zeros((*gram.shape[:2], 5))
    x[..., 3:] = exponents
    for support in range(1, 8):
        on = np.array([bool(support >> i & 1) for i in range(3)])
        keep = np.outer(on, on)
        ridge = np.eye(3) * np.where(on, 1e-12 * np.trace(gram, axis1=2, axis2=3)[..., None], 1.0)[..., None, :]
        coefs = np.linalg.solve(np.where(keep, gram, 0.0) + ridge, (target * on)[..., None])[..., 0]
        value = np.einsum("rgi,rgij,rgj->rg", coefs, gram, coefs) - 2 * np.sum(coefs * target, axis=-1)
        better = (coefs >= 0).all(axis=-1) & (value < best)
        best = np.where(better, value, best)
        x[..., :3] = np.where(better[..., None], coefs, x[..., :3])
    return x


def free_of(x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Which parameters may move: not those at a bound that the descent direction would leave through."""
    held = ((x <= LOWER) & (gradient > 0)) | ((x >= UPPER) & (gradient < 0))
    return ~held


def propose(
    curvature: np.ndarray, gradient: np.ndarray, free: np.ndarray, scale: np.ndarray, damping: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(step [R, 5] for |curvature| + damping, decrease [R] that the undamped step promises), in scaled coordinates.

    The absolute eigenvalues make every step a descent direction, also where the exact Hessian is indefinite.
    """
    scaled = curvature * scale[:, :, None] * scale[:, None, :] * free[:, :, None] * free[:, None, :]
    values, vectors = np.linalg.eigh(scaled)
    along = np.einsum("rij,ri->rj", vectors, gradient * scale * free)
    size = np.abs(values)
    step = -np.einsum("rij,rj->ri", vectors, along / (size + damping[:, None])) * scale * free
    return step, 0.5 * np.sum(along**2 / (size + SINGULAR), axis=1)


def descend(start: np.ndarray, data: Data, weights: np.ndarray, iterations: int = 1000) -> Solutions:
    """Minimise `objective` from start [R, 5] with weights [R, P]: projected, damped Newton with an IRLS rival.

    Each iteration proposes an IRLS-Levenberg-Marquardt step (a majoriser: safe far away) and an exact Newton step (fast
    at the end, where Huber's kinks make IRLS crawl), each with a damping of its own, and takes the lower one. Both obey
    the bounds. Problems leave the batch as they converge.
    """
    x = np.clip(start, LOWER, UPPER)
    value = objective(x, data, weights)
    done = np.zeros(len(x), bool)
    damping = np.full((2, len(x)), 1e-3)
    for _ in range(iterations):
        (active,) = np.nonzero(~done & (damping.min(axis=0) < 1e12))
        if not len(active):
            break
        x_now, w_now, value_now = x[active], weights[active], value[active]
        gradient, *curvatures = derivatives(x_now, data, w_now)
        free = free_of(x_now, gradient)
        scale = 1.0 / np.sqrt(np.maximum(np.einsum("rii->ri", curvatures[0]), 1e-12))
        offers = [
            propose(c, gradient, free, scale, extra) for c, extra in zip(curvatures, damping[:, active], strict=True)
        ]
        promise = np.maximum(offers[0][1], offers[1][1])
        done[active] = promise <= TOLERANCE * value_now + ROUNDING * w_now.sum(axis=1)
        trials = np.clip(x_now + np.stack([step for step, _ in offers]), LOWER, UPPER)
        values = np.stack([objective(trial, data, w_now) for trial in trials])
        lower = values < value_now
        damping[:, active] = np.maximum(damping[:, active] * np.where(lower, 0.2, 4.0), SINGULAR)
        best = values.argmin(axis=0), np.arange(len(active))
        x[active] = np.where(lower[best][:, None], trials[best], x_now)
        value[active] = np.minimum(values[best], value_now)
    return Solutions(x, value, done)
