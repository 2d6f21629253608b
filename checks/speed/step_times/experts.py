"""Published step times of models with experts: Megatron-Bridge's, tpu-recipes', MaxText's and DeepSeek-V3's own.

All of Megatron-Bridge force even loads and drop nothing; its newest table has DeepSeek-V3 with the block and head of
multi-token prediction, which are planned as one more block. Ironwood's rows are of random routing, so even as well.

Two numbers were fitted here, on the eight rows of Ironwood: the smallest side at which a TPU's grouped product has half
its share, and what its gathers of rows take in passes over memory; and a third, HOST_S, on two rows of B200. No GPU's
share was. HELD rows had no part in that, but were seen when these terms were chosen.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

from checks.speed.step_times.rows import PublishedStep
from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.plan.machine.layout import with_layout
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.step.device_share import fullest_device_share
from scalelab.plan.step.systems import MAXTEXT_TRAITS, MEGATRON_TRAITS, SystemTraits
from scalelab.plan.step.time import idle_share, step_time

RECIPES = pathlib.Path(__file__).parents[3] / "configs" / "recipes"
MTP = {"model.n_layers": 62, "model.block": "sequential=3,experts=59"}
DEEPSEEK_V3, GPT_OSS, QWEN3_30B, QWEN3_235B = "deepseek_v3", "gpt_oss_120b", "qwen3_30b_a3b", "qwen3_235b_a22b"


class BridgeRow(NamedTuple):
    """A line of a table of Megatron-Bridge: `experts` devices along its EP, which lie within its data parallelism.

    Where its EP goes over tensor parallelism too, whose experts ours splits, `experts` is the part within data.
    """

    chip: str
    recipe: str
    devices: int
    precision: str
    sequences: int
    micro_batch: int
    seq_len: int
    tensor: int
    stage: int
    rounds: int
    experts: int
    tokens_per_s: float  # a GPU


# NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md @0a25f911, container 26.02: all rows with experts.
BRIDGE_26_02 = (
    BridgeRow("gb300", DEEPSEEK_V3, 256, "fp8", 4096, 2, 4096, 1, 2, 8, 32, 4612),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 4, 4, 64, 3955),
    BridgeRow("b300", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 16, 1, 8, 2983),
    BridgeRow("b200", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 16, 1, 8, 2689),
    BridgeRow("gb300", GPT_OSS, 64, "bf16", 1280, 4, 4096, 1, 1, 1, 64, 19_412),
    BridgeRow("gb200", GPT_OSS, 64, "bf16", 1280, 4, 4096, 1, 1, 1, 64, 15_784),
    BridgeRow("b300", GPT_OSS, 64, "bf16", 1280, 4, 4096, 1, 1, 1, 64, 8359),
    BridgeRow("b200", GPT_OSS, 64, "bf16", 1280, 4, 4096, 1, 1, 1, 64, 8047),
    BridgeRow("h100", GPT_OSS, 64, "bf16", 1280, 1, 4096, 1, 4, 1, 8, 5993),
    BridgeRow("gb300", QWEN3_30B, 8, "fp8", 512, 8, 4096, 1, 1, 1, 8, 30_376),
    BridgeRow("gb200", QWEN3_30B, 8, "fp8", 512, 4, 4096, 1, 1, 1, 8, 26_084),
    BridgeRow("b300", QWEN3_30B, 8, "fp8", 512, 8, 4096, 1, 1, 1, 8, 29_521),
    BridgeRow("b200", QWEN3_30B, 8, "fp8", 512, 1, 4096, 1, 1, 1, 8, 9691),
    BridgeRow("h100", QWEN3_30B, 16, "fp8", 1024, 1, 4096, 1, 2, 12, 8, 5113),
    BridgeRow("gb300", QWEN3_235B, 256, "fp8", 8192, 2, 4096, 1, 4, 1, 32, 6583),
    BridgeRow("gb200", QWEN3_235B, 256, "fp8", 8192, 1, 4096, 1, 8, 1, 32, 5448),
    BridgeRow("b300", QWEN3_235B, 256, "fp8", 8192, 1, 4096, 1, 8, 4, 8, 2691),
    BridgeRow("b200", QWEN3_235B, 256, "fp8", 8192, 1, 4096, 1, 8, 1, 8, 3805),
    BridgeRow("h100", QWEN3_235B, 256, "fp8", 8192, 1, 4096, 2, 8, 4, 16, 1633),
)
# The page as above, container 25.11, without multi-token prediction; the rows in bf16 of systems with NVLink to
# 72, and B200's of a small model.
BRIDGE_25_11 = (
    BridgeRow("gb300", DEEPSEEK_V3, 256, "bf16", 4096, 1, 4096, 1, 2, 4, 32, 3848),
    BridgeRow("gb300", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 2, 4, 32, 4357),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "bf16", 4096, 1, 4096, 1, 4, 4, 64, 3139),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 8, 4, 32, 4018),
    BridgeRow("gb300", QWEN3_235B, 256, "bf16", 8192, 2, 4096, 1, 4, 12, 16, 6131),
    BridgeRow("gb200", QWEN3_235B, 256, "bf16", 8192, 1, 4096, 1, 8, 3, 32, 4916),
    BridgeRow("b200", QWEN3_30B, 8, "fp8", 512, 1, 4096, 1, 1, 1, 8, 9299),
)
# The page as above; all other rows of 25.11, and 25.09's of H100s that drop nothing. DeepSeek-V3 with MTP.
HELD_BRIDGE = (
    BridgeRow("gb300", GPT_OSS, 64, "bf16", 1280, 2, 8192, 1, 1, 1, 64, 18_347),
    BridgeRow("gb200", GPT_OSS, 64, "bf16", 1280, 1, 8192, 1, 1, 1, 64, 15_876),
    BridgeRow("b200", GPT_OSS, 64, "bf16", 512, 4, 4096, 1, 1, 1, 8, 8213),
    BridgeRow("h100", GPT_OSS, 64, "bf16", 512, 4, 4096, 1, 4, 1, 8, 5630),
    BridgeRow("gb300", QWEN3_30B, 8, "fp8", 512, 4, 4096, 1, 1, 1, 8, 28_934),
    BridgeRow("gb200", QWEN3_30B, 8, "fp8", 512, 4, 4096, 1, 1, 1, 8, 23_766),
    BridgeRow("h100", QWEN3_30B, 16, "fp8", 512, 2, 4096, 1, 2, 24, 8, 5275),
    BridgeRow("b200", QWEN3_235B, 64, "fp8", 1024, 1, 4096, 1, 8, 2, 8, 3269),
    BridgeRow("h100", QWEN3_235B, 256, "fp8", 2048, 1, 4096, 2, 8, 4, 16, 1575),
    BridgeRow("b200", DEEPSEEK_V3, 256, "fp8", 2048, 1, 4096, 1, 16, 1, 8, 2139),
    BridgeRow("h100", DEEPSEEK_V3, 1024, "fp8", 8192, 1, 4096, 2, 8, 4, 32, 1297),
)
# Chips whose rows start each kernel from an x86 host; rows of GB200 and GB300 keep parts of a block in CUDA graphs
# (scripts/performance/configs of the same repository). With one sequence at a time and experts of 768 such a host takes
# so long a block, whatever the chip: Qwen3 30B on B200, 8.8 and 9.2 ms.
HOSTED, HOST_S, HOST_SPREAD = ("b200", "b300", "h100"), 9e-3, 1.5
# AI-Hypercomputer/tpu-recipes, training/ironwood/README.md @0797d9ce: chips of two devices, sequences, tokens of one,
# seconds. Parameters split over all devices, blocks recomputed.
IRONWOOD = (
    (DEEPSEEK_V3, "bf16", 128, 2048, 4096, 27.02), (DEEPSEEK_V3, "fp8", 128, 2048, 4096, 22.47),
    (DEEPSEEK_V3, "bf16", 256, 4096, 4096, 26.79), (DEEPSEEK_V3, "fp8", 256, 4096, 4096, 22.08),
    (GPT_OSS, "bf16", 64, 1280, 8192, 14.93), (GPT_OSS, "bf16", 256, 5120, 8192, 15.16),
    (QWEN3_235B, "bf16", 256, 8192, 4096, 30.87), (QWEN3_235B, "fp8", 256, 8192, 4096, 27.67),
)  # fmt: skip
# Blocks recomputed, parameters split over all: tpu-recipes, training/v5p (DeepSeek3-671B @ae1f18ad, Llama4-Scout
# @678f825b: the logs' own tokens), and MaxText's docs/reference/models/tiering.md (v0.2.2; 36 sequences a chip in
# training/v5p/Mixtral-8X7B).
HELD_V5P = (
    (DEEPSEEK_V3, 512, 12 * 512, 4096, 90.668), ("llama4_scout", 512, 8 * 512, 8192, 31.652),
    ("mixtral_8x7b", 256, 36 * 256, 4096, 36 * 4096 / 2909),
)  # fmt: skip
# DeepSeek-AI 2024 (arXiv 2412.19437), table 1 and sections 3.1 to 3.3: 180 K hours of an H800 for a trillion tokens on
# 2,048; 16 stages, 64 devices along experts, ZeRO-1, fp8, a sequence at a time; DualPipe hides what is sent.
DEEPSEEK_HOURS, DEEPSEEK_DEVICES = 180e3, 2048
# cuDNN takes latent attention and sinks in Transformer Engine, Tokamax's splash on TPUs: no row has logits in memory.
BRIDGE_TRAITS = dataclasses.replace(MEGATRON_TRAITS, fused_attention="all")
TOKAMAX_TRAITS = dataclasses.replace(MAXTEXT_TRAITS, fused_attention="all")
DUALPIPE_TRAITS = dataclasses.replace(BRIDGE_TRAITS, sends_hidden=True)


def make_row(
    recipe: str,
    chip: str,
    layout: Layout,
    sequences: int,
    accumulate: int,
    traits: SystemTraits,
    seconds: float,
    **values: Any,
) -> PublishedStep:
    """A recipe with these values (`__` for the dot) as it ran on a chip."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    keys |= {"schedule.batch_start": None, "schedule.batch_warmup_tokens": None, "schedule.batch_stages": ""}
    keys |= {"train.global_batch": sequences, "train.accumulate": accumulate}
    tree = config_lib.override(config_lib.load(RECIPES / f"{recipe}.py"), keys)
    static = config_lib.static(config_lib.resolve(tree))
    return PublishedStep(with_layout(static, layout), load_machine(chip), traits, seconds)


