"""Steps of a model with experts: batches split in any way, trials in one program, and options together at random."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.model.declare import named_leaves
from scalelab.model.sums.block_sums import COUNTS, LOSSES
from scalelab.optim.registry import OPTIMIZERS
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.machine.layout import with_layout
from scalelab.plan.search.nearest import find_refusal
from scalelab.sharding import BATCH_AXES
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.step import train_step
from tests.quick import others_slow
from tests.train.states import init_state

SIZES = {
    "model.d_model": 32, "model.n_heads": 2, "model.seq_len": 32, "train.global_batch": 4, "train.steps": 4,
    "model.block": "experts", "model.n_experts": 4, "model.d_expert": 24, "optim.peak_lr": 1e-3,
    "train.steps_per_dispatch": 1, "eval.every_steps": 4,
}  # fmt: skip
LOSS_WEIGHTS = {"model.balance_weight": 0.1, "model.balance_sequence_weight": 0.1, "model.router_z_weight": 0.01}
# Each option by itself goes with experts.
OPTIONS = [
    *({"optim.name": name} for name in OPTIMIZERS if not name.startswith("sophia")),
    *({"precision.name": name} for name in
        ("tf32", "bf16", "fp16", "fp8", "fp8_delayed", "fp8_block", "bf16_stochastic", "bf16_kahan")),
    *({"model.remat": name} for name in ("dots", "full")),
    *({"parametrization.name": name} for name in ("mup", "completep")),
    *({"guard.policy": "skip", key: True} for key in ("guard.rerun", "train.ema")),
    {"guard.policy": "skip", "guard.skip": "micro_batch", "train.accumulate": 2},
    {"train.updates": "per_layer", "model.remat": "full"}, {"log.layers_every": 1}, {"data.documents": "mask"},
    {"train.accumulate": 2}, {"train.ema": 0.9}, {"model.window": 8}, {"model.mlp": "gelu"},
    {"model.norm_place": "after"}, {"model.block": "sequential=1,experts=1"}, {"model.expert_capacity": 1.25},
    {"model.n_shared_experts": 2}, {"model.tied_head": True}, {"model.position": "relative"},
    {"model.router_scores": "sigmoid", "model.router_groups": 2}, {"model.experts_per_token": 4},
    {"model.balance_rate": 0.0}, LOSS_WEIGHTS, *({"model.expert_products": name} for name in ("blocks", "dense")),
]  # fmt: skip


def setting(changes):
    """(static, hparams) of a small model with experts."""
    given = SIZES | changes | ({"train.ema": 0.5} if changes.get("train.ema") is True else {})
    config = config_lib.resolve(config_lib.override(tiny.get_config(), given))
    spec = make_train_spec(config, {"dataset.separator": 0})
    return spec.static, spec.hparams


def draw_tokens(static, seed=0):
    shape = static.global_batch, static.model.seq_len + 1
    return jnp.asarray(np.random.default_rng(seed).integers(0, static.model.vocab_size, shape), jnp.int32)


step = jax.jit(train_step, static_argnums=0)


def take_steps(static, h, steps=2):
    """The state after some steps, and the last one's metrics."""
    state = init_state(static, h)
    for seed in range(steps):
        state, metrics = step(static, state, draw_tokens(static, seed), h)
    return state, metrics


def draw_sets(seed):
    """Each optimizer with three other options at random, every option in a set at least; no set has a key twice."""
    sets = [[option] for option in OPTIONS if "optim.name" in option]
    others = [option for option in OPTIONS if "optim.name" not in option]
    random = np.random.default_rng(seed)
    pool = [others[i] for _ in range(2) for i in random.permutation(len(others))]
    for options in sets:
        while len(options) < 4:
            options.append(next(each for each in pool if not any(each.keys() & option for option in options)))
            pool.remove(options[-1])
    return sets


