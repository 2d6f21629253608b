"""Where a run starts: at its own last checkpoint, its pack's, or on the weights of another run."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.choices import GUARD_POLICIES
from scalelab.errors import BadInput
from scalelab.hf import read
from scalelab.model.transformer import Params
from scalelab.parallel import rules
from scalelab.parallel.processes import broadcast_from_first, is_first_process
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.checkpoints import logs, manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints, LoadedStep
from scalelab.train.checkpoints.manifest import HEALTHY, find_saved_steps, list_checkpoint_places, list_strays
from scalelab.train.lineage import compatibility, determinism, mixed
from scalelab.train.lineage.facts import config_from_facts, describe_version_changes, diff_facts
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.resume import handover
from scalelab.train.run.feed import DataShift
from scalelab.train.run.loop import StartStates
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress, Session
from scalelab.train.step import guard, program, state

HF_PREFIX = "hf:"  # before a folder in the format of Hugging Face's transformers
Weights = tuple[Params, dict[str, Any]]  # parameters, and what is recorded of where they come from


def find_last_checkpoint(folder: pathlib.Path) -> tuple[Checkpoints, str] | None:
    """The checkpoints that hold a run's last step, and its name in them; None where nothing was saved."""
    candidates = [(Checkpoints(place), name) for place, name in list_checkpoint_places(folder)]
    steps = broadcast_from_first(lambda: [checkpoints.latest() for checkpoints, _ in candidates])
    best = max((step for step in steps if step is not None), default=None)
    return None if best is None else candidates[steps.index(best)]


def open_checkpoints(folder: pathlib.Path, runs: Mapping[str, Run], progress: Progress) -> Checkpoints:
    """The checkpoints of `runs`, whose names there are the keys; how many are kept is in the first one's config."""
    each = list(runs.values())
    c, rewinds = each[0].config.checkpoint, GUARD_POLICIES[each[0].config.guard.policy].rewinds
    facts = {name: run.facts for name, run in runs.items()}
    logs = [path for run in each for path in records.saved_log_paths(run.folder)]
    return Checkpoints(folder, c.keep_last, c.keep_every, facts, logs, make_warner(each, progress), rewinds)


def restore_runs(runs: dict[str, Run], checkpoints: Checkpoints, session: Session) -> StartStates | None:
    """(step, states) of the runs from the last step in `checkpoints`, whose names there are the keys; None: none saved.

    Each array is restored straight onto the place that the program of the session's mode wants it in. BadInput where a
    step was saved under facts that may not change, DamagedCheckpoint where it is damaged and checkpoint.fallback is
    false. What was let through is an event of each run.
    """
    first, progress, allow = next(iter(runs.values())), session.progress, session.allow

    def accept(step: int, facts: dict[str, Any]) -> None:
        for name, run in runs.items():
            if name not in facts:
                raise BadInput(f"{checkpoints.folder / str(step)} holds no {name!r}, only {', '.join(facts)}")
            place, ended = str(checkpoints.folder / str(step)), step >= run.config.train.steps
            compatibility.check_continuation(place, facts[name], run.facts, allow, ended)
            compatibility.check_schedule_past(run.folder, step, facts[name], run.config, allow)

    for stray in list_strays(checkpoints.folder):
        progress({"warning": f"ignoring {checkpoints.folder / stray}: not a checkpoint"})
    like = dict(zip(runs, program.restore_targets(first.spec.static, len(runs), session.mode), strict=True))

    def wanted(content: dict[str, Any]) -> dict[str, Any]:
        return {
            name: handover.select_restorable_fields(content, name, like[name], run.config) for name, run in runs.items()
        }

    loaded = checkpoints.load(wanted, accept, first.config.checkpoint.fallback)
    if loaded is None:
        return None
    _note_doubts(runs, checkpoints.folder / str(loaded.step), progress)
    return loaded.step, [_restored_state(run, name, checkpoints, loaded, progress) for name, run in runs.items()]


def make_warner(runs: Sequence[Run], progress: Progress) -> Callable[[str], None]:
    """Make a function that tells a warning to the user and to the logbooks of all `runs`."""

    def warn(text: str) -> None:
        progress({"warning": text})
        for run in runs:
            run.event("warning", None, text)

    return warn


