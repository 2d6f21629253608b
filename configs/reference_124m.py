"""The reference run: GPT-2 small's shape on the source text of the packages that scalelab needs, byte by byte.

    scalelab train --config=configs/reference_124m.py --workdir=runs/reference
    python -m checks.gpu --only=reference-run,reference-grid

Its text needs no network: Python files that are installed wherever scalelab runs. They differ with their versions, so
two runs are comparable where their records have the same data fingerprint.

124 M parameters with GPT-2's vocabulary, 86 M with one of 256 bytes. 1,500 steps of 131,072 bytes, 1.97e8 in all: about
four passes over the text, a ninth of the 20 tokens a parameter of Hoffmann et al. 2022. Planned for one H200: 154 ms a
step (121 to 194), so four minutes (3.1 to 4.9), and a minute to compile. It has not run yet.
"""

import importlib.util
import pathlib

from ml_collections import ConfigDict

from scalelab.configs import base

PACKAGES = ("jax", "flax", "optax", "orbax", "numpy", "scipy", "matplotlib", "rich", "safetensors", "tokenizers")


def package_folder(name: str) -> pathlib.Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"{name} is not installed"
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


def get_config() -> ConfigDict:
    """Radford et al. 2019's smallest shape; LR as nanoGPT's GPT-2 (6e-4), warm-up as a tenth of the run."""
    config = base.get_config()
    config.model = base.gpt2(d_model=768, n_layers=12, n_heads=12)
    config.model.seq_len = 1024
    config.data.source = "text"
    config.data.path = ",".join(f"{package_folder(name)}/**/*.py" for name in PACKAGES)
    config.optim.peak_lr = 6e-4
    config.schedule.warmup_steps = 150
    config.train.global_batch = 128
    config.train.steps = 1500
    config.precision.name = "bf16"
    config.eval.every_steps = 250
    config.checkpoint.every_steps = 500
    return config
