"""One pack: trials that share a program, trained together in this process, with one checkpoint for all of them."""

import pathlib
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from scalelab import records
from scalelab.config import hparams, static
from scalelab.train import loop, state
from scalelab.train.checkpoint import Checkpoints
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
        facts = {"checkpoints": f"../../packs/{pack}/checkpoints", "packing": mode, "trials": len(names)}
        runs = [
            open_run(name, folder / "runs" / name, trials[name], data, pack=facts | {"trial": name}) for name in names
        ]
        if all(run.status != "running" for run in runs):
            return {run.name: run.status for run in runs}
        checkpoints = Checkpoints(place / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_every)
        start, step = None, checkpoints.latest()
        if step is not None:
            like = {name: state.shapes(static(trials[name]), hparams(trials[name])) for name in names}
            restored = checkpoints.restore(step, like)
            start = (step, [restored[name] for name in names])
        loop.train(runs, data, checkpoints, names, mode, start, progress, stop)
        return {run.name: run.status for run in runs}
