"""Changes of a config from the default tree: who set each value, and the source of an optimizer's own defaults."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab import set_by
from scalelab.config import optimizer_defaults
from scalelab.config.files import leaves, override, read_config_file
from scalelab.config.keys import key_records
from scalelab.config.resolve import config_value_origins, resolve

if TYPE_CHECKING:
    from ml_collections import ConfigDict


class ConfigValue(NamedTuple):
    """One value of a resolved config."""

    key: str
    value: Any
    default: Any  # None: derived
    set_by: str  # a name of `scalelab.set_by`; "default" if nobody set the value
    source: str  # source of an optimizer's own default; else ""


def load_with_origins(path: str | pathlib.Path, overrides: Mapping[str, Any]) -> tuple["ConfigDict", list[ConfigValue]]:
    """Load (the resolved config of a file and overrides, its values in `configs/base.py`'s order). Raises BadInput."""
    given = override(read_config_file(path), overrides, set_by.COMMAND_LINE)
    config, before = resolve(given), leaves(given)
    noted = config_value_origins(config)
    defaults = {key: record.default for key, record in key_records().items()}
    sources = optimizer_defaults.default_optim_values(config.optim.name, config.optim.scale)
    values = []
    for key, value in leaves(config).items():
        if key == set_by.NOTES_KEY:
            continue
        default = defaults.get(key)
        if value == default:
            author = set_by.DEFAULT
        elif before.get(key) is None:
            author = noted.get(key, set_by.DERIVED)
        else:
            author = noted.get(key, set_by.COMMAND_LINE if key in overrides else set_by.CONFIG_FILE)
        is_optim_default = key.startswith("optim.") and author == set_by.DEFAULT and value != default
        source = sources.get(key.removeprefix("optim."), (None, ""))[1] if is_optim_default else ""
        values.append(ConfigValue(key, value, default, author, source))
    order = {key: place for place, key in enumerate(key_records())}
    return config, sorted(values, key=lambda value: order.get(value.key, len(order)))
