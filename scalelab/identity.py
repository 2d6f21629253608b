"""A run's identity: 16 hex digits over what is computed, the same on any hardware and whatever is logged or kept.

It is read off the values of config.json alone, so that whoever opens a run's folder can hold its record to its config.
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from scalelab.errors import BadInput

# Keys that earlier versions counted, newest first: records of those versions hold identities with them.
FORMER_IDENTITY_KEYS = (
    ("model.attention",),
    ("train.branch_from",),
    ("schedule.warmup_tokens", "schedule.warmup_share", "schedule.decay_tokens", "schedule.decay_share"),
    ("train.deterministic",),
    ("parallel",),
)


def is_identity_key(key: str) -> bool:
    """Whether a config value (`group.key`) is part of the identity, as its record in `configs/base.py` says.

    A key that only other versions know is, unless it belongs to a group in which nothing is.
    """
    return key not in _keys_aside() and key.split(".")[0] not in _keys_aside()


@functools.cache
def _keys_aside() -> frozenset[str]:
    """Keys that are not part of the identity, and groups none of whose keys are.

    They can still change rounding: mesh and order of sums move the last bits, as the record's `determinism` says.
    """
    from configs import base  # here and not above: the tree is configuration, not part of the library

    keys = {f"{group}.{name}" for group, part in base.KEYS.items() for name, key in part.items() if not key.identity}
    groups = {group for group, part in base.KEYS.items() if not any(key.identity for key in part.values())}
    return frozenset(keys | groups)


def identity(values: Mapping[str, Any], counted: Collection[str] = ()) -> str:
    """The identity of a resolved config's values by `group.key`; `counted`: what is not part of it now and is to be."""
    kept = {k: v for k, v in values.items() if is_identity_key(k) or k in counted or k.split(".")[0] in counted}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def check_config_matches_record(path: pathlib.Path, values: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """BadInput where the values in the config.json at `path` are not those that the record beside it was written for.

    Earlier versions counted more values; a run that was killed while it took over another config has two identities.
    """
    recorded = {record["identity"], record.get("next_identity")}
    counted: list[str] = []
    for former in ((), *FORMER_IDENTITY_KEYS):
        counted += former
        if identity(values, counted) in recorded:
            return
    raise BadInput(
        f"{path} is not the config that {path.with_name('record.json')} was written for "
        f"(identity {identity(values)}, not {record['identity']}): was one of them edited? Put it back; "
        "each checkpoint's manifest.json holds the config it was trained under"
    )
