"""Saved activations against the arrays that a backward really keeps, on one device and on eight, and against known
sizes.
"""

import dataclasses

import pytest

from scalelab.config import Layout
from scalelab.model.attention import blockwise
from scalelab.plan.memory import estimated_activations, saved_activations
from scalelab.plan.step import device_share
from tests.plan.small import drawn, kept, on_eight, static_of
from tests.quick import one_in

REMAT = ("none", "dots", "full")


@pytest.mark.full
@pytest.mark.parametrize("remat", one_in(2, REMAT))
@pytest.mark.parametrize("precision", one_in(2, ["bf16", "fp32"]))
def test_exact_on_one_device(remat, precision):
    static = static_of(batch=5, model__remat=remat, precision__name=precision)
    assert device_share.rows_per_device(static) == 5
    assert saved_activations.count_saved_activations(static).bytes(5) == sum(
        x.nbytes for x in kept(static, *drawn(static))
    )


MESHES = ("fsdp=2,context=2,tensor=2,sequence=1", "data=8", "fsdp=4,tensor=2", "data=2,fsdp=4,zero=1")


@pytest.mark.slow
def test_exact_on_eight_devices():
    """Per device; arguments too, of a program that takes a state as XLA compiles it.

    The head's gradient is planned whole, as the loss sums it over its chunks (model/sums/cross_entropy.py); only the
    sum is split along `fsdp`.
    Along `fsdp` a device looks tokens up for all, so that it keeps their ids, of 4 bytes, which aren't planned.
    """
    for text, counts in on_eight(MESHES, *REMAT).items():
        layout = Layout(**{key: int(value) for key, value in (part.split("=") for part in text.split(","))})
        static = static_of(layout, batch=16)
        head = 4 * static.model.d_model * static.model.vocab_size // layout.tensor
        tokens = device_share.rows_per_device(static) * static.model.seq_len // layout.context
        unsplit = head * (layout.fsdp - 1) // layout.fsdp - 4 * tokens * (layout.fsdp - 1)
        for remat in REMAT:
            saved = counts["saved"][remat]
            assert saved["predicted"] - saved["kept"] == unsplit, (text, remat)
        assert counts["arguments"]["planned"] == counts["arguments"]["xla"], text


def test_full_remat_keeps_the_stream_and_little_else():
    """Each block's input in bf16: 2 s b h a layer (Korthikanti et al. 2022, section 5); the rest doesn't grow with
    depth.
    """
    two, four = (static_of(batch=1, model={"n_layers": n}, model__remat="full", precision__name="bf16") for n in (2, 4))
    more = saved_activations.count_saved_activations(four).bytes(1) - saved_activations.count_saved_activations(
        two
    ).bytes(1)
    assert more == 2 * (2 * 16 * 32)


def test_what_is_saved_is_linear_in_rows_and_blind_to_fsdp_and_optimizer():
    few, many = (static_of(batch=n, model__remat="none") for n in (2, 6))
    assert saved_activations.count_saved_activations(few) == saved_activations.count_saved_activations(many)
    meshes = [Layout(data=4), Layout(fsdp=4), Layout(data=2, fsdp=2, zero=1)]
    assert len({saved_activations.count_saved_activations(static_of(layout, batch=8)) for layout in meshes}) == 1
    assert saved_activations.count_saved_activations(
        static_of(batch=2, optim__name="muon", optim__peak_lr=1e-3)
    ) == saved_activations.count_saved_activations(few)


def test_all_logits_at_once_grow_with_the_rows_on_a_mesh_as_on_one_device():
    """Attention that a device computes of its own part keeps them heads first, and its parts stand one behind the
    other.
    """
    model = {"n_kv_heads": 2, "seq_len": 64}
    one, two = (
        saved_activations.count_block_activations(static_of(layout, model=model, model__attention="xla"))
        for layout in (Layout(), Layout(data=2))
    )
    assert one.row_bytes > 3 * 4 * 4 * 64 * 64 / 2
    assert two.row_bytes == one.row_bytes


