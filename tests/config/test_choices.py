"""A choice is a row of the table that implements it: none can be declared that nothing implements.

"zzz" is added to every `choices=` of configs/base.py and set: one line, exit 2, nothing written.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from scalelab.__main__ import main
from scalelab.config import key_records

ROOT = pathlib.Path(__file__).parents[2]
KEYS = [name for name, record in key_records().items() if record.choices]
CHOICES = re.compile(r'(choices=(?:\s*"[^"]*")*\s*"[^"]*)"')  # up to the last quote of the texts after `choices=`
RUN = """
import contextlib, io, json, sys
from scalelab.__main__ import main
answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except Exception as error:
            code = repr(error)
    answers.append([words, code, err.getvalue()])
print(json.dumps(answers))
"""


def words_with(key, folder):
    """The commands that train and plan under `zzz`."""
    values = ["--config=configs/tiny.py", f"--config.{key}=zzz", "--config.train.steps=1"]
    return [["train", *values, f"--workdir={folder / key}"], ["plan", *values, "--hardware=h100"]]


def test_zzz_in_every_choices_of_base_py_is_one_line_and_nothing_is_written(tmp_path):
    for name in ("scalelab", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    base = tmp_path / "configs" / "base.py"
    text, count = CHOICES.subn(r'\1 zzz"', base.read_text())
    assert count == len(KEYS)
    base.write_text(text)
    commands = [words for key in KEYS for words in words_with(key, tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for words, code, line in json.loads(done.stdout):
        assert code == 2 and line.count("\n") == 1 and "zzz" in line, (words, code, line[-500:])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", KEYS)
def test_zzz_on_the_command_line_is_one_line_and_nothing_is_written(key, tmp_path, capsys):
    for words in words_with(key, tmp_path):
        assert main(words) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and f"{key}='zzz' is not a choice" in line
    assert not list(tmp_path.iterdir())
