"""Run a whole sweep: record its trials, train its packs here or in the pool, and report how each trial ended."""

import contextlib
import functools
import itertools
import pathlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import git
from scalelab.errors import BadInput
from scalelab.index import grids
from scalelab.index.waiting import describe_held_packs, wait_for_folder
from scalelab.record import lock, records
from scalelab.sweep import status
from scalelab.sweep.answer.settings import SEED_KEY, setting_keys
from scalelab.sweep.executors import choice, deaths
from scalelab.sweep.executors.jobs import JOB_FILE
from scalelab.sweep.executors.pool import PackJobs
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE
from scalelab.sweep.pack import train_pack
from scalelab.sweep.trials import group_into_packs
from scalelab.train.checkpoints.manifest import DamagedCheckpoint, list_steps, read_manifest
from scalelab.train.lineage import compatibility, own_code
from scalelab.train.resume.start import check_initial_weights
from scalelab.train.run.early_stop import Judge
from scalelab.train.run.run import has_ended
from scalelab.train.run.session import Progress
from scalelab.train.run.trackers.metrics import check_trackers
from scalelab.train.run.trackers.sinks import SINK_KEYS
from scalelab.train.single import load_run_dataset
from scalelab.untrusted.paths import path_below


def run_sweep(
    folder: pathlib.Path,
    trials: Mapping[str, ConfigDict],
    progress: Progress = lambda _: None,
    watch: Callable[[Sequence[str]], None] = lambda running: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
    take_over: bool = False,
    workers: choice.Executor | None = None,
    code: Mapping[str, git.RepoState] | None = None,
    judge: Judge | None = None,
    is_grid: bool = False,
) -> dict[str, str]:
    """Train (or resume) all trials under `folder/runs`. Returns `{trial: verdict}`.

    A single pack is trained in this process and reports to `progress`. Several packs go to the executor that was chosen
    (`choice`; by default the pool), in the order of their first trials, and `watch` is called with the names of the
    running trials. Finished trials are not run again. While another process holds the folder, or a pack of it, this one
    waits, and says so. A study that sweeps more than once passes its own executor as `workers`: it gets every pack, and
    stays alive. A `judge`, which can be pickled, is asked 20 times a trial whether it ends early. `is_grid`: only these
    trials count from now on, and sweep.json keeps the grid that was there before among the earlier ones. `allow`,
    `take_over`, `code` and BadInput as for `train_single`; also BadInput where workers refuse every pack before a run
    is begun.
    """
    started = time.time()
    compatibility.check_allowed_keys(allow)
    code = code or git.code_state()
    warn = lambda text: progress({"warning": text})  # noqa: E731
    _check_places(folder, trials)
    written = grids.MANIFEST, f"packs/*/{JOB_FILE}"
    with wait_for_folder(folder, take_over, stop, warn) as is_held, lock.undo_if_refused(folder, *written):
        if not is_held:
            return {row["name"]: row["status"] for row in status.read_trial_rows(folder)}
        for name, config in trials.items():
            _refuse_other_trial(folder / "runs" / name, config, allow)
        ended = {name for name in trials if _ended(folder, name, trials)}
        grouped = keep_begun_packs(folder, group_into_packs(trials), ended)
        for pack in grouped:
            path_below(folder, f"packs/{pack}")
        if choice.is_local():
            rest = [config for name, config in trials.items() if name not in ended]
            _check_here(rest, with_data=len(grouped) > 1 and workers is None)
        manifest = {
            "trials": {name: config.train.steps for name, config in trials.items()},
            "packs": grouped,
            "values": _swept_values(trials),
        }
        records.write_json(folder / grids.MANIFEST, grids.add_grid(folder, manifest) if is_grid else manifest)
        unfinished = {pack: names for pack, names in grouped.items() if not ended.issuperset(names)}
        jobs = {pack: {name: trials[name] for name in names} for pack, names in unfinished.items()}
        if len(grouped) == 1 and jobs and not workers and choice.is_local():
            train_pack(folder, *next(iter(jobs.items())), progress, stop, allow, take_over, code, judge)
        elif jobs:
            for line in describe_held_packs(folder, jobs) if choice.is_local() else ():
                warn(line)

            def run_packs() -> dict[str, int]:
                pool = functools.partial(choice.open_executor, folder, trials.values(), allow, take_over, judge, warn)
                with contextlib.nullcontext(workers) if workers else pool() as executor:
                    return executor.run(jobs, lambda live: watch([n for p in live for n in grouped[p]]), stop, code)

            _follow_packs(folder, jobs, trials, run_packs)
            for text in tracker_warnings(folder, trials, started):
                warn(text)
    return {row["name"]: row["status"] for row in status.read_trial_rows(folder)}


def _check_places(folder: pathlib.Path, trials: Iterable[str]) -> None:
    """BadInput for a link or file where a sweep has a folder, before anything is written."""
    for name in [*(f"runs/{name}" for name in trials), "sweep.json"]:
        path_below(folder, name)
    for name in ("runs", "packs", "manifest", "slurm"):
        path = path_below(folder, name)
        if path.exists() and not path.is_dir():
            raise BadInput(f"{path} is a file, where a sweep has a folder: move it, or use another --workdir")


def _follow_packs(
    folder: pathlib.Path, jobs: PackJobs, trials: Collection[str], run: Callable[[], dict[str, int]]
) -> None:
    """Mark the packs that fail while `run()` gives their exit codes.

    BadInput if workers of this machine refuse every pack before a run is begun.
    """
    new_packs, begun = [pack for pack in jobs if not (folder / "packs" / pack).exists()], _begun_trials(folder, trials)
    codes = run()
    if choice.is_local() and len(codes) == len(jobs) and _begun_trials(folder, trials) == begun:
        deaths.refuse_all(folder, codes, new_packs)
    for pack, exit_code in codes.items():
        if exit_code not in (0, STOPPED_EXIT_CODE):
            deaths.mark_failed(folder, pack, list(jobs[pack]), exit_code)


