"""Llama-7B on a 24 GB card: what GaLore (Zhao et al. 2024) and APOLLO (Zhu et al. 2024) say fits, and what doesn't."""

import functools

import pytest

from scalelab.plan.machine.machine import load_machine
from scalelab.plan.search.single_gpu import list_fits
from tests.plan.small import static_of

# The papers' own: LLaMA-7B with sequences of 256 tokens.
LLAMA_7B = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11008, "vocab_size": 32000, "seq_len": 256}


@functools.cache
def ways(name, rank=None):
    extra = {"optim__rank": rank} if rank else {}
    static = static_of(model=LLAMA_7B, precision__name="bf16", optim__name=name, optim__peak_lr=1e-3, **extra)
    return {(f.weights, f.per_layer, f.remat): f for f in list_fits(static, load_machine("rtx4090"))}


@pytest.mark.full
@pytest.mark.parametrize(("name", "rank"), [("adam8bit", None), ("galore", 1024), ("apollo_mini", None)])
def test_this_trainer_needs_more_for_its_fp32_weights_alone(name, rank):
    """27 GB of them: no optimizer, remat or batch makes a 7B model fit."""
    ours = [f for (weights, *_), f in ways(name, rank).items() if weights == "float32"]
    assert len(ours) == 3 and all(f.rows == 0 and not f.memory.fits for f in ours)
    assert min(f.memory.components["parameters"] for f in ours) > 24 * 2**30


def test_apollo_mini_fits_with_bf16_weights_updated_layer_by_layer():
    """SGD-like memory (APOLLO, abstract): 13.5 GB of weights and 2 of AdamW's state for tables and gains; full
    remat.
    """
    options = ways("apollo_mini")
    assert options["bfloat16", True, "full"].rows >= 16
    assert options["bfloat16", True, "full"].rows > options["bfloat16", True, "none"].rows
    assert all(
        options["bfloat16", False, remat].rows == 0 for remat in ("none", "dots", "full")
    )  # 13.5 GB of gradients
    # The abstract's "less than 12 GB" is with weights quantised to 8 bits, which nothing here has.
    assert options["bfloat16", True, "full"].memory.total > 12 * 2**30


def test_8_bit_adam_does_not_fit_however_it_is_held():
    """GaLore's Table 3 has it at 26 GB of weights and state (from memory of the paper): more than 24."""
    options = ways("adam8bit")
    assert all(f.rows == 0 for f in options.values())
    part = options["bfloat16", True, "full"].memory.components
    assert (part["parameters"] + part["optimizer"]) / 2**30 == pytest.approx(26, rel=0.04)


def test_galore_fits_at_a_low_rank_only_since_its_moments_are_fp32_here():
    """The paper's 24 GB are with 8-bit moments at rank 1024 (its README: 22.8 GB, 16 sequences, activation
    checkpointing).
    """
    assert all(f.rows == 0 for f in ways("galore", 1024).values())
    low = ways("galore", 256)["bfloat16", True, "full"]
    assert low.rows >= 4 and low.memory.fits  # of 24 GiB a program gets 21
    assert any("no such step" in note for note in low.memory.notes)
