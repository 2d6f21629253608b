"""The small run behind every plant: a Llama of width 32 on a bigram language, 512 tokens a step, 300 steps."""

import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.train.single import train_single

# Lines at every step: 300 of them, as a run of 3,000 steps has at the default interval.
SMALL = {
    "model.d_model": 32, "model.n_layers": 2, "model.n_heads": 2, "model.seq_len": 64, "train.global_batch": 8,
    "train.steps": 300, "train.steps_per_dispatch": 20, "eval.every_steps": 100, "eval.batches": 2,
    "log.every_steps": 1, "log.layers_every": 10, "checkpoint.every_steps": 100, "schedule.warmup_steps": 15,
    "data.source": "synthetic", "data.n_tokens": 400_000, "optim.peak_lr": 1e-2,
}  # fmt: skip


def small_config(changes: Mapping[str, Any] | None = None) -> ConfigDict:
    """The config of a small run with some values changed."""
    return config_lib.resolve(override(tiny.get_config(), SMALL | dict(changes or {})))


def train_small(folder: pathlib.Path, changes: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Train a small run in `folder`."""
    return train_single(small_config(changes), folder, **options)
