"""Published step times of models with experts: Megatron-Bridge's, tpu-recipes' and DeepSeek-V3's own.

All of Megatron-Bridge force even loads and drop nothing; its newest table has DeepSeek-V3 with the block and head of
multi-token prediction, which are planned as one more block. Ironwood's rows are of random routing, so even as well.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

from checks.speed.step_times.rows import PublishedStep
from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.plan.machine.layout import with_layout
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.step.systems import MAXTEXT_TRAITS, MEGATRON_TRAITS, SystemTraits
from scalelab.plan.step.time import step_time

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
# The page as above, container 25.11, without multi-token prediction; the rows in bf16 of systems with NVLink to 72.
BRIDGE_25_11 = (
    BridgeRow("gb300", DEEPSEEK_V3, 256, "bf16", 4096, 1, 4096, 1, 2, 4, 32, 3848),
    BridgeRow("gb300", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 2, 4, 32, 4357),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "bf16", 4096, 1, 4096, 1, 4, 4, 64, 3139),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 8, 4, 32, 4018),
    BridgeRow("gb300", QWEN3_235B, 256, "bf16", 8192, 2, 4096, 1, 4, 12, 16, 6131),
    BridgeRow("gb200", QWEN3_235B, 256, "bf16", 8192, 1, 4096, 1, 8, 3, 32, 4916),
)
# AI-Hypercomputer/tpu-recipes, training/ironwood/README.md @0797d9ce: chips of two devices, sequences, tokens of one,
# seconds. Parameters split over all devices, blocks recomputed.
IRONWOOD = (
    (DEEPSEEK_V3, "bf16", 128, 2048, 4096, 27.02), (DEEPSEEK_V3, "fp8", 128, 2048, 4096, 22.47),
    (DEEPSEEK_V3, "bf16", 256, 4096, 4096, 26.79), (DEEPSEEK_V3, "fp8", 256, 4096, 4096, 22.08),
    (GPT_OSS, "bf16", 64, 1280, 8192, 14.93), (GPT_OSS, "bf16", 256, 5120, 8192, 15.16),
    (QWEN3_235B, "bf16", 256, 8192, 4096, 30.87), (QWEN3_235B, "fp8", 256, 8192, 4096, 27.67),
)  # fmt: skip
# DeepSeek-AI 2024 (arXiv 2412.19437), table 1 and sections 3.1 to 3.3: 180 K hours of an H800 for a trillion tokens on
# 2,048; 16 stages, 64 devices along experts, ZeRO-1, fp8, a sequence at a time; DualPipe hides what is sent.
DEEPSEEK_HOURS, DEEPSEEK_DEVICES = 180e3, 2048
DUALPIPE_TRAITS = dataclasses.replace(MEGATRON_TRAITS, sends_hidden=True)


def make_row(
    recipe: str, chip: str, layout: Layout, sequences: int, accumulate: int, traits: SystemTraits, seconds: float,
    **values: Any,
) -> PublishedStep:  # fmt: skip
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
        replicas // row.experts, 1, row.tensor, 1, row.stage, row.tensor > 1, zero=1, expert=row.experts,
        microbatches=micro if staged else 1, rounds=row.rounds,
    )  # fmt: skip
    seconds = row.sequences * row.seq_len / (row.tokens_per_s * row.devices)
    more = MTP if mtp and row.recipe == DEEPSEEK_V3 else {}
    return make_row(
        row.recipe, row.chip, layout, row.sequences, 1 if staged else micro, MEGATRON_TRAITS, seconds,
        precision__name=row.precision, model__seq_len=row.seq_len, model__remat="none", **more,
    )  # fmt: skip


def ironwood_row(
    recipe: str, precision: str, chips: int, sequences: int, seq_len: int, seconds: float
) -> PublishedStep:
    """One row of MaxText on TPU v7."""
    return make_row(
        recipe, "v7", Layout(fsdp=2 * chips), sequences, 1, MAXTEXT_TRAITS, seconds,
        precision__name=precision, model__seq_len=seq_len, model__remat="full",
    )  # fmt: skip


def deepseek_row() -> PublishedStep:
    """DeepSeek-V3 as its authors trained it: the hours of a trillion tokens as seconds of a full batch."""
    layout = Layout(2, 1, stage=16, zero=1, expert=64, microbatches=120)
    seconds = DEEPSEEK_HOURS * 3600 / 1e12 * 15_360 * 4096 / DEEPSEEK_DEVICES
    return make_row(
        DEEPSEEK_V3, "h800", layout, 15_360, 1, DUALPIPE_TRAITS, seconds, precision__name="fp8", model__remat="none",
        **{key.replace(".", "__"): value for key, value in MTP.items()},
    )  # fmt: skip


def compare_rows() -> list[dict[str, Any]]:
    """Each row as planned. No share was fitted on any of them, so each error is that of a system left out."""
    lines = []
    for name, row in read_rows().items():
        planned = step_time(row.static, row.machine, traits=row.traits)
        error = planned.total_s / row.seconds - 1
        lines.append({
            "name": name, "system": name.split()[0], "chip": row.machine.chip.name, "precision": row.static.precision,
            "published_s": row.seconds, "predicted_s": planned.total_s, "low_s": planned.low_s,
            "high_s": planned.high_s, "error": error, "in_range": planned.low_s <= row.seconds <= planned.high_s,
            "mfu": planned.mfu, "devices": row.static.layout.devices, "share": None, "left_out_error": error,
        })  # fmt: skip
    return lines


def name_row(row: BridgeRow, release: str) -> str:
    """The name begins with the system."""
    return f"Megatron-Bridge {release} {row.recipe}, {row.seq_len} tokens, {row.devices} {row.chip} {row.precision}"


def read_rows() -> dict[str, PublishedStep]:
    """All rows by name."""
    rows = {"DeepSeek deepseek_v3, 4096 tokens, 2048 h800 fp8": deepseek_row()}
    for release, table in (("26.02", BRIDGE_26_02), ("25.11", BRIDGE_25_11)):
        rows |= {name_row(row, release): bridge_row(row, release == "26.02") for row in table}
    return rows | {
        f"tpu-recipes {row[0]}, {row[4]} tokens, {row[2]} chips of v7 {row[1]}": ironwood_row(*row) for row in IRONWOOD
    }
