"""`scalelab sample`: the text of a run, its JSON, and mistakes."""

import json

import pytest

from scalelab.__main__ import main
from tests.evaluate.runs import trained
from tests.hf.oracle.make import HERE


def test_text_and_json_say_the_same_and_say_it_again(capsys, tmp_path):
    asked = ["sample", str(trained()), "--prompt=for ", "--tokens=8", "--n=2", "--seed=5", "--top-k=40"]
    assert main([*asked, f"--json={tmp_path}/out.json"]) == 0
    out = capsys.readouterr().out
    answer = json.loads((tmp_path / "out.json").read_text())
    first, second = answer["samples"]
    assert out.startswith(f"{trained()} at step 4\n--- 1 of 2: 8 tokens, cut, ")
    assert f"nats\nfor {first['text']}\n--- 2 of 2: " in out and out.endswith(f"nats\nfor {second['text']}\n")
    assert bytes(first["ids"]).replace(b"\0", b"").decode(errors="replace") == first["text"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert main([*asked, "--ema", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] != answer["samples"]


def test_weights_without_a_tokenizer_are_refused(tmp_path, capsys):
    assert main(["import", "hf", str(HERE / "their_gpt2"), f"--out={tmp_path}/kept"]) == 0
    assert main(["sample", f"{tmp_path}/kept", "--prompt=a"]) == 2
    assert "holds imported weights, whose tokenizer is not known" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, said", [
    (["{run}@3"], "nearest: {run}@"), (["{run}", "--tokens=90"], "--tokens=31"), (["{run}", "--top-p=2"], "--top-p=2.0"),
    (["{run}", "--prompt=" + "x" * 40], "tokens shorter"), ([], "required"), (["{run}", "--temprature=1"], "'--temperature'"),
])  # fmt: skip
def test_mistakes_end_in_one_line_and_2(capsys, arguments, said):
    assert main(["sample", *(a.format(run=trained()) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert said.format(run=trained()) in error and error.startswith("scalelab: ") and error.count("\n") == 1
