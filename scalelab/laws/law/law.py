"""Laws as pure functions: reads from a law's signature what a fit must know.

Positional arguments are columns of the table, keyword-only ones are parameters, annotated with their kind:

    def saturating(C, *, E: Coefficient, A: Coefficient, alpha: Exponent):
        '''L = E + A/C^alpha'''
        return E + A / C**alpha

Write it with operators and `jax.numpy`; it must also take numpy arrays. It needs no other declaration.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np

from scalelab.errors import BadInput, nearest_hint


@dataclasses.dataclass(frozen=True)
class ParamKind:
    """Where a parameter may lie, and how it is searched.

    `how`: "linear" (the law is linear in it once the others are fixed: variable projection solves for it), "direct"
    (searched as it is), or "log" (a positive scale, searched in its logarithm). `starts`: the range that global search
    covers; `low` and `high` are hard bounds.
    """

    how: Literal["linear", "direct", "log"]
    low: float
    high: float
    starts: tuple[float, float]


class ColumnKind(NamedTuple):
    """What a column may hold besides positive numbers, and which parameters N counts: "active", "total" or any ("")."""

    zero: bool = False
    size: Literal["", "active", "total"] = ""


Share = Annotated[float, ColumnKind(zero=True)]  # of a column: a share, which may be zero
Active = Annotated[float, ColumnKind(size="active")]  # of N: the parameters that a token uses
Total = Annotated[float, ColumnKind(size="total")]  # of N: all parameters, those of idle experts included
Coefficient = Annotated[float, ParamKind("linear", 0.0, np.inf, (0.0, np.inf))]
Exponent = Annotated[float, ParamKind("direct", 0.01, 3.0, (0.05, 2.0))]
Real = Annotated[float, ParamKind("direct", -1e4, 1e4, (-2.0, 2.0))]


def Scale(low: float, high: float) -> Any:
    """A positive parameter between two values, searched in its logarithm: `N_c: Scale(1e6, 1e18)`."""
    return Annotated[float, ParamKind("log", low, high, (low, high))]


def Between(low: float, high: float) -> Any:
    """A parameter that is searched and stays between two values."""
    return Annotated[float, ParamKind("direct", low, high, (low, high))]


def StartsIn(low: float, high: float) -> Any:
    """A parameter like `Real`, without bounds, that global search begins between two values."""
    return Annotated[float, ParamKind("direct", -1e4, 1e4, (low, high))]


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """A law as the fitter sees it. `target` names the column it predicts; `params` are in the order of the signature.

    `held` are parameters of the function that are no longer free, with their values (see `hold_params`). `zeros`:
    columns that may be zero; `signed`: the target may be negative, so that residuals are of the target itself. `size`:
    what N counts, where the law says so: "active" or "total" parameters.
    """

    name: str
    function: Callable[..., Any]
    columns: tuple[str, ...]
    params: dict[str, ParamKind]
    target: str = "loss"
    held: tuple[tuple[str, float], ...] = ()
    zeros: tuple[str, ...] = ()
    signed: bool = False
    size: str = ""

    @property
    def objective(self) -> str:
        """The name of the objective that a fit minimises by default."""
        return "huber" if self.signed else "huber_log"

    def allows(self, field: str, value: float) -> bool:
        """Whether a column or the target can have this value: finite, and positive unless declared otherwise."""
        if self.signed and field == self.target:
            return bool(np.isfinite(value))
        return bool(np.isfinite(value) and (value > 0 or (value == 0 and field in self.zeros)))

    @property
    def equation(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or self.name).splitlines()[0]

    @property
    def linear(self) -> list[str]:
        """Names of the parameters that variable projection solves for."""
        return [name for name, kind in self.params.items() if kind.how == "linear"]

    @property
    def searched(self) -> list[str]:
        """Names of the other parameters: the low-dimensional global search runs over these."""
        return [name for name, kind in self.params.items() if kind.how != "linear"]

    def __call__(self, columns: typing.Mapping[str, Any], params: typing.Mapping[str, Any]) -> np.ndarray:
        """Values of the law at the rows of `columns`, in float64; parameters [R, 1] broadcast.

        Values are inf or nan where the law is not defined: nothing is raised.
        """
        given = [np.asarray(columns[name], float) for name in self.columns]
        values = {name: np.asarray(params[name], float) for name in self.params}
        with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), np.errstate(all="ignore"):
            return np.asarray(self.function(*given, **values))


def law_of(function: Callable[..., Any], name: str = "", target: str = "loss", signed: bool = False) -> Law:
    """Read the law that a function states; BadInput where its signature doesn't say what a fit must know."""
    name = name or function.__name__
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise BadInput(f"law {name!r}: {error}") from None
    columns, params, zeros, size = [], {}, [], ""
    for argument, spec in inspect.signature(function).parameters.items():
        if spec.kind is spec.POSITIONAL_OR_KEYWORD:
            columns.append(argument)
            marks = getattr(hints.get(argument), "__metadata__", ())
            kinds_of_column = [mark for mark in marks if isinstance(mark, ColumnKind)]
            zeros += [argument] if any(kind.zero for kind in kinds_of_column) else []
            size = next((kind.size for kind in kinds_of_column if kind.size), size)
        elif spec.kind is spec.KEYWORD_ONLY:
            kinds = [k for k in getattr(hints.get(argument), "__metadata__", ()) if isinstance(k, ParamKind)]
            if not kinds:
                raise BadInput(f"law {name!r}: annotate {argument} with Coefficient, Exponent, Scale(…) or Between(…)")
            params[argument] = kinds[0]
        else:
            raise BadInput(f"law {name!r}: *{argument} is not a column and not a parameter")
    if not columns or not params:
        raise BadInput(f"law {name!r}: columns come first, parameters after a `*`: def law(N, D, *, E: Coefficient, …)")
    return Law(name, function, tuple(columns), params, target, zeros=tuple(zeros), signed=signed, size=size)


