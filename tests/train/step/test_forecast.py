"""The running forecast of a batch's loss, against numpy's line of least squares through the logarithms."""

import numpy as np
import pytest

from scalelab.config import Guard
from scalelab.numbers.forecast import FORECAST_STEPS, forecast_sigmas
from tests.quick import one_in
from tests.train.step.test_guard import decided


@pytest.mark.parametrize("at", one_in(2, [15, 16, 40, 700]))
def test_sigmas_are_those_of_a_line_through_the_last_finite_losses(at):
    random = np.random.default_rng(0)
    losses = np.exp(np.log(5.0) - 0.002 * np.arange(at) + 0.02 * random.standard_normal(at))
    losses[np.arange(at)[-30:-9:10]] = np.nan
    memory, _, _ = decided(Guard(policy="watch"), losses, np.ones(at))
    x = np.arange(max(0, at - 64), at)
    x = x[np.isfinite(losses[x])]
    if len(x) < 16:
        line, std = [0.0, np.log(5.0)], np.inf
    else:
        line = np.polyfit(x, np.log(losses[x]), 1)
        std = np.sqrt(np.sum((np.log(losses[x]) - np.polyval(line, x)) ** 2) / (len(x) - 2))
    next_losses = np.exp(np.polyval(line, at) + np.array([-1.0, 0.0, 6.0]) * min(std, 1.0))
    for loss, above in zip(next_losses, (-1.0, 0.0, 6.0), strict=True):
        series = np.append(memory.recent[-FORECAST_STEPS:], np.float32(loss))
        expected = 0.0 if len(x) < 16 else above
        np.testing.assert_allclose(forecast_sigmas(series), [expected], atol=2e-3)


def test_a_loss_that_is_not_finite_has_no_sigmas():
    series = np.full(FORECAST_STEPS + 2, 3.0) * np.exp(0.01 * np.arange(FORECAST_STEPS + 2) % 3)
    series[-2:] = np.inf, 3.0
    assert forecast_sigmas(series)[0] == 0 and np.isfinite(forecast_sigmas(series)).all()