def bridge_row(row: BridgeRow, mtp: bool) -> PublishedStep:
    """One row of Megatron-Bridge; nothing is recomputed."""
    replicas = row.devices // (row.tensor * row.stage)
    micro = row.sequences // (replicas * row.micro_batch)
    staged = row.stage > 1
    layout = Layout(
        replicas // row.experts,
        1,
        row.tensor,
        1,
        row.stage,
        row.tensor > 1,
        zero=1,
        expert=row.experts,
        microbatches=micro if staged else 1,
        rounds=row.rounds,
    )
    seconds = row.sequences * row.seq_len / (row.tokens_per_s * row.devices)
    more = MTP if mtp and row.recipe == DEEPSEEK_V3 else {}
    return make_row(
        row.recipe,
        row.chip,
        layout,
        row.sequences,
        1 if staged else micro,
        BRIDGE_TRAITS,
        seconds,
        precision__name=row.precision,
        model__seq_len=row.seq_len,
        model__remat="none",
        **more,
    )


def maxtext_row(
    chip: str, recipe: str, precision: str, devices: int, sequences: int, seq_len: int, seconds: float
) -> PublishedStep:
    """One row of MaxText on TPUs."""
    return make_row(
        recipe,
        chip,
        Layout(fsdp=devices),
        sequences,
        1,
        TOKAMAX_TRAITS,
        seconds,
        precision__name=precision,
        model__seq_len=seq_len,
        model__remat="full",
    )


