"""What may not change under a run's feet: the facts a checkpoint was saved under against those of now."""

import importlib.metadata
import platform
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

import scalelab
from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config.keys import fixed_groups, fixed_keys
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, nearest_hint
from scalelab.identity import is_identity_key
from scalelab.model import transformer
from scalelab.optim.registry import find_optimizer
from scalelab.train.checkpoints.leaves import describe_leaves

# What the data are, beside the config that names them: a run that went on with other data would be another run.
DATA_FACTS = ("data.fingerprint", "data.tokenizer")
OPTIMIZER_KEY = "optim.name"  # decides which other options there are
VERSIONED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def package_versions() -> dict[str, str]:
    """Python and the packages whose arithmetic or files a run depends on."""
    packages = {package: importlib.metadata.version(package) for package in VERSIONED_PACKAGES}
    return {"python": platform.python_version()} | packages | {"scalelab": scalelab.__version__}


def checkpoint_facts(config: ConfigDict, dataset: Dataset) -> dict[str, Any]:
    """What a checkpoint says about one trial: identity, config, what the data are, versions."""
    return {
        "identity": config_lib.identity(config),
        "config": config.to_dict(),
        "data": {"fingerprint": dataset.fingerprint, "tokenizer": dataset.description["tokenizer"]},
        "versions": package_versions(),
        # So that weights of a run under somebody's own optimizer can be read without running it.
        "evaluates_another_point": find_optimizer(config.optim.name).evaluated is not None,
    }


def diff_facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`{key: (old, new)}` between two `checkpoint_facts`, of config values and of what the data are.

    A key that an older scalelab did not know had what is now its default.
    """
    before, after = _flatten_facts(old), _flatten_facts(new)
    after.pop(set_by.NOTES_KEY, None)  # who set a value is not a value
    known = config_lib.leaves(config_lib.default_tree()) | before
    for key in {*before, *after}:  # numbers of an own optimizer have no default
        if key.startswith(config_lib.USER_OPTIM_PREFIX):
            known.setdefault(key, None)
            after.setdefault(key, None)
    return {key: (known[key], value) for key, value in after.items() if key in known and known[key] != value}


def _flatten_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    data = {f"data.{key}": value for key, value in facts["data"].items()}
    return config_lib.leaves(ConfigDict(facts["config"])) | data


def is_frozen(key: str) -> bool:
    """Whether a change of this key, or of a group's every key, makes another run, so that its past follows from no one config."""
    return key in (*fixed_keys(), *fixed_groups(), *DATA_FACTS)


def check_allowed_keys(keys: Collection[str]) -> None:
    """BadInput for a `--allow-change` that names nothing; a group's name stands for all of its keys."""
    known = [*config_lib.leaves(config_lib.default_tree()), *DATA_FACTS]
    known += [key for key in {name.split(".")[0] for name in known} if is_frozen(key)]
    for key in keys:
        if key not in known:
            raise BadInput(f"--allow-change={key}: no such key{nearest_hint(key, known)}")
        if not is_frozen(key) and key != "train.steps":  # which is, where the schedule's past would have been another
            raise BadInput(f"--allow-change={key}: this key may change anyway; the change is recorded")


def check_changes_allowed(
    where: str, old: Mapping[str, Any], new: Mapping[str, Any], allow: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """What changed from `old` to `new` (both `checkpoint_facts`) and may. BadInput, old against new with shapes, for what may not."""
    changes = diff_facts(old, new)
    options = {key for key in fixed_keys() if key.startswith("optim.")}
    allowed = {
        *allow,
        *(options if OPTIMIZER_KEY in {*allow} & {*changes} else ()),
    }  # another optimizer has other options
    refused = {k: v for k, v in changes.items() if is_frozen(k) and not {k, k.split(".")[0]} & allowed}
    if refused:
        shapes = _shape_lines(old, new)
        others = [key for key in refused if OPTIMIZER_KEY not in refused or key not in options or key == OPTIMIZER_KEY]
        flags = " ".join(f"--allow-change={key}" for key in others)
        ways = (
            "or use another --workdir" if shapes else f"use another --workdir, or pass {flags}"
        )  # no flag helps shapes
        raise BadInput(f"{where} was started with{_format_changes(refused, shapes)}: put it back, {ways}")
    return changes


def check_ended_identity(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """BadInput where a run without a step left would be called one of another identity: nothing of it would be true."""
    changed = {key: pair for key, pair in diff_facts(old, new).items() if is_identity_key(key)}
    if changed:
        raise BadInput(
            f"{where} has no step left and was trained with{_format_changes(changed)}: put it back, or use another --workdir"
        )


def _format_changes(changed: Mapping[str, tuple[Any, Any]], more: Sequence[str] = ()) -> str:
    lines = [f"{key}={before!r}, now it is {after!r}" for key, (before, after) in changed.items()] + list(more)
    return f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines) + "\n"


def _shape_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    trees = [_describe_parameters(config_from_facts(facts)) for facts in (old, new)]
    names = sorted(trees[0] | trees[1])
    return [
        f"{name}: {trees[0].get(name, 'absent')}, now {trees[1].get(name, 'absent')}"
        for name in names
        if trees[0].get(name) != trees[1].get(name)
    ]


def config_from_facts(facts: Mapping[str, Any]) -> ConfigDict:
    """The config in some `checkpoint_facts`, as this scalelab knows it: keys that are gone dropped, new ones at their defaults."""
    known = config_lib.default_tree()
    values, defaults = config_lib.leaves(ConfigDict(facts["config"])), config_lib.leaves(known)
    return config_lib.override(
        known,
        {
            key: value
            for key, value in values.items()
            if key in defaults or key.startswith(config_lib.USER_OPTIM_PREFIX)
        },
        set_by.STORED_CONFIG,
    )


def _describe_parameters(config: ConfigDict) -> dict[str, str]:
    """Of the parameters alone: a save may know an optimizer that this version doesn't."""
    return describe_leaves(
        {"params": jax.eval_shape(lambda: transformer.init_params(config_lib.static(config).model, jax.random.key(0)))}
    )


def describe_version_changes(old: Mapping[str, Any]) -> str:
    """What other versions a checkpoint was saved under, as text; "" where none."""
    now, before = package_versions(), old["versions"]
    return ", ".join(f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name])
