"""`scalelab export hf` and `scalelab import hf`: from a run to a folder, to weights, to another run."""

import json

import pytest
import tokenizers

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.data.tokenizers import ranks as ranktokens
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume.start import load_initial_weights
from scalelab.train.resume.weights import Weights, load_run_weights, write_weights
from scalelab.train.single import train_single
from tests import forks
from tests.evaluate import runs
from tests.hf import examples
from tests.hf.oracle.make import HERE
from tests.hf.test_tokenizer import small_ranks
from tests.train.resume.test_compatibility import SMALL, config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, train_single(config(), folder)


def untrained(folder, **changes):
    """Weights of another model, as a folder."""
    made = config(**changes)
    write_weights(folder, Weights(made, examples.params(config_lib.static(made).model), {}))


def test_out_in_and_on(tmp_path, run, capsys):
    folder, result = run
    assert main(["export", "hf", str(folder), f"--out={tmp_path}/hf"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder} at step 4 -> {tmp_path}/hf: llama, 12 tensors of float32, 0.0 MB in 1 file\n")
    assert "no tokenizer was written (the data are token ids without one)" in out
    assert "the ids are those of ids-256, id 0 begins and ends a document" in out and result["params_digest"] in out
    assert main(["import", "hf", f"{tmp_path}/hf", f"--out={tmp_path}/kept"]) == 0
    out = capsys.readouterr().out
    assert "tensors: 12 of float32, already in float32" in out and result["params_digest"] in out
    assert "  config.model.d_model = 8\n" in out and f"  config.train.init_from = '{tmp_path}/kept'\n" in out
    options = [f"--config.{key}={value}" for key, value in SMALL.items()]
    for name, start in (("a", f"hf:{tmp_path}/hf"), ("b", f"{tmp_path}/kept"), ("c", str(folder))):
        train = ["train", "--config=configs/tiny.py", f"--workdir={tmp_path}/{name}", f"--init-from={start}", "--json"]
        assert main([*train, *options]) == 0
    digests = {json.loads(line)["params_digest"] for line in capsys.readouterr().out.splitlines()}
    assert len(digests) == 1  # the same weights on every way


def test_the_data_s_tokenizer_and_its_ids_go_along(tmp_path, capsys):
    assert main(["export", "hf", str(runs.trained()), f"--out={tmp_path}/bytes"]) == 0
    assert "with its tokenizer bytes; id 0 begins and ends a document" in capsys.readouterr().out
    assert tokenizers.Tokenizer.from_file(f"{tmp_path}/bytes/tokenizer.json").encode("aé").ids == [0, 97, 195, 169]
    ranks = ranktokens.load_ranks(small_ranks(300), tmp_path / "x.tiktoken")
    made = config(model__vocab_size=320)
    write_weights(tmp_path / "run", Weights(made, examples.params(config_lib.static(made).model), {}), ranks)
    assert main(["export", "hf", f"{tmp_path}/run", f"--out={tmp_path}/ranks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["special_ids"] == {"bos_token_id": 300, "eos_token_id": 300}
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "ranks" / name).read_text())["eos_token_id"] == 300
    # What goes out comes in again: another scalelab run may take the folder's tokenizer for its own.
    assert main(["import", "hf", f"{tmp_path}/ranks", f"--out={tmp_path}/again"]) == 0
    assert "  tokenizer: json-" in capsys.readouterr().out
    assert main(["export", "hf", f"{tmp_path}/again", f"--out={tmp_path}/twice", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["special_ids"]["eos_token_id"] == 300


def test_an_end_that_nobody_knows_is_said(tmp_path, capsys):
    untrained(tmp_path / "run")
    assert main(["export", "hf", f"{tmp_path}/run", f"--out={tmp_path}/hf"]) == 0
    assert "the model that was imported, which id ends a document is not known" in capsys.readouterr().out
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content["eos_token_id"] is None and not (tmp_path / "hf" / "generation_config.json").exists()


def test_an_average_of_weights_goes_out_by_its_own_digest(tmp_path, run, capsys):
    assert main(["export", "hf", str(run[0]), f"--out={tmp_path}/hf", "--average=2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{run[0]} at step 4, the mean of steps 2, 4 -> {tmp_path}/hf: llama")
    assert load_run_weights(str(run[0]), last=2).origin["digest"] in out and run[1]["params_digest"] not in out


def test_what_was_rounded_or_folded_is_said(tmp_path, capsys):
    untrained(tmp_path / "mup", parametrization__name="mup", parametrization__base_width=4)
    assert main(["export", "hf", f"{tmp_path}/mup@0", f"--out={tmp_path}/hf", "--dtype=bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "12 tensors of bfloat16" in out and "rounded from float32 to bfloat16" in out
    assert "now part of the weights: blocks.attention.q x 0.707107, final_norm x 0.5" in out
    assert main(["import", "hf", f"{tmp_path}/hf", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["origin"]["dtypes"] == {"bfloat16": 12} and answer["folder"] is None
    assert answer["model"]["d_model"] == 8 and "remat" not in answer["model"]


def test_the_printed_config_is_the_one_that_fits(tmp_path, capsys):
    assert main(["import", "hf", str(HERE / "their_llama"), f"--json={tmp_path}/answer.json"]) == 0
    assert "tensors: 21 of bfloat16, converted to float32, exactly" in capsys.readouterr().out
    values = json.loads((tmp_path / "answer.json").read_text())["model"]
    model = {f"model__{key}": value for key, value in values.items()}
    params, _ = load_initial_weights(make_train_spec(config(train__init_from=f"hf:{HERE}/their_llama", **model)))
    assert params["blocks"]["mlp"]["up"]["w"].shape == (2, 24, 40)


def test_other_commands_understand_a_folder_of_imported_weights(tmp_path, capsys):
    assert main(["import", "hf", str(HERE / "their_gpt2"), f"--out={tmp_path}/kept"]) == 0
    for command in (["checkpoint", "verify"], ["checkpoint", "show"], ["runs"]):
        assert main([*command, f"{tmp_path}/kept"]) == 0, command
    assert "imported" in capsys.readouterr().out
    assert main(["export", "hf", f"{tmp_path}/kept", f"--out={tmp_path}/again"]) == 0
    assert "the ids are those of the model that was imported" in capsys.readouterr().out


MISTAKES = {
    "format": (["export", "onnx", "runs/a", "--out=x"], "invalid choice: 'onnx'"),
    "no out": (["export", "hf", "runs/a"], "--out"),
    "no run": (["export", "hf", "runs/none", "--out=x"], "'runs/none' is not a run folder; write RUN or RUN@STEP"),
    "dtype": (["export", "hf", "runs/a", "--out=x", "--dtype=fp8"], "invalid choice: 'fp8'"),
    "no folder": (["import", "hf", "nowhere"], "no folder 'nowhere'"),
    "a hub's name": (["import", "hf", "meta-llama/Llama-2-7b-hf"], "no folder 'meta-llama/Llama-2-7b-hf'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_end_in_one_line_and_2(case, capsys):
    arguments, message = MISTAKES[case]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("scalelab: ") and error.count("\n") == 1


@pytest.mark.full
def test_a_fork_s_weights_are_not_written_as_a_model_without_them(tmp_path, capsys, monkeypatch):
    """A gate on attention's output: what was written as a plain Llama, exit 0, had other logits in transformers."""
    with forks.attention_edited(monkeypatch, forks.GATED):
        untrained(tmp_path / "run")
        assert main(["export", "hf", f"{tmp_path}/run", f"--out={tmp_path}/hf"]) == 2
        error = capsys.readouterr().err
        assert "llama has no place for the parameter blocks.attention.attn_gate.w: give it a row" in error
        assert error.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["run"]
        # Nor is a Llama read into the fork, whose gate would hold whatever lay in memory.
        assert main(["import", "hf", str(HERE / "their_llama"), f"--out={tmp_path}/kept"]) == 2
        assert "no place for the parameter blocks.attention.attn_gate.w" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_that_no_format_can_say_is_refused_and_nothing_is_written(tmp_path, capsys):
    untrained(tmp_path / "run", model__mlp="relu2")
    assert main(["export", "hf", f"{tmp_path}/run", f"--out={tmp_path}/hf"]) == 2
    assert (
        "no Hugging Face format can express model.mlp='relu2' (llama: 'swiglu', mistral: 'swiglu', smollm3: 'swiglu')"
        in capsys.readouterr().err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
