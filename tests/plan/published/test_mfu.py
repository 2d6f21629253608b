"""Published utilisation and training FLOPs, and which convention each paper counts by."""

import math

import pytest

from checks.speed.step_times.rows import build_static
from scalelab.model import count
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import megatron
from scalelab.plan.published.mfu import flops_utilisation, run_utilisation, training_flops
from scalelab.plan.step.flops import count_flops
from tests.quick import one_in

V4, H100 = load_machine("v4").chip.flops["bfloat16"], load_machine("h100").chip.flops["bfloat16"]


def palm():
    model = {"n_kv_heads": 1, "d_head": 256, "d_ff": 73_728, "block": "parallel", "tied_head": True, "remat": "full"}
    return build_static("llama", 118, 18_432, 48, 2048, 2048, 256_000, model=model)


def gopher(layers=80, width=16_384, heads=128):
    return build_static("chinchilla", layers, width, heads, 1, 2048, 32_000)


def gpt3():
    return build_static("gpt2", 96, 12_288, 96, 1, 2048, 50_257)


def llama3(length):
    return build_static("llama", 126, 16_384, 128, 1, length, 128_256, model={"n_kv_heads": 8, "d_ff": 53_248})


def matching_conventions(figures, published, digits=3):
    """The conventions whose figure is the published one to `digits` significant digits; [] if there is none."""

    def rounded(value):
        return round(value, digits - 1 - math.floor(math.log10(value)))

    return [name for name, value in figures.items() if math.isclose(rounded(value), rounded(published), rel_tol=1e-9)]


def test_palm():
    """Chowdhery et al. 2022, table 3 and section 4.1: 238.3k tokens/s on 6,144 TPU v4: MFU 46.2 %, 45.7 % without
    attention.
    """
    known = count_flops(palm()).per_token
    assert count.count_parameters(palm().model)["total"] == pytest.approx(540.35e9, rel=1e-4)
    assert flops_utilisation(known["palm"], 238.3e3, 6144, V4) == pytest.approx(0.462, abs=5e-4)
    assert flops_utilisation(known["6N"], 238.3e3, 6144, V4) == pytest.approx(0.457, abs=5e-4)


def test_palm_hardware_utilisation_is_not_reproduced():
    """57.8 % (ibid.): nothing recomputed gives 46.2 %, all that our blocks would recompute 56 %, a whole forward more
    61.6 %.

    57.8 is 46.23 x 1.25: three quarters of a forward are computed again. Which, the paper doesn't say.
    """
    known = count_flops(palm())
    ours = flops_utilisation(known.remat_per_token["exact"], 238.3e3, 6144, V4)
    rule = flops_utilisation(known.remat_per_token["palm"], 238.3e3, 6144, V4)
    assert ours < 0.578 < rule
    model = flops_utilisation(known.per_token["palm"], 238.3e3, 6144, V4)
    assert 3 * (0.578 / model - 1) == pytest.approx(0.75, abs=0.005)
    assert (ours, rule) == (pytest.approx(0.56, abs=0.01), pytest.approx(0.615, abs=0.003))


def test_mt_nlg_in_palms_table():
    """Chowdhery et al. 2022, table 3: 30.2 %, from 60.1 s an iteration of 1,920 sequences on 2,240 A100 (Smith et
    al. 2022).
    """
    of = build_static("gpt2", 105, 20_480, 128, 1920, 2048, 51_200)
    a100 = load_machine("a100").chip.flops["bfloat16"]
    assert flops_utilisation(count_flops(of).per_token["palm"], 1920 * 2048 / 60.1, 2240, a100) == pytest.approx(
        0.302, abs=1e-3
    )


@pytest.mark.parametrize(("tflops", "published"), [(430, 0.43), (400, 0.41), (380, 0.38)])
def test_llama3_405b(tflops, published):
    """Dubey et al. 2024, table 4. 400 TFLOP/s are 40.4 % of 989: printed 41, as if of 975."""
    assert flops_utilisation(tflops * 1e12, 1.0, 1, H100) == pytest.approx(published, abs=7e-3)


def test_llama3_405b_over_the_whole_run():
    """3.8e25 FLOPs in 15.6e12 tokens (Dubey et al. 2024, section 3.2); 30.84 M H100 hours (model card)."""
    figures = training_flops(llama3(8192), 15.6e12)
    assert matching_conventions(figures, 3.8e25, 2) == ["6N"]
    assert run_utilisation(figures["6N"], 30.84e6, H100) == pytest.approx(0.346, abs=1e-3)


