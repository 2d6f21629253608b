"""`scalelab report`: exit codes, one-line errors, and what it says and writes."""

import json

import pytest

from scalelab.__main__ import main
from tests.report import synthetic


def test_a_page_is_written_and_named(tmp_path, capsys):
    synthetic.write_run(tmp_path / "r", lines=20)
    assert main(["report", str(tmp_path / "r")]) == 0
    output = capsys.readouterr().out
    assert output.startswith(str(tmp_path / "r" / "report.html")) and "(run; runs: 1, figures: 3)" in output
    assert (tmp_path / "r" / "report.html").exists() and (tmp_path / "r" / "figures" / "loss.pdf").exists()


def test_json_is_the_last_line_and_says_what_is_missing(tmp_path, capsys):
    synthetic.write_run(tmp_path / "r", lines=20)
    (tmp_path / "r" / "metrics.jsonl").unlink()
    assert main(["report", str(tmp_path / "r"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == {"path", "kind", "runs", "figures", "missing", "failures"}
    assert (result["kind"], result["figures"], len(result["missing"])) == ("run", [], 1)
    assert main(["report", str(tmp_path / "r"), f"--json={tmp_path}/out.json"]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == result


@pytest.mark.parametrize("arguments", [["no/such"], [], ["a", "--jsn"], ["."]])
def test_bad_input_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scalelab: ") and error.count("\n") == 1


def test_a_damaged_summary_is_one_line(tmp_path, capsys):
    synthetic.write_run(tmp_path / "runs" / "r", lines=20)
    (tmp_path / "summary.json").write_text('{"fit": ')
    assert main(["report", str(tmp_path)]) == 2
    assert "summary.json is not JSON" in capsys.readouterr().err


def test_the_page_of_a_run_ends_with_texts_or_with_the_reason_why_not(tmp_path, monkeypatch, capsys):
    synthetic.write_run(tmp_path / "r", lines=20)
    assert main(["report", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Samples of its text" in page and "None: " in page and "checkpoint" in page.split("None: ")[1][:300]
