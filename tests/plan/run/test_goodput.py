"""Checkpoints and failures against published intervals, closed forms, Llama 3's report and a checkpoint that is really
written."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.serialization import replica_slices

from scalelab import config as configs
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.parallel import mesh
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.run import goodput
from scalelab.plan.run.checkpoint import estimate_save
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.step import state

HOUR, DAY = 3600.0, 86_400.0


def tiny(**values):
    tree = base.get_config()
    tree.optim.peak_lr = 1e-3
    return configs.static(configs.resolve(configs.override(tree, {k: str(v) for k, v in values.items()})))


# C, M, and the interval in seconds as stated: Young's and Daly's for one case; Daly 2006, figures 3 to 5, in whole or
# tenths of minutes.
@pytest.mark.parametrize(
    ("rule", "cost_s", "mtbf_s", "stated_s", "rounding_s"),
    [
        (goodput.young_interval, 60, 3 * HOUR, 1138, 0.5),
        (goodput.daly_interval, 60, 3 * HOUR, 1099, 0.5),
        (goodput.daly_interval, 300, 24 * HOUR, 117 * 60, 30),
        (goodput.daly_interval, 300, 6 * HOUR, 57 * 60, 30),
        (goodput.daly_interval, 300, 15 * 60, 9.1 * 60, 3),
    ],
)
def test_intervals_as_published(rule, cost_s, mtbf_s, stated_s, rounding_s):
    assert rule(cost_s, mtbf_s) == pytest.approx(stated_s, abs=rounding_s)


def test_daly_stays_with_the_mtbf_where_a_save_takes_twice_as_long():
    assert goodput.daly_interval(2 * HOUR, HOUR) == HOUR


@pytest.mark.parametrize("mtbf_s", [900, 6 * HOUR, 24 * HOUR])
def test_daly_is_the_best_interval_of_his_model(mtbf_s):
    at = {tau: goodput.expected_goodput(tau, 300, 300, mtbf_s, 600) for tau in range(60, 60_000, 20)}
    best = max(at, key=at.get)
    assert goodput.daly_interval(300, mtbf_s) == pytest.approx(best, abs=0.04 * best)
    assert goodput.expected_goodput(goodput.daly_interval(300, mtbf_s), 300, 300, mtbf_s, 600) == pytest.approx(
        at[best], rel=1e-3
    )


# tau, C, S, M, R
CASES = [(1138, 60, 60, 3 * HOUR, 600), (1138, 10, 60, 3 * HOUR, 600), (600, 5, 590, HOUR, 0), (300, 60, 60, 900, 300)]


@pytest.mark.parametrize("case", CASES)
def test_the_simulation_agrees_with_the_closed_forms(case):
    tau, cost_s, save_s, mtbf_s, _ = case
    goodputs = goodput.simulate_runs(1e7, *case)
    # 200 runs of 300 failures each: the mean of 60,000 exponential gaps is known to 0.4 %.
    assert goodputs.simulated == pytest.approx(goodputs.expected, rel=0.012)
    assert goodputs.low < goodputs.expected < goodputs.high
    assert goodputs.lost_work_s == pytest.approx(goodput.lost_work(tau, cost_s, save_s, mtbf_s), rel=0.02)
    assert goodput.simulate_runs(1e7, *case) == goodputs
    assert goodput.simulate_runs(1e7, *case, seed=1) != goodputs


def test_daly_complete_model():
    """Wall time of T = 500 h at Daly's figure 4 (M = 6 h, R = 10 min, C = 5 min), by his equation 20."""
    tau, cost_s, mtbf_s, restart_s, work_s = 3402.0, 300.0, 6 * HOUR, 600.0, 500 * HOUR
    wall = mtbf_s * math.exp(restart_s / mtbf_s) * (math.exp((tau + cost_s) / mtbf_s) - 1) * work_s / tau
    assert goodput.expected_goodput(tau, cost_s, cost_s, mtbf_s, restart_s) == pytest.approx(work_s / wall, rel=1e-12)


def test_without_failures_only_saves_cost():
    goodputs = goodput.simulate_runs(10_000, 1000, 50, 50, math.inf, 600)
    assert goodputs.simulated == goodputs.expected == pytest.approx(1000 / 1050)


def test_saves_that_are_never_reached_leave_nothing_and_take_no_time():
    assert goodput.simulate_runs(1e6, 1e5, 60, 60, 60, 600).simulated < 1e-9
    assert goodput.simulate_runs(1e6, 1e5, 60, 60, 1e3, 600).simulated == pytest.approx(0, abs=1e-9)


def test_llama_3():
    """419 unexpected interruptions in 54 days of 16,384 devices, a checkpoint of 12 bytes a parameter to a storage of
    2 TB/s, and "higher than 90 %" effective time (Meta 2024, sections 3.3.1 and 3.3.4)."""
    mtbf_s = goodput.job_mtbf(16_384)
    assert 54 * DAY / mtbf_s == pytest.approx(419)
    save_s = 405e9 * 12 / 2e12
    assert goodput.expected_goodput(goodput.daly_interval(save_s, mtbf_s), save_s, save_s, mtbf_s, 600) > 0.9
    # Meta's own 1,024-device jobs failed sooner; the rate is the user's to state.
    assert goodput.job_mtbf(1024, 1024 * 7.9) == pytest.approx(7.9 * HOUR)


