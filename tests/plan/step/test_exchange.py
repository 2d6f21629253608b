"""What is sent to experts and back, as planned and as XLA compiles it for eight devices."""

import functools
import json
import os
import subprocess
import sys

import jax
import pytest

from scalelab.config import Layout
from scalelab.parallel.stages import ticks
from scalelab.plan.compiled import aot, program
from scalelab.plan.step import expert_rows
from scalelab.plan.step.traffic import step_transfers
from scalelab.train.step.step import many_steps
from tests.plan.small import static_of

MODEL = {
    "block": "experts", "n_experts": 8, "experts_per_token": 2, "d_expert": 32, "attention": "plain", "n_layers": 1,
}  # fmt: skip
# {name: (layout, changes to a model of one layer, other changes)}: no other axis has as many devices as `expert`.
CASES = {
    "expert": ({"expert": 8}, {}, {}),
    "data": ({"expert": 4, "data": 2}, {"n_layers": 2}, {}),
    "fsdp": ({"expert": 4, "fsdp": 2}, {}, {}),
    "fsdp over more": ({"expert": 2, "fsdp": 4}, {}, {}),
    "tensor": ({"expert": 4, "tensor": 2}, {}, {}),
    "a buffer": ({"expert": 4, "data": 2, "expert_buffer": 1.5}, {}, {}),
    "remat, micro-batches": ({"expert": 4, "fsdp": 2}, {}, {"model.remat": "full", "train.accumulate": 2}),
    "stages": ({"stage": 2, "expert": 4, "microbatches": 4}, {"n_layers": 4}, {}),
    "stages, a buffer": (
        {"stage": 2, "expert": 4, "schedule": "gpipe", "microbatches": 2, "expert_buffer": 1.5},
        {"n_layers": 2},
        {},
    ),
    "a shared expert": ({"expert": 8}, {"n_shared_experts": 1, "experts_per_token": 3}, {"model.remat": "dots"}),
}


def static_of_case(name):
    layout, model, changes = CASES[name]
    others = {key.replace(".", "__"): value for key, value in changes.items()}
    return static_of(Layout(**layout), batch=16, model=MODEL | model, **others)


def planned_bytes(static):
    """What a device sends a step along `expert` in all-to-alls: all but its own part.

    A program's text has every branch of every tick of a pipeline, where the plan counts micro-batches; and the last
    block's forward once more a tick, for the loss, which the last stage alone runs.
    """
    layout, moves = static.layout, [t for t in step_transfers(static) if t.sends_rows]
    planned = sum(t.times * t.whole_bytes for t in moves)
    if layout.stage > 1:
        n_ticks = ticks.count_ticks(layout.schedule, layout.stage, layout.microbatches, layout.rounds)
        rows, (row, numbers) = expert_rows.sent_rows(static), expert_rows.row_bytes(static)
        planned = n_ticks * (planned / layout.microbatches + rows * (2 * row + numbers))
    return planned * (1 - 1 / layout.expert)


def compiled_bytes(static):
    """What a device sends in all-to-alls among as many devices, in a step compiled for the eight that are here."""
    arguments, mesh = aot._step_arguments(static, jax.devices(), 1)
    with jax.set_mesh(mesh):
        text = jax.jit(functools.partial(many_steps, static)).lower(*arguments).compile().as_text()
    rows = [row for row in program.read_collectives(text) if row.kind == "all-to-all"]
    return sum(row.sent_bytes for row in rows if row.members == static.layout.expert)


@pytest.mark.slow
def test_planned_bytes_are_those_of_the_compiled_step():
    """Of every layout, in one process with eight fake devices; XLA:CPU moves fp32, so the plans are in fp32."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "tests.plan.step.test_exchange"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert compiled == {name: pytest.approx(planned_bytes(static_of_case(name)), rel=1e-9) for name in CASES}


if __name__ == "__main__":
    print(json.dumps({name: compiled_bytes(static_of_case(name)) for name in CASES}))
