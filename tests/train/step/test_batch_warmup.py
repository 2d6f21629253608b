"""A growing batch: each step is that of a batch of its size, nothing recompiles, and runs resume and branch."""

import dataclasses
import os
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.single import train_single
from scalelab.train.step.guard import GUARD
from tests.quick import others_slow
from tests.train.resume.test_branch import branched
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import command, untimed, wait_for
from tests.train.step.test_step import BATCH, STATIC, H, assert_same, batches, init, relative, step, steps, trained

PARTS = 4
# One micro-batch, three from step 5, four from 7.
GROWING = dataclasses.replace(STATIC, accumulate=PARTS, batch_ramp=(5, 5, 7))


def first(tokens, k):
    """The rows of the first k micro-batches, as a batch of k of them."""
    return tokens.reshape(-1, PARTS, tokens.shape[-1])[:, :k].reshape(k * BATCH // PARTS, -1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("at", "k"),
    others_slow(lambda at, k: at in (6, 900), [(4, 1), (5, 3), (6, 3), (7, 4), (900, 4)]),
)
def test_a_step_of_k_micro_batches_is_that_of_a_batch_of_k(at, k):
    tokens = np.array(batches(seed=1)[0])
    tokens[0, 5:], tokens[4, 2:9] = -1, -1  # ragged, and the token mean is over what is taken
    state = trained()[0]._replace(step=jnp.int32(at))
    small = dataclasses.replace(STATIC, accumulate=k, global_batch=k * BATCH // PARTS)
    result, log = step(GROWING, state, jnp.asarray(tokens), H)
    wanted, expected = step(small, state, jnp.asarray(first(tokens, k)), H)
    # A batch that grows begins the guard's window anew; the digest is of all rows that the step was given.
    for name in expected.keys() - {GUARD, "read/digest"}:
        np.testing.assert_allclose(log[name], expected[name], rtol=2e-6, err_msg=name)
    assert relative((result.params, result.opt_state), (wanted.params, wanted.opt_state)) < 1e-6
    other = jnp.asarray(tokens).at[jnp.arange(BATCH) % PARTS >= k].set(7)
    assert_same(step(GROWING, state, other, H)[0], result)  # what stands in the other rows is of no consequence


@pytest.mark.full
def test_one_program_serves_the_whole_ramp():
    before, state = steps._cache_size(), init(GROWING, H)
    for i in range(3):
        state, log = steps(GROWING, state, batches(seed=i), jnp.int32(4), H)
    assert steps._cache_size() == before + 1 and state.step == 12 and np.isfinite(log["train_loss"]).all()


# Of 16 tokens a sequence: 2 sequences a step up to step 2, then 4, 6 and from step 6 on 8.
TAKEN = [2, 2, 2, 4, 4, 6, *[8] * 14]
RAMP = {
    "train__global_batch": 8, "train__accumulate": 4, "schedule__batch_start": 2,
    "schedule__batch_warmup_tokens": 16 * 18,
    "schedule__name": "constant", "train__steps": 20, "eval__every_steps": 10, "checkpoint__keep_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder and what it gave."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, train_single(config(**RAMP), folder)


@pytest.mark.full
def test_records_hold_the_tokens_that_were_seen(whole):
    seen = np.cumsum(TAKEN) * 16
    lines = records.read_metrics(whole[0])
    assert [line["tokens"] for line in lines] == [seen[line["step"] - 1] for line in lines] and lines[-1]["step"] == 20
    record = records.read_json(whole[0] / "record.json")
    assert record["tokens"] == seen[-1] and record["flops"]["exact"] == record["flops_per_token"]["exact"] * seen[-1]
    assert record["dtypes"]["compute"] == {"float32": 1.0}


@pytest.mark.full
@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)])
def test_stopped_in_the_middle_it_goes_on_to_the_same_bits(tmp_path, whole, at):
    calls = iter(range(2, 100, 2))  # two steps a dispatch
    stopped = train_single(config(**RAMP), tmp_path / "run", stop=lambda: next(calls) == at)
    assert stopped["final_step"] == at
    result = train_single(config(**RAMP), tmp_path / "run")
    assert (result["resumed_from"], result["params_digest"]) == (at, whole[1]["params_digest"])
    assert untimed(tmp_path / "run") == untimed(whole[0])


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_bits(tmp_path):
    long = RAMP | {"train__steps": 300, "schedule__batch_warmup_tokens": 16 * 800, "eval__every_steps": 100}
    long |= {"checkpoint__every_steps": 5, "checkpoint__keep_every": 0}
    overrides = [f"--config.{key.replace('__', '.')}={value}" for key, value in long.items()]
    overrides = [
        *(f"--config.{key}={value}" for key, value in SMALL.items() if key.replace(".", "__") not in long),
        *overrides,
    ]
    arguments = ["--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}", *overrides, "--json"]
    process = command(*arguments)
    wait_for(lambda: any(line["step"] > 20 for line in records.read_metrics(tmp_path / "run")), process)
    process.kill()
    process.communicate()
    result = train_single(config(**long), tmp_path / "run")
    planned = train_single(config(**long), tmp_path / "planned")
    assert 0 < result["resumed_from"] < 245 == config_lib.static(config(**long)).batch_ramp[-1]
    assert result["params_digest"] == planned["params_digest"]
    assert untimed(tmp_path / "run") == untimed(tmp_path / "planned")


