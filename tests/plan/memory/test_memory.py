"""Components of a step's memory against XLA, papers' tables and a count by hand."""

import dataclasses

import jax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec

from scalelab.config import Layout
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.registry import find_optimizer
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import memory as memory_lib
from scalelab.plan.memory import saved_activations
from scalelab.plan.memory.held import device_bytes
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.published.zero import state_bytes
from tests.plan.small import on_eight, pipelined, static_of
from tests.quick import one_in

H100 = load_machine("h100")
LLAMA_7B = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11008, "vocab_size": 32000, "seq_len": 2048}
LLAMA_405B = {
    "n_layers": 126,
    "d_model": 16384,
    "n_heads": 128,
    "n_kv_heads": 8,
    "d_ff": 53248,
    "vocab_size": 128256,
    "seq_len": 8192,
}
LAYOUTS = ["data=8", "fsdp=8,zero=1", "fsdp=8", "fsdp=4,tensor=2", "data=2,fsdp=4", "stage=2,data=4,microbatches=2"]


@pytest.mark.full
@pytest.mark.parametrize("layouts", [LAYOUTS[1:4:2], pytest.param([*LAYOUTS[::2], LAYOUTS[5]], marks=pytest.mark.slow)])
def test_argument_bytes_of_the_real_step(layouts):
    """XLA's own count of what the compiled train step is given, on eight fake devices: exact."""
    for layout, counts in on_eight(layouts).items():
        assert counts["arguments"]["planned"] == counts["arguments"]["xla"], layout


def test_fp32_adam_by_zero_stage():
    """Adam in bf16: the paper's 2 bytes of weights, and K = 12 of state; its 2 of gradients are 4, in fp32, here.

    Micro-batches are summed, beside which there are the gradients of the one under way.
    """
    n, rows = 6_738_415_616, 32_000 * 4096  # an embedding has no copy: its rows travel
    for zero in range(4):
        static = static_of(Layout(fsdp=16, zero=zero), batch=32, model=LLAMA_7B, train__accumulate=2)
        actual = step_memory(dataclasses.replace(static, precision="bf16"), H100).components
        state = actual["parameters"] + actual["optimizer"]
        copies, summed = actual.get("copies", 0), actual["gradients"] // 2
        weights = 2 * n if zero in (1, 2) else 0  # whole at stage 0, gathered layer by layer at stage 3
        # Gains are whole on every device: 0.004 % of the parameters.
        assert copies == pytest.approx(weights and weights - 2 * rows, rel=1e-3)
        assert summed == pytest.approx(4 * n / (16 if zero >= 2 else 1), rel=0.05)  # 2 % of stage 1: the embedding's
        if zero in (1, 2):
            assert state + copies + summed / 2 == pytest.approx(state_bytes(n, 16, zero), rel=0.02)
        else:
            assert state == pytest.approx(12 * n / (16 if zero else 1), rel=1e-3)


def test_hsdp_holds_what_fsdp_of_its_size_holds():
    ours = [
        step_memory(static_of(layout, batch=16, model=LLAMA_7B), H100).components
        for layout in (Layout(fsdp=8), Layout(data=2, fsdp=8))
    ]
    for name in ("parameters", "optimizer", "gradients"):
        assert ours[0][name] == ours[1][name]
    assert ours[0]["activations"] > ours[1]["activations"]  # of twice the rows


def test_405b_on_16384_devices_stages_may_be_uneven():
    """126 layers over 16 stages: 8 on the fullest; the whole fits 80 GB as Llama 3's layout did (Dubey et al. 2024,
    Table 4).
    """
    layout = Layout(tensor=8, stage=16, data=8, fsdp=16, microbatches=16, sequence=True)
    memory = step_memory(static_of(layout, batch=2048, model=LLAMA_405B, precision__name="bf16"), H100)
    assert memory.fits and memory.margin_bytes == memory.capacity - memory.total
    assert sum(memory.components.values()) == memory.total
    assert any("8 on the fullest stage" in note for note in memory.notes)
    layer = 4 * (2 * 16384**2 + 2 * 16384 * 8 * 128 + 3 * 16384 * 53248)  # fp32 matrices of a layer
    rest = 2 * 4 * 16384 * 128256
    # At rest every stage has its part of all 126 layers, and a step lays them out in 8 slots.
    assert memory.components["parameters"] == pytest.approx((126 / 16 * layer + rest) / 8 / 16, rel=1e-3)
    assert memory.components["copies"] == pytest.approx(8 * layer / 8 / 16, rel=1e-3)
    assert memory.components["gradients"] == pytest.approx((8 * layer + rest) / 8 / 16, rel=0.01)


