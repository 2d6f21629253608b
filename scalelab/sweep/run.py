"""A whole sweep: write down what it is, train its packs here or in the pool, and say how each trial ended."""

import contextlib
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence

from ml_collections import ConfigDict

from scalelab import git, lock, records
from scalelab.errors import BadInput
from scalelab.sweep import status
from scalelab.sweep.executors import pool
from scalelab.sweep.pack import train_pack
from scalelab.sweep.trials import group_into_packs
from scalelab.train.resume import compatibility
from scalelab.train.run.loop import Progress
from scalelab.train.run.run import has_ended


def run_sweep(
    folder: pathlib.Path,
    trials: Mapping[str, ConfigDict],
    progress: Progress = lambda _: None,
    watch: Callable[[Sequence[str]], None] = lambda running: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
    take_over: bool = False,
    workers: pool.WorkerPool | None = None,
    code: Mapping[str, git.RepoState] | None = None,
) -> dict[str, str]:
    """Train (or go on with) all trials under `folder/runs`. Returns `{trial: verdict}`. `allow`, `take_over` and `code` as for `train_single`.

    A single pack is trained in this process and reports to `progress`; several go to the pool, in the order of their
    first trials, and `watch` is called with the names of the trials that run. What is finished is not run again. A study
    that sweeps more than once gives its `workers`: they go on living, and every pack goes to them.
    """
    compatibility.check_allowed_keys(allow)
    grouped, code = group_into_packs(trials), code or git.code_state()
    with lock.hold_folder(folder, take_over=take_over) as warning:
        if warning:
            progress({"warning": warning})
        for name, config in trials.items():
            _refuse_other_trial(folder / "runs" / name, config, allow)
        records.write_json(
            folder / "sweep.json",
            {"trials": {name: config.train.steps for name, config in trials.items()}, "packs": grouped},
        )
        unfinished = {
            pack: names for pack, names in grouped.items() if not all(_ended(folder, n, trials) for n in names)
        }
        if len(grouped) == 1 and unfinished and not workers:
            pack, names = next(iter(unfinished.items()))
            train_pack(folder, pack, {name: trials[name] for name in names}, progress, stop, allow, take_over, code)
        elif unfinished:
            jobs = {pack: {name: trials[name] for name in names} for pack, names in unfinished.items()}
            wanted = pool.worker_count(next(iter(trials.values())).sweep.workers)
            with (
                contextlib.nullcontext(workers)
                if workers
                else pool.WorkerPool(folder, wanted, allow, take_over) as crew
            ):
                codes = crew.run(jobs, lambda live: watch([n for p in live for n in grouped[p]]), stop, code)
            for pack, exit_code in codes.items():
                if exit_code not in (0, pool.STOPPED_EXIT_CODE):
                    pool.mark_failed(folder, pack, grouped[pack], exit_code)
    return {row["name"]: row["status"] for row in status.read_trial_rows(folder)}


def _ended(folder: pathlib.Path, name: str, trials: Mapping[str, ConfigDict]) -> bool:
    """Done or diverged under this very config (log values aside); anything else is for the pack to judge."""
    place = folder / "runs" / name
    try:
        if records.read_record(place).get("status") not in ("done", "diverged"):
            return False
        old, new = records.read_config(place), trials[name].to_dict()
    except BadInput:
        return False
    return {k: v for k, v in old.items() if k != "log"} == {k: v for k, v in new.items() if k != "log"}


def _refuse_other_trial(place: pathlib.Path, config: ConfigDict, allow: Collection[str]) -> None:
    """BadInput, before anything is written, where the trial's folder belongs to another config than a resume may have."""
    try:
        record, old = records.read_record(place), records.read_config(place)
    except BadInput:  # nothing there yet, or damaged: for its pack to judge, and no other trial's affair
        return
    before, now = ({"config": values, "data": {}} for values in (old, config.to_dict()))
    compatibility.check_continuation(str(place), before, now, allow, has_ended(record, config))