def join(options, changes, layout=None):
    """(changes, static, hparams) of those options that go together, in turn; a refusal names a key of theirs."""
    left_out = 0
    for option in options:
        try:
            static, h = setting(changes | option)
            static = static if layout is None else with_layout(static, layout)
            if (why := find_refusal(static)) is not None:
                raise BadInput(why)
        except BadInput as why:
            assert any(key in str(why) for key in changes | option), (changes, option, layout, why)
            left_out += 1
        else:
            changes, joined = changes | option, (static, h)
    assert left_out <= 1, (options, changes)
    return changes, *joined


SETS = draw_sets(44)
RUN = 5  # of the first six sets, the one that `make test-rest` runs


@pytest.mark.full
@pytest.mark.parametrize("part", others_slow(lambda part: part in (2, RUN), range(6)))
def test_options_go_with_experts_and_each_other_or_are_refused_by_name(part):
    for options in SETS[part::6]:
        changes, static, h = join(options, {})
        try:
            step.eval_shape(static, state_lib.state_shapes(static), draw_tokens(static), h)
        except BadInput as refused:
            assert any(key in str(refused) for key in changes), (changes, refused)


@pytest.mark.full
@pytest.mark.parametrize("number", others_slow(lambda number: number == RUN, range(6)))
def test_options_with_experts_and_each_other_take_two_steps(number):
    changes, static, h = join(SETS[number], {})
    state, metrics = take_steps(static, h)
    assert np.isfinite(metrics["train_loss"]) and metrics["skipped"] == 0, changes
    assert all(np.all(np.isfinite(np.float32(x))) for x in jax.tree.leaves(state.params)), changes


# {key of `parallel`: size}, of eight devices.
LAYOUTS = [
    {"expert": 4, "context": 2}, {"expert": 4, "data": 2}, {"expert": 2, "fsdp": 2, "tensor": 2},
    {"expert": 4, "fsdp": 2, "zero": 1},
    {"expert": 2, "fsdp": 2, "context": 2}, {"expert": 2, "fsdp": 2, "stage": 2, "microbatches": 2},
    {"fsdp": 4, "tensor": 2}, {"expert": 2, "data": 2, "tensor": 2, "sequence": True},
    {"expert": 4, "data": 2, "expert_buffer": 1.5},
]  # fmt: skip
MESH_SETS = draw_sets(8)
LOWERED = range(3, len(LAYOUTS))  # of these sets, those that `make test-rest` lowers


def lower_on_mesh(static, h):
    """The program of a step on the mesh of `static`, lowered for CPUs; none of its devices is here."""
    return trace_on_mesh(static, h).lower(lowering_platforms=("cpu",))


def trace_on_mesh(static, h):
    """The step traced on the mesh of `static`, none of whose devices is here."""
    sizes = tuple(getattr(static.layout, axis) for axis in MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES, None))
    tokens = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), jnp.int32, sharding=rows)
    state = state_lib.sharded_state_shapes(static, mesh)
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(train_step, static_argnums=0).trace(static, state, tokens, h)


SENDS = {"psum", "psum2", "psum_invariant", "pmax", "ppermute", "all_gather", "all_to_all", "reduce_scatter"}


def inner_jaxprs(equation):
    """The jaxprs among an equation's parameters."""
    found = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"))
    return [getattr(x, "jaxpr", x) for x in found if hasattr(x, "eqns") or hasattr(x, "jaxpr")]


def names_within(jaxpr):
    """The names of all primitives of a jaxpr, inner ones among them."""
    names = {equation.primitive.name for equation in jaxpr.eqns}
    return names.union(*(names_within(inner) for equation in jaxpr.eqns for inner in inner_jaxprs(equation)))


def loops_within(jaxpr):
    """The bodies of all loops whose number of turns is known only as they run."""
    inner = [each for equation in jaxpr.eqns for each in inner_jaxprs(equation)]
    own = [x.params["body_jaxpr"].jaxpr for x in jaxpr.eqns if x.primitive.name == "while"]
    return own + [body for each in inner for body in loops_within(each)]


