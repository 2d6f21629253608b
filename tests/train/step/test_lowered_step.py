"""The whole step's program for an NVIDIA GPU, lowered on any machine: cuDNN's calls, by remat, mask, mesh and pack."""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys

import jax
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.plan.compiled import aot
from scalelab.sharding import trace_for_platform
from scalelab.train.step.step import many_steps
from tests.quick import one_in, others_slow

CALL = r"custom_call @__cudnn\$(\w+)\(.*?mask_type\\22: \\22(\w+)\\22.*?max_seg_per_batch\\22: (\d+)"
FORWARD, BACKWARD = "fmhaSoftmax", "fmhaSoftmaxBackward"
WINDOWS = {"model.window": 16, "model.global_every": 2}


def static_of(changes):
    """Two layers of four heads and two key heads, rows of 64 tokens with documents."""
    config = base.get_config()
    config.model = base.llama(64, 2, 4)
    values = {"model.vocab_size": 64, "model.n_kv_heads": 2, "model.seq_len": 64, "train.global_batch": 4}
    values |= {"precision.name": "bf16", "data.documents": "mask"}
    return config_lib.static(config_lib.resolve(config_lib.override(config, values | changes)))


def lowered_step(changes, trials=0, capability=(9, 0), platform="cuda"):
    """(cuDNN's calls as (name, mask, runs a row), the program's text)."""
    static = static_of(changes)
    arguments, mesh = aot._step_arguments(static, jax.devices()[: static.layout.devices], 1)
    step = functools.partial(many_steps, static)
    if trials:
        state, batches, n, h = arguments
        state, batches, h = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((trials, *x.shape), x.dtype), (state, batches, h)
        )
        arguments, step = (state, batches, n, h), jax.vmap(step, in_axes=(0, 0, None, 0))
    with (
        trace_for_platform({"cuda": "gpu"}.get(platform, platform), capability),
        jax.set_mesh(mesh) if mesh else contextlib.nullcontext(),
    ):
        text = jax.jit(step).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    return [(name, mask, int(runs)) for name, mask, runs in re.findall(CALL, text)], text


PACKED = [(FORWARD, "PADDING_CAUSAL", 8), (BACKWARD, "PADDING_CAUSAL", 8)]
ONE_DEVICE = {  # changes, trials: calls
    "documents": ({}, 0, PACKED),
    "no documents": ({"data.documents": "cross"}, 0, [(FORWARD, "CAUSAL", 1), (BACKWARD, "CAUSAL", 1)]),
    "fp16": ({"precision.name": "fp16"}, 0, PACKED),
    "fp8": ({"precision.name": "fp8_delayed"}, 0, PACKED),
    "a window": ({"model.window": 16}, 0, PACKED),
    "two windows": (WINDOWS, 0, [PACKED[0]] * 2 + [PACKED[1]] * 2),
    "remat": ({"model.remat": "full"}, 0, [PACKED[0], *PACKED]),
    "layer by layer": ({"train.updates": "per_layer"}, 0, [PACKED[0], *PACKED * 3]),
    "micro-batches": ({"train.accumulate": 2}, 0, PACKED),
    "short sequences first": ({"schedule.seq_start": 16, "schedule.seq_warmup_tokens": 1e5}, 0, PACKED),
    "32 trials": ({}, 32, PACKED),
    "32 trials, two windows": (WINDOWS, 32, [PACKED[0]] * 2 + [PACKED[1]] * 2),
}
STAYS = [ONE_DEVICE[name] for name in ("documents", "no documents", "fp8", "layer by layer", "32 trials, two windows")]
MARKED = others_slow(lambda *case: case in STAYS, one_in(12, ONE_DEVICE.values()))


@pytest.mark.parametrize(("changes", "trials", "expected"), MARKED, ids=ONE_DEVICE)
def test_a_devices_step_calls_cudnn(changes, trials, expected):
    """Nothing of it knows the device: jax's own partitioning of the call, which asks for one, is not there."""
    calls, text = lowered_step(changes, trials)
    assert calls == expected and "CustomSPMDPartitioning" not in text
    # Under vmap more documents than runs are still a branch of their own, not a select of both.
    documents = changes.get("data.documents") != "cross"
    assert text.count("stablehlo.case") >= len(expected) * documents
    rows = 4 * max(1, trials) // changes.get("train.accumulate", 1)
    assert re.search(rf"@__cudnn.*: \(tensor<{rows}x64x4x16x", text)


@pytest.mark.full
def test_an_ampere_gets_a_mask_of_all_pairs():
    calls, _ = lowered_step({}, capability=(8, 0))
    assert calls == [("fmhaScaleBiasSoftmax", "CAUSAL", 1), ("fmhaScaleBiasSoftmaxBackward", "CAUSAL", 1)]


PART = [(FORWARD, "PADDING", 2)] * 2, [(BACKWARD, "PADDING", 2)] * 2
IN_STAGES = [PACKED[0]] * 4 + [PACKED[1]]  # both schedules' forward, and the recomputed one
MESHES = {
    "fsdp": ({"parallel.fsdp": 4}, PACKED),
    "sequence": ({"parallel.fsdp": 2, "parallel.tensor": 2, "parallel.sequence": True}, PACKED),
    "a ring": ({"parallel.fsdp": 2, "parallel.context": 2}, [PACKED[0], *PART[0], PACKED[1], *PART[1]]),
    "a ring of both windows": ({"parallel.context": 2, **WINDOWS}, [PACKED[0], *PART[0], PACKED[1], *PART[1]]),
    "stages": ({"parallel.stage": 2, "parallel.microbatches": 2}, IN_STAGES),
}
TPU_RING = {"model.d_head": 128, "model.seq_len": 512, "parallel.fsdp": 2, "parallel.context": 2}
PROGRAM = """
import json, re
from tests.train.step.test_lowered_step import MESHES, TPU_RING, lowered_step
calls = {name: lowered_step(changes)[0] for name, (changes, _) in MESHES.items()}
kernels = re.findall(r'kernel_name = "(\\w+)"', lowered_step(TPU_RING, platform="tpu")[1])
print(json.dumps([calls, kernels]))
"""


@pytest.mark.full
def test_a_mesh_of_devices_calls_its_chips_kernel():
    """cuDNN by layout; of TPUs the ring: three parts forward and backward, own tokens and two pairs of chunks."""
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    calls, kernels = json.loads(done.stdout)
    calls = {name: [tuple(call) for call in each] for name, each in calls.items()}
    assert calls == {name: expected for name, (_, expected) in MESHES.items()}
    assert [name.split("_")[2] for name in kernels] == ["fwd"] * 3 + ["dkv", "dq"] * 3
