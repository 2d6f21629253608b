"""The smallest config that trains in seconds, and folders as its runs leave them."""

import dataclasses
import json
import pathlib

from ml_collections import ConfigDict

from scalelab import config as configs
from scalelab.configs import base
from scalelab.record import records

SIZES = {
    "model.seq_len": 32, "train.global_batch": 4, "train.steps": 8, "train.steps_per_dispatch": 1, "log.every_steps": 1,
    "optim.name": "sgd", "optim.peak_lr": 1e-3, "eval.every_steps": 8, "eval.batches": 1, "checkpoint.every_steps": 8,
    "data.source": "synthetic", "data.n_tokens": 20_000,
}  # fmt: skip


def tiny(**values) -> ConfigDict:
    tree = base.get_config()
    tree.model = base.llama(16, 1, 2)
    return configs.resolve(configs.override(tree, {key: str(value) for key, value in (SIZES | values).items()}))


def static(**values) -> configs.Static:
    return dataclasses.replace(configs.static(tiny(**values)), layout=configs.Layout())


def run_folder(
    folder: pathlib.Path, rates: list[float], device: str = "cpu", config: dict | None = None, **record
) -> None:
    """What `scalelab train` leaves of a run on one device with these tokens a second, dispatch by dispatch."""
    records.write_json(folder / "config.json", tiny(**(config or {})).to_dict())
    mesh = dataclasses.asdict(configs.Layout()) | {"devices": 1}
    records.write_json(folder / "record.json", {"device": device, "mesh": mesh} | record)
    lines = [{"step": step, "tokens_per_s": rate} for step, rate in enumerate(rates)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
