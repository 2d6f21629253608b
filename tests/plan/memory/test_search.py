"""The nearest plan that fits against brute force over a small space, and what it may never name."""

import dataclasses
import itertools

import pytest

from scalelab import config as configs
from scalelab.config import Layout
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations, search
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.time import expected_s

GIB = 2**30
MESHES = [
    (d, f, t, c, s) for d, f, t, c, s in itertools.product((1, 2, 4), repeat=5) if d * f * t * c * s == 4 and c == 1
]
ROWS = (1, 2, 4, 8, 16)


def config(**values):
    tree = base.get_config()
    tree.model = base.llama(1024, 4, 8)
    sizes = {"model.seq_len": 1024, "model.vocab_size": 8192, "train.global_batch": 16, "optim.peak_lr": 1e-3}
    return configs.resolve(configs.override(tree, sizes | {"precision.name": "bf16"} | values))


def card(gib):
    known = load_machine("h100")
    return dataclasses.replace(known, chip=dataclasses.replace(known.chip, given_bytes=int(gib * GIB)))


def every_plan(tree, machine):
    """(seconds, config keys) of every plan of 4 devices that the trainer takes and that fits."""
    fast = estimated_activations.estimate_saved_activations
    for mesh, zero, remat, sequence, rows in itertools.product(
        MESHES, range(4), ("none", "dots", "full"), (False, True), ROWS
    ):
        d, f, t, _, s = mesh
        each = 16 // (d * f * rows)
        if (sequence and t == 1) or (zero < 3 and f == 1) or not each or (s > 1 and remat != "none"):
            continue
        for micro in [k for k in (1, 2, 4, 8, 16) if each % k == 0] if s > 1 else [1]:
            layout = Layout(*mesh, sequence, zero=zero, microbatches=micro)
            keys = {f"parallel.{key}": value for key, value in dataclasses.asdict(layout).items()}
            try:
                made = configs.resolve(
                    configs.override(tree, keys | {"model.remat": remat, "train.accumulate": each // micro})
                )
            except BadInput:
                continue
            static = configs.static(made)
            if search.find_refusal(static) is None and step_memory(static, machine, fast).fits:
                yield expected_s(static, machine, default_efficiency(machine)), keys | {"remat": remat, "each": each}


@pytest.mark.full
@pytest.mark.parametrize("gib", [0.5, 0.7, 1.0, 1.5])
def test_the_nearest_plan_is_the_fastest_of_all_that_fit(gib):
    tree, machine = config(), card(gib)
    best = min(every_plan(tree, machine), key=lambda plan: plan[0])
    nearest = search.nearest_fit(tree, machine, 4, default_efficiency(machine))
    seconds = expected_s(nearest.static, machine, default_efficiency(machine))
    assert step_memory(nearest.static, machine).fits and not nearest.alters
    assert seconds == pytest.approx(best[0], rel=1e-9), (nearest.changes, best)
