"""`scalelab report`: exit codes, one-line errors, and what it says and writes."""

import html
import json
import re
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.untrusted.text import escape_text
from tests.evaluate.runs import trained
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
    assert main(["report", str(tmp_path / "r")]) == 2  # its record says that it was evaluated
    assert "metrics.jsonl has no evaluated line" in capsys.readouterr().err
    synthetic.write_run(tmp_path / "r", lines=20, status="running")
    (tmp_path / "r" / "metrics.jsonl").unlink()  # as of one that has logged nothing yet
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


@pytest.mark.slow
def test_the_page_of_a_run_ends_with_texts_or_with_the_reason_why_not(tmp_path, monkeypatch, capsys):
    synthetic.write_run(tmp_path / "r", lines=20)
    assert main(["report", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Samples of its text" in page and "None: " in page and "checkpoint" in page.split("None: ")[1][:300]


def test_several_sweeps_share_a_page(tmp_path, capsys):
    for name, peak_lrs in (("one", (1e-3, 2e-3)), ("two", (3e-3, 4e-3))):
        for lr in peak_lrs:
            synthetic.write_run(tmp_path / name / "runs" / f"lr{lr}", lines=20, peak_lr=lr)
    page = tmp_path / "pages" / "both.html"
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two"), f"--output={page}"]) == 0
    assert "(sweeps; runs: 4, figures: 2)" in capsys.readouterr().out
    text = page.read_text()
    assert "What one answers" in text and "What two answers" in text and "two: lr0.003" in text
    assert (page.parent / "both_figures" / "training_loss.pdf").exists() and "both_figures/training_loss.pdf" in text
    assert not list(tmp_path.glob("*/report.html"))  # the sweeps' own pages are left alone


def test_paper_figures_have_the_width_and_no_page(tmp_path, capsys):
    synthetic.write_run(tmp_path, lines=20)
    assert main(["report", str(tmp_path), "--style=paper", "--width=8cm", "--only=dynamics"]) == 0
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"dynamics.pdf", "dynamics.csv"}
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", (tmp_path / "paper" / "dynamics.pdf").read_bytes())
    assert float(box[1]) == pytest.approx(72 * 8 / 2.54, abs=0.01)
    assert not (tmp_path / "report.html").exists() and not (tmp_path / "figures").exists()
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--style=paper", "--only=dynamic"]) == 2
    assert "no figure 'dynamic'" in (error := capsys.readouterr().err) and "did you mean 'dynamics'" in error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only=loss"], "add --style=paper"),
        (["--style=paper", "--width=3"], "'3' is not a width such as 3.25in"),
        (["--style=paper", "--width=99in"], "not between 1in and 20in"),
        (["--style=paper", "--output=x.html"], "--output is a page"),
        (["again", "--output=x.pdf"], "a file that ends in .html"),
        (["again", "--style=paper"], "the figures of one folder"),
    ],
)
def test_an_option_that_does_nothing_is_refused(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "r", *arguments]) == 2
    assert reason in (error := capsys.readouterr().err) and error.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_page_elsewhere_that_is_refused_makes_no_folder(tmp_path, capsys):
    synthetic.write_run(tmp_path / "r", lines=6)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for folders, page in ((["empty"], "new/page.html"), (["r", "empty"], "new/page.html"), (["r"], "file/page.html")):
        assert main(["report", *(str(tmp_path / name) for name in folders), f"--output={tmp_path / page}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "r"]
    assert main(["report", str(tmp_path / "r"), f"--output={tmp_path / 'new' / 'page.html'}"]) == 0
    assert (tmp_path / "new" / "page.html").exists()


def test_what_stands_in_the_place_of_a_page_or_its_figures_is_named(tmp_path, capsys):
    run = tmp_path / "r"
    synthetic.write_run(run, lines=6)
    (run / "figures").write_text("mine")
    assert main(["report", str(run)]) == 2
    assert f"{run / 'figures'} is a file, where figures are written" in capsys.readouterr().err
    (run / "figures").unlink()
    (run / "report.html").mkdir()
    assert main(["report", str(run)]) == 2
    assert f"{run / 'report.html'} is a folder, where the page is written" in capsys.readouterr().err
    assert not (run / "figures").exists()


@pytest.mark.full
def test_texts_of_a_run_are_those_that_sample_draws(tmp_path, capsys):
    shutil.copytree(trained(), tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    texts = [html.unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL)]
    assert len(texts) == 3 and page.index("Where it comes from") < page.index("<pre>")
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "run"), "--temperature=0.8", "--seed=1", "--json"]) == 0
    (drawn,) = json.loads(capsys.readouterr().out)["samples"]
    assert texts[2] == escape_text(drawn["text"], "\n\t")