def deepseek_row() -> PublishedStep:
    """DeepSeek-V3 as its authors trained it: the hours of a trillion tokens as seconds of a full batch."""
    layout = Layout(2, 1, stage=16, zero=1, expert=64, microbatches=120)
    seconds = DEEPSEEK_HOURS * 3600 / 1e12 * 15_360 * 4096 / DEEPSEEK_DEVICES
    return make_row(
        DEEPSEEK_V3,
        "h800",
        layout,
        15_360,
        1,
        DUALPIPE_TRAITS,
        seconds,
        precision__name="fp8",
        model__remat="none",
        **{key.replace(".", "__"): value for key, value in MTP.items()},
    )


def compare_rows() -> list[dict[str, Any]]:
    """Each row as planned, on a host that starts each kernel no faster than it does: `hosted`.

    Rows without a part in a fit have an error that is that of a system left out; `held` are those found later.
    """
    lines = []
    for name, row in read_rows().items():
        planned, host_s = step_time(row.static, row.machine, traits=row.traits), least_host_s(row)
        predicted = max(planned.total_s, host_s)
        low, high = max(planned.low_s, host_s / HOST_SPREAD), max(planned.high_s, host_s * HOST_SPREAD)
        error = predicted / row.seconds - 1
        lines.append({
            "name": name, "system": name.split()[0], "chip": row.machine.chip.name, "precision": row.static.precision,
            "published_s": row.seconds, "predicted_s": predicted, "low_s": low, "high_s": high,
            "error": error, "in_range": low <= row.seconds <= high, "held": name in HELD, "hosted": bool(host_s),
            "mfu": planned.mfu, "devices": row.static.layout.devices, "share": None,
            "left_out_error": None if is_fitted(row) else error,
        })  # fmt: skip
    return lines


