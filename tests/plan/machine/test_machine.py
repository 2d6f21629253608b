"""Every chip of the table under a short name, networks against the makers' figures for whole systems, and descriptions
of one's own."""

import json

import pytest

from scalelab.errors import BadInput
from scalelab.hardware import chips
from scalelab.plan.machine.machine import KNOWN_MACHINES, load_machine

# What a user types -> the chip it means.
NAMES = {
    "h100": "H100 SXM", "H100": "H100 SXM", "h200": "H200 SXM", "b200": "B200", "h100-nvl": "H100 NVL",
    "h100_pcie": "H100 PCIe", "a100": "A100 80GB SXM", "a100-40gb": "A100 40GB", "a100-pcie": "A100 80GB PCIe",
    "v4": "TPU v4", "v5e": "TPU v5e", "v5p": "TPU v5p", "v6e": "TPU v6e", "v7": "TPU v7", "l4": "L4", "l40s": "L40S",
    "a10": "A10", "t4": "T4",
    "a6000": "RTX A6000", "rtx3090": "RTX 3090", "RTX 4090": "RTX 4090", "v100": "V100 SXM2 32GB",
    "v100-16gb": "V100 SXM2 16GB", "v100-pcie": "V100 PCIe 32GB", "v100-pcie-16gb": "V100 PCIe 16GB",
    "gb200": "GB200", "GB300": "GB300", "b300": "B300", "gh200": "GH200", "h20": "H20", "h800": "H800", "a800": "A800",
    "a10g": "A10G", "rtx5090": "RTX 5090", "l40": "L40", "RTX 6000 Ada": "RTX 6000 Ada", "h200-nvl": "H200 NVL",
    "mi300x": "MI300X", "mi325x": "MI325X", "MI355X": "MI355X", "7x": "TPU v7", "trn2": "Trainium2",
    "a100-80gb": "A100 80GB SXM", "H100-80GB": "H100 SXM", "v100-32gb": "V100 SXM2 32GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM", "TPU v5 lite": "TPU v5e", "H100 SXM": "H100 SXM",
}  # fmt: skip
MINE = {
    "name": "mine", "flops": {"bfloat16": 2e14, "float32": 1e13}, "hbm_bytes": 48e9, "hbm_bytes_per_s": 1e12,
    "link_bytes_per_s": 6e10, "devices_per_node": 4, "node_bytes_per_s": 5e9,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_its_chip(name):
    machine = load_machine(name)
    assert machine.chip == next(c for c in chips.CHIPS.values() if c.name == NAMES[name])
    assert machine.price_per_hour is None and machine.source


def test_every_chip_of_the_table_has_a_name():
    assert {row[0] for row in KNOWN_MACHINES.values()} == {chip.name for chip in chips.CHIPS.values()}


def test_networks_against_figures_of_whole_systems():
    """DGX H100: eight ConnectX-7 of 400 Gb/s; DGX A100: eight of 200; v5e and v6e pods: 6.4 and 25.6 Tb/s, 9,216 chips
    of TPU7x at 100 Gb/s (Google); v5p: the Scaling Book's 6.25e9 B/s a chip (part 5)."""
    for name, gbits in (("h100", 3200), ("h200", 3200), ("b200", 3200), ("a100", 1600), ("v100", 400)):
        machine = load_machine(name)
        assert machine.devices_per_node * machine.node_bytes_per_s * 8 == pytest.approx(gbits * 1e9)
    for name in ("gb200", "gb300"):
        assert load_machine(name).devices_per_node == 72
    for name, tbits in (("v5e", 6.4), ("v6e", 25.6), ("v7", 921.6)):
        machine = load_machine(name)
        assert machine.devices_per_node * machine.node_bytes_per_s * 8 == pytest.approx(tbits * 1e12)
    assert load_machine("v5p").node_bytes_per_s == 6.25e9


def test_this_host_is_measured_once():
    machine = load_machine("cpu")
    assert machine is load_machine("cpu")
    assert machine.chip.hbm_bytes > 2**30 and 1e8 < machine.chip.flops["float32"] < 1e14
    assert 1e8 < machine.chip.hbm_bytes_per_s < 1e13


def test_ones_own_from_nothing_and_from_a_known_one(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(MINE | {"price_per_hour": 1.5}))
    machine = load_machine(str(path))
    assert (machine.chip.name, machine.chip.links, machine.price_per_hour) == ("mine", 1, 1.5)
    assert (machine.chip.hbm_bytes, machine.devices_per_node, machine.node_bytes_per_s) == (48_000_000_000, 4, 5e9)
    path.write_text(json.dumps({"base": "h100", "node_bytes_per_s": 1.25e10, "price_per_hour": 2}))
    machine, h100 = load_machine(str(path)), load_machine("h100")
    assert (machine.node_bytes_per_s, machine.price_per_hour) == (1.25e10, 2.0)
    assert machine.chip.flops == h100.chip.flops and machine.devices_per_node == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(MINE | {"hbm": 1}), "'hbm' is not a field; did you mean 'hbm_bytes'"),
        (json.dumps({k: v for k, v in MINE.items() if k != "flops"}), "lacks flops"),
        (json.dumps(MINE | {"flops": {"bf16": 1e15}}), "flops of 'bf16'"),
        (json.dumps(MINE | {"flops": 1e15}), "is not FLOP/s by precision"),
        (json.dumps(MINE | {"hbm_bytes": "80GB"}), "hbm_bytes='80GB' is not a number above 0"),
        (json.dumps(MINE | {"node_bytes_per_s": 0}), "node_bytes_per_s=0 is not a number above 0"),
        ("[1]", "does not hold a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_a_wrong_description_is_one_line(text, message, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        load_machine(str(path))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_and_how_to_describe_ones_own():
    with pytest.raises(
        BadInput, match=r"--hardware=h10O: no such machine.*h100, .*FILE\.json with name, flops"
    ) as caught:
        load_machine("h10O")
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="No such file"):
        load_machine("nowhere.json")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("4090", "did you mean 'rtx4090'"),
        ("mi300", "did you mean 'mi300x'"),
        ("h10O", "did you mean 'h100'"),
        # Google Cloud TPU documentation: v5p-128 has 128 TensorCores on 64 chips, v6e-64 has 64 chips
        ("v5p-128", "is a slice of 64 chips; nearest: --hardware=v5p --devices=64"),
        ("tpu-v5litepod-256", "nearest: --hardware=v5e --devices=256"),
        ("v6e-64", "nearest: --hardware=v6e --devices=64"),
    ],
)
def test_a_name_that_is_nearly_one_or_that_of_a_slice_gets_the_right_one(name, hint):
    with pytest.raises(BadInput, match=hint) as caught:
        load_machine(name)
    assert "\n" not in str(caught.value)
