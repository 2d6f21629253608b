"""A decay of any length from any checkpoint of a constant or wsd trunk: a run of its own, equal to the run planned so.

Everything goes along: parameters, the optimizer's state, step, counters, and the place in the data, which follows from
the step. So the branch gives the bits of a run that had its horizon from the start and differs only in
`train.branch_from`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by, user_code
from scalelab.config import mixture_text
from scalelab.config.steps import schedule_steps
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, quote_path
from scalelab.parallel import rules
from scalelab.record import records
from scalelab.record.identity import is_identity_key
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage import extend
from scalelab.train.lineage.facts import checkpoint_facts, config_from_facts, diff_facts
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.resume import handover, start
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress
from scalelab.train.step import program, state

TRUNK_SCHEDULES = ("constant", "wsd")
DECAY_KEYS = ("schedule.decay_steps", "schedule.decay_tokens", "schedule.decay_share")
WARMUP_KEYS = ("schedule.warmup_steps", "schedule.warmup_tokens", "schedule.warmup_share")
# What a branch may have otherwise than its trunk, besides what changes no training step: its end.
END = (*DECAY_KEYS, "schedule.decay_shape", "schedule.final_share", "schedule.name", "train.steps")


class Trunk(NamedTuple):
    """The state that a branch starts from, and where it comes from."""

    step: int
    state: state.TrainState
    facts: dict[str, Any]  # that the trunk's checkpoint was saved under
    origin: dict[str, Any]  # for the record


def plan_branch(source: str, file: str | None, overrides: Mapping[str, Any], workdir: pathlib.Path) -> ConfigDict:
    """The resolved config of the branch from `source` = RUN@STEP (RUN: its last step) in `workdir`.

    It is the trunk's, or that of `file`, plus overrides; warm-up and, where it isn't given, `train.steps` follow from
    the trunk: step + decay. Of a branch that has begun the trunk isn't asked any more. BadInput where the decay has no
    length.
    """
    folder, step, trunk = _find_trunk(source, workdir)
    longer = "train.steps" in overrides
    base = config_lib.read_config_file(file) if file else trunk.copy_and_resolve_references()
    if not file and longer:
        schedule_steps.forget_derived_steps(base)
    if set(DECAY_KEYS) & set(overrides) or not (file or longer):
        _forget_decay(base)
    config = config_lib.override(base, overrides, set_by.COMMAND_LINE)
    with config.unlocked(), config.ignore_type():
        config.train.branch_from = f"{folder}@{step}"
        if config.schedule.name == "constant":
            config.schedule.name = "wsd"
        if not set(WARMUP_KEYS) & set(overrides):
            config.schedule.warmup_steps = trunk.schedule.warmup_steps
            config.schedule.warmup_tokens = config.schedule.warmup_share = None
        if not longer:
            config.train.steps = step + _decay_length(config, step)
    # The trunk's own code is not trusted for standing in its files; what the user's file or command line names is.
    user_code.trust_names(*(config_lib.leaves(base).values() if file else ()), *overrides.values())
    return config_lib.resolve(config, stored=True)


def _find_trunk(source: str, workdir: pathlib.Path) -> tuple[str, int, ConfigDict]:
    """(the trunk's folder, the step, the trunk's config). Asked before jax may start, so only files are looked at."""
    if (workdir / "config.json").exists() and manifest.find_saved_steps(workdir):
        branch = config_from_facts({"config": records.read_config(workdir)})
        if branch.train.branch_from in (source, f"{source}@{branch.train.branch_from.rpartition('@')[2]}"):
            folder, _, step = branch.train.branch_from.rpartition("@")
            return folder, int(step), branch
    folder, asked = start.parse_run_step(source, "--branch-from=")
    saved = manifest.find_saved_steps(folder)
    step = max(saved, default=None) if asked is None else asked
    if step not in saved:
        raise BadInput(
            f"--branch-from={source}: {folder} has no checkpoint of step {step}; it has {sorted(saved) or 'none'} "
            "(checkpoint.keep_every keeps old ones)"
        )
    place, name = saved[step]
    return str(folder), step, extend.planned_config(manifest.read_manifest(place / str(step))["facts"][name])


def _forget_decay(config: ConfigDict) -> None:
    with config.unlocked(), config.ignore_type():
        for key in DECAY_KEYS:
            config.schedule[key.split(".")[1]] = None


def _decay_length(config: ConfigDict, step: int) -> int:
    """The length of the decay in steps; of a share s of the whole run it is step s / (1 - s)."""
    schedule, batch = config.schedule, schedule_steps.tokens_per_step(config)
    if schedule.decay_steps is not None:
        steps = schedule.decay_steps
    elif schedule.decay_tokens is not None:
        steps = schedule_steps.requested_steps(config, "decay")["decay_tokens"]
    elif schedule.decay_share is not None and schedule.decay_share < 1:
        steps = round(step / (1 - schedule.decay_share)) - step
    else:
        raise BadInput(
            f"a branch needs its decay: --config.schedule.decay_tokens=N (a step is {batch:,} tokens) or decay_steps=N"
        )
    if steps < 1:
        raise BadInput(
            f"a branch is a decay, and this one has no step; the shortest: schedule.decay_steps=1, {batch:,} tokens"
        )
    return steps


def load_trunk(spec: TrainSpec, dataset: Dataset) -> Trunk | None:
    """What `train.branch_from` names, whole and checked to the last bit; None if the run is not a branch.

    BadInput where there is no such step, or where the branch would not be the run planned so from the start.
    """
    source = spec.config.train.branch_from
    if not source:
        return None
    folder, step, checkpoints, name = start.find_checkpoint(source, "train.branch_from=")
    if step is None:
        raise BadInput(f"train.branch_from={source!r} names no step: write RUN@STEP")
    rules.check_layout(spec.static, spec.static.layout)
    (like,) = program.restore_targets(spec.static, 1, "turn")
    own_facts = checkpoint_facts(spec, dataset)
    wanted = lambda content: {name: handover.select_restorable_fields(content, name, like, spec.config)}  # noqa: E731
    loaded = checkpoints.load(
        wanted, lambda _, facts: _check_same_past(folder, step, facts[name], own_facts, spec.config), at=step
    )
    assert loaded is not None
    saved_state, facts = loaded.states[name], loaded.facts[name]
    if not isinstance(saved_state, state.TrainState):  # of a version, or a policy, that had no guard
        saved_state, _ = handover.complete_state(checkpoints, loaded, name, saved_state, spec.static, spec.hparams)
    digest = state.params_digest(saved_state.params)
    origin = {"run": str(folder), "step": step, "digest": digest, "identity": facts["identity"]}
    return Trunk(step, saved_state, facts, origin)


def _check_same_past(
    folder: pathlib.Path, step: int, facts: Mapping[str, Any], branch_facts: Mapping[str, Any], config: ConfigDict
) -> None:
    """Raise BadInput where the trunk's steps before `step` are not those of `config`."""
    old = config_lib.resolve(config_from_facts(facts), stored=True)
    asked = f"train.branch_from={folder}@{step}"
    on_weights = f"on the weights with --init-from={quote_path(folder)}@{step}"
    if old.schedule.name not in TRUNK_SCHEDULES or config.schedule.name != "wsd":
        raise BadInput(
            f"{asked}: a branch is a wsd's decay from the stable part of a constant or wsd run; its trunk is "
            f"{old.schedule.name!r}, itself {config.schedule.name!r}: begin {on_weights}"
        )
    changed = diff_facts({**facts, "config": old.to_dict()}, branch_facts).items()
    for key, (before, now) in ((k, v) for k, v in changed if _of_steps(k) and k not in END):
        if key == "data.mixture" and mixture_text.same_mixture_before(before, now, step):
            continue
        raise BadInput(
            f"{asked}: a branch is its trunk with another end, and {key} is {before!r} there, {now!r} here; leave it "
            f"out, or begin anew {on_weights}"
        )
    _check_warmups_over(asked, step, old)
    if difference := extend.first_schedule_difference(old, config, step):
        raise BadInput(f"{asked}: {_earlier_decay(folder, step, old, config) or difference}")
    if difference := extend.optimizer_steps_difference(old, config):
        end = f"a decay that ends there too (--config.train.steps={old.train.steps})"
        raise BadInput(f"{asked}: {difference}; nearest: {end}, or begin anew {on_weights}")


