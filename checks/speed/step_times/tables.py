"""Published tables of step times as rows to plan: DIR/llm_foundry.csv, others.csv and new.csv, one run per line.

Columns: see the data/README.md beside the tables; missing shapes follow MaxText's scale rule
(`global_parameter_scale`).
"""

import csv
import dataclasses
import math
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from checks.speed.step_times import fit
from checks.speed.step_times.rows import PublishedStep, build_static, slower_h100
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.step.efficiency import Efficiency, Range, default_efficiency
from scalelab.plan.step.systems import (
    EAGER_TRAITS,
    MAXTEXT_TRAITS,
    MEGATRON_TRAITS,
    TORCHTITAN_TRAITS,
    SystemTraits,
)
from scalelab.plan.step.time import expected_s, step_time

TABLE_FILES = ("llm_foundry.csv", "others.csv", "new.csv")
CHIP_ALIASES = {"a100-80gb": "a100", "h100_80gb": "h100", "a100_80gb": "a100", "a100_40gb": "a100-40gb"}
JAX_SYSTEMS = ("MaxText", "JAX-Toolbox", "tpu-recipes", "PaLM")  # systems with MaxText's traits
DEVICES_A_CHIP = {"v7": 2}
MOST_SHARE = 1.5  # the largest share of the datasheet's peak that is tried


def read_tables(folder: pathlib.Path) -> dict[str, PublishedStep]:
    """Every row of both files by a name that begins with its system. BadInput if a file is missing."""
    rows: dict[str, PublishedStep] = {}
    for name, make in zip(TABLE_FILES, (_foundry, _other, _newer), strict=True):
        path = folder / name
        if not path.exists():
            raise BadInput(f"--data={folder}: no {name} there")
        with path.open(newline="") as file:
            rows |= dict(make(line) for line in csv.DictReader(file))
    return rows


def _foundry(line: dict[str, str]) -> tuple[str, PublishedStep]:
    """One row of mosaicml/llm-foundry: a GPT under FSDP over all devices."""
    sizes = {key: int(line[key]) for key in ("n_layers", "d_model", "n_heads", "seq_len", "devices")}
    micro, accumulate = int(line["micro_batch"]), int(line["accumulate"])
    remat = "full" if line["activation_checkpointing"] == "True" else "none"
    of = build_static(
        "gpt2",
        sizes["n_layers"],
        sizes["d_model"],
        sizes["n_heads"],
        micro * accumulate * sizes["devices"],
        sizes["seq_len"],
        50_368,
        accumulate,
        "fp8" if "fp8" in line["precision"] else "bf16",
        model={"remat": remat},
        fsdp=sizes["devices"],
        zero=3 if line["sharding"] == "FULL_SHARD" else 2,
    )
    name = (
        f"llm-foundry {line['model']}, {line['seq_len']} tokens, {line['devices']} {line['chip']} {line['precision']}"
    )
    return name, PublishedStep(of, load_machine(CHIP_ALIASES[line["chip"]]), EAGER_TRAITS, float(line["seconds"]))


