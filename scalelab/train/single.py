"""One run from a config to a verdict: what `scalelab train` and every study call."""

import contextlib
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ml_collections import ConfigDict

from scalelab import git, user_code
from scalelab.data.dataset import Dataset, open_dataset
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput
from scalelab.hardware import device_memory
from scalelab.model.transformer import Params
from scalelab.parallel.processes import broadcast_from_first
from scalelab.parallel.pulse import Pulse
from scalelab.record import lock, records
from scalelab.train import ledger
from scalelab.train.lineage import compatibility, determinism, extend
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import branch, by_hand, rewind
from scalelab.train.resume import start as lineage
from scalelab.train.resume.by_hand import ByHand
from scalelab.train.run import loop
from scalelab.train.run.opening.opening import open_run
from scalelab.train.run.run import Run, has_ended
from scalelab.train.run.session import OpenScorer, Progress, Session, refuse_tasks
from scalelab.train.step.update.per_layer.refusals import reserve_for_moments


def load_run_dataset(config: ConfigDict) -> Dataset:
    """The dataset of a config, prepared if it is not yet. BadInput if another process reads other tokens.

    Nothing is written to a `data.cache_dir` that only a stored file names.
    """
    known = {field.name: config.data[field.name] for field in fields(DataConfig) if field.name in config.data}
    is_users = user_code.is_trusted_folder(config.data.cache_dir)
    data = open_dataset(DataConfig(**known, vocab_size=config.model.vocab_size, cache_is_users=is_users))
    if data.fingerprint != broadcast_from_first(lambda: data.fingerprint):
        raise BadInput(
            f"data.source={config.data.source!r} gives other tokens here than in process 0: use the same files"
        )
    return data


def train_single(
    config: ConfigDict,
    folder: pathlib.Path,
    progress: Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
    take_over: bool = False,
    pulse: Pulse | None = None,
    code: Mapping[str, git.RepoState] | None = None,
    change: ByHand | None = None,
    open_scorer: OpenScorer = refuse_tasks,
) -> dict[str, Any]:
    """Train the run in `folder` to its end, resuming what is there. Returns what `scalelab train --json` prints.

    `change` is made where the run goes on, which may be an earlier step, and recorded. `pulse` gets the progress;
    `code` is the `git.code_state` of the config's file (None: of the current folder); `open_scorer` opens what scores
    `eval.tasks`.
    BadInput if another process holds the folder (see `lock.hold_folder` for `take_over`), or if it belongs to another
    config and `allow` doesn't name the keys that differ. WorkFailed if its last checkpoint is damaged, or a save fails.
    """
    compatibility.check_allowed_keys(allow)
    records.refuse_links(folder)
    device_memory.reserve_gpu_memory()
    determinism.set_deterministic_flags(config, folder)
    reserve_for_moments(config)
    data = load_run_dataset(config)
    session = Session(data, progress, stop, allow, pulse=pulse, scorer=open_scorer(config, data))
    if session.scorer:
        progress({"note": session.scorer.text})
    with contextlib.ExitStack() as held:
        if warning := broadcast_from_first(lambda: held.enter_context(lock.hold_folder(folder, take_over=take_over))):
            progress({"warning": warning})
        broadcast_from_first(lambda: by_hand.settle(folder))
        change = _refuse_twice(folder, change, progress)
        config, warnings = continued_config(folder, config, allow, change and change.back_to)
        run, start, params = _open(config, folder, session, code, warnings, change)
        outcome = _train_to_end(run, start, params, session)
    return {
        "name": run.name,
        "status": run.status,
        "ended_by": run.record.get("ended_by", ""),
        "final_step": outcome.final_step,
        "resumed_from": outcome.resumed_from,
        "val_loss": run.val_loss,
        "bpb": run.record.get("bpb"),
        "bpb_bound": run.record["data"].get("bpb_bound", ""),
        "by_source": run.by_source,
        "tokens_per_s": outcome.tokens_per_s,
        "params_digest": outcome.digests[0],
        "folder": str(folder),
    }


