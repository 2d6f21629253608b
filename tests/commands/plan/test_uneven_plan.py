"""`scalelab plan` of llama3_405b on 16 stages, which do not divide its 126 layers, against a computation by hand."""

import json

import pytest

from scalelab.__main__ import main

D_MODEL, D_FF, KEYS, VOCAB, SEQ_LEN = 16_384, 53_248, 8 * 128, 128_256, 8192
STAGE, TENSOR, FSDP, MICROBATCHES = 16, 8, 16, 16
LAYER = 2 * D_MODEL**2 + 2 * D_MODEL * KEYS + 3 * D_MODEL * D_FF
SIZES = {"stage": STAGE, "tensor": TENSOR, "fsdp": FSDP, "microbatches": MICROBATCHES, "sequence": True}


def planned(capsys, layers):
    values = {f"parallel.{key}": value for key, value in SIZES.items()} | {"model.n_layers": layers}
    overrides = [f"--config.{key}={value}" for key, value in values.items()]
    command = ["plan", "--config=configs/recipes/llama3_405b.py", "--hardware=h100", "--devices=2048", "--json"]
    assert main([*command, *overrides]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_memory_time_and_bubble_follow_the_slots(capsys):
    plan = planned(capsys, 126)
    assert not any("refuses" in note for note in plan["notes"])
    memory, split = plan["memory_bytes"], TENSOR * FSDP
    tables = 2 * D_MODEL * VOCAB
    assert memory["parameters"] == pytest.approx(4 * (126 / STAGE * LAYER + tables) / split, rel=1e-3)
    assert memory["copies"] == pytest.approx(4 * 8 * LAYER / split, rel=1e-3)
    # Four micro-batches are added up, so twice the gradients of 8 slots.
    assert memory["gradients"] == pytest.approx(2 * 4 * (8 * LAYER + tables) / split, rel=1e-3)
    # 1f1b holds min(m, 2 p - 1) micro-batches and one more, at 8 block inputs each; two are under way. Two rows, bf16.
    stream = 2 * SEQ_LEN * D_MODEL * 2 // TENSOR
    assert memory["activations"] == ((MICROBATCHES + 1) * 8 + 2) * stream
    # 7 layers and the head take less than 8 layers, as Llama 3 means it; with 112 and 128 layers the head is added.
    time, fewer, more = (each["time_s"] for each in (plan, planned(capsys, 112), planned(capsys, 128)))
    assert time["compute"] == pytest.approx(8 * (more["compute"] - fewer["compute"]), rel=1e-6)
    exchanged = (
        time["stage"] - more["stage"]
    )  # a device sends 15 / 16 of its slots, and gets as much; weights, gradients
    assert exchanged == pytest.approx(2 * memory["copies"] * 15 / 16 / (50e9 * 0.7), rel=1e-3)
    ticks = time["compute"] + time["hbm"] + time["exposed"]["tensor"] + time["exposed"]["stage"] - exchanged
    assert time["bubble"] == pytest.approx((STAGE - 1) / MICROBATCHES * ticks, rel=1e-3)


@pytest.mark.slow
def test_the_rest_of_a_mesh_is_chosen_and_typed_out(capsys):
    """16 stages alone are 16 of 2,048 devices; the batch's warm-up leaves a pipeline its micro-batches."""
    argv = ["--config=configs/recipes/llama3_405b.py", "--hardware=h100", "--devices=2048"]
    assert main(["plan", *argv, "--config.parallel.stage=16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fits: ") and lines[1].startswith("plan: stage=16 x ")
    assert "note: mesh: stage=16 takes 16 of 2,048 devices; the rest was chosen" in lines
    words = lines[3].removeprefix("paste: scalelab plan ").split(" ")
    assert main(["plan", *words]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[:3] == lines[:3] and not any("the rest was chosen" in line for line in again)
    assert main(["plan", *argv, "--config.parallel.stage=16", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["mesh"]["stage"] == 16 and result["mesh"]["microbatches"] >= 16 > 15 * result["mfu"]
    assert result["verdict"]["command"] == lines[3].removeprefix("paste: ")


@pytest.mark.full
def test_a_command_beside_a_filled_mesh_names_all_of_its_mesh(capsys):
    argv = ["plan", "--config=configs/recipes/llama3_8b.py", "--hardware=h100", "--devices=64"]
    assert main([*argv, "--mesh=tensor=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tensor=4" in lines[1] and lines[3].startswith("paste: ") and lines[4].startswith("faster: ")
    seconds, words = lines[4].removeprefix("faster: ").split(" a step (")[0], lines[4].split(": scalelab plan ")[1]
    assert main(["plan", *words.split(" ")]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith(f"time: {seconds} (")