def _begun_trials(folder: pathlib.Path, trials: Iterable[str]) -> set[str]:
    """The trials whose folders hold something."""
    return {name for name in trials if any((folder / "runs" / name).glob("*"))}


def _check_here(configs: Iterable[ConfigDict], with_data: bool) -> None:
    """Refuse before anything is written what workers would refuse one by one: trackers, and data."""
    logs, data = {}, {}
    for config in configs:
        logs[config.log.wandb, config.log.tensorboard, config.log.sinks] = config
        data[str(config.data), config.model.vocab_size, config.train.init_from] = config
    for config in logs.values():
        check_trackers(config.log)
    for config in data.values() if with_data else ():
        load_run_dataset(config)
        check_initial_weights(config.train.init_from)


def tracker_warnings(folder: pathlib.Path, trials: Iterable[str], since: float) -> list[str]:
    """What the workers' logbooks say since then of trackers that failed, each line once: workers have no terminal."""
    events = [event for name in trials for event in records.read_events(folder / "runs" / name)]
    texts = [event.get("text", "") for event in events if event["kind"] == "warning" and event["time"] >= since]
    return list(dict.fromkeys(text for text in texts if text.startswith(SINK_KEYS)))


def keep_begun_packs(
    folder: pathlib.Path, grouped: Mapping[str, list[str]], ended: Collection[str] = ()
) -> dict[str, list[str]]:
    """{pack: [names]}, where trials that are new beside a pack with checkpoints form a further one (KEY-2, …).

    A pack's checkpoints hold all its trials, so none can join it later: a sweep may grow by seeds or values. If a grid
    leaves some of an unfinished pack out, the others go on from its checkpoints in a pack of their own, and it keeps
    them. Trials that were saved under another key go on together. A trial's own record says where it was saved;
    sweep.json lists only the trials of the last call.
    """
    listed = grids.read_manifest(folder).get("packs", {})
    before = {name: pack for pack, names in listed.items() for name in names}
    packs: dict[str, list[str]] = {}
    for key, names in grouped.items():
        begun: dict[str, list[str]] = {}  # {former pack with checkpoints, or "": names}
        for name in names:
            pack = str(_pack_in_record(folder / "runs" / name) or before.get(name) or "")
            has_checkpoints = bool(pack) and (folder / "packs" / pack / "checkpoints").exists()
            begun.setdefault(pack if has_checkpoints else "", []).append(name)
        moved = []
        for pack, members in begun.items():
            stays = re.fullmatch(rf"{key}(-\d+)?", pack)
            if stays and (set(ended).issuperset(members) or set(members) >= _saved_trials(folder, pack)):
                packs[pack] = members
            else:
                moved.append(members)
        for members in moved:
            packs[_free_pack(folder, key, packs)] = members
    return packs


def _saved_trials(folder: pathlib.Path, pack: str) -> set[str]:
    """The trials in a pack's last checkpoint; none if it can't be read."""
    place = folder / "packs" / pack / "checkpoints"
    try:
        return {str(name) for step in list_steps(place)[-1:] for name in read_manifest(place / str(step))["facts"]}
    except DamagedCheckpoint:  # its pack decides
        return set()


def _pack_in_record(place: pathlib.Path) -> str | None:
    """The pack with which a run was saved, as its record says; None if there is no readable record."""
    try:
        pack = records.read_record(place).get("pack")
    except BadInput:
        return None
    return pathlib.Path(pack["checkpoints"]).parent.name if pack else None


def _free_pack(folder: pathlib.Path, key: str, used: Collection[str]) -> str:
    """KEY, or the first of KEY-2, KEY-3, … that is not used and has no checkpoints."""
    names = itertools.chain([key], (f"{key}-{i}" for i in itertools.count(2)))
    return next(name for name in names if name not in used and not (folder / "packs" / name / "checkpoints").exists())


def _swept_values(trials: Mapping[str, ConfigDict]) -> dict[str, dict[str, Any]]:
    """{trial: {key: value}} of what the sweep varies and the seed, for readers of trials that have not started."""
    rows = [config_lib.leaves(config) for config in trials.values()]
    keys = [*setting_keys(rows), SEED_KEY]
    return {name: {key: row.get(key) for key in keys} for name, row in zip(trials, rows, strict=True)}


def _ended(folder: pathlib.Path, name: str, trials: Mapping[str, ConfigDict]) -> bool:
    """Whether the trial has ended with exactly this config (log values aside); else its pack decides."""
    place = folder / "runs" / name
    try:
        old, record = records.read_config_and_record(place)
    except BadInput:
        return False
    if record.get("status") not in status.ENDED_STATUSES:
        return False
    new = trials[name].to_dict()
    return {k: v for k, v in old.items() if k != "log"} == {k: v for k, v in new.items() if k != "log"}


def _refuse_other_trial(place: pathlib.Path, config: ConfigDict, allow: Collection[str]) -> None:
    """Refuse a folder whose run has a config that this trial may not resume: BadInput, before anything is written.

    A folder in which no step was taken is taken over.
    """
    try:
        old, record = records.read_config_and_record(place)
    except BadInput:  # nothing there yet, or damaged: its pack decides, and other trials need not stop
        return
    if compatibility.is_untrained(place):
        return
    codes = record.get("own_code", {}), own_code.describe_own_code(config)
    before, now = (
        {"config": values, "data": {}, "own_code": code}
        for values, code in zip((old, config.to_dict()), codes, strict=True)
    )
    compatibility.check_continuation(str(place), before, now, allow, has_ended(record, config))
