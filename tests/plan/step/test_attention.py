"""Attention in the plan: the kernel that the trainer would take on the chip, and what taking none of them costs."""

import dataclasses
import pathlib

import pytest

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.advice import advise_changes
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step.operations import attention_kind, keys_per_query, step_operations
from scalelab.plan.step.savings import cost_of_traits
from scalelab.plan.step.time import step_time

LLAMA = config_lib.static(config_lib.load(str(pathlib.Path(__file__).parents[3] / "configs/recipes/llama3_8b.py")))
LLAMA = dataclasses.replace(LLAMA, layout=Layout(fsdp=8), accumulate=128)
LONG = dataclasses.replace(
    LLAMA, model=dataclasses.replace(LLAMA.model, seq_len=131_072, remat="full"), global_batch=64, accumulate=8,
    layout=Layout(fsdp=8, context=8),
)  # fmt: skip


def model(static, **changes):
    return dataclasses.replace(static, model=dataclasses.replace(static.model, **changes))


def softmax_bytes(static, machine):
    return sum(op.bytes * op.times for op in step_operations(static, machine) if op.name == "softmax")


@pytest.mark.parametrize("static", [LLAMA, LONG], ids=["a row", "a ring"])
def test_documents_of_llama_3_are_in_the_kernel(static):
    """In blocks a step is a third longer, and of 131,072 tokens nearly three times as long; memory is a mask's less."""
    h100 = load_machine("h100")
    in_blocks = model(static, attention="blockwise")
    assert (attention_kind(static, h100), attention_kind(in_blocks, h100)) == ("cudnn", "blockwise")
    assert softmax_bytes(static, h100) == 0 < softmax_bytes(in_blocks, h100)
    fused, blocks = step_time(static, h100), step_time(in_blocks, h100)
    assert blocks.total_s > 1.3 * fused.total_s
    # That is the whole cost of blocks: it is what the plan says of them, with the reason.
    (cost,) = [s for words, s in cost_of_traits(in_blocks, h100).items() if "is asked for" in words]
    assert cost == pytest.approx(blocks.total_s - fused.total_s)
    assert not [words for words in cost_of_traits(static, h100) if "fused kernel" in words]
    assert any("by their starts and lengths; batches of more than" in line for line in fused.assumptions)


def test_what_the_backward_keeps_of_cudnn_has_its_output_in_16_bits():
    """Blocks keep it in fp32 too, for each token, head and layer: the difference, to the byte."""
    h100 = load_machine("h100")
    fused, blocks = (
        step_memory(model(LLAMA, attention=name, n_layers=2), h100).components["activations"]
        for name in ("auto", "blockwise")
    )
    assert blocks - fused == 2 * 4 * 8192 * 4096  # of one sequence a device


def test_an_a100_takes_blocks_for_long_rows_of_documents_and_says_why():
    a100 = load_machine("a100")
    assert attention_kind(LLAMA, a100) == "blockwise"
    (words,) = [words for words in cost_of_traits(LLAMA, a100) if "fused kernel" in words]
    assert words.endswith("(cudnn: masked documents would be a mask of all pairs of tokens before Hopper)")
    assert attention_kind(dataclasses.replace(LLAMA, documents="cross"), a100) == "cudnn"
    of = model(LLAMA, d_head=256, n_heads=16)
    assert [attention_kind(of, load_machine(chip)) for chip in ("h100", "b200")] == ["cudnn", "blockwise"]


@pytest.mark.full
def test_windows_in_a_ring_are_in_blocks():
    """Every second layer's logits pass through memory; with a window in all layers there is no fused part."""
    h100 = load_machine("h100")
    some, all_ = model(LONG, window=4096, global_every=2), model(LONG, window=4096)
    assert (attention_kind(some, h100), attention_kind(all_, h100)) == ("cudnn", "blockwise")
    assert softmax_bytes(some, h100) == pytest.approx(softmax_bytes(all_, h100) / 2)
    assert keys_per_query(some, h100) == pytest.approx((keys_per_query(all_, h100) + keys_per_query(LONG, h100)) / 2)
    advice = advise_changes(all_, h100)
    assert advice and all("in a ring it knows no window" in option.notes[-1] for option in advice if
                          option.changes.get("parallel.context", 8) > 1)  # fmt: skip
