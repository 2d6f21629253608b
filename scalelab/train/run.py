"""One run's folder from the trainer's side: open it (new or to resume), keep its record, close it with a verdict."""

import dataclasses
import importlib.metadata
import math
import pathlib
import platform
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import hardware, records
from scalelab.data.prepare import Dataset
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.model.attention import implementation
from scalelab.precision.policy import COMPUTE_DTYPES
from scalelab.train.metrics import Sink, sinks, write_lines

# A run that goes on under other values of these would be another run: its past no longer follows from its config.
FROZEN = ("model", "data", "parametrization", "precision", "optim.name", "schedule.name")
FROZEN_TRAIN = ("train.global_batch", "train.accumulate", "train.seed")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "scalelab")
SKIPS_IN_A_ROW = 20  # as many non-finite batches one after the other are a divergence, not an accident


@dataclasses.dataclass
class Run:
    """An open run. `status` is running, done, diverged or stopped; `val_loss` is the last one, in nats a token."""

    name: str
    folder: pathlib.Path
    config: ConfigDict
    record: dict[str, Any]
    mirrors: list[Sink]
    status: str = "running"
    val_loss: float | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens predicted in a step."""
        return self.config.train.global_batch * self.config.model.seq_len

    def write(self, lines: list[dict]) -> None:
        """Append metric lines."""
        write_lines(self.folder, lines, self.mirrors)

    def diverge(self, step: int, why: str) -> None:
        """Mark the run diverged, once."""
        if self.status == "running":
            self.status = "diverged"
            records.event(self.folder, "diverged", step, why)

    def keep_record(self, step: int) -> None:
        """Write record.json as of `step`."""
        tokens = step * self.tokens_per_step
        self.record |= {"status": self.status, "steps": step, "tokens": tokens, "val_loss": self.val_loss}
        per_token = self.record["flops_per_token"]
        self.record["flops"] = {("6ND" if k == "6N" else k): v * tokens for k, v in per_token.items()}
        if self.val_loss is not None:
            self.record["bpb"] = bits_per_byte(self.val_loss, self.record["data"]["bytes_per_token"])
        records.write_json(self.folder / "record.json", self.record)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Nats a token -> bits a byte."""
    return loss / math.log(2) / bytes_per_token


def open_run(name: str, folder: pathlib.Path, config: ConfigDict, dataset: Dataset, **facts: Any) -> Run:
    """Create the folder, or check that it belongs to this config; write config.json. `facts` go into the record.

    A run that ended keeps its verdict, unless it now has steps left. BadInput where what the folder holds was made by
    another model, data, batch or seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain, path = config.to_dict(), folder / "config.json"
    if path.exists():
        _accept_changes(folder, config_lib.differences(records.read_json(path), plain))
    run = Run(name, folder, config, _describe(name, config, dataset), sinks(folder, config.log))
    if (folder / "record.json").exists():
        old = records.read_json(folder / "record.json")
        facts = {key: old[key] for key in ("pack",) if key in old} | facts
        run.val_loss = old["val_loss"]
        if old["status"] == "diverged" or (old["status"] == "done" and old["steps"] >= config.train.steps):
            run.status = old["status"]
    run.record |= facts
    records.write_json(path, plain)
    return run


def _accept_changes(folder: pathlib.Path, changes: dict[str, tuple[Any, Any]]) -> None:
    for key, (old, new) in changes.items():
        frozen = key.split(".")[0] in FROZEN or key in FROZEN + FROZEN_TRAIN
        if frozen and key != "data.cache_dir":
            raise BadInput(
                f"{folder} was started with {key}={old!r}, now it is {new!r}: "
                f"use another --workdir, or --config.{key}={old}"
            )
    changes = {key: change for key, change in changes.items() if not key.startswith("log.")}
    if changes:
        text = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changes.items())
        records.event(folder, "config_change", None, text)


def _describe(name: str, config: ConfigDict, dataset: Dataset) -> dict[str, Any]:
    shape = config_lib.static(config).model
    dtype = COMPUTE_DTYPES[config.precision.name]
    peak_flops, peak_source = hardware.peak_flops(jax.devices()[0], dtype)
    return {
        "name": name,
        "identity": config_lib.identity(config),
        "params": count.parameters(shape),
        "params_by_group": count.groups(shape),
        "flops_per_token": count.flops_per_token(shape),
        "data": dataset.description
        | {
            "fingerprint": dataset.fingerprint,
            "bytes_per_token": dataset.bytes_per_token,
            "entropy_rate": dataset.entropy_rate,
        },
        "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in PACKAGES},
        "device": jax.devices()[0].device_kind,
        "mesh": {"devices": jax.local_device_count()},
        "attention": implementation(shape, dtype),
        "peak_flops": peak_flops,
        "mfu": f"exact training FLOPs (attention in full, no recomputation) / {peak_source}",
    }
