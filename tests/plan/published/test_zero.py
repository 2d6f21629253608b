"""ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), Table 1: GB of model states a device."""

import math

import pytest

from scalelab.plan.published.zero import DEVICES, TABLE_1, state_bytes


def rounded_or_cut(value, printed):
    """Whether the paper's figure is `value` to the digits that it prints: 4187.5 stands there as 4187, 41.25 as
    41.3.
    """
    digits = len(printed.partition(".")[2])
    return float(printed) in (round(value + 1e-9, digits), math.floor(value * 10**digits) / 10**digits)


@pytest.mark.parametrize("parameters", TABLE_1)
@pytest.mark.parametrize("at", range(6), ids=[f"{n} devices" for n in DEVICES])
def test_table_1(parameters, at):
    for stage, row in TABLE_1[parameters].items():
        assert rounded_or_cut(state_bytes(parameters, DEVICES[at], stage) / 1e9, row[at]), (stage, row[at])


def test_other_optimizers_and_no_zero():
    """Momentum SGD beside fp32 weights keeps K = 8 (2.1e9 parameters of the paper's 16 bytes: 33.6 GB); stage 0
    splits nothing.
    """
    assert state_bytes(1e9, 64, 0) == 16e9
    assert state_bytes(1e9, 64, 0, k=8) == 12e9
    assert state_bytes(1e9, 8, 1, k=8) == 5e9
