"""What a checkpoint states about one run: identity, config, data and versions; read again and compared."""

import platform
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config.checks.validate import check_choice
from scalelab.config.keys import key_records
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput
from scalelab.git import VERSION
from scalelab.hardware.versions import installed_versions
from scalelab.optim.registry import find_optimizer
from scalelab.record.identity import absent_parts
from scalelab.train.lineage.own_code import SCHEDULE_KEY, diff_own_code
from scalelab.train.lineage.spec import TrainSpec

VERSIONED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def package_versions() -> dict[str, str]:
    """Python and the packages whose arithmetic or files a run depends on, as far as they are installed."""
    packages = installed_versions(VERSIONED_PACKAGES)
    return {"python": platform.python_version()} | packages | {"scalelab": VERSION}


def checkpoint_facts(spec: TrainSpec, dataset: Dataset) -> dict[str, Any]:
    """What a checkpoint says about one trial: identity, config, what the data are, versions."""
    return {
        "identity": spec.identity,
        "config": spec.config.to_dict(),
        "data": {"fingerprint": dataset.fingerprint, "tokenizer": dataset.description["tokenizer"]},
        "versions": package_versions(),
        "own_code": spec.own_code,
        # So that weights of a run under somebody's own optimizer can be read without running it.
        "evaluates_another_point": find_optimizer(spec.config.optim.name).evaluated is not None,
    }


def diff_facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`{key: (old, new)}` between two `checkpoint_facts`: config values, what the data are, `code.KEY` of own code.

    A key that an older scalelab did not know had what is now its default; of own code it knew nothing. Keys of a part
    that neither model has say nothing of either.
    """
    before, after = flatten_facts(old), flatten_facts(new)
    after.pop(set_by.NOTES_KEY, None)  # who set a value is not a value
    known = config_lib.default_values() | before
    for key in {*before, *after}:  # numbers of an own optimizer have no default
        if key.startswith(config_lib.USER_OPTIM_PREFIX):
            known.setdefault(key, None)
            after.setdefault(key, None)
    changes = {key: (known[key], value) for key, value in after.items() if key in known and known[key] != value}
    absent = tuple({*absent_parts(before)} & {*absent_parts(after)})
    changes = {key: pair for key, pair in changes.items() if not key.startswith(absent)}
    return changes | _diff_own_code(old, new)


def _diff_own_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    before, now = old.get("own_code", {}), new.get("own_code", {})
    config = config_from_facts(old) if SCHEDULE_KEY in before and SCHEDULE_KEY in now else None
    return diff_own_code(before, now, config)


def config_from_facts(facts: Mapping[str, Any]) -> ConfigDict:
    """The config in some `checkpoint_facts`, as this scalelab knows it: keys that are gone dropped, new ones at
    their defaults.

    BadInput for a choice that this scalelab does not have, and for null where a value is never derived.
    """
    known = config_lib.default_tree()
    values, defaults = config_lib.leaves(ConfigDict(facts["config"])), config_lib.default_values()
    for key, record in key_records().items():
        if values.get(key, "") is None and defaults[key] is not None:
            raise BadInput(f"{key} is null in the stored config (default: {defaults[key]!r}); was it edited?")
        if key in values and not (record.user_code and ":" in str(values[key])):  # what runs it asks whether it may
            check_choice(key, values[key])
    return config_lib.override(
        known,
        {
            key: value
            for key, value in values.items()
            if key in defaults or key.startswith(config_lib.USER_OPTIM_PREFIX)
        },
        set_by.STORED_CONFIG,
    )


def describe_version_changes(old: Mapping[str, Any]) -> str:
    """What other versions a checkpoint was saved under, as text; "" where none."""
    now, before = package_versions(), old["versions"]
    changes = {name: (before.get(name), now.get(name)) for name in {**before, **now}}
    return ", ".join(f"{name} {was} -> {version}" for name, (was, version) in changes.items() if was != version)


def flatten_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The config's values by `group.key`, and what the data are."""
    data = {f"data.{key}": value for key, value in facts["data"].items()}
    return config_lib.leaves(ConfigDict(facts["config"])) | data
