"""The step compiled for devices that aren't here: fake CPUs always, TPUs and GPUs where the extra is installed."""

import dataclasses
import math
import pathlib
import tomllib

import jax
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.model.attention.kernels import choose_kernel
from scalelab.plan.compiled import absent_devices
from scalelab.plan.compiled.compile import compare_components, compile_step
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.sharding import trace_for_platform
from scalelab.train.step import state

SMALL = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 4, "model.seq_len": 32, "train.global_batch": 8}
# This one is measured.
CPU = dataclasses.replace(load_machine("h100"), chip=dataclasses.replace(load_machine("h100").chip, name="CPU"))
LAYOUTS = {"data": {"data": 8}, "fsdp": {"fsdp": 8}, "fsdp x tensor": {"fsdp": 4, "tensor": 2}}


def static(layout, **overrides):
    config = config_lib.override(base.get_config(), SMALL | overrides)
    config.parallel.update(layout)
    return config_lib.static(config_lib.resolve(config))


def argument_bytes(of):
    """By hand: every array of the state cut as its spec says, a batch of rows, the scalars (4 bytes each, and two
    counters)."""

    def mine(leaf, spec):
        axes = [axis for entry in spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)]
        return leaf.size * leaf.dtype.itemsize // math.prod(getattr(of.layout, axis) for axis in axes)

    remaining = sum(jax.tree.leaves(jax.tree.map(mine, state.state_shapes(of), state.state_specs(of))))
    return remaining + 4 * of.global_batch * (of.model.seq_len + 1) // (of.layout.data * of.layout.fsdp)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n != "fsdp x tensor" else ()) for n in LAYOUTS]
)
def test_eight_fake_cpus_hold_what_the_specs_say(name):
    """Arguments are exact, donation gives the new state the old one's memory, and this process stays as it was."""
    before = jax.device_count()
    of = static(LAYOUTS[name])
    got = compile_step(of, CPU)
    scalars = got.argument_bytes - argument_bytes(of)
    assert 0 < scalars <= 4 * (len(config_lib.traced_keys()) + 2)
    assert got.alias_bytes == argument_bytes(of) - 4 * of.global_batch * 33 // (of.layout.data * of.layout.fsdp)
    assert got.temp_bytes > 0 and got.oom is None
    assert got.peak_bytes >= got.argument_bytes + got.temp_bytes
    assert got.platform == "8 fake CPU devices" and jax.device_count() == before
    rows = {row.component: row for row in compare_components(step_memory(of, CPU), got)}
    assert rows["arguments"].difference_bytes == scalars
    assert rows["temporaries"].compiled_bytes == got.temp_bytes and rows["peak"].compiled_bytes == got.peak_bytes
    assert rows["peak"].exact_bytes == rows["arguments"].exact_bytes + rows["temporaries"].exact_bytes
    assert rows["parameters"].difference_bytes is None and rows["activations"].formula_bytes > 0


SHAPES = {
    ("v5e", 1): (1, 1), ("v5e", 16): (4, 4), ("v6e", 128): (8, 16), ("v6e", 256): (16, 16), ("v4", 8): (2, 2, 2),
    ("v5p", 16): (2, 2, 4),
    ("v5p", 4): (2, 2, 1), ("v5p", 1024): (8, 8, 16), ("v5p", 6144): (16, 16, 24), ("v4", 4096): (16, 16, 16),
}  # fmt: skip


@pytest.mark.parametrize(("chip", "devices"), SHAPES, ids=str)
def test_tpu_slices_have_the_shapes_that_are_sold(chip, devices):
    """Google Cloud TPU documentation, "Configurations" of each version."""
    assert absent_devices.slice_shape(load_machine(chip), devices) == SHAPES[chip, devices]


def test_what_no_slice_has_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"no slice of TPU v5e has 24 chips; nearest: 16 or 32"):
        absent_devices.slice_shape(load_machine("v5e"), 24)
    with pytest.raises(BadInput, match=r"no slice of TPU v5p has 100 chips; nearest: 64 or 128"):
        absent_devices.slice_shape(load_machine("v5p"), 100)
    assert [absent_devices.count_slices(load_machine("v5e"), n) for n in (16, 256, 512, 513)] == [1, 1, 2, 3]
    assert absent_devices.count_slices(load_machine("h100"), 16384) == 1


