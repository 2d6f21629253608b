"""Choices of config keys are the names in tables that implement them: `choices="model/layers.py:GATED"` in base.py.

A table is a dict written out at the top level of a file of the package. Its names are read from the source, since help
and refusals may not load jax. The tables below need no jax: each choice is a fact or two that the code reads. Tables of
functions stand beside the functions.
"""

import ast
import functools
import pkgutil
import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from scalelab.errors import BadInput

TABLES = re.compile(r"[a-z_0-9/]+\.py:[A-Z_+]+")  # a file of the package, and the name of a table in it, or of several
Row = TypeVar("Row")


class Parametrization(NamedTuple):
    """Which sizes a parametrization corrects for, and whether in eps too (`optim/parametrization.py`)."""

    width: bool = False
    depth: bool = False
    eps: bool = False


class GuardPolicy(NamedTuple):
    """Powers of a guard's policy: to watch, to change an outlier's step, to go back to a checkpoint."""

    watches: bool = True
    acts: bool = False
    rewinds: bool = False


class Detector(NamedTuple):
    """Whether the window holds logarithms, and whether outliers enter it (and count among the values it needs)."""

    logs: bool
    outliers_enter: bool


DOCUMENTS = {"cross": False, "mask": True}  # whether attention stops at the ends of documents
PARAMETRIZATIONS = {
    "standard": Parametrization(),
    "mup": Parametrization(width=True),
    "completep": Parametrization(width=True, depth=True, eps=True),
}
GUARD_POLICIES = {
    "off": GuardPolicy(watches=False),
    "watch": GuardPolicy(),
    "skip": GuardPolicy(acts=True),
    "rewind": GuardPolicy(acts=True, rewinds=True),
}
DETECTORS = {"log": Detector(logs=True, outliers_enter=False), "sigma": Detector(logs=False, outliers_enter=True)}
SPIKES = {"skip": False, "clip": True}  # whether an outlier's gradient is clipped, and its step taken
UPDATES = {"whole": False, "per_layer": True}  # whether each layer is updated as its gradient arises
MOMENTS = {"device": False, "pinned_host": True}  # whether the optimizer's state lies in that memory of the host
SKIPS = {"step": False, "micro_batch": True}  # whether a step may leave out a micro-batch that is not finite


@functools.cache
def table_names(tables: str) -> tuple[str, ...]:
    """The names in tables of a file, as `model/layers.py:GATED+UNGATED`; tests/config/test_choices.py imports each."""
    path, _, names = tables.partition(":")
    return tuple(choice for name in names.split("+") for choice in _read_names(path, name))


def _read_names(path: str, name: str) -> list[str]:
    # The table is on one line, or ends at a line that begins with the closing brace.
    written = rf"^{name}(?:: [^\n]*)? = (\{{[^\n]*\}}(?=$|  #)|\{{\n.*?^\}})"
    source = (pkgutil.get_data("scalelab", path) or b"").decode()
    if match := re.search(written, source, re.MULTILINE | re.DOTALL):
        content = ast.parse(match[1], mode="eval").body
        keys = content.keys if isinstance(content, ast.Dict) else []
        if keys and all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
            return [ast.literal_eval(key) for key in keys if key]
    raise BadInput(f'scalelab/{path} has no table {name} = {{"name": …}}, whose names are the choices of a config key')


def pick(rows: Mapping[str, Row], key: str, value: str, what: str) -> Row:
    """Look up a choice in a second table, which holds its `what`. Raises BadInput if it has no row there.

    A choice that was added only to the declaring table is refused by name, and never takes another one's row.
    """
    if value not in rows:
        raise BadInput(f"{key}={value!r} has no {what}, which {', '.join(rows)} have: add a row for it")
    return rows[value]
