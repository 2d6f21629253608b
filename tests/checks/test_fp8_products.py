"""What is read of fp8 products in a compiled program, and what the compiler for an H100 makes of them where it is."""

import pytest

from checks.compilers import fp8_products
from scalelab.errors import BadInput
from scalelab.plan.compiled import absent_devices
from scalelab.plan.machine.machine import load_machine

# Two layers' loop: a product in fp8 and one in bf16, a cast with its maximum, one alone, and a maximum alone.
TEXT = """\
HloModule step, is_scheduled=true

%both (a: bf16[2048,1024]) -> (f8e4m3fn[2048,1024], bf16[2048]) {
  %a = bf16[2048,1024]{1,0} parameter(0)
  %cast = f8e4m3fn[2048,1024]{1,0} convert(%a)
  %most = bf16[2048]{0} reduce(%a, %zero), dimensions={1}, metadata={op_name="blocks/mlp/up/reduce_max"}
  ROOT %two = (f8e4m3fn[2048,1024]{1,0}, bf16[2048]{0}) tuple(%cast, %most)
}

%alone (b: f32[1024,4096]) -> f8e4m3fn[1024,4096] {
  %b = f32[1024,4096]{1,0} parameter(0)
  ROOT %cast.1 = f8e4m3fn[1024,4096]{1,0} convert(%b)
}

%most_alone (c: bf16[2048,4096]) -> bf16[2048] {
  %c = bf16[2048,4096]{1,0} parameter(0)
  ROOT %most.1 = bf16[2048]{0} reduce(%c, %zero), dimensions={1}, metadata={op_name="blocks/mlp/up/reduce_max"}
}

%body (p: (s32[], bf16[2048,1024])) -> (s32[], bf16[2048,1024]) {
  %x = (f8e4m3fn[2048,1024]{1,0}, bf16[2048]{0}) fusion(%y), calls=%both, metadata={op_name="blocks/mlp/up/convert"}
  %x.1 = f8e4m3fn[2048,1024]{1,0} get-tuple-element(%x), index=0
  %w = f8e4m3fn[4096,1024]{1,0} fusion(%v), calls=%alone, metadata={op_name="blocks/mlp/up/convert"}
  %m = bf16[2048]{0} fusion(%u), calls=%most_alone, metadata={op_name="blocks/mlp/up/reduce_max"}
  %g = (bf16[2048,4096]{1,0}, s8[8]{0}) custom-call(%x.1, %w, %s), custom_call_target="__cublas$lt$matmul$f8", FIRST
  %h = (f32[1024,4096]{1,0}, s8[8]{0}) custom-call(%z, %d), custom_call_target="__cublas$lt$matmul", SECOND
  %z = bf16[1024,2048]{1,0} copy(%t)
  %d = bf16[2048,4096]{1,0} copy(%t)
}

%condition (q: (s32[], bf16[2048,1024])) -> pred[] {
  ROOT %below = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (r: bf16[2048,1024]) -> bf16[2048,1024] {
  ROOT %loop = (s32[]) while(%t), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"2"}}
}
"""
FIRST = (
    'metadata={op_name="jvp()/blocks/mlp/up/dot_general"}, backend_config={"operand_precision":["HIGHEST","HIGHEST"]}'
)
SECOND = 'metadata={op_name="transpose(jvp())/blocks/mlp/up/dot_general"}'


def test_products_and_passes_are_read():
    text = TEXT.replace("FIRST", FIRST).replace("SECOND", SECOND)
    first, second = fp8_products.read_products(text)
    flops = 2 * 2 * 2048 * 1024 * 4096  # two layers
    assert first == {
        "source": "mlp/up", "way": "forward", "call": "__cublas$lt$matmul$f8", "left": "f8e4m3fn",
        "right": "f8e4m3fn", "result": "bf16", "precise": True, "flops": flops,
    }  # fmt: skip
    assert second == first | {
        "way": "backward", "call": "__cublas$lt$matmul", "left": "bf16", "right": "bf16", "result": "f32",
        "precise": False,
    }  # fmt: skip
    assert fp8_products.fp8_share({"products": [first, second], "expected_flops": 2 * flops}) == 0.5
    assert fp8_products.count_passes(text) == {"cast_and_maximum": 1, "cast": 1, "maximum": 1}


SMALL = {
    "model.n_layers": 2, "model.d_model": 1024, "model.n_heads": 8, "model.n_kv_heads": 8, "model.d_ff": 2048,
    "model.seq_len": 1024, "model.vocab_size": 1024, "train.global_batch": 2,
}  # fmt: skip


def test_an_h100_takes_all_products_of_the_blocks_in_fp8_and_finds_maxima_as_it_casts():
    """A product's own pass over a tensor that only finds its maximum is left for gradients of rotated q and k."""
    try:
        absent_devices.check_installed(load_machine("h100"))
    except BadInput as reason:
        pytest.skip(str(reason))
    row = fp8_products.read_policy("fp8_delayed", fp8_products.CHANGES | SMALL)
    assert fp8_products.fp8_share(row) == pytest.approx(1, rel=1e-3)
    assert all(product["precise"] and product["call"] == "__cublas$lt$matmul$f8" for product in row["products"])
    formats = {(p["way"], p["result"], frozenset((p["left"], p["right"]))) for p in row["products"]}
    e4m3, both = frozenset(("f8e4m3fn",)), frozenset(("f8e4m3fn", "f8e5m2"))
    assert formats == {("forward", "bf16", e4m3), ("backward", "bf16", both), ("backward", "f32", both)}
    passes = row["passes"]
    assert passes["cast_and_maximum"] >= 14 and passes.get("maximum", 0) <= 2  # a kernel may do it for two tensors
