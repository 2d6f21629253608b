"""Only compiled programs speak for these options of XLA: a step on several devices sends beside computation.

XLA's own choice on TPUs is to wait for every collective. With these options an 8B under FSDP on 8 v5p gathers and adds
up all of its blocks beside computation (`python -m checks.compilers.programs`).

A GPU's compiler does most of it unasked within a node. Between nodes it awaits a layer's gradients at the end of that
layer, and sends one thing at a time, so that two networks (NVLink, and what joins nodes) wait for each other. With
these options gradients go on beside the next layer: a 70B on 32 x 8 H100 waits 1.4 s of a step where it waited 3.6, an
8B on 8 x 8 .14 s where it waited .38, by estimate (`plan/compiled/timeline.py`). In one node they gain nothing and cost
an 8B 1 %. Tried and left out: pipelined gathers part a recomputed forward from its backward; loops of two turns and an
estimate of latencies from datasheets change nothing. Off: SCALELAB_TACTICS_OFF=compiler_options.

The option for the program of a first state is measured, on a CPU: it stays.
"""

import os
import re
from collections.abc import Mapping

from scalelab.errors import BadInput
from scalelab.hardware.tactics.switch import is_on

Options = dict[str, str | bool]
ASYNC_TPU: Options = {
    "xla_enable_async_all_gather": "true",
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_all_to_all": "true",  # FSDP's gradients: 52 of 103 GB that an 8B sends a step
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    # Beside kernels in Pallas: the gathers of attention/o, 4 of these GB.
    "xla_tpu_enable_async_collective_fusion_with_mosaic_custom_call": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
}
BETWEEN_NODES_GPU: Options = {
    "xla_gpu_enable_pipelined_all_reduce": True,  # of which reduce-scatters are made
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_experimental_parallel_collective_overlap_limit": "2",
}
OPTIMIZATION_LEVEL = "xla_backend_optimization_level"
NODE_GPUS = 8  # of most machines
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def collective_options(platform: str, devices: int) -> Options:
    """XLA's options for a step on so many devices of a `platform` (cpu, gpu, tpu); {} if it needs none."""
    if not is_on("compiler_options"):
        return {}
    if platform == "gpu":
        return dict(BETWEEN_NODES_GPU) if devices > NODE_GPUS else {}
    return dict(ASYNC_TPU) if platform == "tpu" and devices > 1 else {}


def initial_state_options(platform: str, environment: Mapping[str, str] = os.environ) -> Options:
    """XLA's options for the program that draws a first state; a level set in XLA_FLAGS stays.

    The program runs once, so full optimization gains a CPU nothing: with two layers it compiles in 1.2 s, not 3.4.
    """
    chosen = OPTIMIZATION_LEVEL in environment.get("XLA_FLAGS", "")
    return {OPTIMIZATION_LEVEL: "1"} if platform == "cpu" and not chosen else {}


def refuse_other_values(options: Mapping[str, str | bool], environment: Mapping[str, str] = os.environ) -> None:
    """Raise BadInput if XLA_FLAGS or LIBTPU_INIT_ARGS sets one of these options to another value: one would be lost."""
    for variable in VARIABLES:
        for name, value in re.findall(r"--(\w+)(?:=(\S+))?", environment.get(variable, "")):
            wanted = str(options.get(name, "")).lower()
            if wanted and {"": "true", "1": "true"}.get(value, value.lower()) != wanted:
                raise BadInput(
                    f"{variable} has --{name}={value}, but a step on several devices is compiled with {wanted}, so "
                    f"that what it sends goes on beside computation; nearest: {variable} without --{name}"
                )