def _check_warmups_over(asked: str, step: int, trunk: ConfigDict) -> None:
    if step < trunk.schedule.warmup_steps:
        raise BadInput(f"{asked}: the trunk is in its warm-up there, up to step {trunk.schedule.warmup_steps}")
    full = schedule_steps.full_batch_step(trunk)
    if step < full:
        raise BadInput(f"{asked}: the trunk's batch is in its warm-up there, up to step {full}")


def _earlier_decay(folder: pathlib.Path, step: int, trunk: ConfigDict, branch: ConfigDict) -> str:
    """The decay that begins before `step`, the trunk's or the branch's, as text; "" for neither."""
    start_of_trunk, start_of_branch = extend.decay_start(trunk), extend.decay_start(branch)
    if start_of_trunk < step:
        saved = sorted(s for s in manifest.find_saved_steps(folder) if s <= start_of_trunk)
        return f"the trunk's own decay began at step {start_of_trunk}; kept from before it: {saved or 'none'}"
    if start_of_branch < step:
        return f"a decay of {branch.schedule.decay_steps} steps would begin at step {start_of_branch} already"
    return ""


def _of_steps(key: str) -> bool:
    """Whether a training step depends on the config key."""
    return is_identity_key(key) and not key.startswith(("eval.", "guard."))


def start_branch(run: Run, trunk: Trunk, progress: Progress) -> state.TrainState:
    """Note in the run's record and logbook where it branches off; returns the state to go on from."""
    run.record["branch_from"] = trunk.origin
    run.facts["mixed"] = dict(trunk.facts.get("mixed", {}))
    run.event("branch", trunk.step, f"from {trunk.origin['run']} at step {trunk.step}", digest=trunk.origin["digest"])
    start.note_environment_changes(run, trunk.step, trunk.facts, progress)
    start.count_on(run, trunk.step, trunk.facts, trunk.state, progress)
    return trunk.state
