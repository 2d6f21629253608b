"""Inspect configs: keys, values, optimizer groups, schedules, recipes, and which activations grow."""

from collections.abc import Sequence
from typing import NamedTuple

from scalelab.api.arguments import ANYTHING, Path, check_arguments
from scalelab.api.door import Overrides, config_path
from scalelab.config.changes import ConfigValue, load_with_origins
from scalelab.config.files import USER_OPTIM_PREFIX
from scalelab.config.keys import Key, key_records
from scalelab.config.resolve import identity
from scalelab.errors import BadInput, nearest_hint


@check_arguments()
def config_keys(keys: str | Sequence[str] = ()) -> dict[str, Key]:
    """Keys of the config with default, unit, range, meaning and source (`scalelab config`): all, or those of groups."""
    return {name: key_records()[name] for name in _select_keys(list(keys))}


def _select_keys(selected: Sequence[str]) -> list[str]:
    """The keys that the user names, in the order of `configs/base.py`; all keys without a name. Raises BadInput."""
    names = list(key_records())
    groups = list(dict.fromkeys(name.split(".")[0] for name in names))
    selection = {USER_OPTIM_PREFIX[:-1] if name.startswith(USER_OPTIM_PREFIX) else name for name in selected}
    for name in selected:
        if name not in (*names, *groups) and not name.startswith(USER_OPTIM_PREFIX):
            raise BadInput(f"unknown config key {name!r}{nearest_hint(name, [*names, *groups])}")
    return [name for name in names if not selected or selection & {name, name.split(".")[0]}]


class ConfigShown(NamedTuple):
    """A config's identity, and values with default and author: the changed ones, or the ones asked for."""

    identity: str
    values: list[ConfigValue]


@check_arguments(config=ANYTHING)
def show_config(config: Path, keys: str | Sequence[str] = (), overrides: Overrides | None = None) -> ConfigShown:
    """The values that a config file changes from the defaults, and who set each (`scalelab config --config`).

    `keys`: keys or groups whose values are shown whether or not they were changed.
    """
    selected = _select_keys(list(keys)) if keys else None
    resolved, values = load_with_origins(config_path(config), overrides or {})
    if selected is None:
        shown = [value for value in values if value.value != value.default]
    else:
        shown = [value for value in values if {value.key, value.key.rpartition(".")[0]} & {*selected}]
    return ConfigShown(identity(resolved), shown)
