"""Configs: read files and overrides, resolve them, and split them into what is compiled and what is traced.

Read in this order: `files` (the tree), `keys` (one record a key), `resolve` (derived values, checks), `static` (the two
halves); `optimizer_defaults`, `schedule_steps`, `batch_ramp` and `mixture_text` each read one group of keys.
"""

from scalelab.config.files import (
    OWN,
    default_tree,
    leaves,
    load_module,
    not_reproduced,
    override,
    read,
    split_overrides,
)
from scalelab.config.resolve import identity, load, origins, resolve
from scalelab.config.static import TRACED, Layout, ModelShape, Optim, Static, hparams, static, traced_names, unset
from scalelab.identity import UNIDENTIFYING, WAYS

__all__ = [
    "OWN", "TRACED", "UNIDENTIFYING", "WAYS", "Layout", "ModelShape", "Optim", "Static", "default_tree", "hparams", "identity",
    "leaves", "load", "load_module", "not_reproduced", "origins", "override", "read", "resolve", "split_overrides", "static",
    "traced_names", "unset",
]  # fmt: skip
