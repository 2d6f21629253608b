"""A config given as a file, or by the name of one that comes with scalelab."""

import os
import pathlib
import sys

import pytest

from scalelab import config
from scalelab.__main__ import main
from scalelab.errors import BadInput

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "file"), [("tiny", "tiny.py"), ("llama3_8b", "recipes/llama3_8b.py")])
def test_a_name_is_the_file_that_comes_with_scalelab(tmp_path, monkeypatch, capsys, name, file):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "configs" / file
    assert config.find_config_file(name) == str(path)
    assert main(["config", f"--config={name}", "model.d_model", "--json"]) == 0
    by_name = capsys.readouterr()
    assert f"--config={name}: {path}" in by_name.err
    assert main(["config", f"--config={path}", "model.d_model", "--json"]) == 0
    assert capsys.readouterr().out == by_name.out


def test_a_file_of_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("")  # odd, and the user's
    assert config.find_config_file("tiny") == "tiny"
    assert config.find_config_file("tiny.py") == "tiny.py"


def test_names_that_are_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="no config file 'tinny'; did you mean 'tiny'"):
        config.find_config_file("tinny")
    assert main(["optim", "--config=configs/tiny.py"]) == 2  # as the README has it, in another folder
    assert "no config file 'configs/tiny.py'; scalelab has one of that name: --config=tiny" in capsys.readouterr().err


def test_a_file_written_twice_within_a_second_is_read_anew(tmp_path, monkeypatch):
    """Python keeps it compiled under its time in seconds and its size, which are equal here."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, read = tmp_path / "mine.py", []
    for batch in (16, 24):
        path.write_text(
            "from scalelab.configs import tiny\n\n\ndef get_config():\n    config = tiny.get_config()\n"
            f"    config.train.global_batch = {batch}\n    return config\n"
        )
        os.utime(path, (1e9, 1e9))
        read.append(config.load(path).train.global_batch)
    assert read == [16, 24]


def test_a_config_that_imports_the_checkout_s_configs_elsewhere_is_told_their_name(tmp_path):
    (tmp_path / "mine.py").write_text("from configs.nowhere import get_config\n")
    with pytest.raises(BadInput, match=r"mine.py, line 1: .*; outside a checkout it is scalelab\.configs\.nowhere$"):
        config.load(tmp_path / "mine.py")
