"""Published step times, each with the config and the mesh that it was measured with, and its source."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.configs import base
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.megatron import GptShape, recomputed_flops
from scalelab.plan.step.flops import count_flops
from scalelab.plan.step.systems import (
    MAXTEXT_TRAITS,
    MEGATRON_TRAITS,
    TIMED_TRAITS,
    TORCHTITAN_TRAITS,
    SystemTraits,
)


class PublishedStep(NamedTuple):
    """A step that was timed; `host_s`: what a host takes at least to start the kernels of a block, if that is known."""

    static: Static
    machine: Machine
    traits: SystemTraits
    seconds: float
    host_s: float = 0.0


def build_config(
    preset: str,
    n_layers: int,
    d_model: int,
    n_heads: int,
    global_batch: int,
    seq_len: int,
    vocab_size: int,
    accumulate: int = 1,
    precision: str = "bf16",
    optimizer: str = "adamw",
    model: dict | None = None,
    **layout,
) -> ConfigDict:
    """A resolved config; `layout`: keys of `parallel`."""
    tree = base.get_config()
    tree.model = getattr(base, preset)(d_model, n_layers, n_heads)
    values = {f"model.{key}": value for key, value in (model or {}).items()}
    values |= {f"parallel.{key}": value for key, value in layout.items()}
    sizes = {"model.vocab_size": vocab_size, "model.seq_len": seq_len, "train.global_batch": global_batch}
    more = {"train.accumulate": accumulate, "precision.name": precision, "optim.name": optimizer}
    return config_lib.resolve(config_lib.override(tree, values | sizes | more))


def build_static(*sizes, **more) -> Static:
    """The static part of such a config."""
    return config_lib.static(build_config(*sizes, **more))


def megatron_static(
    layers: int,
    width: int,
    heads: int,
    tensor: int,
    stages: int,
    gpus: int,
    batch: int,
    micro: int,
    rounds: int,
    selective: bool = False,
) -> Static:
    """GPT of Narayanan et al. 2021 and Korthikanti et al. 2022.

    Vocabulary 51,200, 2,048 tokens, fp16, attention not yet fused. `selective`: sequence parallelism, and recomputation
    of attention's core only; `remat` has no such policy, and none is nearest.
    """
    data = gpus // tensor // stages
    n_microbatches = batch // data // micro
    layout: dict = {"data": data, "tensor": tensor, "zero": 0, "sequence": selective}
    if stages > 1:
        layout |= {"stage": stages, "microbatches": n_microbatches, "rounds": rounds}
    model = {"attention": "plain", "remat": "none" if selective else "full"}
    accumulate = 1 if stages > 1 else n_microbatches
    return build_static("gpt2", layers, width, heads, batch, 2048, 51_200, accumulate, "fp16", model=model, **layout)


A100_ROWS = {
    # layers, width, heads, tensor, stages, GPUs, sequences, of a micro-batch, rounds: TFLOP/s a GPU. Narayanan et al.
    # 2021, table 1; micro-batches and rounds: examples/sc21/run_table_1.sh of Megatron-LM.
    (24, 2304, 24, 1, 1, 32, 512, 16, 1): 137,
    (30, 3072, 32, 2, 1, 64, 512, 16, 1): 138,
    (36, 4096, 32, 4, 1, 128, 512, 16, 1): 142,
    (40, 6144, 48, 8, 1, 256, 1024, 8, 1): 135,
    (48, 8192, 64, 8, 2, 512, 1536, 4, 1): 138,
    (60, 10240, 80, 8, 4, 1024, 1792, 2, 3): 140,
    (80, 12288, 96, 8, 8, 1536, 2304, 2, 2): 148,
    (96, 16384, 128, 8, 16, 1920, 2160, 1, 2): 155,
    (105, 20480, 128, 8, 35, 2520, 2520, 1, 3): 163,
    (128, 25600, 160, 8, 64, 3072, 3072, 1, 1): 163,
}
KORTHIKANTI_ROWS = {
    # columns as above: seconds with full recomputation, and with sequence parallelism and selective recomputation.
    # Table 5.
    (48, 6144, 64, 8, 1, 8, 4, 4, 1): (1.42, 1.10),
    (96, 12288, 96, 8, 8, 64, 64, 1, 3): (18.13, 13.75),
    (105, 20480, 128, 8, 35, 280, 280, 1, 3): (49.05, 37.83),
    (128, 25600, 160, 8, 64, 512, 512, 1, 1): (94.42, 71.49),
}
# GPUs, sequences, tokens of one, layout: TFLOP/s a GPU. Dubey et al. 2024, table 4.
LLAMA3_ROWS = (
    (8192, 2048, 8192, {"data": 64, "microbatches": 32}, 430),
    (16384, 2048, 8192, {"data": 128, "microbatches": 16}, 400),
    (16384, 128, 131_072, {"data": 8, "context": 16, "microbatches": 16}, 380),
)
GROUPED_QUERIES = {"n_kv_heads": 8, "remat": "full"}
# AI-Hypercomputer/tpu-recipes, training/trillium: pure FSDP on one slice of v6e; blocks recomputed but for what is
# offloaded.
MAXTEXT_ROWS = (
    ("Llama 3.1 8B", ("llama", 32, 4096, 32, 1024, 8192, 128_256), GROUPED_QUERIES | {"d_ff": 14_336}, 256, 4.546),
    ("Llama 3.1 70B", ("llama", 80, 8192, 64, 1280, 8192, 128_256), GROUPED_QUERIES | {"d_ff": 28_672}, 256, 42.656),
    # 512 sequences by the log's own tokens; the recipe beside it says 3 a chip, so 768
    ("Llama 2 70B", ("llama", 80, 8192, 64, 512, 4096, 32_000), GROUPED_QUERIES | {"d_ff": 28_672}, 256, 9.052),
    ("GPT-3 175B", ("gpt2", 96, 12_288, 96, 768, 2048, 50_304), {"remat": "full"}, 256, 17.182),
    ("Mistral 7B", ("llama", 32, 4096, 32, 48, 8192, 32_000), GROUPED_QUERIES | {"d_ff": 14_336}, 8, 6.320),
)
MT_NLG_ROWS = {2240: 60.1, 2800: 50.2}  # seconds an iteration of 1,920 sequences (Smith et al. 2022, section 2.3)


def narayanan_row(shape: tuple, tflops: float) -> PublishedStep:
    """TFLOP/s converted to seconds by the paper's own FLOPs (equation 3)."""
    layers, width, heads, _, _, gpus, batch, _, _ = shape
    spent = recomputed_flops(GptShape(layers, width, heads, 51_200, 2048), batch)
    return PublishedStep(megatron_static(*shape), load_machine("a100"), MEGATRON_TRAITS, spent / (gpus * tflops * 1e12))


