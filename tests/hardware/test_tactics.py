"""Tactics for compilers: one switch, a first line that says what speaks for each, and programs without them."""

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest

from scalelab.errors import BadInput
from scalelab.hardware import tactics
from scalelab.hardware.tactics import switch
from scalelab.train.lineage import determinism
from tests.train.runs import ROOT, command, ended, finish, run_here, train

FILES = {
    **{path.stem: path for path in pathlib.Path(tactics.__file__).parent.glob("*.py")},
    "compiler_options": ROOT / "scalelab" / "hardware" / "compiler_options.py",
    "parts": ROOT / "scalelab" / "model" / "products" / "parts.py",
}  # fmt: skip
ESTIMATES = ("Only a compiler's estimate speaks for this: ", "Only a compiled program speaks for this: ",
             "Only compiled programs speak for ")  # fmt: skip
# The step's program of a platform that is not here, and loss and gradients of a mesh, printed as JSON.
PROGRAMS = """
import contextlib, functools, json, sys
import jax
from scalelab import config as config_lib
from scalelab.configs import tiny
from checks.numerics.parallelism import layouts
from scalelab.experiments.studies.fsdp import rows
from scalelab.plan.compiled.aot import _step_arguments
from scalelab.sharding import trace_for_platform
from scalelab.train.step.step import many_steps

MESH = {"parallel.fsdp": 2, "parallel.tensor": 2, "parallel.sequence": True, "parallel.parts": 2}
CASES = {
    "cpu": {"log.layers_every": 2},
    "cpu mesh": MESH,
    "gpu": {"precision.name": "fp8_delayed"},
    "gpu layers": {"train.updates": "per_layer"},
    "tpu": {"precision.name": "bf16", "parallel.fsdp": 4},
}
for name, changes in CASES.items():
    changes = {"model.n_layers": 2, "model.attention": "plain"} | changes
    static = config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), changes)))
    with trace_for_platform(name.split()[0]):
        arguments, mesh = _step_arguments(static, jax.devices()[: static.layout.devices], 1)
        with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
            text = str(jax.make_jaxpr(functools.partial(many_steps, static))(*arguments))
    print(json.dumps([name, *[text.count(word) for word in ("optimization_barrier", "layout_constraint")]]))
if sys.argv[1:]:
    layout = "fsdp+tensor+sequence"
    row = rows.compare_layout(layout, layouts.LAYOUTS[layout], {"train.accumulate": 2}, "fp32", costly=False)
    print(json.dumps([row["loss_rel_diff"], row["grad_rel_diff"]]))
"""


def test_each_tactic_is_a_file_that_says_what_speaks_for_it_and_how_to_go_without():
    assert set(FILES) == {*switch.TACTICS, "switch", "__init__"}
    for name in switch.TACTICS:
        path = FILES[name]
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text.startswith(("Measured: ", *ESTIMATES)), path
        assert f"{switch.VARIABLE}={name}" in text.replace("\n", ""), path


def test_the_switch_takes_names_or_all():
    assert switch.tactics_off({}) == () and switch.tactics_off({switch.VARIABLE: " "}) == ()
    assert switch.tactics_off({switch.VARIABLE: "turn, exchange"}) == ("exchange", "turn")
    assert switch.tactics_off({switch.VARIABLE: "turn,all"}) == switch.TACTICS
    with pytest.raises(BadInput, match="'exchnge' is not a tactic; did you mean 'exchange'"):
        switch.tactics_off({switch.VARIABLE: "turn,exchnge"})


@pytest.mark.full
def test_a_name_that_is_not_a_tactic_is_refused_and_leaves_nothing(tmp_path):
    _, err = ended(process := command(*train(tmp_path / "run"), env={switch.VARIABLE: "barriers"}))
    assert process.returncode == 2 and "'barriers' is not a tactic" in err and not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_run_without_tactics_has_equal_losses_and_says_so(tmp_path):
    losses = {}
    for off in ("", "all"):
        folder = tmp_path / (off or "none")
        arguments = train(folder, "--config.train.steps=3", "--config.log.every_steps=1")
        finish(command(*arguments, env={switch.VARIABLE: off})) if off else run_here(*arguments)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses[off] = [line["train_loss"] for line in lines if "train_loss" in line]
        record, events = (json.loads((folder / "record.json").read_text()), (folder / "events.jsonl").read_text())
        assert record.get("tactics_off", []) == (list(switch.TACTICS) if off else [])
        assert ("without tactics for compilers" in events) == bool(off)
    assert len(losses["all"]) == 3 and losses["all"] == pytest.approx(losses[""], rel=1e-6)


def test_a_run_that_goes_on_without_a_tactic_has_moved(monkeypatch):
    before = determinism.hardware_facts("one device", False)
    monkeypatch.setenv(switch.VARIABLE, "turn")
    after = determinism.hardware_facts("one device", False)
    assert determinism.describe_hardware_change(before, after) == "tactics_off none -> turn"
    assert determinism.describe_hardware_change(after, after) == ""


def programs(off, *arguments):
    """What PROGRAMS prints on eight fake devices, a JSON value a line."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags, switch.VARIABLE: off},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
def test_programs_have_barriers():
    for name, barriers, layouts in programs(""):
        assert barriers > 0 and (layouts > 0) == (name == "gpu layers"), name


@pytest.mark.full
def test_programs_without_tactics_have_none_and_a_mesh_computes_one_devices_gradients():
    *counts, (loss, gradient) = programs("all", "mesh")
    assert [barriers + layouts for _, barriers, layouts in counts] == [0] * 5
    assert loss <= 2e-6 and gradient <= 3e-6  # the tolerances of checks/numerics/parallelism
