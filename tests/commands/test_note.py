"""`scalelab note`: a line in the logbook at the last logged step."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.report import synthetic


def test_a_note_stands_at_the_last_logged_step(tmp_path, capsys):
    synthetic.write_run(tmp_path, lines=20)
    before = records.read_events(tmp_path)
    assert main(["note", str(tmp_path), "  loss looks odd <here>\n"]) == 0
    *old, note = records.read_events(tmp_path)
    last = records.read_metrics(tmp_path)[-1]["step"]
    assert old == before and (note["kind"], note["step"], note["text"]) == ("note", last, "loss looks odd <here>")
    assert f"step {last}" in capsys.readouterr().out


def test_a_note_before_the_first_metric_is_at_step_0(tmp_path, capsys):
    records.write_json(tmp_path / "config.json", {})
    assert main(["note", str(tmp_path), "about to start", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(tmp_path), "step": 0, "text": "about to start"}


@pytest.mark.parametrize("text, message", [("", "empty"), (" \n", "empty"), (None, "required")])
def test_an_empty_note_is_refused(tmp_path, capsys, text, message):
    records.write_json(tmp_path / "config.json", {})
    assert main(["note", str(tmp_path), *([] if text is None else [text])]) == 2
    assert message in capsys.readouterr().err and not records.read_events(tmp_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    synthetic.write_run(tmp_path / "runs" / "a", lines=5)
    assert main(["note", str(tmp_path), "text"]) == 2
    assert "not a run folder" in capsys.readouterr().err
