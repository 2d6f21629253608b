"""One pack: trials that share a program, trained together in this process, with shared checkpoints."""

import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import git
from scalelab.config.choices import GUARD_POLICIES
from scalelab.errors import BadInput
from scalelab.index.waiting import wait_for_folder
from scalelab.parallel.pulse import Pulse
from scalelab.record import records
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage import determinism
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import branch
from scalelab.train.resume.catch_up import catch_up, decide_all
from scalelab.train.resume.start import (
    find_last_checkpoint,
    load_initial_weights,
    make_warner,
    restore_runs,
    start_from_weights,
)
from scalelab.train.run import early_stop, loop
from scalelab.train.run.run import Run, open_run
from scalelab.train.single import continued_config, load_run_dataset, refuse_lost_checkpoints
from scalelab.train.step.per_layer.refusals import reserve_for_moments
from scalelab.train.step.program import resolve_packing, spread_trials
from scalelab.untrusted.paths import path_below


def train_pack(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    progress: loop.Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
    take_over: bool = False,
    code: Mapping[str, git.RepoState] | None = None,
    judge: early_stop.Judge | None = None,
    pulse: Pulse | None = None,
) -> dict[str, str]:
    """Train (or resume) the trials in `folder/runs/NAME`, with checkpoints in `folder/packs/PACK`.

    Returns {trial: status}. Waits while another process trains the pack. `judge` may end trials early; `pulse` ends the
    process where no step ends. `code` and BadInput as for `train_single`; also BadInput if the trials were
    not saved together.
    """
    names, config = list(trials), next(iter(trials.values()))
    place = path_below(folder, f"packs/{pack}")
    for each in (place, *(path_below(folder, f"runs/{name}") for name in names)):
        records.refuse_links(each)
    determinism.set_deterministic_flags(config, place)
    reserve_for_moments(config, len(trials))
    data, mode = load_run_dataset(config), resolve_packing(config.sweep.pack)
    with wait_for_folder(place, take_over, stop, lambda text: progress({"warning": text})) as is_held:
        if not is_held:
            return dict.fromkeys(names, "stopped")
        for name in names:
            _rename_damaged_record(folder / "runs" / name, progress)
        has_checkpoint = Checkpoints(place / "checkpoints").latest() is not None
        has_checkpoint = has_checkpoint or any(find_last_checkpoint(folder / "runs" / name) for name in names)
        for name, trial in [] if has_checkpoint else trials.items():
            refuse_lost_checkpoints(folder / "runs" / name, trial)
        continued = {name: continued_config(folder / "runs" / name, trial, allow) for name, trial in trials.items()}
        specs = {name: make_train_spec(trial, data.hparams) for name, (trial, _) in continued.items()}
        # Load initial weights and trunks before the folders are written to.
        loaded = [] if has_checkpoint else [branch.load_trunk(spec, data) for spec in specs.values()]
        trunks = [trunk for trunk in loaded if trunk]
        weights = None if has_checkpoint or trunks else load_initial_weights(specs[names[0]])
        shared: dict[str, Any] = {"git": code or git.code_state()}
        if mode == "vmap":
            shared["mesh"] = _spread_over_devices(len(names), progress)
        facts = {"checkpoints": f"../../packs/{pack}/checkpoints", "packing": mode, "trials": len(names)}
        runs = [
            open_run(name, folder / "runs" / name, specs[name], data, allow, pack=facts | {"trial": name}, **shared)
            for name in names
        ]
        _report_openings(runs, {name: words for name, (_, words) in continued.items()}, progress)
        if all(run.status != "running" for run in runs):
            return {run.name: run.status for run in runs}
        c, by_name = config.checkpoint, dict(zip(names, runs, strict=True))
        facts_by_name = {name: run.facts for name, run in by_name.items()}
        logs = [path for run in runs for path in records.saved_log_paths(run.folder)]
        warn = make_warner(runs, progress)
        keep = c.keep_last, c.keep_every, facts_by_name, logs, warn, GUARD_POLICIES[config.guard.policy].rewinds
        while True:
            with Checkpoints(place / "checkpoints", *keep) as checkpoints:
                start = restore_runs(by_name, checkpoints, allow, progress, c.fallback, mode)
                start = start or _resume_from_other_pack(runs, allow, progress, mode)
                start = start and catch_up(by_name, checkpoints, start, data, progress)
                loop.report_resume(f"{len(runs)} trials" if len(runs) > 1 else names[0], start, config, progress)
                if trunks and not start:
                    states = [branch.start_branch(*pair, progress) for pair in zip(runs, trunks, strict=True)]
                    start = trunks[0].step, states
                params = [start_from_weights(run, weights) for run in runs] if weights and not start else None
                outcome = loop.train_runs(
                    runs, data, checkpoints, names, mode, start, progress, stop, params, pulse, judge
                )
            if not decide_all(by_name, outcome.calls, place / "checkpoints"):
                break
        return {run.name: run.status for run in runs}


def _report_openings(runs: Sequence[Run], warnings: Mapping[str, Sequence[str]], progress: loop.Progress) -> None:
    """Say what is true of all trials (what the grid varies is not the whole pack's), and log each one's warnings."""
    for fact in runs[0].words:
        if all(fact in run.words for run in runs):
            progress(fact)
    for run in runs:
        for warning in warnings[run.name]:
            run.event("warning", None, warning)


def _spread_over_devices(trials: int, progress: loop.Progress) -> dict[str, int]:
    """The record's mesh of a pack under vmap, which is also told."""
    devices = jax.local_device_count()
    used, each = spread_trials(trials, devices)
    if devices > 1:
        copies = used * each - trials
        filled = f"; the last device also has {copies} idle {'copy' if copies == 1 else 'copies'}" if copies else ""
        progress({"note": f"{trials} trials on {used} of {devices} devices, {each} on each{filled}"})
    return {"trial": used, "devices": used}


def _rename_damaged_record(folder: pathlib.Path, progress: loop.Progress) -> None:
    """Rename an unreadable record.json: it is rebuilt from checkpoint and logs, so it need not stop the whole pack."""
    try:
        records.read_record(folder)
    except BadInput as error:
        path = folder / "record.json"
        path.replace(path.with_name("record.json.damaged"))
        text = f"{error} It is written anew; the damaged file is now record.json.damaged"
        records.write_event(folder, "warning", None, text)
        progress({"warning": text})


def _resume_from_other_pack(
    runs: list[Run], allow: Collection[str], progress: loop.Progress, mode: str
) -> loop.StartStates | None:
    """Restore trials saved under another pack name, which changes with every shared value (as by --allow-change)."""
    last = [pair for pair in (find_last_checkpoint(run.folder) for run in runs) if pair]
    if not last:
        return None
    places = {str(checkpoints.folder.resolve()) for checkpoints, _ in last}
    if len(places) > 1 or len(last) < len(runs):
        raise BadInput(
            f"not all trials that now share a program were saved together ({', '.join(sorted(places))}); "
            "use another --workdir"
        )
    by_name = {name: run for (_, name), run in zip(last, runs, strict=True)}
    return restore_runs(by_name, last[0][0], allow, progress, runs[0].config.checkpoint.fallback, mode)