@pytest.mark.parametrize(
    ("machine", "devices", "words"),
    [
        ("v5e", 48, "no slice of TPU v5e has 48 chips; nearest: 32 or 64"),
        ("v5e", 514, "514 chips of TPU v5e are not 3 equal slices"),
        ("v5e", 512, ""),
        ("v5p", 64, ""),
        ("h100", 7, ""),
        ("h100", 48, ""),
        ("h100", 12, "12 devices are not whole nodes of 8; the trainer takes 2 nodes of 6"),
    ],
)
def test_a_number_that_nobody_rents_out_is_said(machine, devices, words):
    text = absent_devices.describe_no_slices(load_machine(machine), devices)
    assert text.startswith(words) and bool(text) == bool(words)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(absent_devices, "_is_installed", lambda module: False)
    for chip, extra in (("v5e", "plan-tpu"), ("h100", "plan-cuda")):
        with pytest.raises(BadInput, match=rf"pip install -c constraints.txt '.\[{extra}\]'; or --hardware=cpu"):
            compile_step(static({"fsdp": 4}), load_machine(chip))
    with pytest.raises(BadInput, match=r"no compiler here takes T4 without a device; it takes TPU v4, .*H200 SXM"):
        compile_step(static({}), load_machine("t4"))


def test_what_the_trainer_cannot_lay_out_is_refused_in_its_own_words():
    with pytest.raises(BadInput, match=r"model.d_model=16 is not divisible by parallel.fsdp=3"):
        compile_step(static({"fsdp": 3}), CPU)


def test_a_program_is_traced_as_for_the_platform_it_is_for():
    shape = dataclasses.replace(static({}).model, seq_len=4096, d_head=128)
    actual = {}
    for platform in ("cpu", "gpu", "tpu"):
        with trace_for_platform(platform):
            actual[platform] = choose_kernel(shape, jax.numpy.dtype("bfloat16"))
    assert actual == {"cpu": "blockwise", "gpu": "cudnn", "tpu": "splash"}
    assert choose_kernel(shape, jax.numpy.dtype("bfloat16")) == "blockwise"


def test_extras_are_pinned_as_everything_is():
    root = pathlib.Path(__file__).parents[3]
    pins = {line.partition(";")[0].strip() for line in (root / "constraints.txt").read_text().splitlines()}
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for extra in extras if extra.startswith("plan-")} == {
        extra for extra, _ in absent_devices.EXTRAS.values()
    }
    assert not [pin for packages in extras.values() for pin in packages if pin not in pins]


def installed(platform):
    extra, modules = absent_devices.EXTRAS[platform]
    available = any(absent_devices._is_installed(module) for module in modules)
    return pytest.mark.skipif(
        not available, reason=f"needs the extra {extra}: pip install -c constraints.txt '.[{extra}]'"
    )


# Of 1.54 B parameters, 64 sequences of 2,048 tokens a step, AdamW in fp32, products in bf16.
LARGE = {
    "model.d_model": 2048, "model.n_layers": 28, "model.n_heads": 16, "model.vocab_size": 32_000, "model.seq_len": 2048,
    "model.remat": "full", "precision.name": "bf16", "train.global_batch": 64,
}  # fmt: skip


@installed("tpu")
@pytest.mark.slow
@pytest.mark.parametrize(("chip", "layout", "slices"), [("v5e", {"fsdp": 16}, 1), ("v4", {"fsdp": 8, "tensor": 2}, 1),
                                                        ("v5e", {"data": 2, "fsdp": 16}, 2)], ids=str)  # fmt: skip
def test_tpu_slices_hold_twelve_bytes_a_parameter(chip, layout, slices):
    """fp32 weights and two moments; libtpu pads less than 1 % at this size. The peak is what it says of its own
    buffers."""
    of = static(layout, **LARGE)
    got = compile_step(of, load_machine(chip), slices)
    assert got.argument_bytes == pytest.approx(argument_bytes(of), rel=0.01)
    assert got.alias_bytes == pytest.approx(got.output_bytes, rel=1e-3)
    assert got.argument_bytes < got.peak_bytes < load_machine(chip).chip.hbm_bytes
    assert got.oom is None and "attention: splash" in got.note


@installed("tpu")
@pytest.mark.slow
def test_the_compiler_says_itself_that_memory_does_not_suffice():
    got = compile_step(static({"fsdp": 16}, **LARGE | {"model.remat": "none"}), load_machine("v5e"))
    assert "Ran out of memory" in got.oom and got.peak_bytes == 0


@installed("gpu")
@pytest.mark.slow
@pytest.mark.parametrize("chip", ["h100", "h200"])
def test_gpus_hold_twelve_bytes_a_parameter(chip):
    of = static({"fsdp": 8}, **LARGE | {"train.global_batch": 16})
    got = compile_step(of, load_machine(chip))
    assert got.argument_bytes == pytest.approx(argument_bytes(of), rel=1e-4)
    assert got.argument_bytes < got.peak_bytes < load_machine(chip).chip.hbm_bytes
    assert got.oom is None and "attention: cudnn" in got.note