def test_sequence_parallelism_splits_the_stream():
    """A layer's input under full remat: whole beside tensor parallelism alone (Korthikanti et al. 2022, section
    4.2.2).
    """

    def layer(layout):
        two, four = (static_of(layout, model={"n_layers": n}, model__remat="full") for n in (2, 4))
        return (
            saved_activations.count_saved_activations(four).row_bytes
            - saved_activations.count_saved_activations(two).row_bytes
        ) // 2

    actual = [layer(Layout(data=2, tensor=2, sequence=sequence)) for sequence in (False, True)]
    assert actual == [4 * 16 * 32, 4 * 16 * 32 // 2]


@pytest.mark.full
def test_axes_that_cannot_be_divided_are_filled_up():
    """The planner says what the trainer refuses: a vocabulary of 65 over 2 devices is 33 on the fullest, six heads
    are eight over 4.
    """
    odd, even = (
        dataclasses.replace(static_of(batch=2, model={"vocab_size": size}), layout=Layout(data=2, tensor=2))
        for size in (65, 66)
    )
    assert saved_activations.count_saved_activations(odd) == saved_activations.count_saved_activations(even)
    few, more = (
        dataclasses.replace(static_of(batch=2, model={"n_heads": heads, "d_head": 8}), layout=Layout(tensor=4))
        for heads in (6, 8)
    )
    assert saved_activations.count_block_activations(few) == saved_activations.count_block_activations(more)


@pytest.mark.parametrize("precision", one_in(3, ["fp8_delayed", "fp8_block", "fp16", "tf32"]))
def test_every_policy_can_be_traced_on_a_mesh(precision):
    static = static_of(Layout(data=2, fsdp=2), data__documents="mask", precision__name=precision)
    assert (
        saved_activations.count_saved_activations(static).row_bytes
        > saved_activations.count_block_activations(static).row_bytes
        > 0
    )


@pytest.mark.full
@pytest.mark.parametrize("layout", one_in(2, [Layout(data=2, tensor=4), Layout(2, 1, 2, 2, 1, True)]))
def test_the_estimate_is_near_the_count_and_a_block_is_counted_for_fewer_devices(layout):
    sizes = {"d_model": 512, "n_layers": 8, "n_heads": 8, "vocab_size": 1024, "seq_len": 1024}
    for remat in REMAT:
        static = static_of(layout, model=sizes, model__remat=remat, precision__name="bf16")
        assert estimated_activations.estimate_saved_activations(static).bytes(4) == pytest.approx(
            saved_activations.count_saved_activations(static).bytes(4), rel=0.07
        ), remat
    wide = static_of(layout, model=sizes, model__attention="blockwise", precision__name="fp8")  # a stream in fp32
    assert estimated_activations.estimate_saved_activations(wide).bytes(4) == pytest.approx(
        saved_activations.count_saved_activations(wide).bytes(4), rel=0.015
    )
    plain = dataclasses.replace(
        saved_activations._canonical_static(static), model=dataclasses.replace(static.model, remat="none")
    )
    assert saved_activations.count_block_activations(static) == saved_activations._traced_activations(
        plain, whole=False
    )


@pytest.mark.parametrize("kernel", one_in(2, ["blockwise", "xla"]))
def test_a_long_sequence_is_counted_from_shorter_ones_exactly(kernel, monkeypatch):
    """All logits at once grow with the square of the length; 5,000 tokens end within a block."""
    static = static_of(model={"seq_len": 5000, "d_model": 16, "n_heads": 2}, model__attention=kernel)
    split = static_of(Layout(data=2, context=2), model={"seq_len": 6 * 1024 + 8}, model__attention="blockwise")
    whole, shorter = [], []
    for counted, long, short in ((whole, 65_536, 8192), (shorter, 1024, 1)):
        monkeypatch.setattr(saved_activations, "LONG", long)
        monkeypatch.setattr(saved_activations, "SHORT", short)
        for cache in (saved_activations._traced_activations, saved_activations._block_parts):
            cache.cache_clear()
        saved_activations._block_bytes.cache_clear()
        counted += [saved_activations.count_saved_activations(static), saved_activations.count_block_activations(split)]
    assert shorter == whole


def test_no_trace_is_as_long_as_a_billion_tokens(monkeypatch):
    blocks, pairs = [], blockwise.visible_block_pairs

    def counted(n, *rest):
        blocks.append(n)
        return pairs(n, *rest)

    monkeypatch.setattr(blockwise, "visible_block_pairs", counted)
    static = static_of(model={"seq_len": 10**9}, model__attention="blockwise")
    assert saved_activations.count_saved_activations(static).row_bytes > 10**9 * 32
    assert 0 < max(blocks) * blockwise.CPU_BLOCK <= saved_activations.LONG
