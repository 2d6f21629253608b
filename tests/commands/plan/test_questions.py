"""Questions on few or odd devices whose first answer was that nothing fits: what is printed fits, and is a command.

Numbers beside them: the state at 16 bytes a parameter (Rajbhandari et al. 2020) against the memory of the devices.
"""

import json

import pytest

from scalelab.__main__ import main
from scalelab.config.keys import COUNT


def ask(capsys, *argv):
    """(first lines, JSON of the plan that the printed command plans)."""
    assert main(["plan", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    paste = next(line for line in lines[:5] if line.startswith("paste: ")).removeprefix("paste: scalelab plan ")
    assert main(["plan", *paste.split(" "), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["verdict"]["fits"] and not again["verdict"]["refusal"]
    assert main(["plan", *paste.split(" ")]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == lines[1:3]
    return lines, again


@pytest.mark.full
def test_a_model_on_one_card_whose_tokens_are_more_batches_of_one_than_can_be_counted(capsys):
    """SmolLM3's 11e12 tokens are 2.7e9 sequences of 4,096; of two sequences a step they can be counted."""
    lines, again = ask(capsys, "--config=smollm3_3b", "--hardware=rtx5090", "--devices=1")
    assert "updates per_layer" in lines[1] and "adam8bit in bf16_stochastic" in lines[1]
    assert again["steps"] <= COUNT.high < 2 * again["steps"] and again["tokens"] == pytest.approx(11.14e12, rel=1e-3)


@pytest.mark.full
def test_two_cards_hold_what_16_bytes_a_parameter_do_not_allow(capsys):
    """3.2e9 parameters x 16 bytes are 25.7 GB a card of 24."""
    lines, again = ask(capsys, "--config=llama3_2_3b", "--hardware=rtx3090", "--devices=2")
    assert "optim.name" in lines[0].split("changes the numbers")[1] and again["devices"] == 2
    assert again["verdict"]["optimizer"] == "adam8bit" and again["mesh"]["fsdp"] == 2


@pytest.mark.full
def test_a_rack_of_72_holds_on_64_what_nine_parts_cannot_split(capsys):
    """70.6e9 parameters x 20 bytes (gradients are summed) on 8 of 72: 176 GB of 186 before any activation."""
    lines, again = ask(capsys, "--config=llama3_70b", "--hardware=gb200", "--devices=72")
    assert "; nearest that fits on 64 of them:" in lines[0] and "--devices=64" in lines[3]
    assert again["devices"] == 64 and again["verdict"]["optimizer"] == "adamw"


@pytest.mark.full
def test_more_devices_than_sequences_share_them(capsys):
    """Gemma 3's batch of 128 on 256 chips ended in a division by zero."""
    lines, again = ask(capsys, "--config=gemma3_12b", "--hardware=v5e", "--devices=256")
    assert "changes the numbers" not in lines[0] and again["batch_tokens"] == 128 * 32_768


@pytest.mark.full
def test_an_odd_batch_is_planned_as_asked_beside_a_faster_one_near_it(capsys):
    """1,009 is a prime: one micro-batch, or 1,009 of one sequence that eight devices share."""
    lines, again = ask(
        capsys, "--config=llama3_2_1b", "--hardware=h100", "--devices=8", "--config.train.global_batch=1009"
    )
    assert again["batch_tokens"] % 1009 == 0
    odd = next(line for line in lines[:5] if line.startswith("odd batch: "))
    assert main(["plan", *odd.split(": scalelab plan ")[1].split(" "), "--json"]) == 0
    even = json.loads(capsys.readouterr().out)
    assert even["batch_tokens"] % 1024 == 0 and even["tokens"] >= again["tokens"]
    assert even["days"] < 0.9 * again["days"] and "with_even_batch" not in even["verdict"]
