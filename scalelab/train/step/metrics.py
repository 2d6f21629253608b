"""Which metrics a step may return: one number each, under names that the log, report and table of runs can hold."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.errors import BadInput, nearest_hint
from scalelab.record import listing
from scalelab.train.step.guard import GUARD

LAYERS = "layers"  # a dict of [L] and [] arrays, written to layers.jsonl
EXPERTS = "experts"  # arrays of each step for the guard's alarms (`report/experts.py`); not written
ARRAYS = (LAYERS, EXPERTS, GUARD)  # metrics that are not a number each
NAME = re.compile(r"[A-Za-z_][\w-]*(/[\w-]+)*")
READ_BY_LOOP = (
    "train_loss",
    "grad_norm",
    "lr",
    "streak",
)  # the progress line and the events of skipped steps need them
WRITTEN_BY_LOOP = ("step", "tokens", "flops", "time", "tokens_per_s", "mfu", "val_loss", "bpb", "epochs",
                   "loss_sigmas")  # fmt: skip


def refuse_unloggable(metrics: Mapping[str, Any]) -> None:
    """Raise BadInput for a metric that cannot be logged; call it with the shapes that tracing gives.

    `metrics` maps names to arrays or ShapeDtypeStructs. A metric is one real number, called `name` or `group/name`; a
    group is one panel of the report. ARRAYS are exempt. Names that the
    loop writes itself, and columns of `scalelab runs`, are taken.
    """
    for name, value in metrics.items():
        if name not in ARRAYS and (problem := describe_unloggable(name, value)):
            raise BadInput(f"the step's metric {name!r} {problem}")
    for name in READ_BY_LOOP:
        if name not in metrics:
            raise BadInput(f"the step's metrics have no {name!r}, which the loop reads{nearest_hint(name, metrics)}")


def describe_unloggable(name: str, value: Any) -> str:
    """Why a value can't be logged under this name; "" if it can."""
    shape, dtype = _shape_and_dtype(value)
    if shape is None:
        kind = "several arrays" if jax.tree.leaves(value) else "nothing"
        return f"holds {kind}: a metric is one number, and a family is group/name"
    if shape:
        size = "x".join(map(str, shape))
        return f"has shape {size}: a metric is one number (log its mean or its maximum)"
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_):
        return f"is {dtype}: a metric is one real number"
    if not NAME.fullmatch(name):
        return "is not a name: letters, digits, _ and -, or group/name"
    if name.partition("/")[0] in WRITTEN_BY_LOOP or name in listing.ROW_COLUMNS:
        return f"has the name of a value that every run has: use mine/{name}"
    return ""


def _shape_and_dtype(value: Any) -> tuple[tuple[int, ...] | None, Any]:
    """Shape and dtype of an array, a ShapeDtypeStruct or a Python number; (None, None) for anything else."""
    if isinstance(value, bool | int | float | complex):
        return (), jnp.result_type(value)
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def as_number(value: Any) -> int | float:
    """A scalar array as Python's number; true is 1 and false is 0."""
    number: int | float = value.item()
    return int(number) if isinstance(number, bool) else number
