"""`scalelab reproduce closed_forms`: closed forms of papers beside the figures that they print.

ZeRO's model states (`zero`), utilisation and training FLOPs by each paper's own convention (`mfu`), Megatron-LM's weak
scaling (`weak_scaling`), and worked examples of the Scaling Book (`roofline`). Each printed figure was read off its
paper's text, by transcripts of it; figures that no page prints are left out.
"""

import functools
from collections.abc import Iterator
from typing import Any

from scalelab import config as config_lib
from scalelab.config import Layout, Static
from scalelab.laws.published.verdict import ComparisonRow, PaperReport, make_comparison_row, rounding_tolerance
from scalelab.model import count
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import megatron
from scalelab.plan.published import roofline, weak_scaling, zero
from scalelab.plan.published.mfu import flops_utilisation, run_utilisation, training_flops
from scalelab.plan.step import links
from scalelab.plan.step.flops import count_flops

PALM = {"n_kv_heads": 1, "d_head": 256, "d_ff": 73_728, "block": "parallel", "tied_head": True}
LLAMA2_70B = {"n_kv_heads": 8, "d_ff": 28_672}
LLAMA3_405B = {"n_kv_heads": 8, "d_ff": 53_248}
# Hoffmann et al. 2022, table A4: layers, d_model, heads, and appendix F's FLOPs over 6 N D.
TABLE_A4 = (
    (10, 640, 10, "1.03"), (20, 1024, 16, "1.10"), (24, 1280, 10, "1.08"), (26, 1792, 14, "1.04"),
    (28, 2048, 16, "1.03"), (40, 3584, 28, "0.99"),
)  # fmt: skip
# Korthikanti et al. 2022, table 5 (Megatron-LM's README): layers, d_model, heads, sequences, GPUs, seconds a step, MFU.
TABLE_5 = (
    (96, 12_288, 96, 64, 64, 13.75, "0.514"), (105, 20_480, 128, 280, 280, 37.83, "0.560"),
    (128, 25_600, 160, 512, 512, 71.49, "0.563"),
)  # fmt: skip


def reproduce_closed_forms() -> Iterator[PaperReport]:
    """One report a group of figures: zero, mfu, weak_scaling, scaling_book."""
    yield PaperReport("zero", "Rajbhandari et al. 2020, table 1: GB a device", tuple(_zero_rows()), ())
    yield PaperReport("mfu", "each row's own paper", tuple(_mfu_rows()), ())
    yield weak_scaling.reproduce()
    book = "jax-ml/scaling-book at 04d8de5, part 12 at 1a55377"
    yield PaperReport("scaling_book", book, tuple(_book_rows()), SLIPS)


def _zero_rows() -> Iterator[ComparisonRow]:
    for parameters, by_stage in zero.TABLE_1.items():
        for stage, printed in by_stage.items():
            for devices, text in zip(zero.DEVICES, printed, strict=True):
                ours = zero.state_bytes(parameters, devices, stage) / 1e9
                # The paper rounds some figures and cuts others off: a unit of the last digit.
                yield make_comparison_row(
                    f"{parameters / 1e9:g}B, stage {stage}, {devices} devices",
                    ours,
                    text,
                    "plan/published/zero.py: (2 + 2 + 12) bytes a parameter, split by stage",
                    tolerance=2 * rounding_tolerance(text),
                )


@functools.cache
def build_shape(
    preset: str, layers: int, width: int, heads: int, seq_len: int, vocabulary: int, **model: Any
) -> Static:
    """The compiled half of a config of such a model: a preset of `configs/base.py` with these sizes."""
    from scalelab.configs import base  # the tree is configuration, not part of the library

    tree = base.get_config()
    tree.model = getattr(base, preset)(width, layers, heads)
    sizes = {"model.vocab_size": vocabulary, "model.seq_len": seq_len, "optim.peak_lr": 1e-4}
    values = sizes | {f"model.{key}": value for key, value in model.items()}
    return config_lib.static(config_lib.resolve(config_lib.override(tree, values)))


