"""A step without its micro-batches that are not finite: to the bit the step over the others."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from checks.numerics.parallelism import side_loss
from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.diagnose.probes.communication import read_operations
from scalelab.errors import BadInput
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import guard, incident
from scalelab.train.step.gradients import split_micro_batches
from scalelab.train.step.step import train_step
from tests.train.runs import ROOT
from tests.train.step.test_guard import outlier_memory
from tests.train.step.test_step import assert_same, batches, init, setting, step

PARTS = 4
SKIPS = {"guard.policy": "skip", "guard.skip": "micro_batch", "train.accumulate": PARTS}


def fewer(n, **changes):
    """The setting of a step over `n` micro-batches, which knows nothing of leaving one out."""
    return setting(**{"guard.policy": "skip", "train.accumulate": n, "train.global_batch": 2 * n, **changes})[0]


NAN_TOKEN = 31  # its embedding is not a number


def flat_at_zero(batch):
    """A term of the loss that is zero, and whose gradient is not finite where NAN_TOKEN is read."""
    return jnp.sqrt(jnp.where(jnp.any(batch.inputs == NAN_TOKEN), jnp.sum(batch.hidden) * 0.0, 0.0))


def poisoned(static, h):
    """A fresh state in which NAN_TOKEN's embedding is NaN."""
    state = init(static, h)
    embedding = state.params["embed"]["w"].at[NAN_TOKEN].set(jnp.nan)
    return state._replace(params=state.params | {"embed": {"w": embedding}})


def rows(*bad):
    """A batch without NAN_TOKEN but in one row of each `bad` micro-batch; positions that don't count differ by row."""
    tokens = np.array(batches(seed=4)[0])
    tokens[tokens == NAN_TOKEN] = 1
    tokens[1, 5:] = tokens[2, 3] = tokens[7, 2:9] = -1
    for part in bad:
        tokens[part, 0] = NAN_TOKEN
    return tokens


def over_the_others(tokens, *bad):
    """The rows of the other micro-batches, for a step of as many micro-batches fewer."""
    others = [part for part in range(PARTS) if part not in bad]
    return tokens.reshape(-1, PARTS, tokens.shape[-1])[:, others].reshape(-1, tokens.shape[-1])


def report(metrics):
    return incident.Report(*np.asarray(metrics[guard.GUARD]))


@pytest.mark.full
def test_a_calm_step_runs_each_micro_batch_once(tmp_path):
    """By the products in XLA's profile: a compiler that runs the second pass ahead of its condition doubles them."""
    products, options = {}, jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python functions are not looked at
    for skip in ("step", "micro_batch"):
        static, h = setting(**SKIPS | {"guard.skip": skip})
        start, tokens = init(static, h), rows()
        jax.block_until_ready(step(static, start, tokens, h))
        with jax.profiler.trace(str(tmp_path / skip), profiler_options=options):
            jax.block_until_ready(step(static, start, tokens, h))
        (profile,) = (tmp_path / skip).rglob("*.xplane.pb")
        products[skip] = sum("dot" in operation.name for operation in read_operations(profile))
    assert 0 < products["micro_batch"] == products["step"], products


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_step_is_that_over_the_other_micro_batches_to_the_bit(optimizer):
    static, h = setting(**SKIPS, **{"optim.name": optimizer})
    start, tokens = poisoned(static, h), rows(2)
    new, metrics = step(static, start, tokens, h)
    expected, seen = step(fewer(3, **{"optim.name": optimizer}), start, over_the_others(tokens, 2), h)
    for name in ("params", "opt_state", "skipped", "streak"):
        assert_same(getattr(new, name), getattr(expected, name))
    assert (metrics["train_loss"], metrics["grad_norm"]) == (seen["train_loss"], seen["grad_norm"])
    told = report(metrics)
    assert (told.left_out, told.first_left_out) == (1, 2)
    assert (guard.SIGNALS[int(told.signal)], guard.ACTIONS[int(told.action)]) == ("bad", "skip_micro_batch")
    assert report(seen).left_out == 0 and new.skipped == 0
    assert (new.params["head"]["w"] != start.params["head"]["w"]).all()


@pytest.mark.full
def test_sums_of_blocks_are_those_of_the_other_micro_batches():
    ours = {"optim.name": "adamw", "model.block": side_loss.NAME}
    static, h = setting(**SKIPS, **ours)
    start, tokens = poisoned(static, h), rows(2)
    new, metrics = step(static, start, tokens, h)
    expected, seen = step(fewer(3, **ours), start, over_the_others(tokens, 2), h)
    assert_same(new.params, expected.params)
    names = sorted(name for name in metrics if name.startswith("block/"))
    assert names == ["block/choices", "block/router_max", "block/router_z"]
    assert [metrics[name] for name in names] == [seen[name] for name in names] and metrics["block/router_z"] > 0


