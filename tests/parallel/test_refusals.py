"""What a mesh cannot divide is refused by the command in one line, with both numbers and the nearest good ones, and
before anything is compiled; what it leaves whole is told."""

import json
import os
import subprocess
import sys

import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.parallel.mesh import describe_mesh
from scalelab.parallel.rules import NO_LIBRARY_FLAG, check_layout
from scalelab.record import records
from tests.quick import one_in
from tests.train.resume.test_compatibility import SMALL
from tests.train.runs import ROOT

SIZES = {"model.d_model": 16, "model.n_heads": 4, "model.d_head": 4, "train.global_batch": 8, "train.steps": 2,
         "schedule.warmup_steps": 1, "model.vocab_size": 256}  # fmt: skip
EXPERTS = "model.block=experts model.n_experts"
# On 8 devices: what is changed -> every part of the answer, both numbers and the nearest valid ones.
REFUSED = {
    "data=3": ("parallel: data=3 is a mesh of 3, and there are 8 devices", "nearest product: 8, e.g. data=4 x fsdp=2"),
    "data=4 tensor=4": ("mesh of 16, and there are 8 devices", "nearest product: 8, e.g. data=4 x tensor=2"),
    "fsdp=2": ("mesh of 2, and there are 8 devices", "nearest product: 8, e.g. data=4 x fsdp=2"),
    "fsdp=3 tensor=2": ("mesh of 6, and there are 8 devices", "nearest product: 8, e.g. fsdp=4 x tensor=2"),
    "data=-1 tensor=3": ("mesh of 3, and there are 8 devices", "nearest product: 2, e.g. data=4 x tensor=2"),
    "data=-1 fsdp=-1": ("parallel.data=-1 and parallel.fsdp=-1", "only one size may be the rest"),
    "data=0": ("parallel.data=0", "1 or more, or -1 for the rest"),
    "fsdp=8 zero=4": ("parallel.zero=4 is outside [0, 3]", "nearest bound: 3"),
    "fsdp=8 model.d_model=20": ("model.d_model=20 is not divisible by parallel.fsdp=8", "16 or 24", "parallel.fsdp: 5"),
    "tensor=8": ("model.n_heads=4 is not divisible by parallel.tensor=8", "nearest model.n_heads: 8", "tensor: 4"),
    "tensor=4 data=2 model.n_kv_heads=2": (
        "model.n_kv_heads=2 is not divisible by parallel.tensor=4",
        "n_kv_heads: 4",
        "tensor: 2",
    ),
    "tensor=4 data=2 model.d_ff=42": ("model.d_ff=42 is not divisible by parallel.tensor=4", "40 or 44", "tensor: 3"),
    "tensor=4 data=2 model.vocab_size=257": (
        "model.vocab_size=257 is not divisible by parallel.tensor=4",
        "256 or 260",
        "tensor: 1",
    ),
    "tensor=4 data=2 sequence=true model.seq_len=18": (
        "model.seq_len=18 is not divisible by parallel.context x tensor=4",
        "16 or 20",
        "tensor: 3",
    ),
    "data=4 tensor=2 parts=4": (
        "parallel.parts=4 has no effect without parallel.sequence",
        "nearest: parallel.parts=0",
    ),
    "data=4 tensor=2 sequence=true parts=3": (
        "model.seq_len=16 is not divisible by parallel.context x tensor x parts=6",
        "12 or 18",
        "parts: 4",
    ),
    "data=4 tensor=2 sequence=true parts=4 precision.name=fp8": (
        "parallel.parts=4: fp8 takes a scale from a whole operand",
        "nearest: parallel.parts=1",
    ),
    "data=8 train.global_batch=12": (
        "global_batch / train.accumulate=12 is not divisible by parallel.data x parallel.fsdp=8",
        "8 or 16",
        "fsdp: 6",
    ),
    "context=8 model.seq_len=24": (
        "model.seq_len=24 is not divisible by 2 x parallel.context=16",
        "16 or 32",
        "context: 6",
    ),
    "stage=4 data=2 model.n_layers=3": (
        "model.n_layers=3 leaves empty some of parallel.stage x parallel.rounds=4",
        "nearest model.n_layers: 4",
        "rounds: 3",
    ),
    "stage=2 data=4 rounds=4 model.n_layers=5 microbatches=2": (
        "model.n_layers=5 leaves empty some of parallel.stage x parallel.rounds=8",
        "nearest model.n_layers: 6",
        "rounds: 5",
    ),
    "stage=4 fsdp=2 model.n_layers=6 model.d_model=20": (
        "model.d_model=20 is not divisible by parallel.stage x parallel.fsdp=8",
        "16 or 24",
        "fsdp: 5",
    ),
    "stage=4 data=2 model.n_layers=4 microbatches=3": (
        "global_batch / train.accumulate=8 is not divisible by parallel.data x fsdp x microbatches=6",
        "6 or 12",
        "microbatches: 4",
    ),
    "stage=4 data=2 model.n_layers=8 rounds=2 schedule=circular microbatches=2": (
        "parallel.microbatches=2 is not divisible by parallel.stage=4",
        "nearest parallel.microbatches: 4",
        "stage: 2",
    ),
    "data=8 train.accumulate=2": (
        "global_batch / train.accumulate=4 is not divisible by parallel.data x parallel.fsdp=8",
        "accumulate: 8",
        "fsdp: 4",
    ),
    "expert=8": ("parallel.expert=8 with model.n_experts=0", "nearest: parallel.expert=1 and parallel.data=8"),
    f"{EXPERTS}=12 expert=8": ("model.n_experts=12 is not divisible by parallel.expert=8", "8 or 16", "expert: 6"),
    f"{EXPERTS}=8 tensor=4 expert=2 model.d_expert=18": (
        "model.d_expert=18 is not divisible by parallel.tensor=4",
        "16 or 20",
        "tensor: 3",
    ),
    f"{EXPERTS}=8 data=8 expert_buffer=2.0": ("parallel.expert_buffer=2 with parallel.expert=1", "nearest: 0"),
    f"{EXPERTS}=8 expert=8 expert_buffer=0.5": (
        "parallel.expert_buffer=0.5 with parallel.expert=8",
        "nearest: 1, or 0",
    ),
    f"{EXPERTS}=8 expert=8 train.global_batch=12": (
        "global_batch / train.accumulate=12 is not divisible by parallel.data x parallel.fsdp x parallel.expert=8",
        "8 or 16",
        "expert: 6",
    ),
    f"{EXPERTS}=8 expert=8 precision.name=fp8_delayed": (
        "model.n_experts=8 on 8 devices",
        "nearest: precision.name='fp8'",
    ),
    "stage=2 data=4 model.n_layers=2 model.position=relative precision.name=bf16": (
        "model.position=relative and parallel.stage=2",
        "precision.name=fp32",
        "ynn_fusion_type=",
    ),
}
TOLD = "fsdp=8 model.bias=true model.n_heads=16 model.d_head=16"  # whose biases are no small part
PROGRAM = """
import contextlib, io, json, sys
import jax
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.train.run import loop
def end(*_, **__):
    raise BadInput("what is looked for comes before the first step")
loop._take_steps = end
compiled = []
def listen(name, *_, **__):
    if "backend_compile" in name:
        compiled.append(name)
jax.monitoring.register_event_duration_secs_listener(listen)
for place, argv in json.loads(sys.argv[1]):
    compiled.clear()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(["train", "--config=configs/tiny.py", f"--workdir={place}", *argv])
    print(json.dumps({"code": code, "said": said.getvalue(), "compiled": len(compiled)}), flush=True)
"""


