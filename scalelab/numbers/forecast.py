"""The running forecast of a loss from those before."""

import numpy as np

FORECAST_STEPS, FORECAST_LEAST = 64, 16  # losses that the forecast of the next one rests on
TINY = 1e-30  # the logarithm of zero would be no number


def forecast_sigmas(losses: np.ndarray) -> np.ndarray:
    """Standard deviations of each of the last n of `losses` [FORECAST_STEPS + n], as ln, above its running forecast.

    That is the line of least squares through the FORECAST_STEPS before, flagged ones included, and the deviation that
    of its residuals. 0 where fewer than FORECAST_LEAST of them are finite, or the loss is not.
    """
    logs = np.log(np.maximum(np.float64(losses), TINY))
    past = np.lib.stride_tricks.sliding_window_view(logs, FORECAST_STEPS)[:-1]
    known, x = np.isfinite(past), np.arange(-FORECAST_STEPS, 0.0)
    n = np.maximum(known.sum(axis=1), 1)
    mean = lambda values: np.where(known, values, 0.0).sum(axis=1) / n  # noqa: E731
    x_mean, y_mean = mean(x), mean(past)
    dx, dy = x - x_mean[:, None], np.where(known, past - y_mean[:, None], 0.0)
    slope = mean(dx * dy) / np.maximum(mean(dx * dx), TINY)
    std = np.sqrt(mean(np.square(dy - slope[:, None] * dx)) * n / np.maximum(n - 2, 1))
    above = logs[FORECAST_STEPS:] - (y_mean - slope * x_mean)
    return np.where((n >= FORECAST_LEAST) & np.isfinite(above), above / np.maximum(std, TINY), 0.0)
