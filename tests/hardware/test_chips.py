"""The chip table against published utilisation figures, and the matching of jax's device kinds."""

import jax
import jax.numpy as jnp
import pytest

from scalelab.hardware import chips, measured
from scalelab.hardware.measured import measured_matmul_flops

# What jax reports as `device_kind` -> the name in the table.
KINDS = {
    "TPU v4": "TPU v4",
    "TPU v5 lite": "TPU v5e",
    "TPU v5e": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v5p": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU7x": "TPU v7",
    "NVIDIA B200": "B200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA H800": "H800",
    "NVIDIA H20": "H20",
    "NVIDIA A800-SXM4-80GB": "A800",
    "NVIDIA A10G": "A10G",
    "NVIDIA L40": "L40",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "trn2": "Trainium2",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA A100-SXM4-40GB": "A100 40GB",
    "NVIDIA A100-PCIE-40GB": "A100 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 80GB SXM",
    "NVIDIA A100 80GB PCIe": "A100 80GB PCIe",
    "NVIDIA A10": "A10",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "Tesla V100-SXM2-16GB": "V100 SXM2 16GB",
    "Tesla V100-SXM2-32GB": "V100 SXM2 32GB",
    "Tesla V100-PCIE-16GB": "V100 PCIe 16GB",
    "Tesla V100-PCIE-32GB": "V100 PCIe 32GB",
    "Tesla T4": "T4",
}
# Relatives that have other figures, slices of a chip, and what is no chip at all.
UNKNOWN = [
    "cpu", "", "TPU v4 lite", "NVIDIA GH200 144G HBM3e", "NVIDIA A800 40GB Active", "NVIDIA L20", "AMD Instinct MI210",
    "NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_device_kind_finds_its_chip(kind):
    assert chips.find_chip(kind).name == KINDS[kind]


def test_every_chip_is_found_by_some_device_kind():
    assert {chip.name for chip in chips.CHIPS.values()} == set(KINDS.values())


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_the_table_does_not_know_is_none(kind):
    assert chips.find_chip(kind) is None
    assert chips.table_flops(kind, "bfloat16") is None


def test_llama3_utilisation():
    """Llama 3 (Dubey et al. 2024), Table 4: 430, 400 and 380 TFLOP/s per H100 are printed as 43, 41 and 38 %."""
    peak = chips.find_chip("NVIDIA H100 80GB HBM3").flops["bfloat16"]
    assert [100 * tflops * 1e12 / peak for tflops in (430, 400, 380)] == pytest.approx([43, 41, 38], abs=0.7)


def test_palm_utilisation():
    """PaLM (Chowdhery et al. 2022), section 4.1 and App. B: 238.3k tokens/s of 540B on 6,144 TPU v4 is 46.2 % MFU."""
    flops_per_token = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    peak = 6144 * chips.find_chip("TPU v4").flops["bfloat16"]
    assert 238.3e3 * flops_per_token / peak == pytest.approx(0.462, abs=0.0005)


def test_megatron_utilisation():
    """Narayanan et al. 2021, Table 1: 137 and 163 TFLOP/s per A100 are 44 and 52 % of its peak."""
    peak = chips.find_chip("NVIDIA A100-SXM4-80GB").flops["float16"]
    assert [round(100 * tflops * 1e12 / peak) for tflops in (137, 163)] == [44, 52]


def test_scaling_book_rooflines():
    """How to Scale Your Model: 240 FLOPs per byte of v5e's HBM (part 1), 2,550 per byte over a v5p axis (part 5)."""
    v5e, v5p = chips.find_chip("TPU v5 lite"), chips.find_chip("TPU v5p")
    assert v5e.flops["bfloat16"] / v5e.hbm_bytes_per_s == pytest.approx(240, rel=0.01)
    assert v5p.flops["bfloat16"] / (2 * v5p.link_bytes_per_s) == pytest.approx(2550, rel=0.001)


@pytest.mark.parametrize("chip", chips.CHIPS.values(), ids=lambda chip: chip.name)
def test_units(chip):
    """A factor of 1,000 or 2 (sparse) in the wrong place breaks one of these."""
    half = chip.flops.get("bfloat16", chip.flops.get("float16"))
    assert 5e13 < half < 3e15
    assert 15 * 2**30 < chip.hbm_bytes < 300 * 2**30
    assert 2e11 < chip.hbm_bytes_per_s < 1e13
    assert 1e10 < chip.link_bytes_per_s * chip.links < 1e12
    assert 35 < half / chip.hbm_bytes_per_s < 600  # FLOPs per byte: H20 37, RTX 3090 76, v6e 560
    if "float8" in chip.flops:
        assert chip.flops["float8"] == pytest.approx(2 * half, rel=0.03)
    if "tensorfloat32" in chip.flops and chip.name != "Trainium2":  # it multiplies tf32 at the rate of bf16
        assert chip.flops["tensorfloat32"] == pytest.approx(half / 2, rel=0.02)


def test_racks_are_72_of_their_gpus():
    """NVIDIA's NVL72 pages: 360 PFLOP/s of sparse bf16 a rack; 13.4 TB at 576 TB/s (GB200), 20 TB at 576 (GB300)."""
    for name, terabytes in (("GB200", 13.4), ("GB300", 20)):
        chip = chips.find_chip(f"NVIDIA {name}")
        assert 2 * 72 * chip.flops["bfloat16"] == pytest.approx(360e15)
        assert 72 * chip.hbm_bytes_per_s == pytest.approx(576e12)
        assert 72 * chip.hbm_bytes / 2**30 * 1e9 == pytest.approx(terabytes * 1e12, rel=0.01)


def test_products_are_rated_by_the_unit_that_runs_them():
    assert chips.table_flops("NVIDIA H100 80GB HBM3", jnp.float32)[0] == pytest.approx(66.9e12)
    assert chips.table_flops("NVIDIA H100 80GB HBM3", "tensorfloat32")[0] == 494.7e12
    assert chips.table_flops("TPU v4", jnp.float32)[0] == pytest.approx(275e12 / 6)  # bf16 passes: jax.lax.Precision
    assert chips.table_flops("TPU v5 lite", "tensorfloat32")[0] == pytest.approx(197e12 / 3)
    assert "6 passes" in chips.table_flops("TPU v4", jnp.float32)[1]
    assert chips.table_flops("Tesla V100-SXM2-16GB", jnp.float32)[0] == 15.7e12
    assert chips.table_flops("NVIDIA H100 80GB HBM3", jnp.float8_e4m3fn)[0] == 1978.9e12
    assert chips.table_flops("Tesla T4", jnp.bfloat16) is None
    assert "bfloat16" in chips.table_flops("TPU v4", jnp.float32)[1]


def test_cpu_peak_is_measured_once_and_says_so():
    flops, source = measured.peak_flops(jax.devices("cpu")[0])
    assert 1e8 < flops < 1e14
    assert "measured float32 matmul" in source
    assert measured.peak_flops(jax.devices("cpu")[0], jnp.float32) == (flops, source)


def test_the_measurement_counts_2n3_flops_over_the_best_time(monkeypatch):
    seconds = iter([0.5, 0.25, 1.0])
    monkeypatch.setattr(measured, "_time_call", lambda function, argument: next(seconds))
    assert measured_matmul_flops(8, repeats=3) == 2 * 8**3 / 0.25
