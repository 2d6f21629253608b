"""Which of several numbers of devices is meant, by days, device hours and money."""

from types import SimpleNamespace

import pytest

from scalelab.plan.sweep.counts import Limits, pick_count


def of(devices, days, price=2.0):
    hours = 24 * days * devices
    return SimpleNamespace(
        plan=SimpleNamespace(training=SimpleNamespace(days=days, device_hours=hours, cost=price * hours))
    )


@pytest.mark.parametrize(
    ("limits", "pick"),
    [
        (Limits(), 16),  # 3.9 % more device hours than 8 need; 32 need 15 % more
        (Limits(days=30), 32),
        (Limits(cost=1e9), 64),  # 128 are 2 % faster for twice the money
        (Limits(cost=40_000), 32),
        (Limits(days=30, cost=1e9), 32),
    ],
)
def test_the_number_that_is_meant(limits, pick):
    days = {8: 77.0, 16: 40.0, 32: 22.0, 64: 15.0, 128: 14.7}
    assert pick_count({devices: of(devices, each) for devices, each in days.items()}, limits) == pick
