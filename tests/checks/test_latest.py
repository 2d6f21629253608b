"""The try of the newest versions: what it writes, and that nothing counts as tested where a part fails."""

import json

import jax

from checks.platforms import latest
from scalelab.commands.doctor import main as doctor
from scalelab.hardware import versions

PASSES, FAILS = latest.Part("passes", ("platform",)), latest.Part("fails", ("no_such_module",))


def test_what_it_writes_is_what_the_doctor_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(latest, "list_parts", lambda folder: [[PASSES]])
    assert latest.main([f"--workdir={tmp_path}"]) == 0
    result = json.loads((tmp_path / "latest.json").read_text())
    assert [row["part"] for row in result["parts"]] == ["passes"]
    assert result["versions"]["jax"] == jax.__version__ and "ml-collections" in result["versions"]
    assert f"jax {jax.__version__}" in (tmp_path / "latest.md").read_text()
    monkeypatch.setattr(versions, "NEWEST", tmp_path / "latest.json")
    capsys.readouterr()
    doctor(["--expect=cpu"])
    assert f"newest: python {result['versions']['python']}, jax {jax.__version__}" in capsys.readouterr().out


def test_nothing_is_written_where_a_part_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(latest, "list_parts", lambda folder: [[FAILS, PASSES]])
    assert latest.main([f"--workdir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert "fails failed; nothing is written" in error and "No module named no_such_module" in error
    assert list(tmp_path.iterdir()) == []