def _note_doubts(runs: dict[str, Run], place: pathlib.Path, progress: Progress) -> None:
    """Note which trials of a step were saved under suspicion, and which lost lines of their logs since then."""
    content, lost = broadcast_from_first(lambda: _doubts(place))
    for name, run in runs.items():
        texts = [text for path, text in lost if path.parent == run.folder.resolve()]
        verdict = content.get(name, HEALTHY)
        texts += [] if verdict == HEALTHY else [f"step {place.name} of {name} is {verdict}"]
        for text in texts:
            make_warner([run], progress)(f"{text}; the run goes on")


def _doubts(place: pathlib.Path) -> tuple[dict[str, str], list[tuple[pathlib.Path, str]]]:
    content = manifest.read_manifest(place)
    return content.get("health", {}), [
        (path.resolve(), text) for path, text in logs.find_lost_logs(place.parent, content)
    ]


def _restored_state(
    run: Run, name: str, checkpoints: Checkpoints, loaded: LoadedStep, progress: Progress
) -> state.TrainState:
    """The run's whole state at the loaded step; what changed since it was saved is noted."""
    resumed, saved = loaded.states[name], loaded.facts[name]
    fresh: list[str] = []
    if not isinstance(resumed, state.TrainState):
        resumed, fresh = handover.complete_state(checkpoints, loaded, name, resumed, run.spec.static, run.spec.hparams)
    if loaded.tried:
        text = f"fell back to step {loaded.step}: {'; '.join(loaded.tried)}"
        if is_first_process():  # at once: the damaged ones have been set aside, whether the run goes on or not
            records.write_event(run.folder, "fallback", loaded.step, text)
        progress({"warning": text})
    note_environment_changes(run, loaded.step, saved, progress)
    if run.spec.own_code and "own_code" not in saved:
        names = ", ".join(entry["function"] for entry in run.spec.own_code.values())
        text = f"step {loaded.step} was saved before own code was recorded: whether {names} changed since isn't known"
        make_warner([run], progress)(text)
    if "tracker_id" in saved and "tracker_id" not in run.record:  # the record may have been lost
        run.record |= {key: saved[key] for key in ("tracker_id", "tracker_home") if key in saved}
    for name_of_fact in ("alarms", "rewinds", "changes_by_hand"):
        run.facts.pop(name_of_fact, None)
        run.facts |= {name_of_fact: saved[name_of_fact]} if name_of_fact in saved else {}
    run.record |= {key: saved[key] for key in ("changes_by_hand",) if key in saved}
    run.changed |= diff_facts(saved, run.facts)
    run.facts["mixed"] = mixed.merge_change_entries(loaded.step, saved, run.facts, run.config, fresh)
    if len(run.facts["mixed"]) > len(saved.get("mixed", {})):
        resumed = resumed._replace(guard=guard.begin_window(resumed.guard, loaded.step))
    count_on(run, loaded.step, saved, resumed, progress)
    if fresh:
        what = f"step {loaded.step} goes on with its weights, its data and a fresh {', '.join(fresh)}"
        run.event("warning", loaded.step, what)
        progress({"warning": what})
    return resumed


def count_on(run: Run, step: int, saved: dict[str, Any], resumed: state.TrainState, progress: Progress) -> None:
    """Let the run's ledger go on from the facts `saved` at `step`; what changes there is said."""
    number = DataShift.of(resumed.guard).number(step)
    known = run.facts["data"], run.record["flops_per_token"]
    config, words = ledger.continue_config(run.config, step, saved, number, *known)
    if config.log.stretches != run.config.log.stretches:
        static = dataclasses.replace(config_lib.static(config), layout=run.spec.static.layout)
        run.spec = dataclasses.replace(run.spec, config=config, static=static)
        run.facts["config"] = config.to_dict()
    for kind, text in words:
        run.event("chosen" if kind == "note" else kind, step, text)
        progress({kind: text})


def note_environment_changes(run: Run, step: int, saved: dict[str, Any], progress: Progress) -> None:
    """Note that `step` was saved under other versions, or on another mesh or machine, where it was."""
    if text := describe_version_changes(saved):
        run.event("warning", step, f"saved under other versions: {text}; bits may differ")
    moved = determinism.describe_hardware_change(saved.get("place", {}), run.facts["place"])
    if text := ", ".join(filter(None, [moved, text])):
        run.event(determinism.MOVED_EVENT, step, text)
        progress({"warning": f"step {step} was saved elsewhere: {text}; the values are the same, later roundings not"})


