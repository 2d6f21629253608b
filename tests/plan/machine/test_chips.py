"""A TPU's share in products against published step times, passes of full precision, and what a send to the neighbour
has."""

import dataclasses

import pytest

from checks.speed.step_times import tables
from checks.speed.step_times.rows import build_static
from scalelab.config import Layout
from scalelab.hardware.chips import compute_capability
from scalelab.model import count
from scalelab.plan.compiled.absent_devices import GPUS
from scalelab.plan.machine.machine import KNOWN_MACHINES, load_machine
from scalelab.plan.step import efficiency, links
from scalelab.plan.step.efficiency import Range
from scalelab.plan.step.time import step_time
from scalelab.plan.step.traffic import step_transfers
from tests.tables import table_path


@pytest.mark.full
def test_tables_name_every_chips_share():
    """Published step times of four TPUs, solved for the share of the peak that fits them; MaxText's scale rule by its
    names."""
    rows = {
        row.machine.chip.name: row for row in tables.read_tables(table_path("step_times")).values()
    }  # the last of each chip
    assert set(efficiency.MATMUL_BY_CHIP) <= set(rows)
    for chip, share in efficiency.MATMUL_BY_CHIP.items():
        assert tables.share_that_fits(rows[chip]) == pytest.approx(share, abs=0.03)


def test_compute_capabilities_are_those_of_the_compilers_targets():
    """The compiler's table of GPUs, and every GPU of the planner's; an A100 is not an A10."""
    machines = {name: load_machine(name) for name in KNOWN_MACHINES}
    others = ("TPU", "MI", "Trainium")
    gpus = {m.chip.name: m.chip for m in machines.values() if not m.chip.name.startswith(others)}
    assert {name: compute_capability(gpus[name]) for name in GPUS} == {
        name: gpu.capability for name, gpu in GPUS.items()
    }
    assert all(compute_capability(chip) for chip in gpus.values())
    assert [compute_capability(gpus[name]) for name in ("A10", "RTX 4090", "L4", "T4")] == [
        (8, 6), (8, 9), (8, 9), (7, 5)
    ]  # fmt: skip
    assert compute_capability(load_machine("v5e").chip) is None
    assert {compute_capability(load_machine(name).chip) for name in ("mi300x", "mi325x", "mi355x", "trn2")} == {(0, 0)}


@pytest.mark.parametrize("billions", [16, 32, 64, 128, 1024])
def test_maxtexts_scale_rule_gives_the_sizes_it_names(billions):
    (preset, layers, width, heads), model = tables.maxtext_shape(billions)
    of = build_static(preset, layers, width, heads, 1, 2048, 32_000, model=model)
    assert count.count_parameters(of.model)["total"] == pytest.approx(billions * 1e9, rel=0.05)


@pytest.mark.parametrize(("precision", "passes"), [("fp32", 6), ("tf32", 3)])
def test_full_precision_takes_a_tpu_more_passes(precision, passes):
    """`fp32` asks jax for "highest", `tf32` for "tensorfloat32": six and three passes of bf16, so as much more time
    where FLOPs decide."""
    tpu = load_machine("v5e")
    tpu = dataclasses.replace(tpu, chip=dataclasses.replace(tpu.chip, hbm_bytes_per_s=1e30))
    half, full = (
        step_time(
            build_static("llama", 4, 512, 8, 64, 1024, 4096, precision=name, model={"attention": "plain"}), tpu
        ).compute_s
        for name in ("bf16", precision)
    )
    assert full == pytest.approx(passes * half, rel=0.01)


def test_a_send_to_the_neighbour_has_one_port():
    """Keys and values round a ring over nodes: 50 GB/s, not the eight ports that a collective is spread over; one link
    of a torus."""
    h100, v5p = load_machine("h100"), load_machine("v5p")
    ring = Layout(context=16)
    assert links.bytes_per_s(ring, h100, "context") == 400e9
    assert links.bytes_per_s(ring, h100, "context", kind="send") == 50e9
    assert links.bytes_per_s(Layout(context=8), h100, "context", kind="send") == 450e9
    assert links.bytes_per_s(Layout(context=16), v5p, "context", kind="send") == 90e9
    long = build_static("llama", 4, 512, 8, 1, 131_072, 4096, context=16)
    moved = sum(t.times * t.whole_bytes for t in step_transfers(long) if t.kind == "send")
    slow = dataclasses.replace(efficiency.default_efficiency(h100), network=Range(1.0, 1.0, 1.0))
    assert step_time(long, h100, slow).axes["context"] >= moved / 50e9


def test_figures_that_were_read_twice():
    """Trainium2: AWS's page of trn2.48xlarge. MI355X: FLOP a clock and unit. A10G: what products reached."""
    trn2, mi355x, a10g = (load_machine(name).chip for name in ("trn2", "mi355x", "a10g"))
    assert 2 * trn2.links * trn2.link_bytes_per_s == 1024e9 and load_machine("trn2").devices_per_node == 16
    assert 16 * trn2.flops["bfloat16"] == pytest.approx(10.7e15, rel=0.01)
    assert 16 * trn2.flops["float8"] == pytest.approx(20.8e15, rel=0.01) and 16 * trn2.hbm_bytes_per_s == 46.4e12
    assert mi355x.flops["float8"] == pytest.approx(8192 * 256 * 2.4e9, rel=1e-3)
    for unit, reached in (("bfloat16", 69.47e12), ("tensorfloat32", 34.71e12)):
        assert reached < a10g.flops[unit] < 1.02 * reached