def llama3_row(gpus: int, batch: int, length: int, layout: dict, tflops: float) -> PublishedStep:
    """405B on H100s: 16 stages of 8 layers, each layer a round.

    The paper states neither the rounds (8 reproduces the ratio of its rows, and 126 = 128 - 2) nor how it counts
    attention: halved for causality here. Counted in full, the row of 131,072 tokens would be 15.3 s, beyond the
    planner's range.
    """
    model, pipeline = {"n_kv_heads": 8, "d_ff": 53_248}, {"stage": 16, "rounds": 8, "zero": 1}
    layout = layout | pipeline | {"tensor": 8, "sequence": True}
    of = build_static("llama", 126, 16_384, 128, batch, length, 128_256, model=model, **layout)
    seconds = count_flops(of).per_token["causal"] * batch * length / (gpus * tflops * 1e12)
    return PublishedStep(of, load_machine("h100"), MEGATRON_TRAITS, seconds)


def palm_row() -> PublishedStep:
    """540B: 238.3k tokens/s on two pods of 3,072 TPU v4, batch 2,048 (Chowdhery et al. 2022, section 4.1)."""
    model = {"n_kv_heads": 1, "d_head": 256, "d_ff": 73_728, "block": "parallel", "tied_head": True, "remat": "full"}
    of = build_static("llama", 118, 18_432, 48, 2048, 2048, 256_000, model=model, data=2, fsdp=256, tensor=12)
    return PublishedStep(
        of, dataclasses.replace(load_machine("v4"), devices_per_node=3072), MAXTEXT_TRAITS, 2048 * 2048 / 238.3e3
    )


def maxtext_row(shape: tuple, model: dict, chips: int, seconds: float) -> PublishedStep:
    """One slice of v6e."""
    return PublishedStep(build_static(*shape, model=model, fsdp=chips), load_machine("v6e"), MAXTEXT_TRAITS, seconds)