def _mfu_rows() -> Iterator[ComparisonRow]:
    """Share of the peak, or FLOPs of a training, by the convention that reproduces the printed figure."""
    v4, a100 = _peak("v4"), _peak("a100")
    palm = count_flops(build_shape("llama", 118, 18_432, 48, 2048, 256_000, **PALM)).per_token
    nlg = count_flops(build_shape("gpt2", 105, 20_480, 128, 2048, 51_200)).per_token
    section = "Chowdhery et al. 2022, section 4.1"
    runs = (
        ("PaLM 540B", palm, 238.3e3, 6144, v4, {"palm": "0.462", "6N": "0.457"},
         f"{section}: 238.3K tokens/s on 6,144 TPU v4"),
        ("MT-NLG 530B", nlg, 65.43e3, 2240, a100, {"palm": "0.302", "6N": "0.297"},
         f"{section}: 65.43K tokens/s on 2,240 A100 (of Smith et al. 2022)"),
    )  # fmt: skip
    for model, flops, tokens_per_s, devices, peak, by_convention, recipe in runs:
        for convention, text in by_convention.items():
            ours = flops_utilisation(flops[convention], tokens_per_s, devices, peak)
            yield make_comparison_row(f"{model}: MFU by {convention}", ours, text, recipe)
    for layers, width, heads, sequences, gpus, step_s, printed in TABLE_5:
        shape = megatron.GptShape(layers, width, heads, 51_200, 2048)
        ours = megatron.model_flops(shape, sequences) / (step_s * gpus * a100)
        name, recipe = f"GPT of {layers} x {width}: MFU", "Korthikanti et al. 2022, table 5, from its step times"
        yield make_comparison_row(name, ours, printed, recipe, tolerance=1e-3)
    yield from _training_rows()


def _training_rows() -> Iterator[ComparisonRow]:
    """FLOPs and utilisation of whole trainings."""
    gpt3 = training_flops(build_shape("gpt2", 96, 12_288, 96, 2048, 50_257), 3e11)
    llama3 = training_flops(build_shape("llama", 126, 16_384, 128, 8192, 128_256, **LLAMA3_405B), 15.6e12)["6N"]
    by_6n = "6 N D (plan/published/mfu.py)"
    deepseek = run_utilisation(6 * 37e9 * 14.8e12, 2.79e6, 1.513e15)
    part_6 = "Scaling Book, part 6: 37e9 active parameters, 14.8e12 tokens, 2.79e6 H800 hours, 1.513e15 FLOP/s in fp8"
    gpt3_table, llama3_place = f"{by_6n}; Brown et al. 2020, table D.1", f"{by_6n}; Dubey et al. 2024, section 3.2"
    yield make_comparison_row("GPT-3: FLOPs of 300 G tokens", gpt3["6N"], "3.14e23", gpt3_table)
    yield make_comparison_row("Llama 3 405B: FLOPs of 15.6 T tokens", llama3, "3.8e25", llama3_place)
    yield make_comparison_row("DeepSeek-V3: share of the peak, whole run", deepseek, "0.217", part_6, tolerance=1e-3)
    for layers, width, heads, printed in TABLE_A4:
        figures = training_flops(build_shape("chinchilla", layers, width, heads, 2048, 32_000), 1.0)
        recipe = (
            "Hoffmann et al. 2022, table A4, without embedding and logits; length 2,048 and vocabulary 32,000, which "
            "the table does not name, are ours"
        )
        name = f"{layers} x {width}: appendix F over 6 N D"
        yield make_comparison_row(name, figures["blocks"] / figures["6N"], printed, recipe)


def _peak(name: str) -> float:
    return load_machine(name).chip.flops["bfloat16"]


