"""A block's variable, declared in this file alone, through a run's life: kill, branch, rewind, average, mesh, pack."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.model.declare import Variable, with_variables, without_variables
from scalelab.record import records
from scalelab.train.checkpoints.leaves import describe_leaves
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import change, weights
from scalelab.train.single import train_single
from scalelab.train.step import state as state_lib
from scalelab.train.step import step as step_lib
from scalelab.train.step.gradients import pass_inputs, scaled_gradients
from scalelab.train.step.program import sequential_program, traced_hparams, vmapped_program
from scalelab.train.step.step import train_step
from scalelab.train.step.variables import Part, whole_on_devices
from tests.train.resume import test_rewind
from tests.train.runs import ROOT, SMALL, run_here, stopped_at, untimed

BLOCK = f"--config.model.block={__name__}:biased"
RUN = [*SMALL, BLOCK, "--config.model.n_layers=2", "--config.train.ema=0.5", "--config.log.every_steps=1"]
RUN += ["--config.schedule.name=constant", "--config.checkpoint.every_steps=2", "--config.checkpoint.keep_every=2"]
RUN += ["--config.train.steps_per_dispatch=2", "--config.schedule.warmup_steps=2"]
DECAY = ["--config.schedule.decay_steps=2"]
TOKENS = 4 * 32  # of a step


def biased(x, parts):
    """A block with a number for each of four units, larger by one after every step, that scales its attention."""
    shift = parts.variable("shift", (4,), moved, axes=("mlp",), averaged=True)
    y = x + parts.times * (1 + 0.1 * shift.mean()) * parts.attention(parts.norm("attention_norm", x))
    return y + parts.times * parts.mlp(parts.norm("mlp_norm", y))


def moved(value, sums):
    """Larger by one for a whole batch."""
    return value + (sums.tokens > 0)


def routed(x, parts):
    """A block whose bias, one number for each of three units, moves against the units' loads."""
    scores = x[..., :3].astype(jnp.float32) + parts.variable("bias", (3,), balanced)[None, None]
    choice = jax.nn.one_hot(jnp.argmax(scores, axis=-1), 3)
    parts.count("load", choice)
    y = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    return y + parts.times * parts.mlp(parts.norm("mlp_norm", y)) * jnp.max(choice * scores, axis=-1, keepdims=True)


