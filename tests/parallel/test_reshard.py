"""A run saved on one mesh goes on upon any other: the same bits, laid out anew, and the same next step."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from scalelab.parallel.mesh import MESH_AXES
from tests.train.runs import ROOT, ended

SAVED = {"fsdp": 8}
# Devices of a process -> layouts that take the run up there. A layout uses all devices of its process, or one.
SOME = {
    8: [{"fsdp": 4, "tensor": 2, "sequence": True}],
    1: [{}],
}
MORE = {
    8: [
        {"fsdp": 8, "zero": 1},
        {"stage": 2, "fsdp": 2, "tensor": 2, "schedule": "circular", "rounds": 2, "microbatches": 2},
        {"context": 2, "data": 4},
    ],
    4: [{"fsdp": 2, "tensor": 2}],
    1: [{}],
}
PROGRAM = """
import json, pathlib, shutil, sys
import jax, numpy as np
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.config import override, resolve, static
from scalelab.train.resume import start
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.step import program
from scalelab.train.single import train_single
from tests.parallel.test_reshard import SAVED
from tests.train.resume.test_compatibility import SMALL

def config(layout, **changes):
    values = {f"parallel.{axis}": size for axis, size in layout.items()} | {f"train.{k}": v for k, v in changes.items()}
    sizes = {"model.n_layers": 4, "model.d_model": 16, "model.n_heads": 4, "train.global_batch": 8,
             "optim.peak_lr": 0.01, "schedule.name": "constant"}  # which may get more steps
    return resolve(override(tiny.get_config(), SMALL | sizes | values))

def restored(folder, layout):
    "The state as `resume` gets it: where each leaf lies, and its bits."
    checkpoints, name = start.find_last_checkpoint(folder)
    c = config(layout)
    (like,) = program.restore_targets(static(c), 1, "turn")
    (found,) = checkpoints.load({name: like}).states.values()
    targets = map(lambda s: s.sharding, jax.tree.leaves(like))
    for (path, leaf), wanted in zip(jax.tree_util.tree_leaves_with_path(found), targets):
        assert leaf.sharding == wanted, (path, leaf.sharding, wanted)
    on = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(found)}
    on_first = lambda tree: sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))
    held = on_first((found.params, found.opt_state))
    bits = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(found)}
    return bits, {"devices": sorted(on), "bytes_on_first": held, "others_on_first": on_first(found) - held}

def starts_on(folder, layout, before):
    "Whether another run's weights come straight onto this mesh, bit for bit; four devices also train it, at rate zero."
    c = config(layout, init_from=f"{folder}@4", steps=2)
    (like,) = program.restore_targets(static(c), 1, "turn")
    params, origin = start.load_initial_weights(make_train_spec(c))
    for leaf, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(like.params), strict=True):
        assert leaf.sharding == wanted.sharding
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert np.asarray(leaf).tobytes() == before[".params" + jax.tree_util.keystr(path)].tobytes()
    if jax.device_count() != 4:
        return True
    c.optim.peak_lr = 0.0
    return train_single(c, pathlib.Path(f"{folder}-anew"))["params_digest"] == origin["digest"]

def go_on(folder, layout, said):
    "One step more, by the trainer; what the folder then says of it."
    result = train_single(config(layout, steps=5), folder, said.append)
    (line,) = [m for m in records.read_metrics(folder) if m["step"] == 5 and "train_loss" in m]
    moved = [e["text"] for e in records.read_events(folder) if e["kind"] == "moved"]
    promise = records.read_json(folder / "record.json")["determinism"]
    return line | {"resumed_from": result["resumed_from"], "moved": moved, "determinism": promise,
                   "warnings": [s["warning"] for s in said if "warning" in s]}

place, layouts = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
if sys.argv[3:] == ["save"]:
    train_single(config(SAVED), place / "saved")
    np.savez(place / "bits.npz", **restored(place / "saved", SAVED)[0])
    layouts = [SAVED, *layouts]