SLIPS = (
    "The book's v5p has 96 GB, ours the documented 95 GiB: 6 % more.",
    "Part 3, question 2, the sum over Z: 11.7 us; the book has 5.8 (a gather's time), its first edition 190, which "
    "forgets that "
    "the array is already split sixteen-fold.",
    "Part 6 counts 20.9 TB of checkpoints (225 chips of 96 GB) in its first edition and goes on with 171, which 15.8 "
    "TB give.",
)


def _book_rows() -> Iterator[ComparisonRow]:
    """Worked examples; the tolerance is the rounding that the book works with."""
    v4, v5e, v5p, h100 = (load_machine(name) for name in ("v4", "v5e", "v5p", "h100"))
    cube, plane = Layout(data=4, fsdp=4, tensor=4), Layout(fsdp=16, tensor=4)
    alpha = roofline.axis_intensity(cube, v5p, "fsdp")
    gathered = 2 * 1024 * 4096
    llama3 = count.count_parameters(build_shape("llama", 80, 8192, 64, 8192, 128_256, **LLAMA2_70B).model)["total"]
    fsdp = roofline.fsdp_range(48_000, 64, 32_768, alpha)
    node = links.bytes_per_s(Layout(tensor=8), h100, "tensor")
    for part, name, ours, printed, share in (
        (1, "v5e: tokens that make a bf16 product bound by FLOPs",
         roofline.critical_tokens(1.97e14, 8.1e11), "240", 0.02),
        (1, "the same, weights and activations in int8", roofline.critical_tokens(3.94e14, 8.1e11, 1, 1), "243", 0.01),
        (1, "the same, weights alone in int8", roofline.critical_tokens(1.97e14, 8.1e11, 1), "120", 0.02),
        (2, "200B in bf16 on 32 v4: ms a token", 1e3 * roofline.load_s(400e9, v4, 32), "10", 0.03),
        (2, "v6e: tokens with weights in the host's memory", roofline.critical_tokens(9.2e14, 1.5e10), "61000", 0.01),
        (3, "v4 4x4x4: bf16[1024, 4096] / 4 gathered over Y, us",
         1e6 * roofline.limit_s("all-gather", gathered / 4, cube, v4, "tensor"), "23", 0.02),
        (3, "v4 4x4x4: the whole over X and Y, us",
         1e6 * roofline.limit_s("all-gather", gathered, plane, v4, "fsdp"), "46", 0.02),
        (3, "v5e 8x4: bf16[2048, 8192] over an open axis of 4, us",
         1e6 * links.ring_s("all-gather", 2 * 2048 * 8192, 4, v5e.chip.link_bytes_per_s), "560", 0.01),
        (5, "v5p: parameters that fit unsplit", roofline.most_parameters(v5p), "9.6e9", 0.07),
        (5, "v5p: alpha, tokens a chip and axis", alpha, "2550", 0.01),
        (5, "F = 32,768: least tokens a chip, mixed", roofline.least_tokens(32_768, alpha), "396", 0.01),
        (5, "48,000 tokens on 64 chips: most for FSDP", fsdp[1] if fsdp else float("nan"), "31.7", 0.005),
        (5, "F = 28,672: most chips for tensor parallelism", roofline.most_tensor(28_672, alpha), "11", 0.03),
        (6, "Llama 3 70B: parameters", llama3, "70.4e9", 0.005),
        (6, "6.3e24 FLOPs on 8,960 v5p at 40 %: days",
         roofline.training_days(6.3e24, 8960, roofline.unit_peak_flops(v5p), 0.4), "44", 0.01),
        (6, "4 Mi tokens on 8,960 chips: least is sent with FSDP over",
         roofline.best_fsdp(4 * 2**20, 8960, 28_672), "1618", 0.002),
        (12, "8 H100: bf16[1024, 16384] gathered, us",
         1e6 * links.ring_s("all-gather", 2 * 1024 * 16_384, 8, node), "65", 0.01),
    ):  # fmt: skip
        recipe = f"part {part} of the book; plan/published/roofline.py, plan/step/links.py"
        yield make_comparison_row(name, ours, printed, recipe, tolerance=share * float(printed))
