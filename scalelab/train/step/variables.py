"""State of a run that is not a parameter, and the records of a step from which it moves on.

A `Part` declares one: its value at step 0, how a mesh splits it, and its value and metrics after a step. All else is
derived from that and the same for each: a checkpoint holds it, so a resume, a branch (`train.branch_from`) and a rewind
of the guard go on with the value that was saved; packed trials have one each; `scalelab plan` counts its bytes. On
weights alone (`--init-from`, evaluation, export) it begins anew, except the model's own variables (MODEL), which are
read by the forward and go with the weights. To add one: declare it in its owner's file, and name it in `state.PARTS`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.model.declare import Variable, named_leaves
from scalelab.model.stacks import bare_stack, by_stack, stacks
from scalelab.model.sums.loss_sums import LossSums
from scalelab.model.transformer import parameter_declarations, variable_declarations
from scalelab.optim.ema import Ema, newest_weight
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.precision.policy import POLICIES
from scalelab.precision.states import Tree, policy_state
from scalelab.sharding import has_explicit_mesh, spec_of
from scalelab.train.step import guard
from scalelab.train.step.gradients import Gradient


class Verdict(NamedTuple):
    """What is decided on a step before its update."""

    loss: jax.Array  # nats a token
    finite: jax.Array  # whether all that an update needs is
    accepted: jax.Array  # whether the update is taken
    alarm: guard.Decision | None  # the guard's decision; None: it is off
    now: Hparams  # the numbers of the update, with the schedule's at this step
    curvature: dict[str, tuple[object, jax.Array]]  # keyword of optimizers that use it: (estimate, whether it is new)
    due: jax.Array | None  # whether layers are measured; None: never
    logged: jax.Array  # whether the step's metrics are written


class Norms(NamedTuple):
    """Norms of the update and of the weights after it; both, and shares under eps, by layer (`layers.Norms`)."""

    update: jax.Array
    weights: jax.Array
    by_layer: dict[str, dict[str, jax.Array]]


class Updated(NamedTuple):
    """What an update changes, as stored, and its norms. `kept`: the precision policy's part that changes with it."""

    params: Tree
    opt_state: Tree
    ema: Ema | tuple[()]
    kept: Tree
    norms: Norms


class Outcome(NamedTuple):
    """Step `step` on `tokens` [B, S+1] under the config's numbers `h`, from its gradient to its update."""

    step: jax.Array
    tokens: jax.Array
    h: Hparams
    gradient: Gradient
    verdict: Verdict
    updated: Updated


def signals_of(step: jax.Array, gradient: Gradient, verdict: Verdict) -> guard.Signals:
    """What the guard looks at, of a step."""
    signals = guard.Signals(step, verdict.loss, gradient.norm, verdict.finite)
    return signals if gradient.left_out is None else signals._replace(left_out=gradient.left_out)


Metrics = dict[str, jax.Array]


def whole_on_devices(static: Static, like: Tree) -> Tree:
    """Specs that split nothing."""
    del static
    return jax.tree.map(lambda _: PartitionSpec(), like)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a run's state that is not a parameter; a config that has no use for it has () there.

    `init(static, params)`: its value at step 0, an array or a tree of them, on these fp32 parameters.
    `next(static, value, outcome)`: its value after a step, taken or not, and the metrics that it logs.
    `specs(static, value)`: how a mesh splits a value of these shapes; by default every device has all of it.
    `fresh_with_moments`: whether it begins anew where a rewind resets the optimizer's moments.
    """

    name: str
    init: Callable[[Static, Tree], Tree]
    next: Callable[[Static, Tree, Outcome], tuple[Tree, Metrics]]
    specs: Callable[[Static, Tree], Tree] = whole_on_devices
    fresh_with_moments: bool = False


def _zero(static: Static, params: Tree) -> jax.Array:
    del static, params
    return jnp.zeros((), jnp.int32)


# int32: batches skipped so far, and in a row up to now
SKIPPED = Part("skipped", _zero, lambda _, count, outcome: (count + ~outcome.verdict.accepted, {}))
STREAK = Part("streak", _zero, lambda _, count, outcome: (jnp.where(outcome.verdict.accepted, 0, count + 1), {}))


def _init_precision(static: Static, params: Tree) -> Tree:
    blocks = bare_stack(static.model, parameter_declarations(static.model))
    return policy_state(POLICIES[static.precision]).init(params, blocks)


def _next_precision(static: Static, old: Tree, outcome: Outcome) -> tuple[Tree, Metrics]:
    keeping, verdict = policy_state(POLICIES[static.precision]), outcome.verdict
    new = keeping.next(old, outcome.updated.kept, outcome.gradient.amax, verdict.finite, verdict.accepted)
    return new, keeping.metrics(old)


def _split_precision(static: Static, like: Tree) -> Tree:
    if policy_state(POLICIES[static.precision]).like_parameters:
        return rules.parameter_specs(static.model, static.layout)
    return whole_on_devices(static, like)


PRECISION = Part("precision", _init_precision, _next_precision, _split_precision)


class ModelVariables(NamedTuple):
    """The model's variables (`declare.Variable`), like `variable_declarations`, and means of some by dotted name."""

    values: Tree
    means: dict[str, jax.Array]


