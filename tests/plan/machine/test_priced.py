"""Prices in the name of a machine, several kinds, and the device that is here."""

import types

import pytest

from scalelab.errors import BadInput
from scalelab.plan.machine import priced
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.machine.priced import load_machines


def device(kind, limit=None, platform="gpu"):
    stats = {"bytes_limit": limit} if limit else None
    return types.SimpleNamespace(device_kind=kind, platform=platform, memory_stats=lambda: stats)


def test_kinds_and_prices_are_read():
    h100, a100 = load_machines("h100:$2.5, a100")
    assert (h100.chip, h100.price_per_hour) == (load_machine("h100").chip, 2.5)
    assert (a100.chip.name, a100.price_per_hour) == ("A100 80GB SXM", None)
    assert load_machines("b200", 4.0)[0].price_per_hour == 4.0
    with pytest.raises(BadInput, match=r"nearest: --hardware=h100:3$"):
        load_machines("h100:2", 3.0)


def test_auto_is_the_device_that_is_here_with_the_memory_that_it_gives(monkeypatch):
    here = [device("NVIDIA H100 80GB HBM3", 70 * 2**30)]
    monkeypatch.setattr(priced, "local_devices", lambda: (here, ""))
    (machine,) = load_machines("auto:2")
    assert (machine.chip.name, machine.chip.given_bytes, machine.price_per_hour) == ("H100 SXM", 70 * 2**30, 2.0)
    here[0] = device("cpu", platform="cpu")
    assert load_machines("auto")[0].chip.name == "CPU"
    here[0] = device("NVIDIA X9")
    with pytest.raises(BadInput, match="no chip 'NVIDIA X9'; nearest: one of v4"):
        load_machines("auto")
    here.clear()
    with pytest.raises(BadInput, match=r"no device is here .*nearest: --hardware=cpu"):
        load_machines("auto")