def load_initial_weights(spec: TrainSpec) -> Weights | None:
    """Parameters and origin that `train.init_from` names; None: they are drawn.

    BadInput where there is no such step or its shapes are others; DamagedCheckpoint where the step is.
    """
    source = spec.config.train.init_from
    if not source:
        return None
    if source.startswith(HF_PREFIX):
        return _load_foreign_weights(spec.config)
    rules.check_layout(spec.static, spec.static.layout)
    folder, step, checkpoints, name = find_checkpoint(source, "train.init_from=")
    loaded = checkpoints.load(None, at=step)
    assert loaded is not None
    params = _load_model(checkpoints, loaded, name, spec)
    origin = {"run": str(folder), "step": loaded.step, "digest": state.params_digest(params)}
    return params, origin | {key: loaded.facts[name][key] for key in ("identity", "data")}


def _load_model(checkpoints: Checkpoints, loaded: LoadedStep, name: str, spec: TrainSpec) -> Any:
    """The weights of a checked step for the model of `spec`; a load of experts that it lacks begins anew, even.

    BadInput if one of the two models has a bias of experts and the other not.
    """
    model, saved = spec.config.model, config_from_facts(loaded.facts[name]).model
    if problem := read.describe_bias(saved, model):
        raise BadInput(f"train.init_from={spec.config.train.init_from!r}: {problem}")
    static = spec.static
    if model.balance_weight and not saved.balance_weight:  # without the variable that only this loss reads
        static = dataclasses.replace(static, model=dataclasses.replace(static.model, balance_weight=0.0))
    params = handover.load_evaluation_params(checkpoints, loaded, name, static)
    return read.add_variables(params, spec.static.model) if static is not spec.static else params


def check_initial_weights(source: str) -> None:
    """Refuse a `train.init_from` that names no run or model, without loading it or starting jax: BadInput."""
    if source.startswith(HF_PREFIX):
        read.examine_folder(pathlib.Path(source.removeprefix(HF_PREFIX)))
    elif source:
        parse_run_step(source, "train.init_from=")


def _load_foreign_weights(config: ConfigDict) -> Weights:
    source = read.examine_folder(pathlib.Path(config.train.init_from.removeprefix(HF_PREFIX)))
    read.check_same_model(source, config)
    loaded = read.load_params(source)
    params = read.add_variables(loaded, config_lib.static(config).model)
    return params, source.origin() | {"digest": state.params_digest(loaded)}


def start_from_weights(run: Run, weights: Weights) -> Params:
    """Note in the run's record and logbook where its weights come from; returns a copy of them."""
    params, origin = weights
    run.record["init_from"] = origin
    where = f"{origin['run']} at step {origin['step']}" if "run" in origin else f"{origin['hf']} ({origin['format']})"
    run.event("init_from", 0, f"weights of {where}", digest=origin["digest"])
    return jax.tree.map(jnp.copy, params)  # trials must not share what a donating step gives away


def find_checkpoint(source: str, asked: str = "") -> tuple[pathlib.Path, int | None, Checkpoints, str]:
    """RUN or RUN@STEP -> (its folder, the step asked for, the checkpoints that hold it, the run's name in them)."""
    folder, step = parse_run_step(source, asked)
    place = find_last_checkpoint(folder) if step is None else _checkpoints_holding(folder, step)
    if place is None:
        known = sorted(find_saved_steps(folder))
        wanted = "" if step is None else f" of step {step}"
        near = min(known, key=lambda other: abs(other - (step or 0)), default=None)
        hint = "" if near is None else f"; nearest: {folder}@{near}"
        raise BadInput(f"{asked}{source!r}: {folder} has no checkpoint{wanted}; it has {known or 'none'}{hint}")
    return folder, step, *place


def _checkpoints_holding(folder: pathlib.Path, step: int) -> tuple[Checkpoints, str] | None:
    candidates = [(Checkpoints(place), name) for place, name in list_checkpoint_places(folder)]
    return next((pair for pair in candidates if step in pair[0].steps()), None)


def parse_run_step(source: str, asked: str) -> tuple[pathlib.Path, int | None]:
    """RUN or RUN@STEP -> (the run's folder, the step). BadInput where the folder is not a run folder."""
    head, sign, tail = source.rpartition("@")
    path, step = (head, int(tail)) if sign and tail.isdecimal() else (source, None)
    folder = pathlib.Path(path)
    if not (folder / "config.json").exists():
        raise BadInput(f"{asked}{source!r}: {path!r} is not a run folder; write RUN or RUN@STEP")
    return folder, step
