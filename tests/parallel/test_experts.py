"""Experts over devices: rows travel once each way, no device gathers all experts, checkpoints fit every layout."""

import collections
import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from checks.numerics.parallelism.layouts import EXPERT_LAYOUTS, expert_variants
from scalelab.config import Layout
from scalelab.experiments.studies.fsdp.rows import build_static, bytes_of_sent_rows
from scalelab.jaxprs import live_equations
from scalelab.model.experts.exchange import Buffers, size_buffers
from scalelab.parallel import rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.sharding import BATCH_AXES
from scalelab.train.step.gradients import compute_gradients
from tests.train.runs import ROOT

LAYOUT = Layout(expert=2, fsdp=2, tensor=2)
MODEL = {"model.block": "experts", "model.n_experts": 8, "model.d_expert": 48, "model.balance_rate": 0.0}
EXCHANGES = 6  # of rows, of what is said of them and of outputs, and of the gradient of each


def walk(jaxpr):
    """All equations of a jaxpr whose results are used, and those within them."""
    for equation in live_equations(jaxpr):
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from walk(inner)


@functools.cache
def equations_of_gradient(remat):
    """Of the gradient of a model with experts on the mesh LAYOUT, traced for no device."""
    static = build_static(MODEL | {"model.remat": remat}, LAYOUT, "bf16", 8)[0]
    mesh = AbstractMesh(
        tuple(getattr(LAYOUT, axis) for axis in MESH_AXES), MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES)
    )
    place = lambda shape, kind, spec: jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))  # noqa: E731
    declared, specs = rules.parameter_declarations(static.model), rules.parameter_specs(static.model, LAYOUT)
    params = jax.tree.map(lambda d, spec: place(d.shape, jnp.float32, spec), declared, specs)
    tokens = place((8, static.model.seq_len + 1), jnp.int32, PartitionSpec(BATCH_AXES, None))
    with jax.sharding.use_abstract_mesh(mesh):
        gradient = jax.make_jaxpr(lambda params, tokens: compute_gradients(static, params, tokens, jnp.float32(0)))
        return list(walk(gradient(params, tokens).jaxpr))


def is_of_experts(x):
    """Whether it is split by the expert, as weights of experts are."""
    return bool(x.aval.sharding.spec.partitions) and x.aval.sharding.spec.partitions[0] == "expert"


@pytest.mark.parametrize("remat", ["full", *(pytest.param(each, marks=pytest.mark.full) for each in ("none", "dots"))])
def test_rows_travel_once_each_way_whatever_is_recomputed_and_weights_stay(remat):
    found = equations_of_gradient(remat)
    travelled = [e for e in found if e.primitive.name == "all_to_all" and "expert" in e.params["axis_name"]]
    assert len(travelled) == EXCHANGES
    gathered = collections.Counter(e.params["axis_name"] for e in found if e.primitive.name.startswith("all_gather"))
    assert gathered and all("expert" not in axes for axes in gathered)
    for equation in found:
        if equation.primitive.name == "reshard" and is_of_experts(equation.invars[0]):
            assert is_of_experts(equation.outvars[0]), equation


def test_there_is_room_for_all_rows_or_for_so_many_times_the_mean():
    assert size_buffers(64, 16, 2, 4, 0.0) == Buffers(peers=4, local=4, rows=64, multiplied=4 * 64 * 2)
    assert size_buffers(64, 16, 2, 4, 1.0) == Buffers(peers=4, local=4, rows=32, multiplied=64 * 2)
    assert size_buffers(64, 4, 2, 4, 1.25) == Buffers(peers=4, local=1, rows=40, multiplied=160)
    assert size_buffers(64, 16, 2, 4, 100.0) == size_buffers(64, 16, 2, 4, 0.0)  # no more than can come


