"""`scalelab sample`: the text of a run, its JSON, and mistakes."""

import json
import shutil

import pytest
import tokenizers

from scalelab.__main__ import main
from tests.evaluate.runs import trained
from tests.hf.oracle.make import HERE


def test_text_and_json_say_the_same_and_say_it_again(capsys, tmp_path):
    command = ["sample", str(trained()), "--prompt=for ", "--tokens=8", "--samples=2", "--seed=5", "--top-k=40"]
    assert main([*command, f"--json={tmp_path}/out.json"]) == 0
    out = capsys.readouterr().out
    answer = json.loads((tmp_path / "out.json").read_text())
    first, second = answer["samples"]
    assert out.startswith(f"{trained()} at step 4\n--- 1 of 2: 8 tokens, cut, ")
    assert f"nats\nfor {first['text']}\n--- 2 of 2: " in out and out.endswith(f"nats\nfor {second['text']}\n")
    assert bytes(first["ids"]).replace(b"\0", b"").decode(errors="replace") == first["text"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert main([*command, "--ema", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] != answer["samples"]


def test_weights_without_a_tokenizer_are_refused(tmp_path, capsys):
    assert main(["import", "hf", str(HERE / "their_gpt2"), f"--out={tmp_path}/kept"]) == 0
    assert main(["sample", f"{tmp_path}/kept", "--prompt=a"]) == 2
    assert "holds imported weights, whose tokenizer is not known" in capsys.readouterr().err


def test_imported_weights_read_text_by_the_tokenizer_beside_them(tmp_path, capsys):
    """One of 30 letters for a model of 48 ids; one of more ids than the model has is left, and that is said."""
    shutil.copytree(HERE / "their_gpt2", tmp_path / "hf")
    letters = {"<|endoftext|>": 0} | {chr(97 + i): 1 + i for i in range(26)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    inner.decoder = tokenizers.decoders.Fuse()
    inner.save(str(tmp_path / "hf" / "tokenizer.json"))
    assert main(["import", "hf", f"{tmp_path}/hf", f"--out={tmp_path}/kept"]) == 0
    output = capsys.readouterr().out
    assert "\n  tokenizer: json-" in output and (tmp_path / "kept" / "tokenizer.json").exists()
    assert main(["sample", f"{tmp_path}/kept", "--prompt=abc", "--tokens=5", "--top-k=3", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["samples"]
    assert result["text"] == "".join(chr(96 + i) for i in result["ids"] if 0 < i < 27)
    inner.add_tokens([f"<{i}>" for i in range(40)])
    inner.save(str(tmp_path / "hf" / "tokenizer.json"))
    assert main(["import", "hf", f"{tmp_path}/hf", f"--out={tmp_path}/again"]) == 0
    assert "tokenizer.json has ids up to 66, the model up to 47" in capsys.readouterr().out
    assert not (tmp_path / "again" / "tokenizer.json").exists()


@pytest.mark.parametrize("arguments, message", [
    (["{run}@3"], "nearest: {run}@"), (["{run}", "--tokens=90"], "--tokens=31"),
    (["{run}", "--top-p=2"], "--top-p=2.0"),
    (["{run}", "--prompt=" + "x" * 40], "tokens shorter"),
    (["{run}", "--prompt=\udcff"], "--prompt='\\udcff' can't be encoded"), ([], "required"),
    (["{run}", "--temprature=1"], "'--temperature'"),
])  # fmt: skip
def test_mistakes_end_in_one_line_and_2(capsys, arguments, message):
    assert main(["sample", *(a.format(run=trained()) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert message.format(run=trained()) in error and error.startswith("scalelab: ") and error.count("\n") == 1