def arguments(case: str) -> list[str]:
    values = {key: str(value) for key, value in (SMALL | SIZES).items()}
    for part in case.split():
        key, value = part.split("=")
        values[key if "." in key else f"parallel.{key}"] = value
    return [f"--config.{key}={value}" for key, value in values.items()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory, request) -> dict[str, dict]:
    """What the command says to each case of this session, on eight devices, one after the other in one process."""
    place = tmp_path_factory.mktemp("cases")
    asked_here = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    cases = [*(case for case in REFUSED if {"case": case} in asked_here), TOLD]
    asked = [(str(place / str(i)), arguments(case)) for i, case in enumerate(cases)]
    flags = os.environ.get("XLA_FLAGS", "").replace(NO_LIBRARY_FLAG, "")  # one of the refusals names it as a way out
    env = os.environ | {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)], cwd=ROOT, env=env, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    message = [json.loads(line) for line in done.stdout.splitlines()]
    return {case: {"folder": folder} | row for case, (folder, _), row in zip(cases, asked, message, strict=True)}


@pytest.mark.parametrize("case", one_in(3, REFUSED))
def test_it_is_refused_in_one_line_that_names_both_numbers_and_nothing_is_compiled(answers, case):
    answer = answers[case]
    assert (answer["code"], answer["compiled"]) == (2, 0), answer
    (line,) = answer["said"].strip().splitlines()
    assert all(part in line for part in REFUSED[case]), line
    assert not os.path.exists(f"{answer['folder']}/config.json")


def test_several_processes_are_refused_a_mesh_of_one_device(monkeypatch):
    """Each would train the whole run alone, and write it into the same folder."""
    one = config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), SMALL)))
    check_layout(one, one.layout)
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(BadInput, match="a mesh of one device for 2 processes"):
        check_layout(one, one.layout)


def test_one_device_takes_sequences_of_odd_length():
    values = SMALL | {"model.seq_len": 17}
    one = config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), values)))
    assert check_layout(one, one.layout) == []


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({}, "one device"),
        ({"fsdp": 4, "tensor": 2, "sequence": True, "zero": 3}, "fsdp=4 x tensor=2, sequence, zero=3"),
        ({"stage": 2, "data": 4, "fsdp": 1, "schedule": "1f1b", "zero": 3}, "stage=2 x data=4, 1f1b"),
        ({"trial": 2}, "trial=2"),
    ],
)
def test_a_mesh_in_words(mesh, words):
    assert describe_mesh(mesh) == words


def test_what_fsdp_leaves_whole_is_told_and_stands_in_the_logbook(answers):
    answer = answers[TOLD]
    assert answer["compiled"] > 0, answer  # the count of the other cases could not fail otherwise
    (event,) = [e for e in records.read_events(answer["folder"]) if e["kind"] == "layout"]
    assert "% of the parameters are not split by fsdp" in event["text"] and "blocks.attention.q.b" in event["text"]
    assert event["text"] in answer["said"]