@pytest.mark.full
def test_a_calm_step_keeps_its_bits_and_one_without_a_finite_part_or_budget_moves_none():
    static, h = setting(**SKIPS, **{"optim.name": "adamw"})
    off, _ = setting(**{"train.accumulate": PARTS, "optim.name": "adamw", "guard.policy": "off"})
    start = poisoned(static, h)
    calm, metrics = step(static, start, rows(), h)
    assert_same(calm._replace(guard=()), step(off, start._replace(guard=()), rows(), h)[0])
    assert report(metrics).left_out == 0 and report(metrics).signal == 0
    spent = outlier_memory()
    spent = spent._replace(counts=jnp.array(guard.Counts(in_a_row=guard.MOST_IN_A_ROW), jnp.int32))
    for memory, bad in ((start.guard, range(PARTS)), (spent, [2])):
        new, metrics = step(static, start._replace(guard=memory), rows(*bad), h)
        assert_same((new.params, new.opt_state), (start.params, start.opt_state))
        assert report(metrics).left_out == 0 and new.streak == 1


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_and_a_growing_batch():
    own = f"{__name__}:flat_at_zero"
    options = SKIPS | {"train.loss": own}
    static, h = setting(**options)
    start, tokens = init(static, h), rows(1, 3)
    new, metrics = step(static, start, tokens, h)
    two = fewer(2, **{"train.loss": own})
    assert_same(new.params, step(two, start, over_the_others(tokens, 1, 3), h)[0].params)
    assert (report(metrics).left_out, report(metrics).first_left_out) == (2, 1)
    static, h = setting(**SKIPS, **{"schedule.batch_stages": "6; 30: 8"})  # three of the micro-batches at first
    start, tokens = poisoned(static, h), rows(0)
    tokens[3::PARTS] = -1
    new, metrics = step(static, start, tokens, h)
    assert_same(new.params, step(fewer(2), start, over_the_others(tokens, 0, 3), h)[0].params)
    assert report(metrics).left_out == 1


@pytest.mark.slow
def test_under_vmap_the_neighbour_keeps_its_bits_and_an_overflow_is_left_to_the_loss_scale():
    static, h = setting(**SKIPS)
    start = poisoned(static, h)
    pair = lambda a, b: jax.tree.map(lambda *x: jnp.stack(x), a, b)  # noqa: E731
    packed = jax.jit(jax.vmap(lambda state, tokens: train_step(static, state, tokens, h)))
    both, metrics = packed(pair(start, start), pair(rows(2), rows()))
    calm, _ = packed(pair(start, start), pair(rows(), rows()))
    row = lambda tree, i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
    assert_same(row(both, 1), row(calm, 1))
    alone, _ = step(static, start, rows(2), h)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), row(both, 0).params, alone.params)
    assert [report({guard.GUARD: each}).left_out for each in metrics[guard.GUARD]] == [1, 0]
    static, h = setting(**SKIPS, **{"precision.name": "fp16"})
    start = init(static, h)
    huge = start._replace(precision=start.precision._replace(scale=jnp.float32(2.0**60)))
    new, metrics = step(static, huge, rows(), h)
    counts = guard.Counts(*new.guard.counts)
    assert (report(metrics).left_out, counts.overflows, counts.flagged, new.skipped) == (0, 1, 0, 1)
    assert new.precision.scale == 2.0**59
    start = poisoned(static, h)  # a loss that is not finite is not the loss scale's making
    new, metrics = step(static, start, rows(1), h)
    three = fewer(3, **{"precision.name": "fp16"})
    assert_same(new.params, step(three, start, over_the_others(rows(1), 1), h)[0].params)
    assert report(metrics).left_out == 1 and new.skipped == 0


MESH = """
import json, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scalelab.parallel import mesh as mesh_lib
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import state as state_lib
from tests.train.step.test_micro_batches import SKIPS, poisoned, report, rows
from tests.train.step.test_step import setting, step
alone, h = setting(**SKIPS)
expected, _ = step(alone, poisoned(alone, h), rows(2), h)
static, _ = setting(**SKIPS, **{"parallel.fsdp": 2, "parallel.tensor": 2})
mesh = mesh_lib.make_mesh(static.layout)
with jax.set_mesh(mesh):
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), state_lib.state_specs(static))
    start = jax.device_put(jax.device_get(poisoned(alone, h)), shardings)
    tokens = jax.device_put(rows(2), NamedSharding(mesh, PartitionSpec(BATCH_AXES)))
    new, metrics = step(static, start, tokens, h)
    told = [report({"guard": s.data}) for s in metrics["guard"].addressable_shards]
    shards = [[int(each.left_out), int(each.first_left_out)] for each in told]
    pairs = zip(*(jax.tree.leaves(jax.device_get(state.params)) for state in (new, expected)), strict=True)
    far = max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)
    print(json.dumps([shards, far, int(new.skipped)]))
"""


@pytest.mark.slow
def test_all_devices_of_a_mesh_leave_out_the_same_micro_batch():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", MESH], cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shards, far, skipped = json.loads(done.stdout)
    assert shards == [[1, 2]] * 4 and far < 1e-5 and skipped == 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train.accumulate": 1}, r"train\.accumulate=1 the only micro-batch is the step; nearest: guard\.skip=step"),
        ({"guard.policy": "watch"}, r"guard\.skip='micro_batch' has no effect with guard\.policy='watch'"),
    ],
)
def test_a_micro_batch_is_not_left_out_without_others_or_by_a_guard_that_only_looks(changes, line):
    with pytest.raises(BadInput, match=line):
        config_lib.resolve(override(tiny.get_config(), SKIPS | changes))


@pytest.mark.parametrize("data, fsdp, rows, parts", [(8, 1, 16, 2), (1, 8, 16, 2), (2, 4, 16, 2), (2, 2, 16, 2)])
def test_a_micro_batch_is_split_over_devices_as_the_batch_is(data, fsdp, rows, parts):
    """Also where each device has one row of it: jax's own rule then splits the micro-batches over an axis of one."""
    mesh = AbstractMesh((data, fsdp, 1), BATCH_AXES, axis_types=(AxisType.Explicit,) * 3)
    tokens = jax.ShapeDtypeStruct((rows, 9), jnp.int32, sharding=NamedSharding(mesh, P(BATCH_AXES, None)))
    with jax.sharding.use_abstract_mesh(mesh):
        split = jax.eval_shape(lambda t: split_micro_batches(setting(**{"train.accumulate": parts})[0], t), tokens)
    assert split.shape == (parts, rows // parts, 9)
    assert split.sharding.spec == P(None, BATCH_AXES, None)
