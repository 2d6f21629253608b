"""Sizes of every question: those for a GPU, and toy sizes at which a rehearsal asks the same on any device."""

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
TOY_MODEL = {"preset": "llama", "d_model": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 256, "seq_len": 16}
TOY_GPT2 = TOY_MODEL | {"preset": "gpt2"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of all questions.

    `models`: those whose steps are timed; `goals`: MFU that is wanted of a model; `rows`: sequences per step that a
    plan may choose from; `cost_share`: of the seconds that a question takes at full size, that it takes at these.
    """

    models: dict[str, dict[str, Any]]
    goals: dict[str, float]
    rows: tuple[int, ...]
    chunks: tuple[int, ...]  # tokens whose logits are held at once
    attention: tuple[int, int, int, int]  # sequences, tokens, heads, width of one
    exact_tokens: int  # at which attention is compared with float32 written out
    trial: dict[str, Any]  # the model of packed trials, and of the run that is killed
    trials: int
    trial_rows: int
    steps: int  # of packed trials, timed
    run_steps: int  # of the run that is killed
    measured_s: float  # a step is repeated for so long
    measured: tuple[str, ...]  # the run of part `plan`: the config and its overrides
    reference: tuple[str, ...]  # the reference run: the config and its overrides
    grid: tuple[str, ...]  # the reference study, as arguments of experiments.isoflop
    cost_share: float
    least_limit_s: float  # before a question is stopped for taking too long


FULL_SETTINGS = Settings(
    models={"124m": GPT2_124M, "1b": LLAMA_1B, "3b": LLAMA_3B}, goals={"1b": 0.55, "3b": 0.55},
    rows=(1, 2, 4, 8, 16, 32, 64), chunks=(256, 512, 2048, 4096), attention=(4, 4096, 16, 128), exact_tokens=512,
    trial=SMALL_MODEL, trials=32, trial_rows=16, steps=60, run_steps=400, measured_s=2.0,
    measured=("--config=configs/small.py", "--config.train.global_batch=32", "--config.train.steps=60"),
    reference=("--config=configs/reference_124m.py",),
    grid=(
        "--config=configs/reference_124m.py", "--rule=mup", "--budgets=5e14,1e15,2e15,4e15", "--sizes=96,192,288,384",
        "--checks=lr", "--holdout-flops=1.6e16", "--config.parametrization.name=mup",
        "--config.parametrization.base_width=768", "--config.train.global_batch=32", "--config.eval.every_steps=100000",
    ),
    cost_share=1.0, least_limit_s=60.0,
)  # fmt: skip
TOY_SETTINGS = Settings(
    models={"124m": TOY_GPT2, "1b": TOY_MODEL, "3b": TOY_MODEL}, goals={"1b": 0.01, "3b": 0.01}, rows=(1, 2),
    chunks=(8,), attention=(1, 32, 2, 8), exact_tokens=32, trial=TOY_MODEL, trials=3, trial_rows=2, steps=3,
    run_steps=60, measured_s=0.05,
    measured=("--config=configs/tiny.py", "--config.train.steps=60", "--config.optim.peak_lr=1e-3"),
    reference=(
        "--config=configs/reference_124m.py", "--config.model.d_model=16", "--config.model.n_layers=1",
        "--config.model.n_heads=2", "--config.model.d_ff=64", "--config.model.seq_len=32",
        "--config.train.global_batch=2", "--config.train.steps=40", "--config.schedule.warmup_steps=4",
        "--config.eval.every_steps=20", "--config.checkpoint.every_steps=20", "--config.data.source=stdlib",
        "--config.data.path=",
    ),
    grid=(
        "--config=configs/quickstart.py", "--rule=small-bytes", "--budgets=1e10,2e10,4e10", "--sizes=16,24,32,40",
        "--checks=lr", "--holdout-flops=8e10",
    ),
    cost_share=0.1, least_limit_s=600.0,  # a rehearsal on busy cores is slow, not stuck
)  # fmt: skip


def build_config(model: dict[str, Any], **changes: Any) -> ConfigDict:
    """The resolved config of a model in bf16; `changes`: keys with "__" for the point."""
    tree = base.get_config()
    tree.model = getattr(base, model["preset"])(model["d_model"], model["n_layers"], model["n_heads"])
    values = {"model.vocab_size": model["vocab_size"], "model.seq_len": model["seq_len"], "precision.name": "bf16"}
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return config_lib.resolve(config_lib.override(tree, values | {"optim.peak_lr": 3e-4} | named))
