"""The whole plan against XLA's own: the real step compiled ahead of time for TPUs and GPUs that aren't here.

Compiled by checks/compilers/compiled.py (jax 0.10.2; libtpu 0.0.42 at its least effort; the CUDA 12 plugin without
autotuning, which on 2026-11-26 took blockwise attention in place of cudnn). Where the extras are there,
`tests/plan/machine/test_compile.py` compiles anew.
"""

import json

import pytest

from checks.compilers import compiled
from scalelab.config import Layout
from scalelab.plan.compiled.compile import ARGUMENTS
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.memory import step_memory
from tests.plan.small import static_of
from tests.quick import one_in, others_slow

OFF = 0.15  # of the peak: compilers choose what to keep, and two choose differently
FOUND = {row["name"]: row for row in json.loads((compiled.RESULTS / "compiled.json").read_text()) if not row["oom"]}


# Other sizes of layouts, chips and blocks that the others have.
MORE = {"OLMoE, experts", "8B, FSDP", "8B, FSDP x TP", "7B, FSDP, H200", "405B, FSDP x TP", "70B, FSDP x TP"}
MORE |= {"70B, pipeline, TPU"}


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name not in MORE, FOUND))
def test_total_against_the_peak_of_the_compiled_step(name):
    actual, row = step_memory(*compiled.load_case(name)), FOUND[name]
    held = sum(actual.components.get(part, 0) for part in ARGUMENTS)
    assert held == pytest.approx(row["argument_bytes"][1], rel=0.002)
    assert actual.total == pytest.approx(row["peak_bytes"][1], rel=OFF)


B15 = {"d_model": 2048, "n_layers": 28, "n_heads": 16, "vocab_size": 32_000, "seq_len": 2048}
# {remat: (sequences on 16 v5e, GiB that libtpu says a step of B15 needs, and its arguments)}: they don't fit 15.75.
TOO_MUCH = {"none": (64, 17.23 + 1.08), "dots": (128, 21.39 + 1.08)}


@pytest.mark.parametrize("remat", one_in(2, TOO_MUCH))
def test_total_of_what_the_compiler_refuses(remat):
    batch, needed = TOO_MUCH[remat]
    static = static_of(Layout(fsdp=16), batch=batch, model=B15, precision__name="bf16", model__remat=remat)
    memory = step_memory(static, load_machine("v5e"))
    assert not memory.fits
    assert memory.total / 2**30 == pytest.approx(needed, rel=0.06)
