"""Frozen records of many fields, changed and looked up often: a plan does both a hundred thousand times."""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def with_fields(record: Record, **values: Any) -> Record:
    """A plain frozen record with other values, in 2 us where the standard library takes 60.

    Nothing but fields goes along: cached properties are computed anew. TypeError for a name that is no field.
    """
    old, names = record.__dict__, record.__dataclass_fields__
    if not values.keys() <= names.keys():
        raise TypeError(f"{type(record).__name__} has no {', '.join(sorted(values.keys() - names.keys()))}")
    made = object.__new__(type(record))
    made.__dict__.update({name: old[name] for name in names}, **values)
    return made


def kept_hash(record: "DataclassInstance") -> int:
    """A record's hash, computed once: a plan looks each up in sixty caches. Not for copies in other processes."""
    known = record.__dict__.get("_hash")
    if known is None:
        known = record.__dict__["_hash"] = hash(tuple(record.__dict__[name] for name in record.__dataclass_fields__))
    return int(known)


def fields_alone(record: "DataclassInstance") -> dict[str, Any]:
    """What is copied and stored: hashes of texts differ between processes."""
    return {name: record.__dict__[name] for name in record.__dataclass_fields__}
