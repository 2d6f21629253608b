"""The average of the weights: its definition in float64, runs without it, packs, meshes, resumption, and reading it."""

import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import replace_hparams
from scalelab.errors import BadInput
from scalelab.model.declare import named_leaves
from scalelab.sweep.run import run_sweep
from scalelab.train.resume.weights import Weights, load_run_weights, write_weights
from scalelab.train.single import train_single
from scalelab.train.step import state as state_lib
from tests.quick import one_in
from tests.train.resume.test_compatibility import config
from tests.train.runs import ROOT
from tests.train.step.test_step import batches, init, relative, setting, step

DECAY = 0.9
KEPT = {"train__ema": DECAY, "checkpoint__keep_last": 9}


def by_hand(points, decay):
    """sum d^(t-i) p_i / sum d^(t-i) over all points, in float64: no recurrence."""
    weights = np.float64(decay) ** np.arange(len(points))[::-1]
    return {
        name: sum(w * np.float64(p[name]) for w, p in zip(weights, points, strict=True)) / weights.sum()
        for name in points[0]
    }


@functools.cache
def followed(precision):
    """Six steps, the third of which is skipped: the states after each."""
    static, h = setting(**{"train.ema": DECAY, "precision.name": precision})
    states = [init(static, h)]
    for i, tokens in enumerate(batches(6)):
        bad = {"train.z_loss": jnp.float32(jnp.inf)} if i == 2 else {}
        states.append(step(static, states[-1], tokens, replace_hparams(h, bad))[0])
    return states


@pytest.mark.full
@pytest.mark.parametrize("precision", one_in(2, ["fp32", "bf16_master"]))
def test_the_mean_is_the_definition_in_float64_and_a_skipped_step_leaves_it(precision):
    states = followed(precision)
    jax.tree.map(np.testing.assert_array_equal, states[3].ema, states[2].ema)
    points = [named_leaves(state.params) for i, state in enumerate(states) if i not in (0, 3)]
    for n in (1, 2, 5):
        state, wanted = states[n if n < 3 else 6], by_hand(points[:n], np.float32(DECAY))
        assert state.ema.steps == n
        for name, mean in named_leaves(state.ema.mean).items():
            assert mean.dtype == jnp.float32
            np.testing.assert_allclose(mean, wanted[name], rtol=2e-6, atol=1e-7, err_msg=f"{name} after {n}")
    assert relative(states[6].ema.mean, states[6].params) > 1e-3  # or the two could be mistaken for each other


@pytest.mark.full
def test_without_it_nothing_is_kept_and_with_it_the_weights_are_the_same():
    (static, h), (_, off) = setting(**{"train.ema": DECAY}), setting()
    assert jax.tree.leaves(state_lib.state_shapes(setting()[0]).ema) == [] and off._fields == h._fields
    plain = init(setting()[0], off)
    for tokens in batches(2):
        plain = step(setting()[0], plain, tokens, off)[0]
    # To a rounding: in another program XLA may contract a product and a sum where it did not in this one.
    same = functools.partial(np.testing.assert_allclose, rtol=2e-7, atol=1e-7)
    jax.tree.map(same, plain.params, followed("fp32")[2].params)
    other = step(static, init(static, h), batches(6)[0], replace_hparams(h, {"train.ema": jnp.float32(0.5)}))[0]
    assert jax.tree.structure(other) == jax.tree.structure(followed("fp32")[1])  # another decay, the same program


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps with all checkpoints kept, of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("ema") / "run"
    return folder, train_single(config(**KEPT), folder)


@pytest.mark.slow
def test_stopped_and_resumed_it_has_the_same_bits(tmp_path, run):
    train_single(config(**KEPT), tmp_path / "run", stop=lambda: True)
    assert train_single(config(**KEPT), tmp_path / "run")["resumed_from"] == 2
    assert (
        load_run_weights(f"{tmp_path}/run", ema=True).origin["digest"]
        == load_run_weights(str(run[0]), ema=True).origin["digest"]
    )