@pytest.mark.slow
def test_more_steps_and_branches_are_the_runs_planned_so(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "longer")
    longer = train_single(config(**RAMP | {"train__steps": 24}), tmp_path / "longer")
    planned = train_single(config(**RAMP | {"train__steps": 24}), tmp_path / "planned")
    assert longer["resumed_from"] == 20 and longer["params_digest"] == planned["params_digest"]
    assert untimed(tmp_path / "longer")[-1]["tokens"] == (sum(TAKEN) + 4 * 8) * 16
    _, branch = branched(whole[0], 10, tmp_path / "branch", schedule__decay_tokens=4 * 8 * 16)
    decay = RAMP | {"schedule__name": "wsd", "schedule__decay_steps": 4, "train__steps": 14}
    assert branch["params_digest"] == train_single(config(**decay), tmp_path / "decay")["params_digest"]
    assert branch["final_step"] == 14


@pytest.mark.full
def test_another_ramp_is_another_run(tmp_path, whole):
    for key, value in (("schedule__batch_start", 4), ("schedule__batch_warmup_tokens", 160)):
        with pytest.raises(
            BadInput, match=rf"was started with schedule.{key[10:]}=.*--allow-change=schedule.{key[10:]}"
        ):
            train_single(config(**RAMP | {"train__steps": 24, key: value}), whole[0])  # a step is left to take
    with pytest.raises(BadInput, match="the trunk's batch is in its warm-up there, up to step 6"):
        branched(whole[0], 4, tmp_path / "branch", schedule__decay_steps=4)


@pytest.mark.slow
def test_the_trials_of_a_pack_share_the_ramp(tmp_path, whole):
    trials = {f"lr={lr}": config(**RAMP, sweep__pack="vmap", optim__peak_lr=lr) for lr in (0.01, 0.02)}
    assert set(run_sweep(tmp_path, trials).values()) == {"done"}
    folders = [whole[0], *(tmp_path / "runs" / name for name in trials)]
    alone, *packed = [records.read_metrics(folder) for folder in folders]
    for lines in packed:
        assert [line["tokens"] for line in lines] == [line["tokens"] for line in alone]
    losses = [[line["train_loss"] for line in lines if "train_loss" in line] for lines in (alone, *packed)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)  # the first has the lone run's LR
    assert losses[2][2:] != losses[0][2:]


MESH = """
import pathlib, sys
from tests.train.step.test_batch_warmup import MESHES, RAMP, config
from scalelab.train.single import train_single
for name, layout in MESHES.items():
    train_single(config(**RAMP | MESH_RAMP | layout), pathlib.Path(sys.argv[1]) / name)
""".replace(
    "MESH_RAMP",
    "{'train__steps': 8, 'model__n_layers': 2, 'model__vocab_size': 256, 'train__global_batch': 16, "
    "'schedule__batch_start': 4}",
)
MESHES = {
    "alone": {},
    "fsdp": {"parallel__fsdp": 2, "parallel__tensor": 2},
    "stages": {"parallel__stage": 2, "parallel__microbatches": 2, "parallel__data": 2},
}


@pytest.mark.slow
def test_on_meshes_the_batch_grows_as_on_one_device(tmp_path):
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", MESH, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone, *others = [records.read_metrics(tmp_path / name) for name in MESHES]
    assert [line["tokens"] for line in alone if "train_loss" in line][:6] == [64, 128, 256, 448, 704, 960]
    for lines in others:
        for key, rtol in (("tokens", 0), ("train_loss", 1e-5), ("grad_norm", 1e-4)):
            result, wanted = ([line[key] for line in each if "lr" in line] for each in (lines, alone))
            np.testing.assert_allclose(result, wanted, rtol=rtol, err_msg=key)
