"""Configs: read files and overrides, resolve them, and split them into what is compiled and what is traced.

Read in this order: `files` (the tree), `keys` (one record a key), `resolve` (derived values, checks), `static` and
`traced` (the two halves). `validate` checks single values, `combinations` checks values against each other;
`optimizer_defaults`, `schedule_steps`, `batch_ramp` and `mixture_text` each read one group of keys; `changes` compares
with the defaults.

Loading this room needs neither numpy nor ml_collections, so that commands that only read configs start fast.
"""

from scalelab.config.fields import with_fields
from scalelab.config.files import (
    USER_OPTIM_PREFIX,
    CommandLine,
    default_tree,
    find_config_file,
    leaves,
    list_not_reproduced,
    load_config_module,
    override,
    read_config_file,
    shipped_configs,
    split_overrides,
)
from scalelab.config.keys import default_values, hparam_keys, key_records, traced_keys
from scalelab.config.resolve import config_value_origins, identity, load, resolve
from scalelab.config.static import (
    Guard,
    Layout,
    ModelShape,
    Optim,
    Static,
    static,
    unset_numbers,
)
from scalelab.config.traced import (
    LAYERS_NUMBERS,
    Hparams,
    flatten_hparams,
    group_hparams,
    hparams,
    replace_hparams,
    traced_names,
)

load_module = load_config_module  # the old name, which config files written by `sweep/forks.py` of version 0.1 call

__all__ = [
    "LAYERS_NUMBERS",
    "USER_OPTIM_PREFIX",
    "CommandLine",
    "Guard",
    "Hparams",
    "Layout",
    "ModelShape",
    "Optim",
    "Static",
    "config_value_origins",
    "default_tree",
    "default_values",
    "find_config_file",
    "flatten_hparams",
    "group_hparams",
    "hparam_keys",
    "hparams",
    "identity",
    "key_records",
    "leaves",
    "list_not_reproduced",
    "load",
    "load_config_module",
    "load_module",
    "override",
    "read_config_file",
    "replace_hparams",
    "resolve",
    "shipped_configs",
    "split_overrides",
    "static",
    "traced_keys",
    "traced_names",
    "unset_numbers",
    "with_fields",
]  # fmt: skip
