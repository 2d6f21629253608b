"""A run's identity: a hash (16 hex digits) of all settings that change the computation, but not of hardware or logging.

It follows from config.json alone, so that any reader of a run's folder can check its record against its config. Of a
run under users' own functions it also counts their source files, which the record names by hash (`own_code`).
"""

import ast
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput

# Keys that earlier versions counted, newest first: identities in records of those versions include them.
FORMER_IDENTITY_KEYS = (
    ("model.attention",),
    ("train.branch_from",),
    ("schedule.warmup_tokens", "schedule.warmup_share", "schedule.decay_tokens", "schedule.decay_share"),
    ("train.deterministic",),
    ("parallel",),
)


CODE_PREFIX = "code."  # prefix of a key that names a user's function; `code.KEY` stands for the function's source files
# Keys that earlier versions did not have, and the value they trained under; not counted at that value.
LATER_KEYS = {
    "optim.clip": "global", "guard.skip": "step", "eval.patience": 0, "model.rope_mscale": 1.0,
    "model.rope_share": 1.0, "model.attention_softcap": 0.0,
}  # fmt: skip
# Parts of a model that earlier versions did not have, by the key that is 0 without the part: its keys by their
# beginnings, not counted without it.
LATER_PARTS = {
    "model.n_experts": (
        *("model.n_experts", "model.experts_per_token", "model.d_expert", "model.n_shared_experts", "model.router_"),
        *("model.balance_", "model.expert_"),
    ),
    "model.d_kv_latent": ("model.d_kv_latent", "model.d_q_latent", "model.d_head_rope", "model.d_head_value"),
}


def is_identity_key(key: str) -> bool:
    """Whether a config value (`group.key`) is part of the identity, by its record in `configs/base.py`.

    A key that only other versions know is part of it if any key of its group is. `code.KEY`, the source files of
    the function that KEY names, is part of it where KEY is.
    """
    key = key.removeprefix(CODE_PREFIX)
    return key not in _keys_aside() and key.split(".")[0] not in _keys_aside()


@functools.cache
def _keys_aside() -> frozenset[str]:
    """Keys that are not part of the identity, and groups without any key that is.

    They can still change rounding: mesh and order of sums move the last bits, as the record's `determinism` says.
    """
    from scalelab.configs import base  # imported here: the tree is configuration, not part of the library

    keys = {f"{group}.{name}" for group, part in base.KEYS.items() for name, key in part.items() if not key.identity}
    groups = {group for group, part in base.KEYS.items() if not any(key.identity for key in part.values())}
    return frozenset(keys | groups)


PASSIVE_GUARDS = ("off", "watch")  # values of guard.policy that change no step


def is_passive_guard(values: Mapping[str, Any]) -> bool:
    """Whether the guard of these values by `group.key` changes no step; true for versions without a guard."""
    return values.get("guard.policy", PASSIVE_GUARDS[0]) in PASSIVE_GUARDS


@functools.cache
def _optional_code() -> frozenset[str]:
    """Keys that hold the name of a user's function, or nothing."""
    from scalelab.configs import base  # as above

    records = {f"{group}.{name}": key for group, part in base.KEYS.items() for name, key in part.items()}
    return frozenset(name for name, key in records.items() if key.user_code and key.default == "")


def absent_parts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The beginnings of the keys of LATER_PARTS that a model of these values by `group.key` lacks."""
    return tuple(name for switch, names in LATER_PARTS.items() if not values.get(switch) for name in names)


def identity(
    values: Mapping[str, Any], counted: Collection[str] = (), own_code: Mapping[str, Any] | None = None
) -> str:
    """Hash a resolved config's values by `group.key`; `counted`: further keys and groups to include.

    `own_code`: {key: files and curve} of the users' functions that the config names.

    Code of a user that is not named (`train.loss=""`), LATER_KEYS at their former value, LATER_PARTS that the model
    lacks and a guard that changes no step are not counted: versions without the key trained the same run.
    """
    absent = (*absent_parts(values), *(("guard.",) if is_passive_guard(values) else ()))
    hashed = {k: v for k, v in values.items() if is_identity_key(k) or k in counted or k.split(".")[0] in counted}
    hashed = {key: value for key, value in hashed.items() if value != "" or key not in _optional_code()}
    hashed = {k: value for k, value in hashed.items() if k not in LATER_KEYS or value != LATER_KEYS[k]}
    hashed = {key: value for key, value in hashed.items() if not key.startswith(absent)}
    codes = {f"{CODE_PREFIX}{key}": entry for key, entry in (own_code or {}).items() if is_identity_key(key)}
    hashed |= {key: _code_entry(entry) for key, entry in codes.items()}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


def _code_entry(entry: Mapping[str, Any]) -> list[Any]:
    """The part of a function's entry that counts: files, and the curve to four digits (machines round differently)."""
    return [entry["files"], {step: f"{value:.3e}" for step, value in entry.get("curve", {}).items()}]


def hash_sources(module: str, folders: Sequence[str]) -> dict[str, str]:
    """`{file below its folder: SHA-256}` of a module and of all that it imports from `folders`; nothing is run.

    {} for a module outside these folders. Imports by a computed name are not seen.
    """
    hashes: dict[str, str] = {}
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):  # importing a.b runs a/__init__.py too
            path, file = find_source(parts[:depth], folders)
            if path and file not in hashes and parts[0] != "scalelab":
                content = pathlib.Path(path).read_bytes()
                hashes[file] = hashlib.sha256(content).hexdigest()
                package = parts[:depth] if path.endswith("__init__.py") else parts[: depth - 1]
                waiting += _imported_names(content, package)
    return dict(sorted(hashes.items()))


def find_source(parts: Sequence[str], folders: Sequence[str]) -> tuple[str, str]:
    """Find the source of module a.b = ["a", "b"]: (path, path below its folder); ("", "") if no folder has it."""
    below = "/".join(parts)
    for folder, file in ((folder, f"{below}{end}") for folder in folders for end in ("/__init__.py", ".py")):
        if os.path.isfile(os.path.join(folder, file)):
            return os.path.join(folder, file), file
    return "", ""


def _imported_names(content: bytes, package: Sequence[str]) -> Iterator[str]:
    """Full names of the modules that a source file may import; `from a import b` gives a.b, perhaps a name in a."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # nothing could import such a file either
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def check_config_matches_record(path: pathlib.Path, values: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """BadInput if the config.json at `path` has other values than the config of the record beside it.

    Earlier versions counted more values; a run that was killed while its config was replaced has two identities.
    """
    recorded = {record["identity"], record.get("next_identity")}
    codes = [record.get("own_code"), *([record.get("next_own_code")] if "next_identity" in record else [])]
    counted: list[str] = []
    for former in ((), *FORMER_IDENTITY_KEYS):
        counted += former
        if any(identity(values, counted, code) in recorded for code in codes):
            return
    raise BadInput(
        f"{path} is not the config that {path.with_name('record.json')} was written for "
        f"(identity {identity(values, (), codes[0])}, not {record['identity']}): was one of them edited? Put it back; "
        "each checkpoint's manifest.json holds the config it was trained under"
    )
