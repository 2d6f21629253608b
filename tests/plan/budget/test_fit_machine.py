"""The number of devices that a budget's run is given."""

import pytest

from scalelab.plan.budget import fit_machine
from scalelab.plan.budget.fit_machine import Count, Request, pick_count
from scalelab.plan.budget.shape import find_shape
from scalelab.plan.machine.machine import load_machine


@pytest.mark.parametrize(("spare", "devices"), [(20e9, 2), (10e9, 1)])
def test_twice_as_many_devices_are_picked_where_they_are_better_in_all(
    monkeypatch: pytest.MonkeyPatch, spare: float, devices: int
) -> None:
    """`plan --budget=$500 --hardware=h100:2.5` took one card for 8.3 days, beside two for 4.05 at a lower cost."""
    of_one = Count(1, 11.7, 61_440, 524_288, 8.33, 200.0, int(16e9), {}, ())
    of_two = Count(2, 5.69, 61_440, 524_288, 4.05, 194.0, int(spare), {}, ())
    known = {1: of_one, 2: of_two}
    monkeypatch.setattr(fit_machine, "try_count", lambda shape, tokens, n, request: known.get(n))
    pick, tried = pick_count(find_shape(1.5e9), 3.2e10, Request(load_machine("h100")))
    assert pick.devices == devices
    assert tried == (of_one, of_two)