def _other(line: dict[str, str]) -> tuple[str, PublishedStep]:
    """One row of another system: `layout` names axes, rounds, ZeRO's stage and micro-batches."""
    chip, text, gpu = line["chip"], line["layout"], int(line["devices"])
    cores = DEVICES_A_CHIP.get(chip, 1)
    axes = {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", text)}
    axes["fsdp" if "fsdp" in axes else "data"] = (
        axes.get("fsdp", axes.get("data", gpu // math.prod(axes.values()))) * cores
    )
    layout: dict[str, Any] = axes | {"zero": _number(r"ZeRO-(\d)", text, 3 if "fsdp" in axes else 1)}
    rows = int(line["sequences_a_step"])
    replicas = axes.get("data", 1) * axes.get("fsdp", 1)
    micro = _number(r"micro-batch (\d+)", text, 1 if "stage" in axes else rows // replicas)
    n_microbatches = _number(r"(\d+) micro-batches", text, max(1, rows // (replicas * micro)))
    rounds = _number(r"(\d+) rounds", text, 1)
    if "stage" in axes:
        layout |= {"microbatches": n_microbatches, "rounds": rounds}
        layout["sequence"] = axes.get("tensor", 1) > 1
        n_microbatches = 1
    shape, model = _shape(line)
    setup = build_static(
        *shape,
        rows,
        int(line["seq_len"]),
        int(line["vocab_size"]),
        n_microbatches,
        line["precision"],
        model=model | {"remat": line["remat"]},
        **layout,
    )
    traits = _traits_of(line["source"])
    name = f"{line['source']} {line['model']}, {line['seq_len']} tokens, {line['devices']} {chip} {line['precision']}"
    return name, PublishedStep(setup, load_machine(CHIP_ALIASES.get(chip, chip)), traits, float(line["seconds"]))


def _traits_of(source: str) -> SystemTraits:
    if source.endswith(JAX_SYSTEMS) or source.startswith(JAX_SYSTEMS):
        return MAXTEXT_TRAITS
    return TORCHTITAN_TRAITS if source == "torchtitan" else MEGATRON_TRAITS


LLAMA3_SHAPES = {"8B": (32, 4096, 32, 14_336), "70B": (80, 8192, 64, 28_672), "405B": (126, 16_384, 128, 53_248)}


def _newer(line: dict[str, str]) -> tuple[str, PublishedStep]:
    """One Llama 3 of new.csv: a column an axis; `fsdp` 0: whole parameters and ZeRO-1 over what is left.

    Its TPUs are counted in devices, two a chip.
    """
    chip, devices, sequences = line["chip"], int(line["devices"]), int(line["sequences"])
    axes = {axis: int(line[axis]) for axis in ("fsdp", "tensor", "stage", "context")}
    replicas = devices // (axes["tensor"] * axes["stage"] * axes["context"])
    micro = int(line["micro_batch"] or sequences // replicas)
    n_microbatches = sequences // (replicas * micro)
    sharded = axes.pop("fsdp") > 0
    layout: dict[str, Any] = axes | {"fsdp" if sharded else "data": replicas, "zero": 3 if sharded else 1}
    layout["sequence"] = axes["tensor"] > 1
    if axes["stage"] > 1:
        layout |= {"microbatches": n_microbatches, "rounds": int(line["rounds"])}
        n_microbatches = 1
    layers, width, heads, inner = LLAMA3_SHAPES[line["model"]]
    model = {"n_kv_heads": 8, "d_ff": inner, "remat": line["remat"]}
    precision = "fp8" if "fp8" in line["precision"] else line["precision"]
    static = build_static(
        "llama",
        layers,
        width,
        heads,
        sequences,
        int(line["seq_len"]),
        128_256,
        n_microbatches,
        precision,
        model=model,
        **layout,
    )
    repository = line["source"].split()[0].partition("/")[2]
    traits = _traits_of(repository)
    words = (line["release"], line["model"] + ",", line["seq_len"], "tokens,", devices, chip, line["precision"])
    name = " ".join(map(str, (repository, *words)))
    return name, PublishedStep(static, _machine(chip), traits, float(line["seconds"]))


# TFLOP/s in bf16 (fp8: twice as many), GiB and Gb/s of network a GPU: NVIDIA's datasheets of GB200 and GB300 NVL72.
NVL72 = {"GB200": (2500, 186, 400), "GB300": (2500, 288, 800)}


def _machine(chip: str) -> Machine:
    """The machine of a chip by its name in the tables; an NVL72's 72 GPUs share one switch."""
    if chip == "H100 500W":
        return slower_h100()
    if chip in NVL72:
        tflops, gib, gbits = NVL72[chip]
        b200 = load_machine("b200")
        rates = {"bfloat16": tflops * 1e12, "float8": 2 * tflops * 1e12}
        other = dataclasses.replace(b200.chip, name=chip, flops=rates, hbm_bytes=gib * 2**30)
        return dataclasses.replace(b200, chip=other, devices_per_node=72, node_bytes_per_s=gbits * 1e9 / 8)
    return load_machine(CHIP_ALIASES.get(chip, chip).removeprefix("TPU ").lower())


def _number(pattern: str, text: str, otherwise: int) -> int:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else otherwise


def _shape(line: dict[str, str]) -> tuple[tuple[str, int, int, int], dict[str, Any]]:
    """(preset, layers, width, heads) and the rest of the model; an MLP that is not 4 d wide is assumed to be gated."""
    if not line["n_layers"]:
        return maxtext_shape(int(line["model"].removesuffix("B")))
    layers, width, heads, kv, inner = (int(line[k]) for k in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff"))
    if line["source"] == "MaxText":  # heads of 128 and gated MLPs are its base.yml's
        return ("llama", layers, width, heads), {"d_head": 128, "n_kv_heads": kv, "d_ff": inner}
    return ("gpt2" if inner == 4 * width else "llama", layers, width, heads), {"n_kv_heads": kv, "d_ff": inner}


def maxtext_shape(billions: int) -> tuple[tuple[str, int, int, int], dict[str, Any]]:
    """MaxText's model of `global_parameter_scale` 2^n.

    The exponent is split in thirds; the remainder goes to heads and MLP, then to width.
    """
    third, rest = divmod(int(math.log2(billions)), 3)
    wide, embed = third + (rest > 0), third + (rest > 1)
    heads, width, layers = 16 * 2**wide, 2048 * 2**embed, 16 * 2**third
    return ("llama", layers, width, heads), {"d_head": 128, "n_kv_heads": heads, "d_ff": 7168 * 2**wide}


def share_that_fits(row: PublishedStep) -> float | None:
    """The share of the peak in products at which the expected time is the published one; None if there is none."""
    low, high = 0.05, MOST_SHARE
    if not _seconds(row, high) < row.seconds < _seconds(row, low):
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if _seconds(row, middle) > row.seconds else (low, middle)
    return (low + high) / 2


def _seconds(row: PublishedStep, share: float) -> float:
    return expected_s(row.static, row.machine, with_share(default_efficiency(row.machine), share), row.traits)


def with_share(of: Efficiency, share: float) -> Efficiency:
    """The system with this expected share in products."""
    return dataclasses.replace(of, matmul=Range(min(of.matmul.low, share), share, max(of.matmul.high, share)))


def compare_rows(rows: dict[str, PublishedStep]) -> list[dict[str, Any]]:
    """Each row as planned, the share that fits it, and its error with the other systems' median share on its chip.

    `left_out_error` is the only column that no row of the row's own system influenced: GPUs' by shares fitted again
    (fit.py); TPUs' by the median share of other systems, None if no other ran on the chip.
    """
    gpus = fit.prepare_rows(rows)
    left_out = fit.left_out_errors(gpus)
    lines = []
    for name, row in rows.items():
        planned = step_time(row.static, row.machine, traits=row.traits)
        lines.append({
            "name": name, "system": name.split()[0], "chip": row.machine.chip.name, "precision": row.static.precision,
            "published_s": row.seconds, "predicted_s": planned.total_s, "error": planned.total_s / row.seconds - 1,
            "in_range": planned.low_s <= row.seconds <= planned.high_s,
            "share": None if name in left_out else share_that_fits(row),
        })  # fmt: skip
    for line, row in zip(lines, rows.values(), strict=True):
        others = [r["share"] for r in lines if r["share"] and _alike(line, r) and r["system"] != line["system"]]
        share = statistics.median(others) if others else None
        other = None if share is None else _seconds(row, share) / row.seconds - 1
        line["left_out_error"] = left_out.get(line["name"], other)
    return lines


def _alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Rows of one chip whose products run in one unit."""
    return a["chip"] == b["chip"] and ("fp8" in a["precision"]) == ("fp8" in b["precision"])


def summarize_by_chip(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per chip and unit: the errors, and the share of the peak that would fit its rows."""
    return _grouped(lines, "chip", lambda line: line["chip"] + (", fp8" if "fp8" in line["precision"] else ""))


def summarize_by_system(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per system."""
    return _grouped(lines, "system", lambda line: line["system"])


def _grouped(
    lines: Iterable[dict[str, Any]], key: str, group_of: Callable[[dict[str, Any]], str]
) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(group_of(line), []).append(line)
    return [{key: name} | _summary(group) for name, group in sorted(groups.items())]


def summarize_all(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The claim: errors over all rows, and the worst chip of three rows or more, each system left out once."""
    left_out = [line for line in lines if line["left_out_error"] is not None]
    chips: dict[str, list[float]] = {}
    for line in left_out:
        chips.setdefault(line["chip"], []).append(abs(line["left_out_error"]))
    means = {chip: statistics.mean(errors) for chip, errors in chips.items() if len(errors) >= 3}
    worst = max(means, key=lambda chip: means[chip])
    return {
        "rows": len(lines), "mean_absolute": statistics.mean(abs(line["error"]) for line in lines),
        "in_range": statistics.mean(line["in_range"] for line in lines),
        "left_out_rows": len(left_out),
        "left_out_mean_absolute": statistics.mean(abs(line["left_out_error"]) for line in left_out),
        "worst_chip": worst, "worst_chip_mean_absolute": means[worst],
    }  # fmt: skip


def _summary(group: list[dict[str, Any]]) -> dict[str, Any]:
    errors, shares = [line["error"] for line in group], sorted(line["share"] for line in group if line["share"])
    left_out = [line["left_out_error"] for line in group if line["left_out_error"] is not None]
    return {
        "rows": len(group), "systems": sorted({line["system"] for line in group}),
        "chips": sorted({line["chip"] for line in group}),
        "median_error": statistics.median(errors),
        "mean_absolute_error": statistics.mean(map(abs, errors)), "in_range": sum(line["in_range"] for line in group),
        "share": statistics.median(shares) if shares else None, "shares": [shares[0], shares[-1]] if shares else None,
        "left_out_error": statistics.median(left_out) if left_out else None,
        "left_out_mean_absolute": statistics.mean(map(abs, left_out)) if left_out else None,
    }  # fmt: skip
