"""Narayanan et al. 2021 (arXiv 2104.04473) and Korthikanti et al. 2022 (arXiv 2205.05198) against their printed tables.

The configurations and the MFU table are confirmed in public repositories. The other figures are unverified: they were
written down from memory of the papers and recomputed, not read off the papers' pages.
"""

import pytest

from checks.speed.step_times.rows import build_static
from scalelab.hardware.chips import find_chip
from scalelab.model import count
from scalelab.plan.memory import megatron
from scalelab.plan.memory.megatron import GptShape
from tests.quick import one_in

A100 = find_chip("NVIDIA A100-SXM4-80GB").flops["float16"]
# Narayanan et al. 2021, Table 1: billion parameters, h, l, a, GPUs, batch, TFLOP/s a GPU, % of peak, PFLOP/s of all.
TABLE_1 = [
    (1.7, 2304, 24, 24, 32, 512, 137, 44, 4.4),
    (3.6, 3072, 30, 32, 64, 512, 138, 44, 8.8),
    (7.5, 4096, 36, 32, 128, 512, 142, 46, 18.2),
    (18.4, 6144, 40, 48, 256, 1024, 135, 43, 34.6),
    (39.1, 8192, 48, 64, 512, 1536, 138, 44, 70.8),
    (76.1, 10240, 60, 80, 1024, 1792, 140, 45, 143.8),
    (145.6, 12288, 80, 96, 1536, 2304, 148, 47, 227.1),
    (310.1, 16384, 96, 128, 1920, 2160, 155, 50, 297.4),
    (529.6, 20480, 105, 128, 2520, 2520, 163, 52, 410.2),
    (1008.0, 25600, 128, 160, 3072, 3072, 163, 52, 502.0),
]


@pytest.mark.parametrize("row", one_in(4, [pytest.param(row, id=f"{row[0]}B") for row in TABLE_1]))
def test_narayanan_table_1(row):
    billions, h, layers, heads, gpus, _, tflops, percent, petaflops = row
    shape = build_static("gpt2", layers, h, heads, 1, 2048, 51_200).model
    assert round(count.count_parameters(shape)["total"] / 1e9, 1) == billions
    assert round(100 * tflops * 1e12 / A100) == percent
    assert gpus * tflops / 1e3 == pytest.approx(petaflops, rel=0.005)  # both figures are rounded


# MT-NLG 530B, 1,920 sequences on 2,240 and 2,800 GPUs: 60.0 s at 126 and 50.2 s at 121 TFLOP/s (Smith et al. 2022,
# section 2.3).
@pytest.mark.parametrize(("gpus", "seconds", "tflops"), [(2240, 60.0, 126), (2800, 50.2, 121)])
def test_mt_nlg_iterations(gpus, seconds, tflops):
    actual = megatron.recomputed_flops(GptShape(105, 20480, 128, 51200, 2048), 1920) / seconds / gpus
    assert actual / 1e12 == pytest.approx(tflops, abs=1)


# Korthikanti et al. 2022: heads, h, layers, t, p, m, GPUs, batch, micro-batch, then activations of the first stage in
# GiB without and with both techniques (figure 1), then sequence parallelism, selective, both, full as % of none (figure
# 7; both figures as the validation of calculon-ai/calculon reads them), s an iteration, MFU, HFU (table 5).
KORTHIKANTI = {
    "22B": (64, 6144, 48, 8, 1, 1, 8, 4, 4, (59.25, 9.56), (66.84, 49.42, 16.18, 7.64), 1.10, (41.5, 43.7)),
    "175B": (96, 12288, 96, 8, 8, 3, 64, 64, 1, (66.84, 12.35), (62.04, 56.53, 18.49, 8.71), 13.75, (51.4, 52.8)),
    "530B": (128, 20480, 105, 8, 35, 3, 280, 280, 1, (114.02, 23.08), (58.31, 62.04, 20.27, 9.42), 37.83, (56.0, 57.0)),
    "1T": (160, 25600, 128, 8, 64, 1, 512, 512, 1, (131.25, 26.56), (58.31, 62.04, 20.27, 9.42), 71.49, (56.3, 57.0)),
}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_korthikanti_activations(name):
    heads, h, layers, t, p, m, _, batch, rows, gib, percent, *_ = KORTHIKANTI[name]
    shape = GptShape(layers, h, heads, 51200, 2048)
    held = megatron.layers_in_flight(layers, p, batch // rows, rounds=m)
    ways = {
        "none": {}, "sequence": {"sequence": True}, "selective": {"recomputed": "selective"},
        "both": {"sequence": True, "recomputed": "selective"}, "full": {"recomputed": "full"},
    }  # fmt: skip
    actual = {way: held * megatron.layer_bytes(shape, rows, t, **message) for way, message in ways.items()}
    assert actual["none"] / 2**30 == pytest.approx(gib[0], abs=0.1)
    assert actual["both"] / 2**30 == pytest.approx(gib[1], abs=0.1)
    ours = [100 * actual[way] / actual["none"] for way in ("sequence", "selective", "both", "full")]
    assert ours == pytest.approx(percent, abs=0.15)  # read off a plot


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_korthikanti_utilisation(name):
    heads, h, layers, *_, gpus, batch, _, _, _, seconds, printed = KORTHIKANTI[name]
    shape = GptShape(layers, h, heads, 51200, 2048)
    actual = [100 * megatron.model_flops(shape, batch, how) / seconds / gpus / A100 for how in ("none", "selective")]
    # 22B: the iteration is printed as 1.10 s, which is 0.5 % of rounding.
    assert actual == pytest.approx(printed, abs=0.25 if name == "22B" else 0.06)


def test_layers_in_flight_by_schedule():
    """Narayanan et al. 2021, section 2.2: GPipe stashes m micro-batches, 1F1B at most p; interleaving adds (p - 1) /
    pm.
    """
    assert megatron.layers_in_flight(64, 1, 32) == 64
    assert megatron.layers_in_flight(64, 8, 32, "gpipe") == 8 * 32
    assert megatron.layers_in_flight(64, 8, 32) == 64
    assert megatron.layers_in_flight(64, 8, 4) == 32
    assert megatron.layers_in_flight(64, 8, 32, rounds=4) == pytest.approx(64 * (1 + 7 / 32))
