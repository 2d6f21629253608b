"""One pack: trials that share a program, trained together in this process, with one checkpoint for all of them."""

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import git, lock, records
from scalelab.errors import BadInput
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.resume import branch, determinism
from scalelab.train.resume.start import (
    find_last_checkpoint,
    load_initial_weights,
    make_warner,
    restore_runs,
    start_from_weights,
)
from scalelab.train.run import loop
from scalelab.train.run.run import Run, open_run
from scalelab.train.run.single import continued_config, load_run_dataset
from scalelab.train.spec import make_train_spec
from scalelab.train.step.program import resolve_packing


def train_pack(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    progress: loop.Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
    take_over: bool = False,
    code: Mapping[str, git.RepoState] | None = None,
) -> dict[str, str]:
    """Train (or resume) the trials in `folder/runs/NAME`; checkpoints go to `folder/packs/PACK`. Returns the verdicts.

    `code` and BadInput as for `train_single`; BadInput also where the trials were not saved together.
    """
    names, config = list(trials), next(iter(trials.values()))
    place = folder / "packs" / pack
    determinism.set_deterministic_flags(config, place)
    data, mode = load_run_dataset(config), resolve_packing(config.sweep.pack)
    with lock.hold_folder(place, take_over=take_over) as warning:
        if warning:
            progress({"warning": warning})
        for name in names:
            _set_damaged_record_aside(folder / "runs" / name, progress)
        saved = Checkpoints(place / "checkpoints").latest() is not None
        saved = saved or any(find_last_checkpoint(folder / "runs" / name) for name in names)
        goes_on = {name: continued_config(folder / "runs" / name, trial, allow) for name, trial in trials.items()}
        specs = {name: make_train_spec(trial, data.hparams) for name, (trial, _) in goes_on.items()}
        # What they start from comes before the folders become these runs'.
        trunks = [] if saved else [trunk for spec in specs.values() if (trunk := branch.load_trunk(spec, data))]
        weights = None if saved or trunks else load_initial_weights(specs[names[0]])
        facts = {"checkpoints": f"../../packs/{pack}/checkpoints", "packing": mode, "trials": len(names)}
        shared: dict[str, Any] = {"git": code or git.code_state()}
        shared |= {"mesh": {"trial": len(names), "devices": jax.local_device_count()}} if mode == "vmap" else {}
        runs = [
            open_run(name, folder / "runs" / name, specs[name], data, allow, pack=facts | {"trial": name}, **shared)
            for name in names
        ]
        for fact in runs[0].words:
            progress(fact)
        for run in runs:
            for word in goes_on[run.name][1]:
                run.event("warning", None, word)
        if all(run.status != "running" for run in runs):
            return {run.name: run.status for run in runs}
        c, by_name = config.checkpoint, dict(zip(names, runs, strict=True))
        known = {name: run.facts for name, run in by_name.items()}
        logs = [path for run in runs for path in records.log_paths(run.folder)]
        warn = make_warner(runs, progress)
        with Checkpoints(place / "checkpoints", c.keep_last, c.keep_every, known, logs, warn) as checkpoints:
            start = restore_runs(by_name, checkpoints, allow, progress, c.fallback, mode)
            start = start or _resume_former(runs, allow, progress, mode)
            if trunks:
                start = (
                    trunks[0].step,
                    [branch.start_branch(*pair, progress) for pair in zip(runs, trunks, strict=True)],
                )
            params = weights and [start_from_weights(run, weights) for run in runs]
            loop.train_runs(runs, data, checkpoints, names, mode, start, progress, stop, params)
        return {run.name: run.status for run in runs}


def _set_damaged_record_aside(folder: pathlib.Path, progress: loop.Progress) -> None:
    """One trial's record that can't be read keeps the others of its pack from nothing: it follows from checkpoint and logs."""
    try:
        records.read_record(folder)
    except BadInput as error:
        path = folder / "record.json"
        path.replace(path.with_name("record.json.damaged"))
        text = f"{error} It is made anew; as it was: record.json.damaged"
        records.write_event(folder, "warning", None, text)
        progress({"warning": text})


def _resume_former(
    runs: list[Run], allow: Collection[str], progress: loop.Progress, mode: str
) -> loop.StartStates | None:
    """Where the trials stood under another pack's name: it changes with every shared value, as an allowed change does."""
    found = [pair for pair in (find_last_checkpoint(run.folder) for run in runs) if pair]
    if not found:
        return None
    places = {str(checkpoints.folder.resolve()) for checkpoints, _ in found}
    if len(places) > 1 or len(found) < len(runs):
        saved = ", ".join(sorted(places))
        raise BadInput(
            f"of the trials that now share a program not all were saved together ({saved}); use another --workdir"
        )
    by_name = {name: run for (_, name), run in zip(found, runs, strict=True)}
    return restore_runs(by_name, found[0][0], allow, progress, runs[0].config.checkpoint.fallback, mode)
