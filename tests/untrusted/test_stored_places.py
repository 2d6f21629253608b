"""Where a stranger's run says to write: a link in place of a run, a cache's folder in its config; and its long logs."""

import json
import os
import shutil

import pytest

from scalelab.__main__ import main
from tests.evaluate.runs import trained


def tree(folder):
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


@pytest.fixture
def run(tmp_path):
    shutil.copytree(trained(), tmp_path / "run")
    return tmp_path / "run"


LINK = "scalelab: alias is a link: what a folder holds is read and written in place only"


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "way_on"),
    [(["note", "alias", "text"], ""), (["report", "alias"], "; --output=PAGE.html writes the page elsewhere")],
)
def test_nothing_is_written_into_a_run_that_is_a_link(run, tmp_path, monkeypatch, capsys, command, way_on):
    monkeypatch.chdir(tmp_path)
    os.symlink("run", "alias")
    before = tree(run)
    assert main(command) == 2
    assert capsys.readouterr().err == f"{LINK}{way_on}\n" and tree(run) == before


def test_scores_of_a_run_that_is_a_link_are_printed_only(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.symlink("run", "alias")
    before = tree(run)
    assert main(["eval", "alias", "--sequences=2"]) == 0
    out, err = capsys.readouterr()
    assert "not written to evaluations.jsonl: alias is a link" in err and "text: " in out and tree(run) == before


def test_a_stored_cache_folder_is_read_only(run, tmp_path, capsys):
    place = tmp_path / "elsewhere"
    for path in [run / "config.json", *run.glob("checkpoints/*/manifest.json")]:
        path.write_text(path.read_text().replace('"cache_dir": ""', f'"cache_dir": {json.dumps(str(place))}'))
    assert str(place) in (run / "config.json").read_text()
    main(["diagnose", str(run), "--fast", "--json"])
    main(["noise", str(run), "--batches=2"])
    assert not place.exists()


def test_a_lost_number_of_another_run_is_one_line(run, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    lines = [json.loads(line) | {"tokens": None} for line in (other / "metrics.jsonl").read_text().splitlines()]
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["diagnose", str(run), "--fast", f"--against={other}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "metrics.jsonl, line 1: damaged" in line


def test_a_whole_number_beyond_arrays_is_one_line(run, tmp_path, capsys):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([json.dumps(json.loads(lines[0]) | {"step": 2**63}), *lines]) + "\n")
    assert main(["diagnose", str(run), "--fast"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
