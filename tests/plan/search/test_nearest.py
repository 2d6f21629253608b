"""The nearest plan that fits against brute force over a small space, and what it may never name."""

import dataclasses
import itertools
import math

import pytest

from scalelab import config as configs
from scalelab.config import Layout
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.search import levers
from scalelab.plan.search.nearest import find_refusal, nearest_fit
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.time import expected_s
from tests.quick import others_slow

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
            if find_refusal(static) is None and step_memory(static, machine, fast).fits:
                yield expected_s(static, machine, default_efficiency(machine)), keys | {"remat": remat, "each": each}


@pytest.mark.full
@pytest.mark.parametrize("gib", others_slow(lambda gib: gib in (0.5, 1.5), [0.5, 0.7, 1.0, 1.5]))
def test_the_nearest_plan_is_the_fastest_of_all_that_fit(gib):
    tree, machine = config(), card(gib)
    best = min(every_plan(tree, machine), key=lambda plan: plan[0])
    nearest = nearest_fit(tree, machine, 4, default_efficiency(machine))
    seconds = expected_s(nearest.static, machine, default_efficiency(machine))
    assert step_memory(nearest.static, machine).fits and not nearest.alters
    assert seconds == pytest.approx(best[0], rel=1e-9), (nearest.changes, best)


@pytest.mark.parametrize(
    ("batch", "devices", "rounded"),
    [
        (512, 12, 504), (512, 7, 504), (1024, 96, 1056), (1024, 1000, 1000), (512, 64, None),
        (128, 768, 96), (128, 512, None), (128, 4096, None), (128, 256, None), (512, 768, 480), (64, 96, 60),
    ],
)  # fmt: skip
def test_a_batch_that_devices_do_not_divide_is_rounded_to_one_that_they_do(batch, devices, rounded):
    """By hand: multiples of 24, 28, 96 and 1,000; a 32nd of the batch at most where one sequence a device allows it.

    Eight of 768 devices share a sequence; four of 512 and two of 256 take the batch as it is; 4,096 are too many. Of
    512 sequences on 768 devices eight share one (480) rather than none (768), four (576) or two (384).
    """
    changes = levers.round_batch(config(**{"train.global_batch": batch, "train.steps": 1000}), devices)
    steps = rounded and math.ceil(1000 * batch / rounded)
    assert changes == ({"train.global_batch": str(rounded), "train.steps": str(steps)} if rounded else {})


@pytest.mark.parametrize(
    ("batch", "devices", "even"),
    [
        (1009, 8, 1024), (1000, 8, 1024), (1_000_001, 1, 2**20), (7, 8, 8), (15, 16, 16), (100, 8, 96),
        (1024, 8, None), (960, 8, None), (15_360, 2048, None), (1, 1, None),
    ],
)  # fmt: skip
def test_an_odd_batch_has_one_near_it_that_splits(batch, devices, even):
    """By hand: 2^10 is 15 from 1,009, 2^20 4.9 % from 1,000,001, 2^14 6.7 % from 15,360; 3 x 32 are 4 % from 100."""
    changes = levers.even_batch(config(**{"train.global_batch": batch, "train.steps": 1000}), devices)
    steps = even and math.ceil(1000 * batch / even)
    assert changes == ({"train.global_batch": str(even), "train.steps": str(steps)} if even else {})


@pytest.mark.full
def test_a_warm_up_in_tokens_follows_a_rounded_batch():
    """`plan --config=olmo2_7b --devices=24` found nothing: the batch's own warm-up steps contradicted its tokens."""
    changes = {"train.steps": 1000, "train.global_batch": 1024, "schedule.warmup_tokens": 32 * 1024 * 1024}
    tree, machine = config(**changes), load_machine("h100")
    option = nearest_fit(tree, machine, 24, default_efficiency(machine))
    assert option.changes["train.global_batch"] == 1008 and option.config.schedule.warmup_steps == 33


@pytest.mark.full
@pytest.mark.parametrize("devices", [3, 6, 7])
def test_devices_that_do_not_divide_the_batch_get_a_plan_that_the_trainer_takes(devices):
    tree, machine = config(), load_machine("h100")
    option = nearest_fit(tree, machine, devices, default_efficiency(machine))
    made = configs.static(configs.resolve(configs.override(tree, option.changes)))
    assert made.layout.devices == devices and find_refusal(made) is None and step_memory(made, machine).fits
    assert "train.global_batch" in option.alters and made.global_batch % devices == 0