def is_fitted(row: PublishedStep) -> bool:
    """Whether a number was fitted on it: a TPU's on v7, HOST_S on B200 with experts of 768."""
    return row.machine.chip.name == "TPU v7" or (row.machine.chip.name == "B200" and row.static.model.d_expert == 768)


def least_host_s(row: PublishedStep) -> float:
    """Seconds in which an x86 host starts all kernels of a step of Megatron-Bridge, block by block; 0 of others."""
    if row.traits != BRIDGE_TRAITS or row.machine.chip.name not in [load_machine(chip).chip.name for chip in HOSTED]:
        return 0.0
    of = fullest_device_share(row.static)
    return HOST_S * of.layers * of.microbatches * (1 + idle_share(row.static))


def name_row(row: BridgeRow, release: str) -> str:
    """The name begins with the system."""
    return f"Megatron-Bridge {release} {row.recipe}, {row.seq_len} tokens, {row.devices} {row.chip} {row.precision}"


def read_rows() -> dict[str, PublishedStep]:
    """All rows by name."""
    rows = {"DeepSeek deepseek_v3, 4096 tokens, 2048 h800 fp8": deepseek_row()}
    for release, table in (("26.02", BRIDGE_26_02), ("25.11", BRIDGE_25_11)):
        rows |= {name_row(row, release): bridge_row(row, release == "26.02") for row in table}
    rows |= {
        f"tpu-recipes {row[0]}, {row[4]} tokens, {row[2]} chips of v7 {row[1]}": maxtext_row(
            "v7", row[0], row[1], 2 * row[2], *row[3:]
        )
        for row in IRONWOOD
    }
    return rows | held_rows()


def held_rows() -> dict[str, PublishedStep]:
    """Rows that were added after the fit."""
    rows = {name_row(row, "25.09" if row.devices == 1024 else "25.11"): bridge_row(row, True) for row in HELD_BRIDGE}
    return rows | {
        f"tpu-recipes {row[0]}, {row[3]} tokens, {row[1]} v5p bf16": maxtext_row("v5p", row[0], "bf16", *row[1:])
        for row in HELD_V5P
    }


HELD = tuple(held_rows())