def balanced(bias_LE, sums):
    """Up by a hundredth where a unit has less than its share of tokens, down where it has more."""
    load_LE = sums.block["counts"]["load"]
    return bias_LE + 0.01 * jnp.sign(load_LE.mean(axis=1, keepdims=True) - load_LE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of six steps, and its result."""
    folder = tmp_path_factory.mktemp("variables") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder, run_here(*words(folder, 6))


def words(folder, steps, *more):
    return ["--config=configs/tiny.py", f"--workdir={folder}", *RUN, f"--config.train.steps={steps}", *more, "--json"]


def shift(run, ema=False):
    """(the variable's one value in a run's last checkpoint, or RUN@STEP)."""
    loaded = weights.load_run_weights(str(run), ema=ema)
    values = np.asarray(loaded.params["blocks"]["shift"]["v"])
    assert values.shape == (2, 4) and len(np.unique(values)) == 1
    return float(values[0, 0])


@pytest.mark.full
def test_it_moves_with_accepted_steps_and_a_stopped_run_goes_on_with_it(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder, whole = trained
    assert [shift(f"{folder}@{step}") for step in (2, 4, 6)] == [2, 4, 6]
    stopped_at(shutil.copytree(folder, tmp_path / "run"), 4)
    resumed = run_here(*words(tmp_path / "run", 6))
    assert resumed["resumed_from"] == 4 and shift(tmp_path / "run") == 6
    assert resumed["params_digest"] == whole["params_digest"] and untimed(tmp_path / "run") == untimed(folder)


@pytest.mark.full
def test_a_branch_goes_on_with_it_and_so_do_weights_alone(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder, _ = trained
    run_here(f"--branch-from={folder}@4", f"--workdir={tmp_path / 'branch'}", *DECAY, "--json")
    assert shift(tmp_path / "branch") == 6
    run_here(*words(tmp_path / "new", 2, f"--init-from={folder}"))
    assert shift(tmp_path / "new") == 8
    assert records.read_record(tmp_path / "new")["init_from"]["digest"]
    alone = weights.load_run_weights(str(folder))
    weights.write_weights(tmp_path / "alone", alone)
    again = weights.load_run_weights(str(tmp_path / "alone"))
    jax.tree.map(np.testing.assert_array_equal, again.params, alone.params)


@pytest.mark.full
def test_averaged_weights_have_its_mean(trained):
    folder, _ = trained
    expected = np.average(range(1, 7), weights=[0.5 ** (6 - n) for n in range(1, 7)])
    np.testing.assert_allclose(shift(folder, ema=True), expected, rtol=1e-6)


@pytest.mark.full
def test_evaluation_reads_it_and_its_absence_is_no_silent_zero(trained, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder, _ = trained
    loaded, tokens = weights.load_run_weights(str(folder)), np.ones((1, 8), np.int32)
    (row,) = run_here(str(folder), "--sequences=4", "--json", name="eval")["evaluations"]
    assert row["digest"] == loaded.origin["digest"] and np.isfinite(row["metrics"]["loss"])
    other = with_variables(loaded.params, {"blocks": {"shift": {"v": np.zeros((2, 4), np.float32)}}})
    read, zero = (transformer.next_token_logits(loaded.shape, params, tokens) for params in (loaded.params, other))
    assert np.abs(read - zero).max() > 1e-3
    alone, _ = without_variables(loaded.params, transformer.variable_declarations(loaded.shape))
    with pytest.raises(BadInput, match=r"shift\.v is not a parameter"):
        transformer.next_token_logits(loaded.shape, alone, tokens)


@pytest.mark.full
def test_a_rewind_goes_back_to_its_value(tmp_path, monkeypatch):
    test_rewind.plant_bad_data(monkeypatch)
    folder = tmp_path / "run"
    train_single(test_rewind.config(**{"model.block": f"{__name__}:biased", "model.n_layers": 2}), folder)
    (event,) = [e for e in records.read_events(folder) if e["kind"] == "guard" and e["action"] == "rewind"]
    assert event["cost_steps"] > 0
    assert shift(folder) == 120 - records.read_metrics(folder)[-2]["skipped"]


@pytest.mark.full
def test_a_plan_counts_its_bytes(monkeypatch):
    monkeypatch.chdir(ROOT)
    small = ["--config=configs/tiny.py", *SMALL, "--config.model.n_layers=2", "--hardware=h100", "--json"]
    with_it, without = (run_here(*small, *more, name="plan")["memory_bytes"] for more in ([BLOCK], []))
    assert with_it["variables"] == 2 * 4 * 4 and "variables" not in without


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [
        (["--config.optim.name=sophia_g"], "optim.name=adamw"),
    ],
)
def test_a_pass_that_does_not_read_it_is_refused(changes, nearest, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["train", *words(tmp_path / "run", 2, *changes)]) == 2
    line = err.getvalue().strip().splitlines()[-1]
    assert "variables that are not parameters" in line and line.endswith(f"nearest: {nearest}"), line
    assert not (tmp_path / "run").exists()


def program_states(program, trials, block=biased, **changes):
    """(states after three steps, their training losses, static) of so many equal trials."""
    static, hparams = setting(block, **changes)
    run = program(static, [hparams] * trials)
    tokens = np.random.default_rng(0).integers(0, 32, (3, 8, 17)).astype(np.int32)
    states, logs = run.advance(run.init(), [tokens[:, run.rows]] * trials, 3)
    return run.separate(states), [np.asarray(log["train_loss"]) for log in logs], static


def setting(block, **changes):
    sizes = {"model.d_model": 16, "model.n_layers": 2, "model.n_heads": 2, "model.seq_len": 16, "model.vocab_size": 32}
    sizes |= {"train.global_batch": 8, "train.ema": 0.5, "model.block": f"{__name__}:{block.__name__}"}
    config = config_lib.resolve(config_lib.override(tiny.get_config(), sizes | changes))
    return config_lib.static(config), config_lib.hparams(config)


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_bias_moves_by_the_sign_of_the_load_errors_of_the_whole_batch(accumulate):
    static, hparams = setting(routed, **{"train.accumulate": accumulate})
    h, tokens = traced_hparams(hparams), np.random.default_rng(1).integers(0, 32, (8, 17)).astype(np.int32)
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)
    for _ in range(2):
        gradients = jax.jit(scaled_gradients, static_argnums=0)
        old = state_lib.model_variables(state)
        sums = gradients(static, pass_inputs(static, state.params, h.train.z_loss, (), old), Batch(tokens))[0]
        load_LE = np.asarray(sums.block["counts"]["load"])
        assert load_LE.shape == (2, 3) and (load_LE.sum(axis=1) == 8 * 16).all()
        state, metrics = jax.jit(train_step, static_argnums=0)(static, state, tokens, h)
        new = state_lib.model_variables(state)["blocks"]["bias"]["v"]
        moves = np.asarray(new) - np.asarray(old["blocks"]["bias"]["v"])
        np.testing.assert_allclose(moves, 0.01 * np.sign(load_LE.mean(axis=1, keepdims=True) - load_LE), atol=1e-7)
        assert np.abs(moves).max() > 0 and metrics["block/load"] > 0
    bad = config_lib.replace_hparams(h, {"train.z_loss": jnp.float32(jnp.inf)})
    after, _ = jax.jit(train_step, static_argnums=0)(static, state, tokens, bad)  # a step that is not taken
    jax.tree.map(np.testing.assert_array_equal, after.variables, state.variables)


@pytest.mark.full
def test_a_further_part_of_the_state_is_one_entry(monkeypatch):
    """One that counts steps, and that a rewind's reset of the moments sets back."""
    zero = lambda static, params: jnp.zeros((), jnp.int32)  # noqa: E731
    count = Part("seen", zero, lambda _, n, outcome: (n + 1, {"mine/seen": n}), fresh_with_moments=True)
    caches = state_lib._shapes, step_lib.jit_train_step
    for module in (state_lib, change):
        monkeypatch.setattr(module, "PARTS", (*state_lib.PARTS[:5], count))
    for cache in caches:
        cache.cache_clear()
    try:
        config = config_lib.resolve(config_lib.override(tiny.get_config(), {"model.d_model": 16, "model.n_layers": 1}))
        spec = make_train_spec(config)
        h = traced_hparams(spec.hparams)
        state = jax.jit(state_lib.init_state, static_argnums=0)(spec.static, h)
        tokens = np.ones((spec.static.global_batch, spec.static.model.seq_len + 1), np.int32)
        after, metrics = jax.jit(train_step, static_argnums=0)(spec.static, state, tokens, h)
        assert (after.variables, metrics["mine/seen"]) == ({"seen": 1}, 0)
        shapes, specs = (f(spec.static) for f in (state_lib.state_shapes, state_lib.state_specs))
        assert shapes.variables["seen"].dtype == jnp.int32 and specs.variables == {"seen": jax.sharding.PartitionSpec()}
        assert describe_leaves({"run": after})["run.variables.seen"] == "int32[]"  # as a checkpoint holds it
        assert change.apply_change(after, spec, change.Change(0.5)).variables == {"seen": 1}
        assert change.apply_change(after, spec, change.Change(0.5, reset=True)).variables == {"seen": 0}
    finally:
        monkeypatch.undo()
        for cache in caches:
            cache.cache_clear()


@pytest.mark.full
def test_each_packed_trial_has_one():
    (alone,), (losses,), _ = program_states(sequential_program, 1)
    packed, packed_losses, _ = program_states(vmapped_program, 2)
    for state, each in zip(packed, packed_losses, strict=True):
        np.testing.assert_allclose(each, losses, rtol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, state.variables, jax.device_get(alone.variables))


MESH = """
import json
import jax, numpy as np
from scalelab.train.step.program import sequential_program
from tests.train.step.test_variables import program_states
(one,), (losses,), _ = program_states(sequential_program, 1)
result = {}
for layout in ({"fsdp": 2, "context": 2, "tensor": 2},):
    changes = {f"parallel.{k}": v for k, v in layout.items()}
    (state,), (many,), _ = program_states(sequential_program, 1, **changes)
    same = jax.tree.map(lambda a, b: bool(np.all(np.asarray(a) == np.asarray(b))), one.variables, state.variables)
    specs = {str(x.sharding.spec) for x in jax.tree.leaves(state.variables)}
    result[json.dumps(layout)] = [all(jax.tree.leaves(same)), float(abs(many / losses - 1).max()), sorted(specs)]
print(json.dumps(result))
"""


@pytest.mark.full
def test_a_mesh_of_eight_devices_splits_it_as_declared():
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, "-c", MESH], env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (same, off, specs) in json.loads(done.stdout).items():
        assert same and off < 1e-5, (name, off)
        assert specs == ["P(None, 'tensor')"], specs