def test_a_save_of_405b_costs_little_beside_a_restart():
    """16,384 H100 as Meta's: every host hashes its share, so a save is over before the next one is due (Daly's
    interval), and of the time lost nearly all is ten minutes of restart after each failure."""
    config = configs.load(
        "configs/recipes/llama3_405b.py", {"parallel.fsdp": 128, "parallel.tensor": 8, "parallel.data": 16}
    )
    plan = goodput.plan_checkpointing(configs.static(config), load_machine("h100"))
    assert plan.bytes == pytest.approx(405.85e9 * 12, rel=1e-4)  # fp32 weights and two moments
    assert plan.seconds < 6 and plan.daly_s < 60
    assert 0.94 < plan.goodput < math.exp(-goodput.RESTART_S / plan.mtbf_s)


@pytest.mark.full
def test_bytes_of_a_save_are_those_on_the_disk(tmp_path):
    static = tiny(**{"train.ema": 0.9, "model.d_model": 128, "precision.name": "fp8_delayed"})
    planned = estimate_save(static, load_machine("h100"))
    # Of other numbers Orbax would pack the small arrays, which it keeps among the names.
    random = np.random.default_rng(0)
    whole = jax.tree.map(lambda x: jnp.asarray(random.uniform(1, 2**30, x.shape), x.dtype), state.state_shapes(static))
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, {"run": whole})
        checkpoints.wait()
    written = sum(path.stat().st_size for path in (tmp_path / "c" / "1" / "state").rglob("d/*"))
    assert planned.bytes <= written < planned.bytes + 60_000  # names and shapes, for each array
    assert planned.parts["params"] == planned.parts["ema"] - 4 == sum(x.nbytes for x in jax.tree.leaves(whole.params))
    assert {"opt_state", "precision"} < set(planned.parts) and planned.bytes - sum(planned.parts.values()) == 12
    assert planned.device_bytes == planned.bytes


@pytest.mark.parametrize(
    "layout",
    [
        configs.Layout(data=8), configs.Layout(fsdp=8, zero=1), configs.Layout(data=2, fsdp=2, tensor=2),
        configs.Layout(data=4, stage=2, microbatches=2),
    ],
)  # fmt: skip
def test_each_device_writes_what_orbax_says(layout, monkeypatch):
    """Orbax's own split of an array among the devices that hold it, on an abstract mesh."""
    static = dataclasses.replace(tiny(), layout=layout)
    devices = jax.sharding.AbstractMesh(tuple(getattr(layout, axis) for axis in mesh.MESH_AXES), mesh.MESH_AXES)

    class Array:
        def __init__(self, leaf, spec):
            self.shape, self.sharding = leaf.shape, jax.sharding.NamedSharding(devices, spec)
            local = jax.ShapeDtypeStruct(self.sharding.shard_shape(leaf.shape), leaf.dtype)
            self.addressable_shards = [type("Shard", (), {"data": local})]

    def written(leaf, spec):
        array = Array(leaf, spec)
        copies = layout.devices * math.prod(array.addressable_shards[0].data.shape) // math.prod(leaf.shape)
        monkeypatch.setattr(replica_slices, "_sharding_num_replicas", lambda *_: copies)
        _, shape, _ = replica_slices.calculate_replica_parallel_axis_and_local_shape(array, None)
        return math.prod(shape or array.addressable_shards[0].data.shape) * leaf.dtype.itemsize

    each = jax.tree.map(written, state.state_shapes(static), state.state_specs(static))
    assert estimate_save(static, load_machine("h100")).device_bytes == sum(jax.tree.leaves(each))


def test_a_plan_of_saves():
    static = dataclasses.replace(tiny(), layout=configs.Layout(data=1024))
    saves = goodput.plan_checkpointing(static, load_machine("h100"), mtbf_s=3 * HOUR, every_s=1200, step_s=2.0)
    assert (saves.every_s, saves.every_steps, saves.failures_per_day) == (1200, 600, 8)
    seven = goodput.plan_checkpointing(static, load_machine("h100"), every_s=1200, step_s=180.0)
    assert seven.every_steps == 7  # no sooner than planned: a save may last as long
    assert saves.young_s == goodput.young_interval(saves.blocked_s, 3 * HOUR)
    assert saves.goodput_low < saves.goodput < saves.goodput_high
    assert 500 < saves.lost_work_s < 700  # half an interval
    waiting = goodput.plan_checkpointing(
        static, load_machine("h100"), mtbf_s=3 * HOUR, every_s=1200, asynchronous=False
    )
    assert waiting.blocked_s == waiting.seconds > saves.blocked_s and waiting.goodput < saves.goodput
    slow = goodput.plan_checkpointing(static, load_machine("h100"), write_bytes_per_s=1e3)
    assert slow.every_s == slow.seconds > slow.daly_s  # one save at a time
    # As much to read as to write: a restart can't take less, whatever was stated.
    assert slow.restart_s == slow.restore_s == pytest.approx(slow.seconds, rel=1e-3)
    assert saves.restart_s == goodput.RESTART_S < slow.restart_s and saves.restore_s < 1
    assert any("planned with that" in note for note in slow.notes) and any("Llama 3" in note for note in slow.notes)


def test_bad_numbers_are_refused():
    for bad in ({"mtbf_s": 0.0}, {"every_s": math.inf}, {"write_bytes_per_s": -1.0}, {"restart_s": -1.0}):
        with pytest.raises(BadInput, match=next(iter(bad))):
            goodput.plan_checkpointing(tiny(), load_machine("h100"), **bad)
