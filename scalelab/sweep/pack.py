"""One pack: trials that share a program, trained together in this process, with one checkpoint for all of them."""

import pathlib
from collections.abc import Callable, Mapping

import jax
from ml_collections import ConfigDict

from scalelab import records
from scalelab.train import loop
from scalelab.train.checkpoint import Checkpoints
from scalelab.train.lineage import begin, initial, resume
from scalelab.train.program import packing
from scalelab.train.run import open_run
from scalelab.train.single import dataset


def train_pack(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    progress: loop.Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Train (or resume) the trials in `folder/runs/NAME`; checkpoints go to `folder/packs/PACK`. Returns the verdicts."""
    names, config = list(trials), next(iter(trials.values()))
    data, mode = dataset(config), packing(config.sweep.pack)
    place = folder / "packs" / pack
    with records.lock(place):
        saved = Checkpoints(place / "checkpoints").latest() is not None
        weights = None if saved else initial(config)  # before the folders become these runs'
        facts = {"checkpoints": f"../../packs/{pack}/checkpoints", "packing": mode, "trials": len(names)}
        shared = {"mesh": {"devices": jax.local_device_count()}} if mode == "vmap" else {}
        runs = [
            open_run(name, folder / "runs" / name, trials[name], data, pack=facts | {"trial": name}, **shared)
            for name in names
        ]
        if all(run.status != "running" for run in runs):
            return {run.name: run.status for run in runs}
        c, by_name = config.checkpoint, dict(zip(names, runs, strict=True))
        known = {name: run.facts for name, run in by_name.items()}
        checkpoints = Checkpoints(place / "checkpoints", c.keep_last, c.keep_every, known)
        start = resume(by_name, checkpoints, (), progress, c.fallback)
        params = weights and [begin(run, weights) for run in runs]
        loop.train(runs, data, checkpoints, names, mode, start, progress, stop, params)
        return {run.name: run.status for run in runs}
