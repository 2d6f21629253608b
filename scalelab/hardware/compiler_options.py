"""What XLA is told about a step on several devices, so that what it sends goes on beside computation.

On TPUs its own choice is to wait for every collective. With these options an 8B under FSDP on 8 v5p gathers and adds up
all of its blocks beside computation (`python -m experiments.programs`). An H100's compiler does it unasked:
latency hiding, pipelined collectives and loops of two turns changed nothing there.
"""

import os
import re
from collections.abc import Mapping

from scalelab.errors import BadInput

ASYNC_TPU = {
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
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def collective_options(platform: str, devices: int) -> dict[str, str]:
    """XLA's options for a step over so many devices of a `platform` (cpu, gpu, tpu); {} where it needs none."""
    return dict(ASYNC_TPU) if platform == "tpu" and devices > 1 else {}


def refuse_other_values(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """BadInput where XLA_FLAGS or LIBTPU_INIT_ARGS has another value of one of these options: one would be lost."""
    for variable in VARIABLES:
        for name, value in re.findall(r"--(\w+)(?:=(\S+))?", environment.get(variable, "")):
            wanted = options.get(name)
            if wanted and {"": "true", "1": "true"}.get(value, value.lower()) != wanted:
                raise BadInput(
                    f"{variable} has --{name}={value}, but a step on several devices is compiled with {wanted}, so "
                    f"that what it sends goes on beside computation; nearest: {variable} without --{name}"
                )