SCHEDULES = [
    # GPipe holds every micro-batch, 1F1B 2 p - 1, interleaving with all forwards first every one a chunk.
    ("1f1b", 8, 1, 7, "dots"),
    *(("gpipe", 8, 1, 8, remat) for remat in ("none", "full")),
    *(("1f1b", 2, 1, 2, remat) for remat in ("none", "dots", "full")),
    ("circular", 8, 2, 16, "none"),
    ("1f1b", 8, 2, 11, "none"),
]


@pytest.mark.parametrize(("schedule", "microbatches", "rounds", "slots", "remat"), SCHEDULES)
@pytest.mark.full
def test_a_pipeline_keeps_what_its_loop_over_ticks_carries(schedule, microbatches, rounds, slots, remat):
    """Activations are exact: what the traced step hands from tick to tick in bf16, split over devices as it lies."""
    layout = Layout(
        stage=4, fsdp=2, tensor=2, sequence=True, schedule=schedule, microbatches=microbatches, rounds=rounds
    )
    assert memory_lib.pipeline_slots(layout) == slots
    static = static_of(layout, batch=16, model={"n_layers": 8}, precision__name="bf16", model__remat=remat)
    loops = [loop for loop in scans(pipelined(static).jaxpr.jaxpr) if loop.params["num_carry"] > 3]
    most = max(loops, key=lambda loop: loop.params["length"])
    carried = [v.aval for v in most.params["jaxpr"].jaxpr.invars[most.params["num_consts"] :]][
        : most.params["num_carry"]
    ]
    remaining = sum(saved_activations._device_bytes(x) for x in carried if x.dtype == "bfloat16")
    assert step_memory(static, H100).components["activations"] == remaining


def scans(jaxpr):
    """Every loop of a jaxpr and of what it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for part in jaxprs_in_params(equation.params):
            yield from scans(part)


@pytest.mark.parametrize(("layers", "rounds", "held"), [(8, 1, 4), (8, 2, 4), (9, 1, 5), (9, 2, 6), (10, 2, 6)])
def test_layers_on_the_fullest_of_two_stages(layers, rounds, held):
    """As many in each round: 9 layers over 2 stages twice are chunks of 3."""
    layout = Layout(stage=2, rounds=rounds, tensor=2)
    spec = PartitionSpec("stage", "fsdp", "tensor")
    assert device_bytes((layers, 6, 10), "float32", spec, layout) == 4 * held * 6 * 5


COUNTED = (
    "adamw",
    "adam8bit",
    "muon",
    "galore",
    "sgd",
    "momentum",
    "lion",
    "adafactor",
    "soap",
    "shampoo",
    "apollo_mini",
    "ademamix",
    "schedule_free_adamw",
)


@pytest.mark.parametrize("name", one_in(3, COUNTED))
def test_every_optimizer_counts_itself(name):
    """Beside what its record says of each parameter (`state_bytes`), there are scalars only; the guard is off."""
    static = static_of(optim__name=name, optim__peak_lr=1e-3, guard__policy="off")
    member = find_optimizer(name)
    message = sum(
        member.state_bytes(d, static.optim) if member.claims(d) else 8 * d.size
        for d in jax.tree.leaves(parameter_declarations(static.model))
    )
    assert 0 <= step_memory(static, H100).components["optimizer"] - message < 200


def test_notes_say_what_is_not_as_one_may_think():
    assert any("as ZeRO 2" in n for n in step_memory(static_of(Layout(fsdp=2, zero=1)), H100).notes)
    both = dataclasses.replace(static_of(), layout=Layout(stage=2, context=2))
    assert any("refuses" in n for n in step_memory(both, H100).notes)
    assert not step_memory(static_of(), H100).notes


def test_weights_kept_in_bf16_are_widened_in_the_step():
    plain, half = (step_memory(static_of(precision__name=name), H100).components for name in ("bf16", "bf16_master"))
    assert half["parameters"] * 2 == plain["parameters"] == half["master"] and "master" not in plain