def count_size(law: Law, size: str) -> Law:
    """The law with N of "active" or "total" parameters. BadInput for another word, or where the law says otherwise."""
    if size not in (known := ("active", "total")):
        raise BadInput(f"--size={size}: N counts {' or '.join(known)} parameters{nearest_hint(size, known)}")
    if law.size not in ("", size):
        raise BadInput(f"--size={size}: law {law.name!r} is one of {law.size} parameters: leave it out")
    if "N" not in law.columns:
        raise BadInput(f"--size={size} has no effect on law {law.name!r}, which has no N: leave it out")
    return _size_cached(law, size)


@functools.cache
def _size_cached(law: Law, size: str) -> Law:
    return dataclasses.replace(law, size=size)  # one object, which compiles once


def logs_of(values: np.ndarray) -> np.ndarray:
    """Logarithms of a column; the values themselves where one is not positive, as shares of zero aren't."""
    return np.log(values) if np.all(values > 0) else np.asarray(values, float)


def hold_params(law: Law, **values: float) -> Law:
    """Hold some parameters of `law` at values; only the others stay free.

    So Muennighoff et al. 2023 fit R_D* and R_N* alone, with all else from Chinchilla's law of the same data. Equal
    values give the same object, which compiles once. BadInput for an unknown name, a value out of bounds, or no free
    parameter.
    """
    if unknown := [name for name in values if name not in law.params]:
        raise BadInput(f"law {law.name!r} has no free parameter {unknown[0]!r}{nearest_hint(unknown[0], law.params)}")
    for name, value in values.items():
        low, high = law.params[name].low, law.params[name].high
        if not (np.isfinite(value) and low <= value <= high):
            raise BadInput(f"{name} = {value:g} can't be held: law {law.name!r} has it in {low:g} to {high:g}")
    if set(values) == set(law.params):
        raise BadInput(f"law {law.name!r}: every parameter is held; leave at least one free")
    if not values:
        return law
    return _hold_cached(law, tuple((name, float(values[name])) for name in law.params if name in values))


@functools.cache
def _hold_cached(law: Law, values: tuple[tuple[str, float], ...]) -> Law:
    fixed = dict(values)

    @functools.wraps(law.function)
    def function(*columns: Any, **free: Any) -> Any:
        return law.function(*columns, **fixed, **free)

    rest = {name: kind for name, kind in law.params.items() if name not in fixed}
    return dataclasses.replace(law, function=function, params=rest, held=law.held + values)