def test_variables_stand_among_parameters_and_come_out_again():
    params, variables = {"embed": 1, "blocks": {"up": {"w": 2}}}, {"blocks": {"up": {"v": 3}, "router": {"bias": 4}}}
    both = with_variables(params, variables)
    assert both == {"embed": 1, "blocks": {"up": {"w": 2, "v": 3}, "router": {"bias": 4}}}
    assert without_variables(both, variables) == (params, variables) and with_variables(params, None) == params


def test_the_parts_of_a_state_are_its_declarations():
    """Names of a state without variables are those of older checkpoints; each part has a spec like its value."""
    assert [part.name for part in state_lib.PARTS] == ["skipped", "streak", "precision", "guard", "model"]
    config = config_lib.resolve(tiny.get_config())
    like = state_lib.state_shapes(config_lib.static(config))
    assert like.variables == {} and like._fields[:8] == (
        "step", "params", "opt_state", "skipped", "streak", "ema", "precision", "guard",
    )  # fmt: skip
    assert jax.tree.structure(state_lib.state_specs(config_lib.static(config))) == jax.tree.structure(like)
    assert whole_on_devices(config_lib.static(config), {"a": 1})["a"] == jax.sharding.PartitionSpec()
    assert Variable((2,), moved).stacked(3).axes == ("layers", "whole")
