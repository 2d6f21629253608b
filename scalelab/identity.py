"""A run's identity: 16 hex digits over what is computed, the same on any hardware and whatever is logged or kept.

It is read off the values of config.json alone, so that whoever opens a run's folder can hold its record to its config.
"""

import hashlib
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from scalelab.errors import BadInput

# Other ways of saying warmup_steps and decay_steps: of no effect once a config is resolved.
SCHEDULE_LENGTH_KEYS = tuple(f"schedule.{what}_{unit}" for what in ("warmup", "decay") for unit in ("tokens", "share"))
# What may differ between two launches of one run without changing what is computed.
# That goes down to rounding: mesh and order of sums move the last bits, and the record says so (`determinism`), not the identity.
NON_IDENTITY_KEYS = (
    *("log", "sweep", "checkpoint", "parallel"),
    *SCHEDULE_LENGTH_KEYS,
    *("model.attention", "data.cache_dir", "train.steps_per_dispatch", "train.deterministic", "train.branch_from"),
    "train.stall_s",
)
# Which of them earlier versions counted, newest first: records of those versions hold identities with them.
FORMER_IDENTITY_KEYS = (
    ("model.attention",),
    ("train.branch_from",),
    SCHEDULE_LENGTH_KEYS,
    ("train.deterministic",),
    ("parallel",),
)


def is_identity_key(key: str) -> bool:
    """Whether a config value (`group.key`) is part of the identity."""
    return key not in NON_IDENTITY_KEYS and key.split(".")[0] not in NON_IDENTITY_KEYS


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
        f"{path} is not the config that {path.with_name('record.json')} was written for (identity {identity(values)}, not "
        f"{record['identity']}): was one of them edited? Put it back; each checkpoint's manifest.json holds the config it was trained under"
    )
