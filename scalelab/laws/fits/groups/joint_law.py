"""A law with some parameters shared by all groups of rows and others of each group's own.

Legend: R problems, P points, G groups.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law

GROUP = "group"  # the joint law's further column: the number of each row's group, from 1


def own_name(name: str, group: int) -> str:
    """The joint law's name for a parameter of one group."""
    return f"{name}[{group}]"


def group_params(law: Law, shared: Sequence[str], joint: dict[str, Any], group: int) -> dict[str, Any]:
    """The parameters of one group's law, from those of the joint law."""
    return {name: joint[name if name in shared else own_name(name, group)] for name in law.params}


def join_law(law: Law, groups: int, shared: Sequence[str]) -> Law:
    """`law` for several groups: each parameter once if it is shared, else once a group."""

    def function(*columns: Any, **joint: Any) -> Any:
        *given, group = columns
        value: Any = np.nan
        for g in range(groups):
            value = np.where(group == g + 1, law.function(*given, **group_params(law, shared, joint, g)), value)
        return value

    params = {
        place: kind
        for name, kind in law.params.items()
        for place in ([name] if name in shared else [own_name(name, g) for g in range(groups)])
    }
    function.__doc__ = law.equation
    return dataclasses.replace(law, function=function, columns=(*law.columns, GROUP), params=params)


def choose_shared(law: Law, exponents: str, also: Sequence[str] = ()) -> tuple[str, ...]:
    """Parameters that all groups share: the searched ones if `exponents` is "shared", and those named by `also`.

    BadInput for a name that the law lacks, if nothing is left to each group, or for a coefficient whose term another
    exponent would change: then a shared coefficient has no meaning.
    """
    if unknown := [name for name in also if name not in law.params]:
        raise BadInput(f"--shared: law {law.name!r} has no {unknown[0]!r}{nearest_hint(unknown[0], law.params)}")
    exponents_shared = exponents == "shared"
    searched = [name for name, kind in law.params.items() if kind.how == "direct"] if exponents_shared else []
    shared = tuple(name for name in law.params if name in searched or name in also)
    if len(shared) == len(law.params):
        raise BadInput(
            f"law {law.name!r}: all its parameters ({', '.join(law.params)}) are shared, so groups can't differ; "
            "nearest: --exponents=separate"
        )
    for name in shared:
        if not exponents_shared and law.params[name].how == "linear" and not is_offset(law, name):
            raise BadInput(
                f"--shared={name}: what it means depends on the exponents, which each group has for itself; "
                "nearest: --exponents=shared"
            )
    return shared


def is_offset(law: Law, name: str) -> bool:
    """Whether a parameter adds the same to the law at all rows, as E does, so that it has the target's unit."""
    if law.params[name].how != "linear":
        return False
    random = np.random.default_rng(0)
    columns = {column: np.exp(random.uniform(1.0, 3.0, 5)) for column in law.columns}
    params = {each: 1.0 for each in law.params}
    rise = law(columns, params | {name: 2.0}) - law(columns, params)
    return bool(np.allclose(rise, 1.0))
