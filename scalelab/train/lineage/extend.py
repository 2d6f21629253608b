"""More steps for a run that has begun: allowed where its past stays what it would have been, planned so from the
start.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout, Static, group_hparams, replace_hparams, traced_names
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput, quote_path
from scalelab.jaxprs import live_equations
from scalelab.optim import schedules
from scalelab.optim.registry import find_optimizer
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.step import state as state_lib
from scalelab.train.step.update.update import compute_updates

STEPS_KEY = "train.steps"  # what --allow-change names to go on nevertheless


def planned_config(facts: Mapping[str, Any]) -> ConfigDict:
    """The resolved config that a checkpoint was saved under."""
    config = config_from_facts(facts)
    if config.schedule.decay_steps is None:  # saved before decays were kept in steps
        schedule_steps.resolve_schedule_steps(config)
    return config


def keep_warmup(facts: Mapping[str, Any], config: ConfigDict) -> str:
    """Give `config` the warm-up of its past where its own follows from another `train.steps`; returns what to say of
    it.
    """
    old = planned_config(facts)
    derived = config.copy_and_resolve_references()
    schedule_steps.forget_derived_steps(derived)
    warmup, planned = old.schedule.warmup_steps, config.schedule.warmup_steps
    if warmup == planned or derived.schedule.warmup_steps is not None:
        return ""
    with config.unlocked(), config.ignore_type():
        config.schedule.warmup_share = None
        config.schedule.warmup_steps = warmup
    steps = config.train.steps
    return f"the warm-up stays {warmup} steps, as it was; {steps} steps from the start would have had {planned}"


def check_extension(folder: pathlib.Path, step: int, facts: Mapping[str, Any], config: ConfigDict) -> None:
    """Raise BadInput where another `train.steps` gives the steps before `step` another LR, momentum or decay.

    With a cosine it always does; constant and wsd (before its decay) go on to the bits of a run planned so.
    """
    old = planned_config(facts)
    if old.train.steps == config.train.steps:
        return
    new = old.copy_and_resolve_references()
    with new.unlocked(), new.ignore_type():
        new.train.steps = config.train.steps
        new.schedule.warmup_steps, new.schedule.decay_steps = config.schedule.warmup_steps, config.schedule.decay_steps
    at = f"{folder} is at step {step} of {old.train.steps}; with train.steps={new.train.steps}"
    if not (difference := first_schedule_difference(old, new, step)):
        if step and (difference := optimizer_steps_difference(old, new)):
            raise BadInput(
                f"{at} {difference}: begin anew in another --workdir, there on these weights with "
                f"--init-from={quote_path(folder)}, or jump with --allow-change={STEPS_KEY}"
            )
        return
    raise BadInput(f"{at} {difference}: {_way_out(folder, old, new)}")


def first_schedule_difference(old: ConfigDict, new: ConfigDict, step: int) -> str:
    """Where the schedules of two configs part before `step`, as text; "" where they are the same to the last bit."""
    curves = [schedules.schedule_curves(config, np.arange(step)) for config in (old, new)]
    apart = {key: np.flatnonzero(curves[0][key] != curves[1][key]) for key in curves[0]}
    if not any(len(where) for where in apart.values()):
        return ""
    key = min((key for key in apart if len(apart[key])), key=lambda key: apart[key][0])
    at = int(apart[key][0])
    was, would = (float(curve[key][at]) for curve in curves)
    return f"the {key} of its step {at} would have been {would:.6g}, and was {was:.6g}"


def optimizer_steps_difference(old: ConfigDict, new: ConfigDict) -> str:
    """Why an optimizer's steps follow from `train.steps` (AdEMAMix's alpha and beta3 do), where that differs; "" if
    they don't.

    Read off the jaxpr of its update, so that a user's own is known too.
    """
    alone = dataclasses.replace(config_lib.static(new), layout=Layout())
    if old.train.steps == new.train.steps or not _reads_steps(alone):
        return ""
    return f"optim.name={new.optim.name!r} plans its own numbers for train.steps, and was at work for {old.train.steps}"


def _reads_steps(of: Static) -> bool:
    """Whether the update reads h.train.steps (traced on one device; the LR's own dependence is ignored)."""
    state, scalar = state_lib.state_shapes(of), jax.ShapeDtypeStruct((), jnp.float32)
    h = group_hparams(dict.fromkeys(traced_names(of.optim), scalar))
    estimate = (state.params, jax.ShapeDtypeStruct((), bool))
    extra = {"curvature": estimate} if find_optimizer(of.optim.name).curvature else {}

    def update(steps: jax.Array, h: Any, lr: jax.Array, state: Any, extra: Any) -> Any:
        h = replace_hparams(h, {"train.steps": steps})
        return compute_updates(of, state.params, state.opt_state, state.params, h, lr, **extra)

    traced = jax.make_jaxpr(update)(scalar, h, scalar, state, extra).jaxpr
    return any(v is traced.invars[0] for equation in live_equations(traced) for v in equation.invars)


def decay_start(config: ConfigDict) -> int:
    """The step that a wsd's decay begins at; of another schedule the end."""
    return config.train.steps - (config.schedule.decay_steps if config.schedule.name == "wsd" else 0)


def _way_out(folder: pathlib.Path, old: ConfigDict, new: ConfigDict) -> str:
    name, start = old.schedule.name, decay_start(old)
    if name == "wsd":
        known = sorted(step for step in manifest.find_saved_steps(folder) if step <= start)
        from_where = f"{quote_path(folder)}@{known[-1]}" if known else f"RUN@STEP (here no step up to {start} is kept)"
        return (
            f"its decay began at step {start}; go on from before it with "
            f"`scalelab train --branch-from={from_where} --config.{STEPS_KEY}={new.train.steps} --workdir=NEW`, or "
            f"jump to the new curve with --allow-change={STEPS_KEY}"
        )
    return (
        f"{name!r} is planned for its end. This run: jump to the new curve with --allow-change={STEPS_KEY}, or start "
        f"anew on its weights in another --workdir with --init-from={quote_path(folder)}. The next run: a constant or "
        "wsd one goes on, and gives decays of any length with "
        "`scalelab train --branch-from=RUN@STEP --config.schedule.decay_tokens=N --workdir=NEW`"
    )


def last_checkpoint_facts(folder: pathlib.Path, at: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """(step, facts) of a run's last checkpoint, or that of step `at`; None where there is none, or where it is
    damaged: loading it will say so.
    """
    saved = manifest.find_saved_steps(folder)
    if not saved:
        return None
    step = max(saved) if at is None else at
    place, name = saved[step]
    try:
        return step, manifest.read_manifest(place / str(step))["facts"][name]
    except (manifest.DamagedCheckpoint, KeyError):
        return None
