"""Published step times of models with experts: Megatron-Bridge's, tpu-recipes', MaxText's and DeepSeek-V3's own.

All of Megatron-Bridge force even loads and drop nothing; its newest table has DeepSeek-V3 with the block and head of
multi-token prediction, which are planned as one more block. Ironwood's rows are of random routing, so even as well.

What a row's recipe switched on, and what that costs, stands in recipes.py. Two numbers were fitted here, on the eight
rows of Ironwood: the smallest side at which a TPU's grouped product has half its share, and what its gathers of rows
take in passes over memory; and two of hosts, on three rows of B200. No GPU's share was. HELD rows had no part in that,
but all were planned before the last three terms, which have no number, and all but those of 26.06 before the others.
"""

import dataclasses
import pathlib
from typing import Any

from checks.speed.step_times import bridge
from checks.speed.step_times.bridge import DEEPSEEK_V3, GPT_OSS, QWEN3_235B, BridgeRow
from checks.speed.step_times.recipes import (
    BRIDGE_TRAITS,
    HOST_SPREAD,
    TERMS,
    block_host_s,
    bridge_traits,
    find_recipe,
    maxtext_traits,
)
from checks.speed.step_times.rows import PublishedStep
from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.plan.machine.layout import with_layout
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.step.device_share import fullest_device_share
from scalelab.plan.step.systems import SystemTraits
from scalelab.plan.step.time import idle_share, step_time

RECIPES = pathlib.Path(__file__).parents[3] / "configs" / "recipes"
MTP = {"model.n_layers": 62, "model.block": "sequential=3,experts=59"}


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


def bridge_row(row: BridgeRow, release: str, terms: tuple[str, ...] = TERMS) -> PublishedStep:
    """One row of Megatron-Bridge, with the facts of its recipe."""
    recipe = find_recipe(release, row.recipe, row.chip)
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
    # bridge.py says it of each table: of 25.11 only B200's DeepSeek-V3 has multi-token prediction.
    with_mtp = row.recipe == DEEPSEEK_V3 and (release != "25.11" or row.chip == "b200")
    made = make_row(
        row.recipe,
        row.chip,
        layout,
        row.sequences,
        1 if staged else micro,
        bridge_traits(recipe, row.recipe, row.precision, terms, with_mtp),
        seconds,
        precision__name=row.precision,
        model__seq_len=row.seq_len,
        model__remat="none",
        **(MTP if with_mtp else {}),
    )
    return made._replace(host_s=block_host_s(recipe, terms))


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
        maxtext_traits(recipe),
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
            "left_out_error": None if is_fitted(name) else error,
        })  # fmt: skip
    return lines


def is_fitted(name: str) -> bool:
    """Whether a number was fitted on it: a TPU's on v7, a host's on B200 with Qwen3 30B, and 235B of 25.11."""
    of_hosts = ("qwen3_30b_a3b, 4096 tokens, 8 b200", "25.11 qwen3_235b_a22b, 4096 tokens, 64 b200")
    return " v7 " in name or any(part in name for part in of_hosts)


def least_host_s(row: PublishedStep) -> float:
    """Seconds in which a host starts all kernels of a step of Megatron-Bridge, block by block; 0 of others."""
    of = fullest_device_share(row.static)
    return row.host_s * of.layers * of.microbatches * (1 + idle_share(row.static))


def read_rows() -> dict[str, PublishedStep]:
    """All rows by name."""
    rows = {"DeepSeek deepseek_v3, 4096 tokens, 2048 h800 fp8": deepseek_row()}
    rows |= {bridge.name_row(row, release): bridge_row(row, release) for release, row in bridge.earlier_rows()}
    rows |= {
        f"tpu-recipes {row[0]}, {row[4]} tokens, {row[2]} chips of v7 {row[1]}": maxtext_row(
            "v7", row[0], row[1], 2 * row[2], *row[3:]
        )
        for row in IRONWOOD
    }
    return rows | held_rows()


def held_rows() -> dict[str, PublishedStep]:
    """Rows that were added after the fit."""
    rows = {bridge.name_row(row, release): bridge_row(row, release) for release, row in bridge.held_rows()}
    return rows | {
        f"tpu-recipes {row[0]}, {row[3]} tokens, {row[1]} v5p bf16": maxtext_row("v5p", row[0], "bf16", *row[1:])
        for row in HELD_V5P
    }


HELD = tuple(held_rows())