def _init_model(static: Static, params: Tree) -> ModelVariables | tuple[()]:
    del params
    declared = variable_declarations(static.model)
    if not declared:
        return ()
    means = {k: jnp.zeros(v.shape) for k, v in named_leaves(declared).items() if static.ema and v.averaged}
    return ModelVariables(jax.tree.map(lambda v: jnp.full(v.shape, v.fill, v.dtype), declared), means)


def _next_model(static: Static, old: Tree, outcome: Outcome) -> tuple[Tree, Metrics]:
    """After a step that was taken, each value as its declaration moves it."""
    if not isinstance(old, ModelVariables):
        return old, {}
    accepted, sums, average = outcome.verdict.accepted, outcome.gradient.sums, outcome.updated.ema

    by_name = by_stack(static.model, sums.block) if sums.block else {}

    def move(sums: LossSums, declared: Variable, value: jax.Array) -> jax.Array:
        new = jnp.asarray(declared.move(whole(value), sums))
        if new.shape != value.shape:
            raise BadInput(f"a block's variable of shape {list(value.shape)} is moved to one of {list(new.shape)}")
        new = reshard(new, spec_of(value)) if has_explicit_mesh() else new
        return jnp.where(accepted, new.astype(value.dtype), value)

    def whole(value: jax.Array) -> jax.Array:
        return reshard(value, PartitionSpec()) if has_explicit_mesh() else value

    values = {}
    for group, declared in variable_declarations(static.model).items():
        of_group = sums._replace(block=by_name[group]) if group in by_name else sums
        values[group] = jax.tree.map(functools.partial(move, of_group), declared, old.values[group])
    if not isinstance(average, Ema):
        return ModelVariables(values, {}), {}
    weight, newest = newest_weight(average.steps, outcome.verdict.now.train.ema), named_leaves(values)
    means = {k: jnp.where(accepted, mean + weight * (newest[k] - mean), mean) for k, mean in old.means.items()}
    return ModelVariables(values, means), {}


def with_means(variables: ModelVariables) -> Tree:
    """The values to go with averaged weights: of some their mean, of the others the last."""
    names, tree = named_leaves(variables.values), jax.tree.structure(variables.values)
    return jax.tree.unflatten(tree, [variables.means.get(name, value) for name, value in names.items()])


def _split_model(static: Static, like: Tree) -> Tree:
    """By the axes of each declaration, as parameters' are; layers lie with their stage where these divide them."""
    if not isinstance(like, ModelVariables):
        return ()
    stages = static.layout.stage > 1 and all(stack.depth % static.layout.stage == 0 for stack in stacks(static.model))
    specs = jax.tree.map(lambda v: rules.parameter_spec(v, False, stages), variable_declarations(static.model))
    by_name = named_leaves(specs)
    return ModelVariables(specs, {name: by_name[name] for name in like.means})


MODEL = Part("model", _init_model, _next_model, _split_model)