def _open(
    config: ConfigDict,
    folder: pathlib.Path,
    session: Session,
    code: Mapping[str, git.RepoState] | None,
    warnings: Sequence[str],
    change: ByHand | None,
) -> tuple[Run, loop.StartStates | None, list[Params] | None]:
    """Open the run; with it the states that it goes on from, and for a new one the weights that it was given."""
    # What a new run starts from is loaded before it takes over the folder.
    new, data, progress = not lineage.find_last_checkpoint(folder), session.dataset, session.progress
    spec = make_train_spec(config, data.hparams)
    if new:
        broadcast_from_first(lambda: refuse_lost_checkpoints(folder, config))
    trunk = branch.load_trunk(spec, data) if new else None
    weights = lineage.load_initial_weights(spec) if new and not trunk else None
    back = change is not None and change.back_to is not None
    run = open_run(folder.name, folder, spec, data, session.allow, back, git=code or git.code_state())
    for fact in [*run.words, *({"warning": word} for word in warnings)]:
        progress(fact)
    for word in warnings:
        run.event("warning", None, word)
    if change and back:
        by_hand.go_back(run, change, session.allow, progress)
    start = _resume(run, session)
    loop.report_resume(run.name, start, config, progress)
    start = (trunk.step, [branch.start_branch(run, trunk, progress)]) if trunk else start
    if change and not back:
        start = by_hand.change_start(run, start, change, progress)
    return run, start, [lineage.start_from_weights(run, weights)] if weights else None


def _refuse_twice(folder: pathlib.Path, change: ByHand | None, progress: Progress) -> ByHand | None:
    """`change`, or None where it is the going back that the run did last. BadInput where it can't go back so far."""
    if change is None or change.back_to is None:
        return change
    at = broadcast_from_first(lambda: by_hand.went_back(folder, change))
    if at is not None:
        progress({"note": f"{folder.name}: {change.text()} was done at step {at}; it is not done again"})
        return None
    step = change.back_to
    broadcast_from_first(lambda: by_hand.check_step(folder, step))
    return change


def refuse_lost_checkpoints(folder: pathlib.Path, config: ConfigDict) -> None:
    """BadInput for a run that was saved, is to go on, and has no checkpoint any more (`check_steps_saved`)."""
    if not has_ended(records.read_record(folder), config):
        compatibility.check_steps_saved(folder)


def _train_to_end(
    run: Run, start: loop.StartStates | None, params: list[Params] | None, session: Session
) -> loop.TrainOutcome:
    """Train until the run ends or stops, and again from an earlier step as often as its guard decides so."""
    progress = session.progress
    if run.status != "running" and start is None:
        progress({"note": f"{run.name}: its checkpoints are gone; this is what its record says"})
        return loop.TrainOutcome(run.record["steps"], None, 0.0, [None], False, [])
    runs = {"run": run}
    while True:
        with lineage.open_checkpoints(run.folder / "checkpoints", runs, progress) as checkpoints:
            outcome = loop.train_runs(runs, checkpoints, session, start, params)
        call = outcome.calls[0]
        if call is None or not rewind.decide_rewind(run, call, checkpoints.folder, "run"):
            return outcome
        start, params = _resume(run, session), None
        progress({"warning": f"{run.name}: {call.why} at step {call.step}; back at step {start and start[0]}"})


def continued_config(
    folder: pathlib.Path, config: ConfigDict, allow: Collection[str], at: int | None = None
) -> tuple[ConfigDict, list[str]]:
    """The config that the run in `folder` continues with, and warnings: more steps don't change its warm-up.

    It goes on from its last checkpoint, or from step `at`.

    BadInput if its past had another LR than the new `train.steps` gives, and `allow` doesn't name the key.
    """
    last = broadcast_from_first(lambda: extend.last_checkpoint_facts(folder, at))
    if last is None:
        return (config if config.train.branch_from else ledger.count_from_zero(config)), []
    step, facts = last
    config, counted = ledger.plan_from_ledger(step, facts, config)
    warning = "" if counted and config.schedule.warmup_tokens is not None else extend.keep_warmup(facts, config)
    broadcast_from_first(lambda: compatibility.check_schedule_past(folder, step, facts, config, allow))
    return config, [f"{folder}: {warning}"] if warning else []


def _resume(run: Run, session: Session) -> loop.StartStates | None:
    """The states at the run's last checkpoint or its pack's, whichever is further; None: there is none."""
    rewind.drop_abandoned_steps(run.folder)
    last = lineage.find_last_checkpoint(run.folder)
    if last is None:
        return None
    checkpoints, name = last
    start = lineage.restore_runs({name: run}, checkpoints, session)
    if start and (decision := rewind.pending_decision(run)):
        start = start[0], [rewind.follow_decision(run, decision, start[1][0])]
    return start
