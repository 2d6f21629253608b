"""A decay of any length from any checkpoint of a constant or wsd trunk: a run of its own, equal to the run planned so.

Everything goes along: parameters, the optimizer's state, step, counters, and the place in the data, which follows from the
step. So the branch gives the bits of a run that had its horizon from the start and differs only in `train.branch_from`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import records, set_by, user_code
from scalelab.config import mixture_text, schedule_steps, static
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput
from scalelab.parallel import mesh, rules
from scalelab.train.checkpoints import manifest
from scalelab.train.resume import compatibility, extend, start
from scalelab.train.run.loop import Progress
from scalelab.train.run.run import Run
from scalelab.train.step import program, state

TRUNKS = ("constant", "wsd")
DECAY = ("schedule.decay_steps", "schedule.decay_tokens", "schedule.decay_share")
WARMUP = ("schedule.warmup_steps", "schedule.warmup_tokens", "schedule.warmup_share")
# What a branch may have otherwise than its trunk: its end, and what changes no training step.
OTHERWISE = (
    *config_lib.UNIDENTIFYING, *DECAY, "schedule.decay_shape", "schedule.final_share", "schedule.name", "train.steps", "eval",
)  # fmt: skip


class Trunk(NamedTuple):
    """What a branch begins with."""

    step: int
    state: state.TrainState
    facts: dict[str, Any]  # that the trunk's checkpoint was saved under
    origin: dict[str, Any]  # for the record


def plan(source: str, file: str | None, overrides: Mapping[str, Any], workdir: pathlib.Path) -> ConfigDict:
    """The resolved config of the branch from `source` = RUN@STEP (RUN: its last step) in `workdir`.

    It is the trunk's, or that of `file`, plus overrides; warm-up and, where it isn't given, `train.steps` follow from the
    trunk: step + decay. Of a branch that has begun the trunk isn't asked any more. BadInput where the decay has no length.
    """
    folder, step, trunk = _origin(source, workdir)
    longer = "train.steps" in overrides
    base = config_lib.read(file) if file else trunk.copy_and_resolve_references()
    if not file and longer:
        schedule_steps.forget(base)
    if set(DECAY) & set(overrides) or not (file or longer):
        _forget_decay(base)
    config = config_lib.override(base, overrides, set_by.COMMAND_LINE)
    with config.unlocked(), config.ignore_type():
        config.train.branch_from = f"{folder}@{step}"
        if config.schedule.name == "constant":
            config.schedule.name = "wsd"
        if not set(WARMUP) & set(overrides):
            config.schedule.warmup_steps = trunk.schedule.warmup_steps
            config.schedule.warmup_tokens = config.schedule.warmup_share = None
        if not longer:
            config.train.steps = step + _decay(config, step)
    # The trunk's own code is not trusted for standing in its files; what the user's file or command line names is.
    user_code.trust(*(config_lib.leaves(base).values() if file else ()), *overrides.values())
    return config_lib.resolve(config, stored=True)


def _origin(source: str, workdir: pathlib.Path) -> tuple[str, int, ConfigDict]:
    """(the trunk's folder, the step, the trunk's config). Asked before jax may start, so only files are looked at."""
    if (workdir / "config.json").exists() and manifest.saved(workdir):
        own = compatibility.config_of({"config": records.read_config(workdir)})
        if own.train.branch_from in (source, f"{source}@{own.train.branch_from.rpartition('@')[2]}"):
            folder, _, step = own.train.branch_from.rpartition("@")
            return folder, int(step), own
    folder, asked = start.parse(source, "--branch-from=")
    saved = manifest.saved(folder)
    step = max(saved, default=None) if asked is None else asked
    if step not in saved:
        raise BadInput(
            f"--branch-from={source}: {folder} has no checkpoint of step {step}; it has {sorted(saved) or 'none'}"
        )
    place, name = saved[step]
    return str(folder), step, extend.planned(manifest.read(place / str(step))["facts"][name])


def _forget_decay(config: ConfigDict) -> None:
    with config.unlocked(), config.ignore_type():
        for key in DECAY:
            config.schedule[key.split(".")[1]] = None


def _decay(config: ConfigDict, step: int) -> int:
    """The length of the decay in steps; of a share s of the whole run it is step s / (1 - s)."""
    schedule, batch = config.schedule, schedule_steps.tokens_per_step(config)
    if schedule.decay_steps is not None:
        found = schedule.decay_steps
    elif schedule.decay_tokens is not None:
        found = schedule_steps.said(config, "decay")["decay_tokens"]
    elif schedule.decay_share is not None and schedule.decay_share < 1:
        found = round(step / (1 - schedule.decay_share)) - step
    else:
        raise BadInput(
            f"a branch needs its decay: --config.schedule.decay_tokens=N (a step is {batch:,} tokens) or decay_steps=N"
        )
    if found < 1:
        raise BadInput(
            f"a branch is a decay, and this one has no step; the shortest: schedule.decay_steps=1, {batch:,} tokens"
        )
    return found


def trunk(config: ConfigDict, dataset: Dataset) -> Trunk | None:
    """What `train.branch_from` names, whole and checked to the last bit; None: the run is no branch.

    BadInput where there is no such step, or where the branch would not be the run planned so from the start.
    """
    source = config.train.branch_from
    if not source:
        return None
    folder, step, checkpoints, name = start.locate(source, "train.branch_from=")
    if step is None:
        raise BadInput(f"train.branch_from={source!r} names no step: write RUN@STEP")
    rules.check(static(config), mesh.resolved(static(config).layout, jax.device_count()))
    (like,) = program.like(static(config), 1, "turn")
    mine = compatibility.facts(config, dataset)
    loaded = checkpoints.load({name: like}, lambda _, facts: _fits(folder, step, facts[name], mine, config), at=step)
    assert loaded is not None
    begun, facts = loaded.states[name], loaded.facts[name]
    origin = {"run": str(folder), "step": step, "digest": state.digest(begun.params), "identity": facts["identity"]}
    return Trunk(step, begun, facts, origin)


def _fits(
    folder: pathlib.Path, step: int, facts: Mapping[str, Any], mine: Mapping[str, Any], config: ConfigDict
) -> None:
    """BadInput where the trunk's steps before `step` aren't those of `config`."""
    asked, old = f"train.branch_from={folder}@{step}", config_lib.resolve(compatibility.config_of(facts), stored=True)
    if old.schedule.name not in TRUNKS or config.schedule.name != "wsd":
        raise BadInput(
            f"{asked}: a branch is a wsd's decay from the stable part of a constant or wsd run; its trunk is "
            f"{old.schedule.name!r}, itself {config.schedule.name!r}: begin on the weights with --init-from={folder}@{step}"
        )
    changed = compatibility.differences({**facts, "config": old.to_dict()}, mine).items()
    for key, (before, now) in ((k, v) for k, v in changed if k not in OTHERWISE and k.split(".")[0] not in OTHERWISE):
        if key == "data.mixture" and mixture_text.same_before(before, now, step):
            continue
        raise BadInput(
            f"{asked}: a branch is its trunk with another end, and {key} is {before!r} there, {now!r} here; leave it out, "
            f"or begin anew on the weights with --init-from={folder}@{step}"
        )
    if step < old.schedule.warmup_steps:
        raise BadInput(f"{asked}: the trunk is in its warm-up there, up to step {old.schedule.warmup_steps}")
    if step < schedule_steps.ramped(old):
        raise BadInput(f"{asked}: the trunk's batch is in its warm-up there, up to step {schedule_steps.ramped(old)}")
    if apart := extend.first_difference(old, config, step):
        kept = sorted(s for s in manifest.saved(folder) if s <= extend.decay_start(old))
        if extend.decay_start(old) < step:
            apart = (
                f"the trunk's own decay began at step {extend.decay_start(old)}; kept from before it: {kept or 'none'}"
            )
        elif extend.decay_start(config) < step:
            apart = f"a decay of {config.schedule.decay_steps} steps would begin at step {extend.decay_start(config)} already"
        raise BadInput(f"{asked}: {apart}")
    if planned := extend.of_optimizer(old, config):
        raise BadInput(
            f"{asked}: {planned}; nearest: a decay that ends there too (--config.train.steps={old.train.steps}), or begin anew on "
            f"the weights with --init-from={folder}@{step}"
        )


def begin(run: Run, trunk: Trunk, progress: Progress) -> state.TrainState:
    """Note in the run's record and logbook where it branches off; returns the state to go on from."""
    run.record["branch_from"] = trunk.origin
    run.facts["mixed"] = dict(trunk.facts.get("mixed", {}))
    run.event("branch", trunk.step, f"from {trunk.origin['run']} at step {trunk.step}", digest=trunk.origin["digest"])
    start.note_moves(run, trunk.step, trunk.facts, progress)
    return trunk.state
