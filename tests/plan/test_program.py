"""What is read from a compiled program: kinds, bytes, formats, rounds of loops, and what runs beside a collective."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from scalelab.plan.compiled import program

# Scheduled text as XLA writes it, shortened: a loop of five rounds whose body gathers in bf16 beside a product and
# sums in fp32; a gather on its own before it; a pair sent after it.
TEXT = """\
HloModule jit_step, is_scheduled=true

%body (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]{1,0}) parameter(0)
  %all-gather-start = ((bf16[4,8], f32[2]{0}), (bf16[16,8], f32[8])) all-gather-start(%x, %g), GROUPS SOURCE
  %product = f32[4,4]{1,0} fusion(%x, %x), kind=kOutput, calls=%fused
  %all-gather-done = (bf16[16,8]{1,0}, f32[8]{0}) all-gather-done(%all-gather-start)
  %all-reduce-start = f32[4,4]{1,0} all-reduce-start(%product), replica_groups=MESH, to_apply=%add
  %all-reduce-done = f32[4,4]{1,0} all-reduce-done(%all-reduce-start)
  ROOT %tuple = (s32[], bf16[4,8]{1,0}) tuple(%i, %x)
}

%condition (p: (s32[], bf16[4,8])) -> pred[] {
  %limit = s32[] constant(5)
  %i.1 = s32[] get-tuple-element(%p), index=0
  ROOT %below = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: bf16[4,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %reduce-scatter = f32[2,8]{1,0} reduce-scatter(%a), replica_groups=[2,4]<=[8], dimensions={0}
  %loop = (s32[], bf16[4,8]{1,0}) while(%t), condition=%condition, body=%body ROUNDS
  %copy.7 = f32[64,64]{1,0} copy(%m)
  %collective-permute = pred[10]{0} collective-permute(%b), source_target_pairs={{0,1},{1,0}}
  ROOT %end = bf16[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""
TEXT = TEXT.replace("GROUPS SOURCE", 'replica_groups={{0,1,2,3},{4,5,6,7}}, metadata={op_name="step/q"}')
TEXT = TEXT.replace("MESH", "mesh['axis_0'=2,'axis_1'=4] {'axis_0'}")


@pytest.mark.parametrize("rounds", ["", ', backend_config={"known_trip_count":{"n":"5"}}'])
def test_collectives_are_read_with_their_bytes_and_rounds(rounds):
    rows = {(row.kind, row.format): row for row in program.read_collectives(TEXT.replace(" ROUNDS", rounds))}
    assert {key: (row.payload_bytes, row.members, row.times, row.overlapped) for key, row in rows.items()} == {
        ("all-gather", "bf16"): (256, 4, 5, True),
        ("all-gather", "f32"): (32, 4, 5, True),
        ("all-reduce", "f32"): (64, 2, 5, False),  # nothing between its start and its done
        ("reduce-scatter", "f32"): (64 * 4, 4, 1, False),
        ("collective-permute", "pred"): (10, 0, 1, False),
    }
    assert rows["all-gather", "bf16"].source == "step/q"


def test_sent_bytes_are_those_of_ring_algorithms():
    """Of n devices each sends (n - 1) / n of what is gathered or scattered, and twice that of what is summed."""
    sent = {row.kind: row.sent_bytes for row in program.read_collectives(TEXT) if row.format != "f32"}
    assert sent["all-gather"] == 256 * 3 / 4 * 5 and sent["collective-permute"] == 10
    summed = {row.kind: row.sent_bytes for row in program.read_collectives(TEXT) if row.format == "f32"}
    assert summed["all-reduce"] == 2 * 64 / 2 * 5 and summed["reduce-scatter"] == 256 * 3 / 4


def test_large_copies_are_counted():
    assert program.large_copies(TEXT, 64 * 64 * 4) == {"copy f32[64,64]": 1}
    assert program.large_copies(TEXT, 64 * 64 * 4 + 1) == {} and program.count_host_transfers(TEXT) == 0


@pytest.mark.parametrize(
    "text, size", [("pred", 6), ("bf16", 12), ("f8e4m3fn", 6), ("s4", 3), ("f32", 24), ("c64", 48)]
)
def test_bytes_of_number_formats(text, size):
    assert program.array_bytes(text, "2,3") == (text, size)


# A TPU's gather beside computation, shortened: named in the fusion that starts it, in that of a product, and in that
# which awaits it. Another is started and awaited with nothing between.
FUSED = """\
HloModule jit_step, is_scheduled=true

%fused_computation.1 (param_0: bf16[4,8]) -> bf16[16,8] {
  %param_0 = bf16[4,8]{1,0} parameter(0)
  %all-gather.1 = bf16[16,8]{1,0:T(8,128)(2,1)} all-gather(%param_0), channel_id=7, replica_groups={{0,1,2,3}}
  ROOT %custom-call.1 = (bf16[4,8], bf16[16,8]) custom-call(%param_0, %all-gather.1)
}

%async_collective_fusion.2 (param_0.2: bf16[4,8]) -> bf16[16,8] {
  %param_0.2 = bf16[4,8]{1,0} parameter(0)
  %all-gather.2 = bf16[16,8]{1,0} all-gather(%param_0.2), channel_id=7, replica_groups={{0,1,2,3}}
  ROOT %dot.2 = bf16[4,4]{1,0} dot(%param_0.2, %param_0.2)
}

%fused_computation.3 (param_0.3: bf16[4,8]) -> bf16[16,8] {
  %param_0.3 = bf16[4,8]{1,0} parameter(0)
  %all-gather.3 = bf16[16,8]{1,0} all-gather(%param_0.3), channel_id=7, replica_groups={{0,1,2,3}}
  ROOT %custom-call.3 = bf16[16,8]{1,0} custom-call(%param_0.3, %all-gather.3)
}

ENTRY %main (a: bf16[4,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %async-collective-start = (bf16[4,8], bf16[16,8]) fusion(%a), kind=kCustom, calls=%fused_computation.1
  %fusion.2 = bf16[4,4]{1,0} fusion(%a), kind=kOutput, calls=%async_collective_fusion.2
  %async-collective-done = bf16[16,8]{1,0} fusion(%fusion.2), kind=kCustom, calls=%fused_computation.3
  ROOT %copy = bf16[4,8]{1,0} copy(%a)
}
"""


def test_a_collective_that_a_tpu_fuses_is_one_beside_what_is_between_its_start_and_its_end():
    (row,) = program.read_collectives(FUSED)
    assert (row.kind, row.format, row.payload_bytes, row.members, row.times) == ("all-gather", "bf16", 256, 4, 1)
    assert row.overlapped
    alone = "\n".join(line for line in FUSED.splitlines() if "%fusion.2 =" not in line)
    assert [row.overlapped for row in program.read_collectives(alone)] == [False]


# What libtpu 0.0.42 makes of a reduce-scatter on v5e:2x4, shortened: the sum is no buffer (the fusion's result is the
# slice), and its backend_config names the emitter SingleInputAllReduceScatterFusion with `phases:1` of a ring, as that
# of an instruction `reduce-scatter` on v5p:2x2x1 does. An all-reduce alone has two phases.
SCATTER = """\
HloModule jit_step, is_scheduled=true

%all-reduce-scatter.clone.1 (input.2: f32[4096,14336]) -> f32[512,14336] {
  %input.2 = f32[4096,14336]{1,0:T(8,128)} parameter(0)
  %all-reduce.3 = f32[4096,14336]{1,0:T(8,128)} all-reduce(%input.2), channel_id=1, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%add.clone
  ROOT %dynamic-slice.19 = f32[512,14336]{1,0:T(8,128)S(1)} dynamic-slice(%all-reduce.3, %multiply.4, \
%constant.51), dynamic_slice_sizes={512,14336}
}

ENTRY %main.3_spmd (param.2: f32[4096,14336]) -> f32[512,14336] {
  %param.2 = f32[4096,14336]{1,0:T(8,128)} parameter(0)
  ROOT %fusion.14 = f32[512,14336]{1,0:T(8,128)S(1)} fusion(%param.2), kind=kCustom, \
calls=%all-reduce-scatter.clone.1, metadata={op_name="step/dot_general"}
}
"""


def test_an_all_reduce_fused_with_its_slice_sends_what_a_reduce_scatter_does():
    (row,) = program.read_collectives(SCATTER)
    assert (row.kind, row.format, row.members, row.source) == ("reduce-scatter", "f32", 8, "step/dot_general")
    assert row.sent_bytes == 4096 * 14336 * 4 * 7 / 8 and not row.overlapped


# The step of a small model on eight fake devices, compiled: what it sends, by where it comes from and how often.
STEP = """
import functools, json, sys, jax
from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.parallel import mesh as mesh_lib
from scalelab.plan.compiled import aot, program
from scalelab.model.count import count_parameters
from scalelab.train.step.step import many_steps

SMALL = {"model.d_model": 64, "model.n_layers": 1, "model.n_heads": 8, "model.seq_len": 32, "model.vocab_size": 64,
         "train.global_batch": 64, "train.accumulate": 4, "train.steps": 8}
for changes in json.loads(sys.argv[1]):
    static = config_lib.static(config_lib.resolve(override(tiny.get_config(), SMALL | changes)))
    arguments, mesh = aot._step_arguments(static, jax.devices(), 1)
    with jax.set_mesh(mesh):
        text = jax.jit(functools.partial(many_steps, static)).lower(*arguments).compile().as_text()
    rows = [[r.kind, r.payload_bytes, r.times] for r in program.read_collectives(text) if r.members == 8]
    print(json.dumps([count_parameters(static.model)["kaplan"], rows]))
"""


TENSOR = {"parallel.tensor": 8, "parallel.sequence": True, "train.accumulate": 1, "precision.name": "bf16"}
ZERO = {"parallel.fsdp": 8, "model.tied_head": False, "precision.name": "bf16"}


@pytest.fixture(scope="module")
def compiled():
    """The collectives of a step under data, tensor and fully sharded parallelism, and under ZeRO 2."""
    split = {"parallel.fsdp": 8, "model.tied_head": False, "model.vocab_size": 4096}
    return compile_steps({"parallel.data": 8}, TENSOR, split, ZERO | {"parallel.zero": 2})


@pytest.fixture(scope="module")
def compiled_too():
    """Those of the slow tests, under ZeRO 1 and with tensor parallelism in parts."""
    return compile_steps(ZERO | {"parallel.zero": 1}, TENSOR | {"parallel.parts": 4})


def compile_steps(*layouts):
    """(parameters of the matrices, collectives) of a step in each layout of eight fake devices, in one process."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", STEP, json.dumps(layouts)],
        env=environment,
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
def test_gradients_of_blocks_are_added_between_devices_once_a_step(compiled):
    matrices, rows = compiled[0]
    once = sum(size for kind, size, times in rows if kind == "all-reduce" and times == 1)
    repeated = sum(size for kind, size, times in rows if kind == "all-reduce" and times > 1)
    assert once >= 4 * matrices and repeated < 0.1 * matrices  # gains: once a micro-batch


@pytest.mark.full
def test_zero_2_gathers_weights_once_a_step_and_scatters_after_each_micro_batch(compiled):
    check_zero(*compiled[3], scattered=4)


@pytest.mark.slow
def test_zero_1_gathers_weights_and_scatters_gradients_once_a_step(compiled_too):
    check_zero(*compiled_too[0], scattered=1)


def check_zero(matrices, rows, scattered):
    """Matrices and head are gathered once for four micro-batches; gradients are scattered so many times."""
    weights = 4 * (matrices + 64 * 64)  # XLA:CPU sends what is in bf16 as fp32
    gathered = [(size, times) for kind, size, times in rows if kind == "all-gather"]
    assert sum(size for size, times in gathered if times == 1) == pytest.approx(weights, rel=0.02)
    assert sum(size * times for size, times in gathered if times > 1) < 0.05 * weights  # tokens, for the embedding
    added = [(size, times) for kind, size, times in rows if kind in ("all-reduce", "reduce-scatter")]
    assert sum(size * times for size, times in added) == pytest.approx(scattered * weights, rel=0.02)


@pytest.mark.full
def test_a_head_is_gathered_once_and_an_embedding_never(compiled):
    """Under FSDP with a vocabulary that makes all else small, and four micro-batches: XLA:CPU gathers once for all of
    them, and says all-reduce for the scatter.
    """
    head, rows = 4096 * 64 * 4, compiled[2][1]
    gathered = sum(size * times for kind, size, times in rows if kind == "all-gather")
    added = sum(size * times for kind, size, times in rows if kind in ("all-reduce", "reduce-scatter"))
    assert 1 <= gathered / head < 2 and 4 <= added / head < 6


@pytest.mark.full
def test_a_block_sends_the_gradient_of_its_input_once_for_all_its_products(compiled):
    """Four sums a layer: of the outputs of attention and MLP, of the gradients of their inputs. Embedding and head."""
    activations = 64 * 32 * 64 * 4  # bytes: tokens x d_model; XLA adds up in fp32 on a CPU
    sums = sum(size for kind, size, _ in compiled[1][1] if kind in ("all-reduce", "reduce-scatter"))
    assert round(sums / activations) == 4 + 2


@pytest.mark.slow
def test_a_forward_gathers_in_parts_and_sends_no_more(compiled, compiled_too):
    """Two gathers a layer come in four parts, each a collective of its own; XLA:CPU joins those of the sums.

    The gradient of a norm's gain is added up once a part, which is all that is sent more.
    """
    part, gains = 64 * 32 * 64 * 4 // 4, 3 * 2 * 64 * 4
    whole, parted = compiled[1][1], compiled_too[1][1]
    assert sum(size * times for _, size, times in parted) == sum(size * times for _, size, times in whole) + gains
    assert [size for kind, size, _ in parted if kind == "all-gather"].count(part) == 2 * 4
    assert not any(size == part for _, size, _ in whole)
