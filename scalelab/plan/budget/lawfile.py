"""A law of the user's own, as `scalelab fit --json=PATH` and a study's summary.json hold it, made ready to plan by."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.names import LAWS, load_law
from scalelab.plan.budget.book import LawBook, PowerLawSplit, constant_params, stack_draws


def read_law_file(path: pathlib.Path) -> LawBook:
    """The law of a file. BadInput for one that is not JSON, holds no law, or a law that splits no budget.

    Of an approach-3 fit: law, params, fixed, flops_per_param_token, and the resamples in bootstrap.draws, which carry the
    intervals. By hand `{"law": "chinchilla", "params": {…}}` will do. Of approaches 1 and 2: the power law of N.
    """
    try:
        found = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"--law={path} is not JSON: {error}") from None
    found = found.get("fit", found) if isinstance(found, dict) else {}
    try:
        if {"law", "params"} <= set(found):
            return _read_surface(path, found)
        if "a" in found and {"coefficient", "N_coefficient"} & set(found):
            return _read_power_law(path, found)
    except BadInput:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"--law={path} is not as `scalelab fit` writes it: {type(error).__name__}: {error}") from None
    raise BadInput(f"--law={path} holds no law: it needs law and params, as `scalelab fit … --json={path}` writes them")


def _read_surface(path: pathlib.Path, found: Mapping[str, Any]) -> LawBook:
    """An approach-3 fit."""
    held = found.get("fixed") or {}
    law = law_lib.hold_params(load_law(found["law"], stored=True), **held)
    if not ({"N", "D"} <= set(law.columns) or "M" in law.columns) or law.target != "loss":
        raise BadInput(f"--law={path}: law {law.name!r} ({law.equation}) splits no budget: it has no N and D")
    if missing := [name for name in law.params if name not in found["params"]]:
        raise BadInput(f"--law={path}: params lack {', '.join(missing)} of law {law.name!r}")
    point = {name: float(found["params"][name]) for name in law.params}
    draws = (found.get("bootstrap") or {}).get("draws") or {}
    known = set(law.params) <= set(draws)
    sure = found.get("interval_level", 0.9)
    count = len(next(iter(draws.values()))) if known else 0
    return LawBook(
        name=str(path),
        source=f"{path}: {found['law']} fitted to {found['n_rows']} runs" if "n_rows" in found else str(path),
        n_convention=found.get("n_convention", "not said"),
        interval=f"percentiles of {count} resampled fits; the law's own error, without the noise of one run"
        if known
        else "none: the file holds no bootstrap.draws (a fit with --bootstrap=0, or of an older version)",
        surface=law,
        params=stack_draws(point, draws) if known else constant_params(point),
        level=sure if known else None,
        k=float(found.get("flops_per_param_token", FLOPS_PER_PARAM_TOKEN)),
        notes=tuple(found.get("warnings", ())),
    )


def _read_power_law(path: pathlib.Path, found: Mapping[str, Any]) -> LawBook:
    """Approach 1 or 2: N_opt = coefficient x C^a, turned about the middle of the budgets by the interval of a.

    Of a file without budgets the line is taken, and no interval.
    """
    a, coefficient = float(found["a"]), float(found.get("coefficient") or found["N_coefficient"])
    ends = found.get("interval") or found.get("a_interval")
    budgets = [each["budget"] for each in found.get("budgets", ())] or found.get("frontier", {}).get("C", [])
    middle = float(np.exp(np.mean(np.log(budgets)))) if budgets else 1.0
    ends = ends if budgets else None
    exponents = (a, *map(float, ends)) if ends else (a,)
    return LawBook(
        name=str(path),
        source=f"{path}: approach {found.get('approach', '1 or 2')}, {found.get('method', '')}",
        n_convention=found.get("n_convention", "not said"),
        interval=f"the exponent's, turned about the middle of the budgets ({middle:.2g} FLOPs): at least so wide"
        if ends
        else "none: the file has no interval of the exponent",
        surface=LAWS["chinchilla"],
        params=constant_params(dict.fromkeys(LAWS["chinchilla"].params, float("nan")), len(exponents)),
        level=float(found.get("interval_level", found.get("level", 0.8))) if ends else None,
        split=PowerLawSplit(coefficient * middle**a, middle, exponents),
        notes=("a power law of N alone: it gives no loss",),
    )
