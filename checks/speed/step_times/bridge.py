"""Megatron-Bridge's published step times of models with experts: its performance summaries, release by release."""

from typing import NamedTuple

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
# docs/performance-summary.md of slikhite-1/Megatron-Bridge @7e5c47ff, container 26.06: all rows of these models. The
# page was seen early; no row of it was planned before the terms of recipes.py were chosen.
BRIDGE_26_06 = (
    BridgeRow("gb300", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 2, 8, 32, 6338),
    BridgeRow("gb300", DEEPSEEK_V3, 256, "fp8", 15_360, 1, 4096, 1, 2, 8, 32, 6422),
    BridgeRow("gb200", DEEPSEEK_V3, 256, "fp8", 4096, 1, 4096, 1, 4, 4, 64, 4969),
    BridgeRow("b300", DEEPSEEK_V3, 256, "fp8", 4096, 2, 4096, 1, 8, 1, 8, 3541),
    BridgeRow("gb300", GPT_OSS, 64, "fp8", 1280, 4, 4096, 1, 1, 1, 16, 33_166),
    BridgeRow("gb200", GPT_OSS, 64, "fp8", 1280, 4, 4096, 1, 1, 1, 64, 28_947),
    BridgeRow("b300", GPT_OSS, 64, "fp8", 1280, 4, 4096, 1, 1, 1, 8, 18_534),
    BridgeRow("gb300", QWEN3_30B, 8, "fp8", 512, 8, 4096, 1, 1, 1, 8, 45_275),
    BridgeRow("gb200", QWEN3_30B, 8, "fp8", 512, 4, 4096, 1, 1, 1, 8, 40_706),
    BridgeRow("b300", QWEN3_30B, 8, "fp8", 512, 8, 4096, 1, 1, 1, 8, 40_769),
    BridgeRow("h100", QWEN3_30B, 16, "fp8", 1024, 1, 4096, 1, 1, 1, 16, 8826),
    BridgeRow("gb300", QWEN3_235B, 256, "fp8", 8192, 2, 4096, 1, 4, 12, 32, 9015),
    BridgeRow("gb200", QWEN3_235B, 256, "fp8", 8192, 1, 4096, 1, 8, 3, 32, 7376),
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


def earlier_rows() -> list[tuple[str, BridgeRow]]:
    """(release, row) of those that were there when the first terms were chosen."""
    return [("26.02", row) for row in BRIDGE_26_02] + [("25.11", row) for row in BRIDGE_25_11]


def held_rows() -> list[tuple[str, BridgeRow]]:
    """(release, row) of those that were added later."""
    older = [("25.09" if row.devices == 1024 else "25.11", row) for row in HELD_BRIDGE]
    return older + [("26.06", row) for row in BRIDGE_26_06]


def name_row(row: BridgeRow, release: str) -> str:
    """The name begins with the system."""
    batch = f", {row.sequences} sequences" if row.sequences == 15_360 else ""
    return (
        f"Megatron-Bridge {release} {row.recipe}, {row.seq_len} tokens{batch}, {row.devices} {row.chip} {row.precision}"
    )