def test_rows_sent_by_formula_are_those_of_the_compiled_steps_that_are_kept():
    """`make test-parallel` reads them from programs for eight devices; with stages from the branches of every tick."""
    rows = json.loads((ROOT / "checks/results/parallelism_experts.json").read_text())["experts"]
    of_rows = [row for row in rows if "sent_rows" in row and not row["skewed"]]
    layouts = {row["layout"]: EXPERT_LAYOUTS[row["layout"]] for row in of_rows}
    assert len(layouts) > 7 and {layout.schedule for layout in layouts.values() if layout.stage > 1} == {
        "1f1b",
        "gpipe",
    }
    for row in of_rows:
        static = build_static(expert_variants()[0], layouts[row["layout"]], "fp32")[0]
        assert bytes_of_sent_rows(static) == row["sent_rows"], row["layout"]


PROGRAM = """
import json, pathlib, shutil, sys
import jax, numpy as np
from scalelab.__main__ import main
from scalelab.config import override, resolve, static
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.train.resume import start
from scalelab.train.step import program
from tests.train.resume.test_compatibility import SMALL

place, rows = pathlib.Path(sys.argv[1]), []
MODEL = {"model.block": "experts", "model.n_experts": 8, "model.d_ff": 16, "train.global_batch": 8, "model.n_layers": 2,
         "schedule.name": "constant", "optim.peak_lr": 0.01}

def values(steps, layout):
    return SMALL | MODEL | {"train.steps": steps} | {f"parallel.{axis}": size for axis, size in layout.items()}

def train(name, steps, layout):
    argv = [f"--config.{key}={value}" for key, value in values(steps, layout).items()]
    assert main(["train", "--config=configs/tiny.py", f"--workdir={place / name}", *argv]) == 0, name
    return [m for m in records.read_metrics(place / name) if "train_loss" in m]

def bits(name, layout):
    checkpoints, at = start.find_last_checkpoint(place / name)
    wanted = static(resolve(override(tiny.get_config(), values(2, layout))))
    (state,) = checkpoints.load({at: program.restore_targets(wanted, 1, "turn")[0]}).states.values()
    leaves = jax.tree_util.tree_leaves_with_path(state)
    held = sum(x.addressable_shards[0].data.nbytes for path, x in leaves if "'experts'" in str(path) and x.ndim == 4)
    return {jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in leaves}, held

alone = train("alone", 3, {})
saved = {"expert": 4}
train("saved", 2, saved)
before, held = bits("saved", saved)
for number, layout in enumerate([{}, {"expert": 2, "fsdp": 2}]):
    shutil.copytree(place / "saved", place / str(number))
    after, there = bits(str(number), layout)
    lines = train(str(number), 3, layout)
    rows.append({"layout": layout, "same": before == after, "leaves": len(after), "held": there / held,
                 "loss": [line["train_loss"] for line in lines], "alone": [line["train_loss"] for line in alone]})
staged = train("staged", 3, {"stage": 2, "expert": 2, "microbatches": 2})
short = train("short", 2, saved | {"expert_buffer": 1.0})[0]
print(json.dumps({"rows": rows, "staged": [line["train_loss"] for line in staged],
                  "dropped": [alone[0]["block/dropped"], short["block/dropped"]]}))
"""


@pytest.mark.slow
def test_a_run_with_experts_goes_on_upon_any_layout_with_its_bits_and_losses(tmp_path):
    """On four devices; rows for which a bounded buffer has no room are dropped and counted."""
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, env=env, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    for row in answer["rows"]:
        assert row["same"] and row["leaves"] > 20, row["layout"]
        assert row["loss"] == pytest.approx(row["alone"], rel=1e-6), row
    assert answer["staged"] == pytest.approx(answer["rows"][0]["alone"], rel=1e-6)  # variables move in stages, too
    assert [row["held"] for row in answer["rows"]] == [4, 1]
    none, some = answer["dropped"]
    assert none == 0 < some < 2  # of 2 experts a token in 2 layers
