"""Many fits of L = E + A C^-alpha at once: [B, R] losses at R budgets, a scan of alpha, the rest in closed form.

For a given alpha, L is linear in E and A. Residuals are relative to the loss, whose errors are. E is not below 0.
"""

import dataclasses

import numpy as np

SCAN = np.geomspace(0.01, 3.0, 160)  # values of alpha
FLOOR = 1e-6  # of a loss: the least that a law's A, or a loss above E, is


@dataclasses.dataclass(frozen=True, eq=False)
class Laws:
    """E, A and alpha of B laws, each [B]; `C` is counted in `unit` FLOPs, so that A is a loss."""

    E: np.ndarray
    A: np.ndarray
    alpha: np.ndarray
    unit: float

    def log_compute_ratio(self, reached: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """log of the factor on compute that takes a law from loss `reached` to `wanted`, each [B, R].

        The law keeps E and alpha and goes through `reached` exactly: its lack of fit does not enter. A loss at or below
        E would need infinite compute; it counts as a share FLOOR above E.
        """
        gaps = [np.maximum(losses - self.E[:, None], FLOOR * losses) for losses in (reached, wanted)]
        return np.log(gaps[0] / gaps[1]) / self.alpha[:, None]


def fit_laws(flops: np.ndarray, losses: np.ndarray, weights: np.ndarray, fix: dict[str, float]) -> Laws:
    """Fit B laws to `losses` [B, R] at `flops` [R]; `weights` [R]: runs behind each; `fix`: E and alpha that are given.

    With E and alpha given one rung is enough, with one of them two, else three.
    """
    unit = float(np.exp(np.log(flops).mean()))
    x = np.log(flops / unit)
    w = weights / losses**2  # [B, R]: squares of relative residuals
    alphas = np.array([fix["alpha"]]) if "alpha" in fix else SCAN
    E, A = _offsets(np.exp(-alphas[:, None] * x), losses, w, fix.get("E"))
    miss = losses[:, None, :] - E[:, :, None] - A[:, :, None] * np.exp(-alphas[:, None] * x)
    best = np.argmin((w[:, None, :] * miss**2).sum(-1), axis=1)
    each = np.arange(len(losses))
    return Laws(E[each, best], A[each, best], alphas[best], unit)


def _offsets(powers: np.ndarray, losses: np.ndarray, w: np.ndarray, E: float | None) -> tuple[np.ndarray, np.ndarray]:
    """E and A, each [B, values of alpha], by weighted least squares; `powers` [values, R] are C^-alpha."""
    total = w.sum(1)[:, None]
    p, y = w @ powers.T, (w * losses).sum(1)[:, None]  # [B, values], [B, 1]
    pp, py = w @ (powers**2).T, (w * losses) @ powers.T
    through_zero = py / pp
    if E is not None:
        return np.full_like(p, E), (py - E * p) / pp
    spread = pp - p**2 / total
    A = (py - p * y / total) / np.where(spread > 0, spread, 1.0)
    free = (y - A * p) / total
    inside = (free >= 0) & (spread > 1e-12 * pp)
    return np.where(inside, free, 0.0), np.where(inside, A, through_zero)