def mt_nlg_row(gpus: int, seconds: float) -> PublishedStep:
    """530B with DeepSpeed."""
    return PublishedStep(
        megatron_static(105, 20_480, 128, 8, 35, gpus, 1920, 1, 1), load_machine("a100"), MEGATRON_TRAITS, seconds
    )


def slower_h100() -> Machine:
    """H100s held to 500 W, with 2.4 TB/s of memory: torchtitan's."""
    h100 = load_machine("h100")
    return dataclasses.replace(h100, chip=dataclasses.replace(h100.chip, name="H100 500W", hbm_bytes_per_s=2.4e12))


def torchtitan_row(gpus: int, tokens_per_s: float) -> PublishedStep:
    """FSDP, torch.compile, selective recomputation, two sequences of 8,192 tokens per GPU."""
    model = {"n_kv_heads": 8, "d_ff": 14_336, "remat": "dots"}
    of = build_static("llama", 32, 4096, 32, 2 * gpus, 8192, 128_256, model=model, fsdp=gpus)
    return PublishedStep(of, slower_h100(), TORCHTITAN_TRAITS, 2 * 8192 / tokens_per_s)


# checks/results/gpu.jsonl: config of checks/gpu, rows, precision: seconds a step, on one H100.
TIMED_ROWS = {
    ("124M", 64, "bf16"): 0.21832,
    ("124M", 32, "fp32"): 0.82212,
    ("124M", 32, "tf32"): 0.36727,
    ("124M", 64, "fp8_delayed"): 0.22675,
    ("1B", 16, "bf16"): 0.52890,
}


def timed_row(name: str, rows: int, precision: str, seconds: float) -> PublishedStep:
    """This trainer's own steps, as of 2026-11-27: the shapes of `checks.gpu`."""
    if name == "124M":
        shape, model = ("gpt2", 12, 768, 12, rows, 1024, 50_304), {"remat": "none"}
    else:
        shape, model = ("llama", 18, 2048, 16, rows, 2048, 32_000), {"remat": "none"}
    of = build_static(*shape, precision=precision, model=model)
    return PublishedStep(of, load_machine("h100"), TIMED_TRAITS, seconds)


def korthikanti_row(shape: tuple, seconds: float, selective: bool) -> PublishedStep:
    """A row of Korthikanti et al. 2022."""
    return PublishedStep(megatron_static(*shape, selective=selective), load_machine("a100"), MEGATRON_TRAITS, seconds)


# {name: function that makes the row}. `matmul` of the GPUs was centred on these rows.
CALIBRATED_ROWS: dict[str, Callable[[], PublishedStep]] = {
    f"Narayanan {shape[0]} x {shape[1]}": partial(narayanan_row, shape, tflops) for shape, tflops in A100_ROWS.items()
} | {
    f"Korthikanti {shape[0]} x {shape[1]} {kind}": partial(
        korthikanti_row, shape, seconds[kind == "selective"], kind == "selective"
    )
    for shape, seconds in KORTHIKANTI_ROWS.items()
    for kind in ("full", "selective")
}
# Other chips, other code, other papers.
OTHER_ROWS: dict[str, Callable[[], PublishedStep]] = (
    {f"Llama 3 405B, {row[0]} x {row[2]}": partial(llama3_row, *row) for row in LLAMA3_ROWS}
    | {f"MaxText {name}": partial(maxtext_row, *row) for name, *row in MAXTEXT_ROWS}
    | {f"MT-NLG 530B, {gpus}": partial(mt_nlg_row, gpus, seconds) for gpus, seconds in MT_NLG_ROWS.items()}
    | {"PaLM 540B": palm_row}
)
# H100s held to 500 W, with 2.4 TB/s of memory. Their peak nobody states (benchmarks/llama3_h100_202412_torchtitan.md),
# and the table's is of 700 W; what was missed by 28 % is FlashAttention 2, whose share on an H100 is far below cuDNN's.
SLOWER_ROWS: dict[str, Callable[[], PublishedStep]] = {
    f"torchtitan Llama 3.1 8B, {gpus}": partial(torchtitan_row, gpus, tokens_per_s)
    for gpus, tokens_per_s in ((8, 6667), (128, 6514))
}
# Ours, timed.
OUR_ROWS: dict[str, Callable[[], PublishedStep]] = {
    f"scalelab-2026-11-27 {size} {precision}": partial(timed_row, size, rows, precision, seconds)
    for (size, rows, precision), seconds in TIMED_ROWS.items()
}
