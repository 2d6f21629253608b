"""Commands that are printed can be pasted: paths with blanks, quotes or a leading dash are one word, and no option."""

import html
import json
import pathlib
import re
import shlex
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.single import train_single
from tests.quick import others_slow
from tests.train.resume.test_compatibility import config

ROOT = pathlib.Path(__file__).parents[1]
NAMES = ["my runs", "it's $HOME; `here`", "-dash", 'a "b"']


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands") / "run"
    train_single(config(), folder)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name in ("it's $HOME; `here`", "-dash"), NAMES))
def test_a_path_in_a_printed_command_is_one_word(name, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / name)
    plain = f"./{name}" if name.startswith("-") else name
    assert main(["sweep", f"--workdir={name}", "--status"]) == 2
    assert f"`scalelab sweep --workdir={shlex.quote(plain)}` has" in capsys.readouterr().err
    given = plain  # what a user types for it
    assert main(["compare", given, given]) == 0
    assert f"--workdir={shlex.quote(f'{given}-seed1')}," in capsys.readouterr().out
    assert main(["train", "--config=tiny", f"--workdir={name}", "--branch-from", f"{given}"]) == 2
    capsys.readouterr()
    assert main(["report", given]) == 0
    page = (tmp_path / name / "report.html").read_text()
    assert f"scalelab report {shlex.quote(plain)}" in html.unescape(page)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).mkdir()
    (tmp_path / "other" / name / "x").write_text("")
    monkeypatch.chdir(tmp_path / "other")
    assert main(["train", "--config=tiny", f"--workdir={name}"]) == 2
    assert f"--workdir={shlex.quote(f'{plain}/run')}" in capsys.readouterr().err.splitlines()[-1]


def test_a_diagnosis_confirms_by_a_command_that_can_be_pasted(run, tmp_path, capsys):
    folder, other = tmp_path / "my runs" / "it's", tmp_path / "my runs" / "other"
    shutil.copytree(run, folder)
    shutil.copytree(run, other)
    rows = [row | ({"train_loss": 9.0} if "train_loss" in row else {}) for row in records.read_metrics(folder)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    main(["diagnose", str(folder), "--fast", f"--against={other}"])
    printed = capsys.readouterr().out
    assert f"scalelab compare {shlex.quote(str(folder))} {shlex.quote(str(other))}" in printed, printed


def test_no_source_prints_a_path_bare():
    """Every command with a path in it goes through `quote_path` (or stands in a command that a user typed)."""
    bare = re.compile(
        r"(?:`|\"|: |with |and )(?:f\")?scalelab (?!index)[a-z ]+(?:[^`\"{]*[ =])?"
        r"\{(?:folder|path|place|run|run\.folder|self\.folder|evidence\.folder|options\.workdir|out)\}"
    )
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "scalelab").rglob("*.py"))
        for line in path.read_text().splitlines()
        if bare.search(line)
    ]
    assert not lines, "\n".join(lines)
