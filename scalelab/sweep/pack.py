"""One pack: trials that share a program, trained together in this process, with shared checkpoints."""

import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from scalelab import git
from scalelab.errors import BadInput
from scalelab.evaluate.during import open_scorer
from scalelab.index.waiting import wait_for_folder
from scalelab.parallel.pulse import Pulse
from scalelab.record import records
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage import determinism
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import branch
from scalelab.train.resume.catch_up import catch_up, decide_all
from scalelab.train.resume.start import (
    Weights,
    find_last_checkpoint,
    load_initial_weights,
    open_checkpoints,
    restore_runs,
    start_from_weights,
)
from scalelab.train.run import early_stop, loop
from scalelab.train.run.opening.opening import open_run
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress, Session
from scalelab.train.single import continued_config, load_run_dataset, refuse_lost_checkpoints
from scalelab.train.step.program import resolve_packing, spread_trials
from scalelab.train.step.update.per_layer.refusals import reserve_for_moments
from scalelab.untrusted.paths import path_below


def train_pack(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    progress: Progress = lambda _: None,
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
    session = Session(data, progress, stop, allow, mode, pulse, judge, open_scorer(config, data))
    if session.scorer:
        progress({"note": session.scorer.text})
    with wait_for_folder(place, take_over, stop, lambda text: progress({"warning": text})) as is_held:
        if not is_held:
            return dict.fromkeys(names, "stopped")
        runs, origin = _open_trials(folder, pack, trials, session, code)
        if any(run.status == "running" for run in runs.values()):
            _train_to_end(runs, place / "checkpoints", origin, session)
        return {name: run.status for name, run in runs.items()}


class _Origin(NamedTuple):
    """What trials start from where none has a checkpoint: states of their trunks, or weights of another run."""

    trunks: Sequence[branch.Trunk]
    weights: Weights | None


def _open_trials(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    session: Session,
    code: Mapping[str, git.RepoState] | None,
) -> tuple[dict[str, Run], _Origin]:
    """Open every trial's run; what new ones start from is loaded before their folders are written to."""
    names, places = list(trials), {name: folder / "runs" / name for name in trials}
    for place in places.values():
        _rename_damaged_record(place, session.progress)
    has_checkpoint = Checkpoints(folder / "packs" / pack / "checkpoints").latest() is not None
    has_checkpoint = has_checkpoint or any(find_last_checkpoint(place) for place in places.values())
    for name, trial in [] if has_checkpoint else trials.items():
        refuse_lost_checkpoints(places[name], trial)
    continued = {name: continued_config(places[name], trial, session.allow) for name, trial in trials.items()}
    specs = {name: make_train_spec(trial, session.dataset.hparams) for name, (trial, _) in continued.items()}
    loaded = [] if has_checkpoint else [branch.load_trunk(spec, session.dataset) for spec in specs.values()]
    trunks = [trunk for trunk in loaded if trunk]
    weights = None if has_checkpoint or trunks else load_initial_weights(specs[names[0]])
    shared: dict[str, Any] = {"git": code or git.code_state()}
    if session.mode == "vmap":
        shared["mesh"] = _spread_over_devices(len(names), session.progress)
    facts = {"checkpoints": f"../../packs/{pack}/checkpoints", "packing": session.mode, "trials": len(names)}
    runs = {
        name: open_run(
            name, places[name], specs[name], session.dataset, session.allow, pack=facts | {"trial": name}, **shared
        )
        for name in names
    }
    _report_openings(list(runs.values()), {name: words for name, (_, words) in continued.items()}, session.progress)
    return runs, _Origin(trunks, weights)


def _train_to_end(runs: dict[str, Run], folder: pathlib.Path, origin: _Origin, session: Session) -> None:
    """Train until all trials have ended or stop, with checkpoints in `folder`; trials that go back catch up alone."""
    each, progress = list(runs.values()), session.progress
    while True:
        with open_checkpoints(folder, runs, progress) as checkpoints:
            start = restore_runs(runs, checkpoints, session) or _resume_from_other_pack(each, session)
            start = start and catch_up(runs, checkpoints, start, session)
            who = f"{len(runs)} trials" if len(runs) > 1 else each[0].name
            loop.report_resume(who, start, each[0].config, progress)
            params = None
            if not start and origin.trunks:
                states = [branch.start_branch(*pair, progress) for pair in zip(each, origin.trunks, strict=True)]
                start = origin.trunks[0].step, states
            elif not start and origin.weights:
                params = [start_from_weights(run, origin.weights) for run in each]
            outcome = loop.train_runs(runs, checkpoints, session, start, params)
        if not decide_all(runs, outcome.calls, folder):
            return


def _report_openings(runs: Sequence[Run], warnings: Mapping[str, Sequence[str]], progress: Progress) -> None:
    """Say what is true of all trials (what the grid varies is not the whole pack's), and log each one's warnings."""
    for fact in runs[0].words:
        if all(fact in run.words for run in runs):
            progress(fact)
    for run in runs:
        for warning in warnings[run.name]:
            run.event("warning", None, warning)


def _spread_over_devices(trials: int, progress: Progress) -> dict[str, int]:
    """The mesh for the record of a pack whose trials are spread over devices; `progress` gets a line on it."""
    devices = jax.local_device_count()
    used, each = spread_trials(trials, devices)
    if devices > 1:
        copies = used * each - trials
        filled = f"; the last device also has {copies} idle {'copy' if copies == 1 else 'copies'}" if copies else ""
        progress({"note": f"{trials} trials on {used} of {devices} devices, {each} on each{filled}"})
    return {"trial": used, "devices": used}


def _rename_damaged_record(folder: pathlib.Path, progress: Progress) -> None:
    """Rename an unreadable record.json: it is rebuilt from checkpoint and logs, so it need not stop the whole pack."""
    try:
        records.read_record(folder)
    except BadInput as error:
        path = folder / "record.json"
        path.replace(path.with_name("record.json.damaged"))
        text = f"{error} It is written anew; the damaged file is now record.json.damaged"
        records.write_event(folder, "warning", None, text)
        progress({"warning": text})


def _resume_from_other_pack(runs: Sequence[Run], session: Session) -> loop.StartStates | None:
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
    return restore_runs(by_name, last[0][0], session)