def test_llama2_70b_over_the_whole_run():
    """1,720,320 A100 hours (Touvron et al. 2023, table 2) for 2e12 tokens."""
    of = build_static("llama", 80, 8192, 64, 1, 4096, 32_000, model={"n_kv_heads": 8, "d_ff": 28_672})
    spent = training_flops(of, 2e12)["6N"]
    assert run_utilisation(spent, 1_720_320, 312e12) == pytest.approx(0.429, abs=1e-3)


def test_deepseek_v3():
    """Scaling Book, part 6 and its note: 37e9 active parameters, 14.8e12 tokens, 2.79e6 H800 hours: 21.7 % of
    1.513e15 in fp8.
    """
    assert run_utilisation(6 * 37e9 * 14.8e12, 2.79e6, 1.513e15) == pytest.approx(0.217, abs=1e-3)


def test_gpt3_counts_six_times_its_parameters():
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 3e11 tokens, 174.6e9 parameters; appendix F and the walked
    step count more.
    """
    figures = training_flops(gpt3(), 3e11)
    assert matching_conventions(figures, 3.14e23) == ["6N"]
    assert figures["exact"] == pytest.approx(3.21e23, rel=0.01)


def test_gopher_counts_what_it_recomputes():
    """Rae et al. 2021, table A26: 6.31e23 for 3e11 tokens, with rematerialisation (33 %): appendix F's blocks, four
    thirds.

    Hoffmann et al. 2022 give Gopher 5.76e23 and do not say how it is counted. It is none of these: 6 N D is 5.04e23 and
    their own appendix F 4.75e23; as 6 N D it would be 320e9 parameters, and 8 N D, with recomputation, 240e9.
    """
    figures = training_flops(gopher(), 3e11)
    assert matching_conventions(figures, 6.31e23) == ["blocks + remat"]
    assert matching_conventions(figures, 5.76e23, 2) == []
    assert figures["6N"] == pytest.approx(5.04e23, rel=0.005)


# Hoffmann et al. 2022, table A4: layers, d_model, heads, and appendix F's FLOPs over 6 N D.
TABLE_A4 = [(10, 640, 10, 1.03), (20, 1024, 16, 1.10), (24, 1280, 10, 1.08), (26, 1792, 14, 1.04), (28, 2048, 16, 1.03),
            (40, 3584, 28, 0.99)]  # fmt: skip


@pytest.mark.parametrize(("layers", "width", "heads", "published"), one_in(3, TABLE_A4))
def test_chinchillas_table_a4(layers, width, heads, published):
    """To half a percent: reproduced without the embedding's and the logits' terms, which the appendix lists."""
    figures = training_flops(gopher(layers, width, heads), 1.0)
    assert figures["blocks"] / figures["6N"] == pytest.approx(published, abs=0.0051)
    assert figures["chinchilla"] / figures["6N"] > published


def test_chinchilla():
    """Hoffmann et al. 2022: 1.4e12 tokens; 6 N D with the nominal 70e9 is 5.88e23. The shape itself has 71e9 with
    its relative positions.
    """
    of = gopher(80, 8192, 64)
    figures = training_flops(of, 1.4e12)
    assert figures["6N"] == pytest.approx(5.88e23, rel=0.02)
    assert matching_conventions(figures, 5.76e23) == []


def test_korthikantis_table_by_their_own_count():
    """Korthikanti et al. 2022, table 5: MFU and HFU from iteration times; their count and `exact` agree to 1 %."""
    peak = load_machine("a100").chip.flops["float16"]
    for (layers, width, heads), batch, gpus, seconds, mfu in (
        ((96, 12_288, 96), 64, 64, 13.75, 0.514), ((105, 20_480, 128), 280, 280, 37.83, 0.560),
        ((128, 25_600, 160), 512, 512, 71.49, 0.563),
    ):  # fmt: skip
        g = megatron.GptShape(layers, width, heads, 51_200, 2048)
        theirs = megatron.model_flops(g, batch) / (batch * 2048)
        assert flops_utilisation(theirs, batch * 2048 / seconds, gpus, peak) == pytest.approx(mfu, abs=1e-3)
        ours = count_flops(build_static("gpt2", layers, width, heads, batch, 2048, 51_200)).per_token["exact"]
        assert ours == pytest.approx(theirs, rel=0.01)
