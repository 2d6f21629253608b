"""Products of a program by what multiplies, the kernel of attention, and what the forward keeps."""

import dataclasses
import math

import pytest

from scalelab.plan.compiled import absent_devices, products, program, timeline
from scalelab.plan.compiled.compile import compile_step
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import saved_activations
from tests.plan.machine.test_compile import static

PLACE = 'metadata={op_name="jit(many_steps)/while/body/SOURCE"}'
FORWARD, BACKWARD = "jvp()/while/body/closed_call/blocks/", "transpose(jvp())/while/body/"
TRITON = 'backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'
# Scheduled text as XLA writes it, shortened. The forward's loop of three layers: a Triton product whose fusion holds
# the dot, a kept array of bf16 [3,4,8] written twice in a round (two layers unrolled), one of f32 [3,4], a counter that
# is not an array of numbers; the loss's loop, which writes its gradients; then cuBLAS, a plain dot and cuDNN outside.
TEXT = """\
HloModule jit_many_steps, is_scheduled=true

%gemm (a.1: bf16[4,8], b.1: bf16[8,8]) -> bf16[4,8] {
  %a.1 = bf16[4,8]{1,0} parameter(0)
  %b.1 = bf16[8,8]{1,0} parameter(1)
  ROOT %dot = bf16[4,8]{1,0} dot(%a.1, %b.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%write (row.1: bf16[4,8], kept.1: bf16[3,4,8], i.1: s32[]) -> bf16[3,4,8] {
  %row.1 = bf16[4,8]{1,0} parameter(0)
  %kept.1 = bf16[3,4,8]{2,1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %layer = bf16[1,4,8]{2,1,0} bitcast(%row.1)
  ROOT %written = bf16[3,4,8]{2,1,0} dynamic-update-slice(%kept.1, %layer, %i.1), IN_FORWARD
}

%write_small (norms.1: f32[3,4], i.2: s32[], value: f32[1,4]) -> f32[3,4] {
  %norms.1 = f32[3,4]{1,0} parameter(0)
  %i.2 = s32[] parameter(1)
  %value = f32[1,4]{1,0} parameter(2)
  ROOT %written.1 = f32[3,4]{1,0} dynamic-update-slice(%norms.1, %value, %i.2), IN_FORWARD
}

%write_rows (rows.1: f32[4,8], i.3: s32[], rows.2: f32[4,2]) -> f32[4,8] {
  %rows.1 = f32[4,8]{1,0} parameter(0)
  %i.3 = s32[] parameter(1)
  %rows.2 = f32[4,2]{1,0} parameter(2)
  ROOT %written.2 = f32[4,8]{1,0} dynamic-update-slice(%rows.1, %rows.2, %i.3), IN_FORWARD
}

%body (p: (s32[], bf16[3,4,8], f32[3,4])) -> (s32[], bf16[3,4,8], f32[3,4]) {
  %p = (s32[], bf16[3,4,8], f32[3,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %kept = bf16[3,4,8]{2,1,0} get-tuple-element(%p), index=1
  %norms = f32[3,4]{1,0} get-tuple-element(%p), index=2
  %product = bf16[4,8]{1,0} fusion(%x, %w), kind=kCustom, calls=%gemm, IN_GATE, TRITON
  %once = bf16[3,4,8]{2,1,0} fusion(%product, %kept, %i), kind=kLoop, calls=%write
  %twice = bf16[3,4,8]{2,1,0} fusion(%product, %once, %next), kind=kLoop, calls=%write
  %small = f32[3,4]{1,0} fusion(%norms, %i, %norm), kind=kLoop, calls=%write_small
  %inner = f32[4,8]{1,0} fusion(%other, %i, %part), kind=kLoop, calls=%write_rows
  ROOT %tuple = (s32[], bf16[3,4,8], f32[3,4]) tuple(%i, %twice, %small)
}

%chunks (q: (s32[], f32[3,4,8])) -> (s32[], f32[3,4,8]) {
  %q = (s32[], f32[3,4,8]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %slopes = f32[3,4,8]{2,1,0} get-tuple-element(%q), index=1
  %chunk = f32[3,4,8]{2,1,0} dynamic-update-slice(%slopes, %slope, %j), IN_CHUNK
  ROOT %chunked = (s32[], f32[3,4,8]) tuple(%j, %chunk)
}

%condition (p.1: (s32[])) -> pred[] {
  ROOT %below = pred[] constant(true)
}

ENTRY %main (x: bf16[4,8]) -> bf16[4,8] {
  %loop = (s32[], bf16[3,4,8], f32[3,4]) while(%t), condition=%condition, body=%body, known_trip_count":{"n":"3"}
  %losses = (s32[], f32[3,4,8]) while(%u), condition=%condition, body=%chunks, known_trip_count":{"n":"3"}
  %call = (f32[4,8]{1,0}, s8[4096]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", IN_BACKWARD
  %plain = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, IN_LOSS
  %attend = bf16[4,8]{1,0} custom-call(%x, %x, %x), custom_call_target="__cudnn$fmhaSoftmax"
  ROOT %end = bf16[4,8]{1,0} bitcast(%attend)
}
"""
PLACES = {
    "IN_FORWARD": f"{FORWARD}dynamic_update_slice", "IN_GATE": f"{FORWARD}mlp/gate/dot_general",
    "IN_BACKWARD": f"{BACKWARD}blocks/attention/q/dot_general", "IN_LOSS": "jvp()/while/body/dot_general",
    "IN_CHUNK": "jvp()/while/body/dynamic_update_slice",
}  # fmt: skip
for place, source in PLACES.items():
    TEXT = TEXT.replace(place, PLACE.replace("SOURCE", source))