for layout in layouts:
    folder = place / f"{jax.device_count()}-{len(list(place.iterdir()))}"
    shutil.copytree(place / "saved", folder)
    bits, laid = restored(folder, layout)
    before = np.load(place / "bits.npz")
    other = [k for k in before.files if before[k].dtype != bits[k].dtype or before[k].tobytes() != bits[k].tobytes()]
    said, origin = [], starts_on(folder, layout, before)
    print(json.dumps({"layout": layout, "other_bits": other, "leaves": len(bits), "starts_on": origin,
                      "same_names": set(bits) == set(before.files)} | laid | go_on(folder, layout, said)), flush=True)
"""


def launch(place, layouts: dict[int, list], devices: int, *more: str) -> subprocess.Popen:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(place), json.dumps(layouts[devices]), *more],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def rows(process: subprocess.Popen) -> list[dict]:
    out, err = ended(process)
    assert process.returncode == 0, err[-3000:]
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(
    scope="module", params=[pytest.param(each, marks=pytest.mark.slow) for each in (SOME, MORE)], ids=["some", "more"]
)
def resumed(request, tmp_path_factory) -> list[dict]:
    """The run on the mesh that saved it, then on every other, one step further."""
    place = tmp_path_factory.mktemp("meshes")
    saving = launch(place, request.param, 8, "save")
    first = saving.stdout.readline()  # said once all is saved
    others = [launch(place, request.param, devices) for devices in request.param if devices != 8]
    actual = rows(saving)
    actual = [json.loads(first), *actual, *(row for process in others for row in rows(process))]
    assert [row["layout"] for row in actual] == [SAVED, *(layout for some in request.param.values() for layout in some)]
    return actual


def test_parameters_moments_and_counters_are_the_saved_bits_on_every_mesh(resumed):
    for row in resumed:
        assert row["other_bits"] == [] and row["same_names"] and row["leaves"] > 20, row


def test_another_runs_weights_come_onto_every_mesh_bit_for_bit(resumed):
    assert all(row["starts_on"] for row in resumed)


def test_no_device_ever_holds_more_than_its_part(resumed):
    held = {json.dumps(row["layout"]): row["bytes_on_first"] for row in resumed}
    whole = held["{}"]
    for row in resumed:
        sizes = [row["layout"].get(axis, 1) for axis in MESH_AXES]
        assert row["devices"] == [np.prod(sizes)], row
        assert row["others_on_first"] == resumed[0]["others_on_first"] < 8192, row  # counters and the guard's windows
    # ZeRO 1 splits fp32 parameters too, and gathers them once a step.
    message = {'{"context": 2, "data": 4}': 1, '{"fsdp": 8}': 1 / 8, '{"fsdp": 8, "zero": 1}': 1 / 8}
    for layout in message.keys() & held.keys():
        assert held[layout] == pytest.approx(whole * message[layout], rel=0.02)


def test_the_next_step_has_the_same_loss_on_every_mesh_and_the_change_is_told(resumed):
    first = resumed[0]
    assert all("own values" in word or ": warm-up " in word for word in first["warnings"])
    assert first["moved"] == [] and first["determinism"]["guarantee"] == "same mesh"
    for row in resumed[1:]:
        assert row["resumed_from"] == 4
        assert row["train_loss"] == pytest.approx(first["train_loss"], rel=2e-6), row
        assert row["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-5), row
        (text,) = row["moved"]
        assert text.startswith("mesh fsdp=8, zero=3 -> ") and any(text in word for word in row["warnings"])
        assert row["determinism"]["guarantee"] == "statistical" and text in row["determinism"]["why"]
    message = [row["moved"][0].split(" -> ")[1] for row in resumed[1:]]
    some = ["fsdp=4 x tensor=2, sequence, zero=3", "one device"]
    pipeline = "stage=2 x fsdp=2 x tensor=2, circular, zero=3"
    more = ["fsdp=8, zero=1", pipeline, "data=4 x context=2", "fsdp=2 x tensor=2, zero=3", "one device"]
    assert message in (some, more)
