"""The whole plan against XLA's own: the real step compiled ahead of time for TPUs and GPUs that aren't here.

Compiled once with `scalelab.plan.compile` (jax 0.10.2; libtpu 0.0.42 at its least effort; the CUDA 12 plugin without autotuning and
with blockwise attention in place of cudnn), 22 November 2026; `tests/plan/test_compile.py` compiles anew where the extras are there.
"""

import pytest

from scalelab.config import Layout
from scalelab.plan.machine import machine
from scalelab.plan.memory import memory
from tests.plan.small import static_of

B15 = {"d_model": 2048, "n_layers": 28, "n_heads": 16, "vocab_size": 32_000, "seq_len": 2048}
L8 = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "vocab_size": 128_256,
    "seq_len": 4096,
}
L70 = L8 | {"d_model": 8192, "n_layers": 80, "n_heads": 64, "d_ff": 28672}
# hardware, model, layout, sequences a step, argument GB and peak GB of a device
PEAKS = [
    ("v5e", B15, Layout(data=2, fsdp=16), 64, 1.156, 2.811),
    ("v4", B15, Layout(fsdp=8, tensor=2), 64, 1.157, 5.187),
    ("v5p", L8, Layout(fsdp=64), 64, 1.506, 9.003),
    ("v6e", L8, Layout(fsdp=64), 64, 1.506, 11.014),
    ("v5p", L70, Layout(fsdp=128, tensor=8), 256, 0.827, 15.381),
    ("h100", B15, Layout(fsdp=8), 16, 2.311, 5.363),
    ("h100", L8, Layout(fsdp=64), 64, 1.506, 14.277),
]
OFF = 0.25  # of the peak: compilers choose what to keep, and two choose differently
ROWS = [row if at in (2, 5) else pytest.param(row, marks=pytest.mark.slow) for at, row in enumerate(PEAKS)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]['d_model']}")
def test_total_against_the_peak_of_the_compiled_step(row):
    hardware, model, layout, batch, arguments, peak = row
    static = static_of(layout, batch=batch, model=model, precision__name="bf16", model__remat="full")
    found = memory(static, machine(hardware))
    held = found.components["parameters"] + found.components["optimizer"] + found.components["batch"]
    assert held / 1e9 == pytest.approx(arguments, rel=0.002)
    assert found.total / 1e9 == pytest.approx(peak, rel=OFF)


# remat -> GiB of temporaries that libtpu says a step of B15 needs, 4 sequences on each of 16 v5e: they don't fit 15.75.
TOO_MUCH = {"none": 30.10, "dots": 20.35}


@pytest.mark.parametrize("remat", TOO_MUCH)
def test_temporaries_of_what_the_compiler_refuses(remat):
    static = static_of(Layout(fsdp=16), batch=64, model=B15, precision__name="bf16", model__remat=remat)
    found = memory(static, machine("v5e"))
    come_and_go = sum(found.components[name] for name in ("gradients", "activations", "logits", "temporary"))
    assert not found.fits
    assert come_and_go / 2**30 == pytest.approx(TOO_MUCH[remat], rel=0.06)
