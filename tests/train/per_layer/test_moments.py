"""Moments in the host's memory: where they lie by the program's types and by XLA, and the same bits."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from scalelab.errors import BadInput
from scalelab.hardware.chips import CHIPS, host_bytes_per_s
from scalelab.plan.compiled import absent_devices
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step.update import moments_s
from scalelab.train.single import train_single
from scalelab.train.step import program
from scalelab.train.step.state import host_bytes, move_moments
from scalelab.train.step.update.per_layer.refusals import refuse_missing_memory, refuse_unsupported
from tests.plan.tiny import tiny
from tests.train.per_layer.test_per_layer import both, two_ways
from tests.train.step.test_step import batches, init

HOST = NamedSharding(AbstractMesh((1,), ("host",)), PartitionSpec(), memory_kind="pinned_host")


def with_moments_on_host(state):
    like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=HOST if x.ndim else None)  # noqa: E731
    return state._replace(opt_state=jax.tree.map(like, state.opt_state))


@pytest.mark.full
def test_moments_stay_on_the_host_but_for_the_part_that_is_updated():
    """By the types of the program: all moments come and go as host arrays, and no array of all layers is fetched."""
    static, layered, h = both(**{"optim.name": "adamw"})
    state = with_moments_on_host(jax.eval_shape(lambda: init(static, h)))
    tokens = jax.ShapeDtypeStruct((8, 17), jnp.int32)
    traced = jax.jit(two_ways(static, layered, h)[1]).trace(state.params, state.opt_state, tokens)
    after = jax.tree.leaves(jax.tree.unflatten(jax.tree.structure(traced.out_info), traced.jaxpr.out_avals)[3])
    assert all((x.memory_space == jax.memory.Space.Host) == bool(x.ndim) for x in after)
    fetched = set(fetches(traced.jaxpr.jaxpr))
    assert fetched and not any(shape[0] == 3 for shape in fetched)


def fetches(jaxpr):
    """Shapes of the arrays that a program copies from the host to the device, in loops and calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "device_put":
            pairs = zip(equation.invars, equation.outvars, strict=True)
            yield from (
                y.aval.shape for x, y in pairs if x.aval.memory_space == jax.memory.Space.Host != y.aval.memory_space
            )
        for part in jax.extend.core.jaxprs_in_params(equation.params):
            yield from fetches(part)


@pytest.mark.full
def test_the_planner_moves_them_out():
    layered = both(**{"optim.name": "adamw"})[1]
    host, h100 = dataclasses.replace(layered, moments="pinned_host"), load_machine("h100")
    here, there = (step_memory(one, h100) for one in (layered, host))
    size = 8 * here.components["parameters"] // 4
    assert host_bytes(host) == size and here.components["optimizer"] - there.components["optimizer"] == size
    assert here.total > there.total and "host's memory" in there.notes[-1]
    assert moments_s(host, h100) == pytest.approx(2 * size / 63e9) and moments_s(layered, h100) == 0
    unknown = {chip.name for chip in CHIPS.values() if host_bytes_per_s(chip) is None and "TPU" not in chip.name}
    assert unknown == {"Trainium2"}  # nothing is published of its link to the host


def test_what_has_no_place_is_refused(monkeypatch):
    static, layered, h = both(**{"optim.name": "adamw"})
    away = {"moments": "pinned_host"}
    with pytest.raises(BadInput, match=r"train\.moments='pinned_host' with train\.updates='whole'.*nearest"):
        refuse_unsupported(dataclasses.replace(static, **away))
    with pytest.raises(BadInput, match=r"sweep\.pack='vmap' with train\.moments"):
        program.vmapped_program(dataclasses.replace(layered, **away), [h])

    class Device:
        device_kind = "elsewhere"
        addressable_memories = staticmethod(lambda: [])

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    with pytest.raises(BadInput, match=r"train\.moments='pinned_host': elsewhere reaches only its own.*nearest"):
        refuse_missing_memory(dataclasses.replace(layered, **away))


@pytest.mark.full
def test_restored_moments_are_moved_one_by_one():
    """The values are the same, and no second copy stays: the old arrays are gone."""
    static, _, h = both(**{"optim.name": "adamw"})
    before = init(dataclasses.replace(static, updates="per_layer"), h)
    values = jax.tree.map(np.array, before.opt_state)
    moved = move_moments(dataclasses.replace(static, moments="pinned_host", updates="per_layer"), before)
    jax.tree.map(np.testing.assert_array_equal, moved.opt_state, values)
    assert all(x.is_deleted() for x in jax.tree.leaves(before.opt_state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(moved))


@pytest.mark.slow
def test_the_same_bits_as_on_the_device():
    _, layered, h = both(**{"optim.name": "adamw"})
    ends = []
    for moments in ("device", "pinned_host"):
        run = program.sequential_program(dataclasses.replace(layered, moments=moments), [h])
        states = run.init()
        for tokens in batches(3):
            states, _ = run.advance(states, [np.asarray(tokens)[None]], 1)
        assert {x.sharding.memory_kind for x in jax.tree.leaves(states[0].opt_state) if x.ndim} == {moments}
        ends.append(states[0])
    jax.tree.map(np.testing.assert_array_equal, *ends)


@pytest.mark.slow
def test_a_run_with_moments_on_the_host_goes_on_with_the_same_bits(tmp_path):
    ways = {"model.remat": "full", "train.updates": "per_layer", "train.moments": "pinned_host", "optim.name": "adamw"}
    config = tiny(**ways, **{"train.steps": 6, "eval.every_steps": 6, "checkpoint.every_steps": 3})
    asked = iter([False, True])
    straight = train_single(config, tmp_path / "straight")
    assert train_single(config, tmp_path / "stopped", stop=lambda: next(asked, True))["status"] == "stopped"
    assert train_single(config, tmp_path / "stopped")["params_digest"] == straight["params_digest"]


@pytest.mark.slow
@pytest.mark.skipif(
    not any(absent_devices._is_installed(module) for module in absent_devices.EXTRAS["gpu"][1]),
    reason="needs the extra plan-cuda",
)
def test_xla_places_them_on_the_host_of_an_h100(tmp_path):
    """The moments are arguments in the host's memory (space 5), read and written there slice by slice."""
    sizes = {"model.d_model": 256, "model.n_layers": 8, "precision.name": "bf16", "optim.name": "adamw"}
    host = dataclasses.replace(both(**sizes)[1], moments="pinned_host")
    path, machine = pathlib.Path(tmp_path / "program.txt"), load_machine("h100")
    compiled = compile_step(host, machine, program=path)
    planned = step_memory(host, machine)
    assert compiled.host_bytes == host_bytes(host)
    assert compiled.argument_bytes < 1.1 * planned.components["parameters"]
    assert compiled.peak_bytes == pytest.approx(planned.total, rel=0.15)
    starts = [line for line in path.read_text().splitlines() if "S(5)" in line and "-start" in line]
    assert any("dynamic-slice-start" in line for line in starts)
    assert any("dynamic-update-slice-start" in line for line in starts)
