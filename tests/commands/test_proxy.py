"""`scalelab proxy`: sweeps a real small twin and writes config files that load."""

import json

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from tests.sweep.here import train_packs_here

TINY = ["--config=configs/tiny.py", "--config.data.source=synthetic", "--config.data.n_tokens=20000",
    "--config.model.seq_len=16",
        "--config.model.vocab_size=64", "--config.train.steps=200", "--config.eval.batches=4"]  # fmt: skip


def test_from_a_recipe_to_its_learning_rate(tmp_path, capsys):
    out = tmp_path / "new" / "filled.py"
    at = f"--json={tmp_path / 'proxy.json'}"
    arguments = ["--flops=1e10", f"--workdir={tmp_path / 'work'}", "--seeds=1", "--lrs=1,1e-2,1e-4", f"--out={out}", at]
    with train_packs_here():
        assert main(["proxy", *TINY, *arguments]) == 0
    result, output = json.loads((tmp_path / "proxy.json").read_text()), capsys.readouterr().err
    assert result["interior"] and 1e-4 < result["peak_lr"] < 1
    assert result["peak_lr_interval90"] is None and f"peak_lr {result['peak_lr']:g}, one seed: no interval" in output
    assert result["sweep_flops"] <= 1e10 and result["twin"]["d_model"] < 64 and "twin: d_model" in output
    target, twin = config_lib.load(out), config_lib.load(tmp_path / "work" / "twin.py")
    assert target.optim.peak_lr == result["peak_lr"] and target.model.d_model == 64 and target.train.steps == 200
    assert target.parametrization == twin.parametrization and target.parametrization.name == "completep"
    assert {key: twin.model[key] for key in ("d_model", "n_layers")} == {
        k: result["twin"][k] for k in ("d_model", "n_layers")
    }
    before = (tmp_path / "work" / "sweep.json").stat().st_mtime_ns
    assert main(["proxy", *TINY, *arguments]) == 0  # what is finished is not run again
    assert json.loads((tmp_path / "proxy.json").read_text()) == result
    assert (tmp_path / "work" / "sweep.json").stat().st_mtime_ns >= before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--flops=1e6"], "runs of the narrowest twin (d_model 16) take"),
        (["--flops=1e12", "--lrs=1,2"], "three learning rates or more"),
        (["--flops=1e12", "--seeds=0"], "must be above zero"),
        (["--flops=1e12", "--out=configs/tiny.py"], "must be a new file that ends in .py"),
    ],
)
def test_what_is_refused(tmp_path, arguments, message, capsys):
    assert main(["proxy", *TINY, f"--workdir={tmp_path}", *arguments]) == 2
    assert message in capsys.readouterr().err