@pytest.mark.slow
def test_in_a_pack_each_trial_has_its_own_decay_and_average(tmp_path, run):
    decays = {"a": DECAY, "b": 0.2}
    trials = {name: config(**KEPT | {"train__ema": decay, "sweep__pack": "vmap"}) for name, decay in decays.items()}
    run_sweep(tmp_path / "sweep", trials)
    result = {name: load_run_weights(f"{tmp_path}/sweep/runs/{name}", ema=True).params for name in decays}
    assert relative(result["a"], load_run_weights(str(run[0]), ema=True).params) < 1e-6
    assert relative(result["a"], result["b"]) > 1e-4


MESH = """
import json, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scalelab.sharding import BATCH_AXES
from scalelab.parallel import mesh as mesh_lib
from scalelab.train.step import state as state_lib
from tests.train.step.test_step import batches, init, relative, setting, step
SIZES = {"train.ema": 0.9, "model.n_layers": 2, "model.n_heads": 4, "model.d_ff": 32}
alone, h = setting(**SIZES)
begun = jax.device_get(init(alone, h))
one = begun
for tokens in batches(3):
    one = step(alone, one, tokens, h)[0]
for layout in json.loads(sys.argv[1]):
    static, _ = setting(**SIZES | {f"parallel.{k}": v for k, v in layout.items()})
    mesh, specs = mesh_lib.make_mesh(static.layout), state_lib.state_specs(static)
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES, None))
    with jax.set_mesh(mesh):
        many = jax.tree.map(lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), begun, specs)
        for tokens in batches(3):
            many = step(static, many, jax.device_put(tokens, rows), h)[0]
    placed = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(NamedSharding(mesh, s), x.ndim), many, specs)
    print(relative(jax.device_get(many.ema.mean), one.ema.mean), int(many.ema.steps), all(jax.tree.leaves(placed)))
"""


SLOW = [{"fsdp": 4, "zero": 1}, {"stage": 2, "data": 2, "microbatches": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [[{"fsdp": 4, "tensor": 2}], SLOW], ids=len)
def test_on_a_mesh_it_is_that_of_one_device_and_lies_as_the_moments_do(layouts):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command, env = [sys.executable, "-c", MESH, json.dumps(layouts)], os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == len(layouts)
    assert all(float(apart) < 1e-4 and rest == ["3", "True"] for apart, *rest in rows), rows


@pytest.mark.full
def test_the_last_checkpoints_are_averaged_in_float64(run):
    folder, _ = run
    steps = [load_run_weights(f"{folder}@{n}").params for n in (2, 4)]
    wanted = jax.tree.map(lambda a, b: ((np.float64(a) + np.float64(b)) / 2).astype(np.float32), *steps)
    result = load_run_weights(str(folder), last=2)
    jax.tree.map(np.testing.assert_array_equal, result.params, wanted)
    assert (result.origin["weights"], result.origin["steps"]) == ("mean2", [2, 4])
    assert (
        load_run_weights(f"{folder}@4", ema=True).origin["weights"] == "ema"
        and load_run_weights(str(folder)).origin["weights"] == "trained"
    )


@pytest.mark.full
def test_mistakes_are_one_line(tmp_path, run):
    folder, _ = run
    write_weights(tmp_path / "plain", Weights(config(), load_run_weights(str(folder)).params, {}))
    for call, output in (
        (lambda: load_run_weights(str(tmp_path / "plain"), ema=True), "keeps no average of its weights"),
        (lambda: load_run_weights(f"{folder}@2", last=2), "kept up to there: 2; nearest: 1"),
        (lambda: load_run_weights(str(folder), last=0), "kept up to there: 2, 4; nearest: 1"),
        (lambda: load_run_weights(str(folder), ema=True, last=2), "an average of averages"),
        (lambda: load_run_weights(f"{folder}@3"), r"it has \[2, 4\]; nearest: .*run@2"),
        (lambda: config(train__ema=1.0), r"train.ema=1.0 is outside \[0, 0.9999999\]"),
        (lambda: config(train__ema=0.9, optim__name="schedule_free_adamw"), "average of its own"),
        (lambda: train_single(config(train__ema=0.99), folder), r"train.ema=0.9, now it is 0.99"),
    ):
        with pytest.raises(BadInput, match=output) as caught:
            call()
        assert "\n" not in str(caught.value)
