"""One run from a config to a verdict: what `scalelab train` and every study call."""

import pathlib
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from scalelab import records
from scalelab.config import hparams, static
from scalelab.data.prepare import Dataset, prepare
from scalelab.data.sources import DataConfig
from scalelab.train import loop, state
from scalelab.train.checkpoint import Checkpoints, restore_one
from scalelab.train.run import Run, open_run


def dataset(config: ConfigDict) -> Dataset:
    """The tokens that a config's runs read, prepared if they aren't yet."""
    return prepare(DataConfig(**config.data, vocab_size=config.model.vocab_size))


def train_single(
    config: ConfigDict,
    folder: pathlib.Path,
    progress: loop.Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train the run in `folder` to its end, resuming what is there. Returns what `scalelab train --json` prints.

    BadInput where another process holds the folder, or where it belongs to another config.
    """
    data = dataset(config)
    with records.lock(folder) as warning:
        if warning:
            progress({"warning": warning})
        run = open_run(folder.name, folder, config, data)
        start = _start(run)
        checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_every)
        outcome = loop.train([run], data, checkpoints, ["run"], start=start, progress=progress, stop=stop)
    return {
        "name": run.name,
        "status": run.status,
        "final_step": outcome.final_step,
        "resumed_from": outcome.resumed_from,
        "val_loss": run.val_loss,
        "bpb": run.record.get("bpb"),
        "tokens_per_s": outcome.tokens_per_s,
        "params_digest": outcome.digests[0],
        "folder": str(folder),
    }


def _start(run: Run) -> tuple[int, list[state.TrainState]] | None:
    """Where the run goes on: at its own last checkpoint or its pack's, whichever is further; None: at the beginning."""
    like = state.shapes(static(run.config), hparams(run.config))
    found = [restore_one(run.folder / "checkpoints", "run", like)]
    if pack := run.record.get("pack"):
        found.append(restore_one(run.folder / pack["checkpoints"], pack["trial"], like))
    best = max((f for f in found if f), key=lambda f: f[0], default=None)
    return (best[0], [best[1]]) if best else None
