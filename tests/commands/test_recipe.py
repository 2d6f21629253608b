"""`scalelab recipe`: lists, explains and shrinks; the twin is a config file that loads."""

import json

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import list_not_reproduced
from scalelab.sweep.scaling import recipes


def test_the_list_names_every_file(capsys):
    assert main(["recipe", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in result] == recipes.list_recipes() and len(result) > 15
    assert all(row["summary"] and config_lib.load(row["path"]) for row in result[:2])


def test_a_recipe_is_explained(capsys):
    assert main(["recipe", "deepseek_llm_7b"]) == 0
    output = capsys.readouterr().out
    row = next(line for line in output.splitlines() if line.startswith("model.projection_std"))
    assert row.split()[1:4] == ["0.006", "(default", "0)"] and row.endswith("section 2.3")
    assert "total 6,910,365,696 (published: 6,910,365,696)" in output and "tokens: 2e+12 (published: 2e+12)" in output
    assert "data:" not in output
    assert main(["recipe", "llama3_8b"]) == 0
    assert "code=0.17,multilingual=0.08 (arXiv 2407.21783, section 3.1.2" in capsys.readouterr().out
    assert main(["recipe", "qwen3_30b_a3b", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert any("stage 2" in text for text in result["not_reproduced"])
    assert result["params"]["total"] == 30_532_122_624 and result["params"]["active"] == 3_353_032_704
    assert result["flops"]["6N"] == 6 * result["params"]["active"] * result["tokens"]
    keys = [choice["key"] for choice in result["choices"]]
    assert "optim.peak_lr" in keys and "model.norm" not in keys  # the default


def test_a_twin_is_a_config_file(tmp_path, capsys):
    out = tmp_path / "small.py"
    assert main(["recipe", "llama3_405b", "--shrink", "--steps=200", f"--out={out}"]) == 0
    twin = config_lib.load(out)
    assert twin.model.d_model == 64 and twin.train.steps == 200 and twin.model.n_heads == 4 * twin.model.n_kv_heads
    assert twin.schedule.batch_stages == "4; 1: 8; 62: 16" and twin.schedule.fall_share == pytest.approx(1.09, rel=1e-3)
    assert any("long-context" in text for text in list_not_reproduced(out))  # which `scalelab train` says
    assert twin.model.rope_theta == 500_000 and twin.data.documents == "mask"
    capsys.readouterr()
    assert main(["recipe", "llama3_405b", "--shrink=48"]) == 0
    assert "'model.d_model': 48" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama3_8b"], "did you mean 'llama3_8b'?"),
        (["llama3_8b", "--shrink=100"], "nearest: 96"),
        (["llama3_8b", "--shrink=8192"], "nearest: 4088"),
        (["llama3_8b", "--shrink=wide"], "a width and a number of steps"),
        (["llama3_8b", "--shrink", "--out=x.txt"], "ends in .py"),
        (["llama3_8b", "--out=x.py"], "--out goes with --shrink"),
        (["--shrink"], "needs a recipe"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert main(["recipe", *arguments]) == 2
    assert message in capsys.readouterr().err.rstrip("\n").splitlines()[-1]
