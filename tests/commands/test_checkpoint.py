"""`scalelab checkpoint verify|list|show`: exit codes, the damaged file's name, every kind of folder."""

import json
import pathlib

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.train.checkpoints.test_checkpoint import saved

FACTS = {
    "run": {"identity": "0123", "versions": {"jax": "0.10.2"}, "data": {"fingerprint": "f00d", "tokenizer": "bytes"}}
}


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
    folder = tmp_path / "sweep" / "runs" / "a"
    saved(folder / "checkpoints", 3, 10, facts=FACTS).close()
    return folder


def test_verify_is_0_where_all_is_intact_and_1_with_the_files_name_where_not(run, capsys):
    assert main(["checkpoint", "verify", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{run}/checkpoints/3: ok", f"{run}/checkpoints/10: ok"]
    path = max((run / "checkpoints" / "10" / "state").rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert main(["checkpoint", "verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert f"{run}/checkpoints/3: ok" in out and f"{run}/checkpoints/10: damaged\n  {path} is damaged" in out
    assert main(["checkpoint", "verify", str(run), "--step=3"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "verify", str(run), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["damaged"] == 1 and [row["ok"] for row in answer["checkpoints"]] == [True, False]


def test_every_folder_that_holds_checkpoints_will_do(run, capsys):
    sweep = run.parents[1]
    saved(sweep / "packs" / "p" / "checkpoints", 5).close()
    (sweep / "runs" / "b").mkdir()
    records.write_json(
        sweep / "runs" / "b" / "record.json", {"pack": {"checkpoints": "../../packs/p/checkpoints", "trial": "b"}}
    )
    result = {}
    for folder in (run, run / "checkpoints", sweep, sweep / "packs" / "p", sweep / "runs" / "b"):
        assert main(["checkpoint", "list", str(folder), "--json"]) == 0
        result[folder] = [row["step"] for row in json.loads(capsys.readouterr().out)]
    assert list(result.values()) == [[3, 10], [3, 10], [5, 3, 10], [5], [5]]


def test_list_and_show_say_what_a_checkpoint_holds(run, capsys):
    (run / "checkpoints" / "junk").touch()
    assert main(["checkpoint", "list", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(" MB ") == 2 and "ignoring" in printed.err and "junk" in printed.err
    assert main(["checkpoint", "show", str(run)]) == 0
    out = capsys.readouterr().out
    assert "checkpoints/10" in out and "identity 0123, data f00d (bytes)" in out
    assert "float32[3]" in out and "run.params.w" in out and "jax 0.10.2" in out
    assert main(["checkpoint", "show", str(run), "--step=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_show_and_list_of_a_damaged_manifest_name_it(run, capsys):
    (run / "checkpoints" / "10" / "manifest.json").write_text("{}")
    assert main(["checkpoint", "show", str(run)]) == 1
    assert "10/manifest.json is damaged" in capsys.readouterr().err
    assert main(["checkpoint", "list", str(run)]) == 0
    assert "10/manifest.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["verify"], ["check", "."], ["verify", "nowhere"], ["list", ".", "--step=x"]])
def test_mistakes_are_one_line_and_exit_2(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoint", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_step_that_is_not_there_is_bad_input(run, capsys):
    assert main(["checkpoint", "verify", str(run), "--step=4"]) == 2
    assert "holds no checkpoint 4" in capsys.readouterr().err
