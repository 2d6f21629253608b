"""Scaling laws: forms, exact fits with a certificate, what the data identify, intervals, decisions.

Read in this order: `fits` (`fitting` is the entry point), `law`, `read`, `solve`, `trust`, `curves`, `use`, `design`,
`next_runs` (the run that narrows an interval most), `published`. It never imports the trainer. The names below are
imported on first use, so that what needs one small function loads no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalelab.laws.fits.fitted import Fitted
    from scalelab.laws.fits.fitting import fit
    from scalelab.laws.law.law import Between, Coefficient, Exponent, Law, Real, Scale, Share, law_of
    from scalelab.laws.solve.optimum import FitError
    from scalelab.laws.use.multiplier.estimate import multiplier

_MODULES = {
    "Fitted": "fits.fitted",
    "fit": "fits.fitting",
    **dict.fromkeys(("Between", "Coefficient", "Exponent", "Law", "Real", "Scale", "Share", "law_of"), "law.law"),
    "FitError": "solve.optimum",
    "multiplier": "use.multiplier.estimate",
}
__all__ = [
    "Between",
    "Coefficient",
    "Exponent",
    "FitError",
    "Fitted",
    "Law",
    "Real",
    "Scale",
    "Share",
    "fit",
    "law_of",
    "multiplier",
]


def __getattr__(name: str) -> Any:
    """Import one of the names above."""
    if name not in _MODULES:
        raise AttributeError(f"module 'scalelab.laws' has no attribute {name!r}")
    return getattr(importlib.import_module(f"scalelab.laws.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