@pytest.mark.full
@pytest.mark.parametrize("part", others_slow(lambda part: part in (2, 5), [0, 1, 2, 5]))
def test_nothing_is_sent_within_turns_of_which_devices_take_different_numbers(part):
    static, h = setting({"train.global_batch": 16, "model.remat": "full"})
    static = with_layout(static, Layout(**LAYOUTS[part]))
    traced = trace_on_mesh(static, h).jaxpr.jaxpr
    bodies = [body for body in loops_within(traced) if "dot_general" in names_within(body)]
    assert bodies and SENDS & names_within(traced)
    assert not any(SENDS & names_within(body) for body in bodies)


@pytest.mark.full
@pytest.mark.parametrize("number", others_slow(lambda number: number in LOWERED, range(len(MESH_SETS))))
def test_options_are_lowered_together_for_eight_devices_or_refused_by_name(number):
    """The layouts in turn; those that stay have every axis, each with one set."""
    layout = LAYOUTS[number % len(LAYOUTS)]
    changes, static, h = join(MESH_SETS[number], {"train.global_batch": 16}, Layout(**layout))
    assert "stablehlo" in lower_on_mesh(static, h).as_text(), (changes, layout)


@pytest.mark.full
def test_a_batch_in_micro_batches_has_the_same_sums_and_gradient():
    """Loads and losses of balance among them: they are sums over tokens and sequences."""
    static, h = setting(LOSS_WEIGHTS | {"model.balance_weight": 0.0, "model.balance_rate": 0.0, "model.n_layers": 1})
    params, tokens = state_lib.init_state(static, h).params, draw_tokens(static).at[0, 5:9].set(-1)
    ways = [dataclasses.replace(static, accumulate=n) for n in (1, 2)]
    (whole, grads), (parts, grads_of_parts) = (
        jax.jit(compute_gradients, static_argnums=0)(way, params, tokens, 0.0) for way in ways
    )
    assert whole.block[COUNTS]["expert_load"].sum() == 2 * whole.tokens
    assert np.array_equal(whole.block[COUNTS]["expert_load"], parts.block[COUNTS]["expert_load"])
    for name, value in whole.block[LOSSES].items():
        np.testing.assert_allclose(parts.block[LOSSES][name], value, rtol=1e-5)
    for name, value in named_leaves(grads).items():
        np.testing.assert_allclose(named_leaves(grads_of_parts)[name], value, atol=1e-5 * np.abs(value).max())


@pytest.mark.full
def test_layer_by_layer_moves_weights_and_biases_as_the_whole_step():
    static, h = setting({"model.remat": "full", **LOSS_WEIGHTS})
    (whole, of_whole), (layered, of_layered) = (
        take_steps(dataclasses.replace(static, updates=updates), h) for updates in ("whole", "per_layer")
    )
    np.testing.assert_allclose(of_layered["train_loss"], of_whole["train_loss"], rtol=2e-5)
    bias, others = (state.variables["model"].values["blocks"]["experts"]["bias"]["v"] for state in (whole, layered))
    assert np.any(bias != 0) and np.array_equal(bias, others)
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(layered.params), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)


@pytest.mark.full
def test_trials_in_one_program_are_those_alone():
    static, h = setting({"model.n_layers": 1})
    state, tokens = init_state(static, h), draw_tokens(static)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), (state, tokens, h))
    both = (both[0], both[1].at[1].set(both[1][1, ::-1, ::-1]), both[2])
    _, together = jax.jit(jax.vmap(functools.partial(train_step, static)))(*both)
    for trial in range(2):
        _, alone = step(static, *jax.tree.map(lambda x, i=trial: x[i], both))
        for name in ("train_loss", "grad_norm", "block/expert_load"):
            np.testing.assert_allclose(together[name][trial], alone[name], rtol=2e-5)
