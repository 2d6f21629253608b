"""Values, settings and losses as text, for tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.sweep.answer.settings import SweptSetting

DECIMALS = 4  # of a loss without a standard error
LEAST_ERROR = 1e-8  # below it a standard error is rounding
MOST_NAMED = 6  # settings in one sentence


def is_number(value: Any) -> bool:
    """Whether a swept value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def p_text(p: float) -> str:
    """A p-value to two digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def count_words(counts: Mapping[str, int]) -> str:
    """Numbers of things: `2 diverged, 1 failed`."""
    return ", ".join(f"{number} {reason}" for reason, number in counts.items())


def mean_text(setting: SweptSetting) -> str:
    """The mean loss of a setting with its standard error, if it has one."""
    if not math.isfinite(setting.mean):
        return "-"
    return f"{setting.mean:.{DECIMALS}f}" if setting.error is None else with_error(setting.mean, setting.error)


def with_error(value: float, error: float, sign: str = "") -> str:
    """A value and its standard error to the same digit, the second of the error: `2.0640 ± 0.0012`, `2.06 ± 0.25`."""
    decimals = DECIMALS if error < LEAST_ERROR else max(0, 1 - int(f"{error:.1e}".split("e")[1]))
    return f"{value:{sign}.{decimals}f} ± {error:.{decimals}f}"


def name_setting(values: Mapping[str, Any]) -> str:
    """A setting by its values: `optim.peak_lr = 0.01, model.d_model = 64`."""
    return ", ".join(f"{key} = {format_value(value)}" for key, value in values.items())


def name_several(settings: Sequence[SweptSetting]) -> str:
    """Settings by their values only, the first MOST_NAMED of them."""
    names = [" with ".join(map(format_value, setting.values.values())) for setting in settings[:MOST_NAMED]]
    more = len(settings) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def format_value(value: Any) -> str:
    """A swept value as text: short numbers, a dash for None."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
