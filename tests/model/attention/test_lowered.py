"""The programs of the kernels for GPUs and TPUs, lowered on any machine: what is masked stands in the kernels' calls.

No driver and no library is needed: jax's own checks for them are not asked.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.attention import kernels
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.sharding import trace_for_platform
from tests.quick import cross, one_in, others_slow

HEADS, KEY_HEADS = 4, 2
# A window of 513 tokens begins with a block of 512, one of 514 with the last token before it.
MASKS = {"causal": (False, 0), "documents": (True, 0), "window": (False, 513), "both": (True, 514)}


def lowered(kernel, platform, length, width, documents, window, flagged=False, kind="bfloat16"):
    """The program of attention and its gradients for two sequences."""
    like = lambda *shape, dtype=kind: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731

    def loss(q, k, v, segment_BS, is_global):
        mask_info = MaskInfo(segment_BS if documents else None, is_global if flagged else None)
        return kernels.compute_attention(q, k, v, Scoring(0.125, mask_info, window), kernel).astype(jnp.float32).sum()

    keys = like(2, length, KEY_HEADS, width)
    given = like(2, length, HEADS, width), keys, keys, like(2, length, dtype=jnp.int32), like(dtype=jnp.bool_)
    program = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*given)
    return program.lower(lowering_platforms=(platform,)).as_text()


def cudnn_calls(program):
    """Each call's (name, config, types of its operands)."""
    pattern = r"custom_call @(__cudnn\$\w+)\(.*backend_config = \"(.*?)\", operand_layouts.* : \((.*)\) -> "
    return [
        (name, json.loads(text.replace("\\22", '"'))["cudnn_fmha_backend_config"], types.split(", "))
        for name, text, types in re.findall(pattern, program)
    ]


def covers_pairs(documents, window, width, kind):
    """Every two of mask and width, of mask and format, and of width and format."""
    if width == 64:
        return kind == "bfloat16" or not (documents or window)
    return (kind == "float16") == ((width == 256) == documents)


@pytest.mark.parametrize(
    ("documents", "window", "width", "kind"),
    others_slow(
        covers_pairs,
        cross(
            [pytest.param(*mask, id=name) for name, mask in MASKS.items()],
            one_in(3, [64, 128, 256]),
            one_in(4, ["bfloat16", "float16"]),
        ),
    ),
)
def test_cudnn_is_called_with_the_mask_forward_and_backward(documents, window, width, kind):
    """Documents come as lengths and offsets, the window and causality as numbers of the call: nothing is S x S."""
    program = lowered("cudnn", "cuda", 4096, width, documents, window, kind=kind)
    (forward, of_forward, ins), (backward, of_backward, back_ins) = cudnn_calls(program)
    assert (forward, backward) == ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
    for config in (of_forward, of_backward):
        assert config["mask_type"] == ("PADDING_CAUSAL" if documents else "CAUSAL")
        assert config["sliding_window_length"] == window and config["max_seg_per_batch"] == (16 if documents else 1)
        assert (config["fmha_scale"], config["dropout_rate"], config["is_flash_attention"]) == (0.125, 0.0, True)
    form = {"bfloat16": "bf16", "float16": "f16"}[kind]
    runs = [*["tensor<2x16xi32>"] * 2, *["tensor<2x17xi32>"] * 2] * documents
    q, k = (f"tensor<2x4096x{heads}x{width}x{form}>" for heads in (HEADS, KEY_HEADS))
    sums = f"tensor<{32 if documents else 2}x4x4096xf32>"
    assert ins == [q, k, k, *runs] and back_ins == [q, k, k, sums, q, q, *runs]
    assert "4096x4096" not in program  # nothing has the size of all logits


@pytest.mark.parametrize("window", [0, 514])
def test_before_hopper_cudnn_gets_a_mask_of_all_pairs(window):
    with trace_for_platform("gpu", (8, 0)):
        program = lowered("cudnn", "cuda", 1024, 64, True, window)
    (forward, config, ins), (backward, _, back_ins) = cudnn_calls(program)
    assert (forward, backward) == ("__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward")
    assert (config["mask_type"], config["sliding_window_length"]) == ("CAUSAL", window)
    assert ins[3:] == ["tensor<2x1x1024x1024xbf16>"] and back_ins.count(ins[3]) == 1


def test_cudnn_has_both_windows_where_layers_alternate():
    windows = [
        config["sliding_window_length"]
        for _, config, _ in cudnn_calls(lowered("cudnn", "cuda", 1024, 64, documents=True, window=600, flagged=True))
    ]
    assert sorted(windows) == [0, 0, 600, 600]


def visible(length, window):
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return (distance >= 0) & (distance < (window or length))


@pytest.mark.parametrize(("documents", "window"), MASKS.values(), ids=MASKS)
def test_splash_is_called_with_the_mask_forward_and_backward(documents, window):
    """The kernels' tables name each visible block of 512 x 512, whole or in part; documents are operands."""
    length, block = 2048, 512
    program = lowered("splash", "tpu", length, 128, documents, window)
    calls = re.findall(r"custom_call @tpu_custom_call.*kernel_name = \"(\w+)\".* : \((.*)\) -> ", program)
    stem = "_segmented" * documents
    assert [name.removesuffix("_residuals").removesuffix("_no") for name, _ in calls] == [
        f"splash_mha_{part}{stem}" for part in ("fwd", "dkv", "dq")
    ]
    for _, operands in calls:  # each token's document, along lanes for queries and along sublanes for keys, or swapped
        numbers = {kind for kind in operands.split(", ") if re.match(r"tensor<2x\w+xi32>", kind)}
        assert numbers == ({"tensor<2x2048x128xi32>", "tensor<2x8x2048xi32>"} if documents else set())
    tables = re.findall(r"constant dense<(\[\[\[.*\]\]\])> : tensor<1x\dx\dxi8>", program)
    seen = visible(length, window).reshape(4, block, 4, block).swapaxes(1, 2)
    expected = {(i, j): 1 + int(seen[i, j].all()) for i in range(4) for j in range(4) if seen[i, j].any()}
    assert len(tables) == 4  # which block of keys comes next and how much of it is visible; then the same by keys
    (keys,), (kinds,), (queries,), (kinds_back,) = map(json.loads, tables)
    forward = {(i, j): kind for i in range(4) for j, kind in zip(keys[i], kinds[i], strict=True) if kind}
    assert forward == expected
    rows = [row for pair in zip(queries, kinds_back, strict=True) for row in zip(*pair, range(4), strict=True)]
    assert {(i, j): kind for i, kind, j in rows if kind} == expected
