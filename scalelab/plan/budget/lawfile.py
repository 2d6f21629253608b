"""Reader of a user's own law, from `scalelab fit --json=PATH` or a study's summary.json, as a law to plan by."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput, quote_path
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.names import LAWS, load_law
from scalelab.laws.read.readers import READERS
from scalelab.laws.trust.stored_misfit import read_draws
from scalelab.plan.budget.book import LawBook, PowerLawSplit, constant_params, stack_draws
from scalelab.untrusted.documents import read_document


def read_law_file(path: pathlib.Path) -> LawBook:
    """The law of a file. BadInput for a file that is not JSON or has no law, and for a law that splits no budget.

    Approach 3: law, params, fixed, flops_per_param_token, and the resamples in bootstrap.draws, which give the
    intervals; `{"law": "chinchilla", "params": {…}}` is enough. Approaches 1 and 2: the power law of N.
    """
    try:
        content = read_document(path, follow=True)
    except BadInput:
        raise
    except ValueError as error:
        nearest = f"; fit it first: scalelab fit {quote_path(path)} --json=FIT.json" if path.suffix in READERS else ""
        raise BadInput(f"--law={path} is not JSON: {error}{nearest}") from None
    content = content.get("fit", content) if isinstance(content, dict) else {}
    try:
        if {"law", "params"} <= set(content):
            return _read_surface(path, content)
        if "a" in content and {"coefficient", "N_coefficient"} & set(content):
            return _read_power_law(path, content)
    except BadInput:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise BadInput(f"--law={path} is not as `scalelab fit` writes it: {type(error).__name__}: {error}") from None
    command = f"scalelab fit … --json={quote_path(path)}"
    raise BadInput(f"--law={path} holds no law: it needs law and params, as `{command}` writes them")


def _read_surface(path: pathlib.Path, content: Mapping[str, Any]) -> LawBook:
    """The law of an approach-3 fit."""
    fixed = content.get("fixed") or {}
    law = law_lib.hold_params(load_law(content["law"], stored=True), **fixed)
    if not ({"N", "D"} <= set(law.columns) or "M" in law.columns) or law.target != "loss":
        raise BadInput(f"--law={path}: law {law.name!r} ({law.equation}) splits no budget: it has no N and D")
    if missing := [name for name in law.params if name not in content["params"]]:
        raise BadInput(f"--law={path}: params lack {', '.join(missing)} of law {law.name!r}")
    point = {name: float(content["params"][name]) for name in law.params}
    resamples = content.get("bootstrap") or {}
    draws = resamples.get("draws") or {}
    misfit = read_draws(resamples["misfit"]) if resamples.get("misfit") else None
    has_draws = set(law.params) <= set(draws)
    level = content.get("interval_level", 0.9)
    count = len(next(iter(draws.values()))) if has_draws else 0
    if misfit and len(misfit.length) != count:
        raise BadInput(f"--law={path}: bootstrap.misfit has {len(misfit.length)} draws, and bootstrap.draws {count}")
    return LawBook(
        name=str(path),
        source=f"{path}: {content['law']} fitted to {content['n_rows']} runs" if "n_rows" in content else str(path),
        n_convention=content.get("n_convention", "not said"),
        interval=f"percentiles of {count} resampled fits; the law's own error, without the noise of one run"
        if has_draws
        else "none: the file holds no bootstrap.draws (a fit with --bootstrap=0, or of an older version)",
        surface=law,
        params=stack_draws(point, draws) if has_draws else constant_params(point),
        level=level if has_draws else None,
        misfit=misfit,
        k=float(content.get("flops_per_param_token", FLOPS_PER_PARAM_TOKEN)),
        notes=tuple(map(str, content.get("warnings", ()))),
    )


def _read_power_law(path: pathlib.Path, content: Mapping[str, Any]) -> LawBook:
    """The law of approach 1 or 2: N_opt = coefficient x C^a, turned about the middle of the budgets by a's interval.

    A file without budgets gives the line without an interval.
    """
    a, coefficient = float(content["a"]), float(content.get("coefficient") or content["N_coefficient"])
    ends = content.get("interval") or content.get("a_interval")
    budgets = [entry["budget"] for entry in content.get("budgets", ())] or content.get("frontier", {}).get("C", [])
    middle = float(np.exp(np.mean(np.log(budgets)))) if budgets else 1.0
    ends = ends if budgets else None
    exponents = (a, *map(float, ends)) if ends else (a,)
    return LawBook(
        name=str(path),
        source=f"{path}: approach {content.get('approach', '1 or 2')}, {content.get('method', '')}",
        n_convention=content.get("n_convention", "not said"),
        interval=f"the exponent's, turned about the middle of the budgets ({middle:.2g} FLOPs): at least so wide"
        if ends
        else "none: the file has no interval of the exponent",
        surface=LAWS["chinchilla"],
        params=constant_params(dict.fromkeys(LAWS["chinchilla"].params, float("nan")), len(exponents)),
        level=float(content.get("interval_level", content.get("level", 0.8))) if ends else None,
        split=PowerLawSplit(coefficient * middle**a, middle, exponents),
        notes=("a power law of N alone: it gives no loss",),
    )