TEXT = TEXT.replace("TRITON", TRITON)


def test_each_product_counts_once_by_what_multiplies_and_where():
    read = products.read_products(TEXT)
    assert read.products == {"triton": 3, "cublas": 1, "other": 1}
    assert read.by_source == {
        "backward: attention/q": {"cublas": 1}, "forward: mlp/gate": {"triton": 3}, "head and loss": {"other": 1},
    }  # fmt: skip
    assert read.workspace_bytes == 4096


def test_attention_is_named_by_its_call():
    assert products.read_products(TEXT).attention == "cudnn"
    assert products.read_products(TEXT.replace("__cudnn$fmhaSoftmax", "tpu_custom_call")).attention == "splash"
    assert products.read_products(TEXT.replace("__cudnn$fmhaSoftmax", "other")).attention == "products"


def test_what_the_forward_stacks_by_layer_counts_once():
    """An array that two unrolled layers write is one; what an inner loop writes along another axis is not kept, nor
    what the loss's loop writes."""
    assert products.read_products(TEXT).saved_bytes == 3 * 4 * 8 * 2 + 3 * 4 * 4


needs_cuda = pytest.mark.skipif(
    not any(absent_devices._is_installed(module) for module in absent_devices.EXTRAS["gpu"][1]),
    reason="needs the extra plan-cuda",
)
SMALL = {
    "model.d_model": 64, "model.n_layers": 3, "model.seq_len": 128, "train.global_batch": 4, "precision.name": "bf16",
    "model.attention": "blockwise", "model.remat": "none",
    "model.d_ff": 192,  # XLA's own kernels cut a sum into parts and pad these to 16
}  # fmt: skip


def count_flops(text):
    """FLOPs of a step's products, in loops as often as they run, by the timeline's own rule."""
    computations, entry = program.read_computations(text)
    times = program.count_calls(computations, entry)
    return sum(
        times[name] * timeline._flops(line, {each.name: each.type for each in lines})
        for name, lines in computations.items()
        if times.get(name)
        for line in lines
    )


@pytest.mark.slow
@needs_cuda
def test_cublas_for_all_products_multiplies_the_same_and_keeps_the_same(tmp_path):
    of, texts, peaks = static({}, **SMALL), [], []
    for library in (False, True):
        path = tmp_path / f"{library}.txt"
        peaks.append(compile_step(of, load_machine("h100"), program=path, library_products=library).peak_bytes)
        texts.append(path.read_text())
    own, library = (products.read_products(text) for text in texts)
    assert own.products["triton"] == library.products["cublas"] > 0
    assert own.products["cublas"] == library.products["triton"] == 0
    assert count_flops(texts[0]) == count_flops(texts[1]) > 0
    assert own.saved_bytes == library.saved_bytes and library.workspace_bytes > 0
    counted = saved_activations.count_saved_activations(of)
    in_blocks = counted.row_bytes - saved_activations.bytes_outside_blocks(of)
    assert own.saved_bytes == pytest.approx(4 * in_blocks + counted.fixed_bytes, rel=0.05)
    assert math.isclose(*peaks, rel_tol=0.5)


@pytest.mark.slow
@needs_cuda
@pytest.mark.parametrize("chip", ["h200", "a100", "b200", "l40s", "rtx4090"])
def test_every_chip_of_the_table_is_compiled_for(chip):
    of = dataclasses.replace(static({}, **SMALL), global_batch=2)
    assert compile_step(of, load_machine(chip)).peak_bytes > 0
