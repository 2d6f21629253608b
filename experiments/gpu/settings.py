"""Sizes of every part: those for a GPU, and tiny ones that test the code on any device."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.configs import base

GPT2_124M = {  # Radford et al. 2019, the vocabulary rounded up to a multiple of 64
    "preset": "gpt2", "d_model": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 50_304, "seq_len": 1024,
}  # fmt: skip
LLAMA_3B = {"preset": "llama", "d_model": 2560, "n_layers": 36, "n_heads": 20, "vocab_size": 32_000, "seq_len": 2048}
LLAMA_1B = {"preset": "llama", "d_model": 2048, "n_layers": 18, "n_heads": 16, "vocab_size": 32_000, "seq_len": 2048}
SMALL_MODEL = {"preset": "llama", "d_model": 256, "n_layers": 4, "n_heads": 4, "vocab_size": 256, "seq_len": 256}
LEAST_MODEL = {"preset": "llama", "d_model": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 256, "seq_len": 16}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of all parts.

    `models`: those whose MFU is measured; `rows`: sequences per step that the plan may choose from; `goals`: MFU that
    a model should reach.
    """

    models: dict[str, dict[str, Any]]
    goals: dict[str, float]
    rows: tuple[int, ...]
    varied: str  # the model of `sweeps`
    chunks: tuple[int, ...]  # tokens whose logits are held at once
    attention: tuple[int, int, int, int]  # sequences, tokens, heads, width of one
    exact_tokens: int  # at which attention is compared with float32 written out
    trial: dict[str, Any]  # the model of packed trials, and of the run that is killed
    trials: int
    trial_rows: int
    steps: int  # of packed trials, timed
    run_steps: int  # of the run that is killed
    budget_s: float  # a model's MFU
    measured: tuple[str, ...]  # the run of part `plan`: the config and its overrides
    rung: tuple[str, ...]  # the study of part `isoflop`


FULL_SETTINGS = Settings(
    models={"124M": GPT2_124M, "1B": LLAMA_1B, "3B": LLAMA_3B}, goals={"1B": 0.55, "3B": 0.55},
    rows=(1, 2, 4, 8, 16, 32, 64), varied="1B", chunks=(256, 512, 2048, 4096), attention=(4, 4096, 16, 128),
    exact_tokens=512, trial=SMALL_MODEL, trials=32, trial_rows=16, steps=60, run_steps=400, budget_s=30.0,
    measured=("--config=configs/small.py", "--config.train.global_batch=32", "--config.train.steps=60"),
    rung=(
        "--config=configs/small.py", "--rule=mup", "--budgets=4e14,1e15,2e15,4e15", "--sizes=96,192,288,384",
        "--checks=lr", "--holdout-flops=1.6e18", "--config.parametrization.name=mup",
        "--config.parametrization.base_width=768", "--config.train.global_batch=32",
    ),
)  # fmt: skip
TINY_SETTINGS = Settings(
    models={"least": LEAST_MODEL}, goals={"least": 0.01}, rows=(1, 2), varied="least", chunks=(8,),
    attention=(1, 32, 2, 8), exact_tokens=32, trial=LEAST_MODEL, trials=3, trial_rows=2, steps=3, run_steps=60,
    budget_s=1.0, measured=("--config=configs/tiny.py", "--config.train.steps=60", "--config.optim.peak_lr=1e-3"),
    rung=(
        "--config=configs/quickstart.py", "--rule=small-bytes", "--budgets=1e10,2e10,4e10", "--sizes=16,24,32,40",
        "--checks=lr", "--holdout-flops=1e14",
    ),
)  # fmt: skip


def build_config(model: dict[str, Any], **changes: Any) -> ConfigDict:
    """The resolved config of a model in bf16; `changes`: keys with "__" for the point."""
    tree = base.get_config()
    tree.model = getattr(base, model["preset"])(model["d_model"], model["n_layers"], model["n_heads"])
    values = {"model.vocab_size": model["vocab_size"], "model.seq_len": model["seq_len"], "precision.name": "bf16"}
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return config_lib.resolve(config_lib.override(tree, values | {"optim.peak_lr": 3e-4} | named))
