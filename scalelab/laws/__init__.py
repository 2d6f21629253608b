"""Scaling laws: forms, exact fits with a certificate, what the data identify, intervals, decisions.

Read in this order: `fit` (the entry point), `law`, `read`, `solve`, `trust`, `use`, `groups`, `published`. It never
imports the trainer.
"""

from scalelab.laws.fit import fit
from scalelab.laws.fitted import Fitted
from scalelab.laws.law.law import Between, Coefficient, Exponent, Law, Real, Scale, law_of
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use.multiplier.estimate import multiplier

__all__ = [
    "Between",
    "Coefficient",
    "Exponent",
    "FitError",
    "Fitted",
    "Law",
    "Real",
    "Scale",
    "fit",
    "law_of",
    "multiplier",
]
