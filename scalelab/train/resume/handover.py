"""Parts of a checkpoint for another program than the one that saved it: weights alone, an average, all but the
optimizer.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Optim, Static
from scalelab.errors import BadInput
from scalelab.model.declare import with_variables
from scalelab.optim.registry import find_optimizer
from scalelab.parallel import mesh
from scalelab.parallel.processes import compile_together
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import cast_for_storage, upcast
from scalelab.train.checkpoints.checkpoint import Checkpoints, LoadedStep
from scalelab.train.checkpoints.leaves import as_saved, describe_leaves
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.step import program, state
from scalelab.train.step.state import TrainState
from scalelab.train.step.variables import MODEL, ModelVariables, with_means

OPTIMIZER_FIELDS = ("params", "opt_state")  # what an optimizer moves: only together are they its own


def load_evaluation_params(checkpoints: Checkpoints, checked: LoadedStep, name: str, wanted: Static) -> Any:
    """The weights that the run `name` of a checked step hands on, as `wanted` has them on its mesh and in its format:
    parameters, and beside them the model's variables.

    Of an optimizer that evaluates another point than it trains, that point: its state is then read too. BadInput where
    the model's shapes are others.
    """
    params = _load_evaluated_point(checkpoints, checked, name, wanted)
    return with_variables(params, _load_variables(checkpoints, checked, name, wanted).values)


def _load_variables(checkpoints: Checkpoints, checked: LoadedStep, name: str, wanted: Static) -> ModelVariables:
    """The model's variables in a checked step; {} of a model without."""
    (like,) = program.restore_targets(_without_optimizer(wanted), 1, "turn")
    if not isinstance(like.part(MODEL.name), ModelVariables):
        return ModelVariables({}, {})
    variables = checkpoints.restore(checked.step, {name: {"variables": like.variables}})[name]["variables"]
    return ModelVariables(*like._replace(variables=variables).part(MODEL.name))


def _load_evaluated_point(checkpoints: Checkpoints, checked: LoadedStep, name: str, wanted: Static) -> Any:
    layout = mesh.resolve_layout(wanted.layout, jax.device_count())
    config = config_from_facts(checked.facts[name])
    form, saved_form = (POLICIES[precision].parameters for precision in (wanted.precision, config.precision.name))
    (like,) = program.restore_targets(
        _without_optimizer(dataclasses.replace(wanted, precision=config.precision.name)), 1, "turn"
    )
    if not _evaluates_another_point(checked.facts[name], config):
        params = checkpoints.restore(checked.step, {name: {"params": like.params}})[name]["params"]
        return params if form == saved_form else cast_for_storage(upcast(params, saved_form), form)
    saved = dataclasses.replace(config_lib.static(config), layout=layout)
    (saved_state,) = program.restore_targets(saved, 1, "turn")
    parts = {"params": like.params, "opt_state": saved_state.opt_state}
    both = checkpoints.restore(checked.step, {name: parts})[name]
    h = config_lib.hparams(config)
    evaluated = jax.jit(lambda both: state.evaluation_point(saved, saved_state._replace(**both), h))
    of = compile_together(evaluated, "the point that the optimizer evaluates")
    with jax.set_mesh(mesh.make_mesh(layout)) if layout.devices > 1 else contextlib.nullcontext():
        return cast_for_storage(of(both), form)


def _without_optimizer(wanted: Static) -> Static:
    """`wanted` with adamw and a constant schedule: its parameters and average, none of the user's own code."""
    return dataclasses.replace(wanted, optim=Optim(), schedule="constant")


def _evaluates_another_point(facts: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether the run's optimizer evaluates another point than it trains; its code is asked only where no file says
    so.
    """
    noted = facts.get("evaluates_another_point")
    return noted if isinstance(noted, bool) else find_optimizer(config.optim.name).evaluated is not None


def load_ema_params(checkpoints: Checkpoints, checked: LoadedStep, name: str, wanted: Static) -> Any:
    """The mean that a run keeps of its weights (`ema.Ema`), of a checked step. BadInput before the first step that
    counts.
    """
    (like,) = program.restore_targets(_without_optimizer(wanted), 1, "turn")
    average = checkpoints.restore(checked.step, {name: {"ema": like.ema}})[name]["ema"]
    if not average.steps:
        raise BadInput(f"{checkpoints.folder / str(checked.step)}: no step was averaged yet, as none was taken")
    variables = _load_variables(checkpoints, checked, name, wanted)
    return with_variables(average.mean, with_means(variables))


def select_restorable_fields(
    manifest: Mapping[str, Any], name: str, like: TrainState, config: ConfigDict
) -> TrainState | dict[str, Any]:
    """What of the trial `name` in a checkpoint goes on in a program whose state is `like`: all of it, or some fields.

    Fields whose arrays are others begin anew, and weights go on alone under another optimizer: `complete_state` adds
    the rest.
    """
    trees = manifest["tree"], describe_leaves(as_saved(manifest["tree"], {name: like}))

    def saved_alike(field: str) -> bool:
        prefix = f"{name}.{field}."
        saved, here = ({k: v for k, v in tree.items() if f"{k}.".startswith(prefix)} for tree in trees)
        return saved == here

    alike = {field for field in TrainState._fields if saved_alike(field)}
    same_optimizer = manifest["facts"][name]["config"]["optim"]["name"] == config.optim.name
    if not (same_optimizer and alike.issuperset(OPTIMIZER_FIELDS)):
        alike -= {*OPTIMIZER_FIELDS}
    if len(alike) == len(TrainState._fields):
        return like
    filled = [field for field in like._fields if field in alike and jax.tree.leaves(getattr(like, field))]
    return {field: getattr(like, field) for field in filled}


def complete_state(
    checkpoints: Checkpoints, checked: LoadedStep, name: str, fields: Mapping[str, Any], wanted: Static, h: Any
) -> tuple[TrainState, list[str]]:
    """(a whole state of the program `wanted` out of these `fields` of a checked step, the fields that began anew).

    BadInput where the model's shapes are others.
    """
    wanted = dataclasses.replace(wanted, layout=mesh.resolve_layout(wanted.layout, jax.device_count()))
    params = fields["params"] if "params" in fields else _load_evaluated_point(checkpoints, checked, name, wanted)
    whole = place_initial_state(wanted, h, params)._replace(**{"params": params, **fields})
    others = [field for field in whole._fields if field not in ("params", *fields)]
    return whole, [field for field in others if jax.tree.leaves(getattr(whole, field))]


def place_initial_state(wanted: Static, h: Any, params: Any) -> TrainState:
    """The state of step 0 on these parameters, as `wanted` has them, each array where its program wants it."""
    form = POLICIES[wanted.precision].parameters
    begin = lambda params: state.state_from_params(wanted, h, upcast(params, form))  # noqa: E731
    if wanted.layout.devices == 1:
        return jax.jit(begin)(params)
    explicit, specs = mesh.make_mesh(wanted.layout), state.state_specs(wanted)
    auto = Mesh(explicit.devices, explicit.axis_names)  # as fresh states are drawn: by the compiler's own partitioning
    place = lambda on, tree: jax.tree.map(lambda spec: NamedSharding(on, spec), tree)  # noqa: E731
    jitted = compile_together(jax.jit(begin, out_shardings=place(auto, specs)), "the first state on given weights")
    return jax.device_put(jitted(jax.device_put(params, place(auto, specs.params))), place(explicit, specs))
