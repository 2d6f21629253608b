"""Runs of an ablation as they end, written without training: for what is made of their losses."""

import contextlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator

import pytest
from ml_collections import ConfigDict

from scalelab import config as configs
from scalelab.model import count
from scalelab.record import records
from scalelab.sweep.ablate import conduct


def write_ended_run(folder: pathlib.Path, config: ConfigDict, loss: float) -> None:
    """The folder of a run of this config that ended with this loss; inf: that diverged."""
    model, steps = configs.static(config).model, config.train.steps
    per_token, tokens = count.flops_per_token(model), steps * config.train.global_batch * config.model.seq_len
    ended, time = math.isfinite(loss), 1_790_000_000.0
    records.write_json(folder / "config.json", config.to_dict())
    lines = [{"step": steps, "tokens": tokens, "train_loss": loss if ended else 9.0, "tokens_per_s": 2e5, "time": time}]
    if ended:
        lines.append({"step": steps, "tokens": tokens, "val_loss": loss, "bpb": loss / math.log(2), "time": time})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flops = {name: each * tokens for name, each in per_token.items()}
    records.write_json(folder / "record.json", {
        "name": folder.name, "identity": configs.identity(config), "status": "done" if ended else "diverged",
        "params": count.count_parameters(model), "flops_per_token": per_token, "tokens": tokens, "steps": steps,
        "flops": {"6ND": flops["6N"]} | {name: flops[name] for name in ("chinchilla", "exact")},
        "val_loss": loss if ended else None, "bpb": loss / math.log(2) if ended else None,
    })  # fmt: skip


@contextlib.contextmanager
def runs_ended_at(loss_of: Callable[[str, ConfigDict], float]) -> Iterator[list[str]]:
    """`ablate` finds every run that it asks for ended at `loss_of(name, config)` while the context lasts.

    Gives the names of runs that were asked for.
    """
    names: list[str] = []

    @contextlib.contextmanager
    def train_in_pool(folder, first, take_over, display, progress):
        def train(trials):
            for name, config in trials.items():
                names.append(name)
                if not (folder / "runs" / name).exists():
                    write_ended_run(folder / "runs" / name, config, loss_of(name, config))

        yield train

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalelab.api.work.studies.train_in_pool", train_in_pool)
        patch.setattr(conduct, "measure_throughput", lambda runs: {side: [100.0, 101.0] for side in runs})
        yield names
