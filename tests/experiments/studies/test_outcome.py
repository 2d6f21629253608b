"""The frame of studies: parts that survive a stop, seconds of all calls, the files, and the list of what was found."""

import json

import pytest

from scalelab import api
from scalelab.commands import study
from scalelab.errors import Stopped
from scalelab.experiments.studies import outcome
from scalelab.record import lock
from scalelab.report.figures.style import make_figure

DOC = """Trial: a study of nothing.

    scalelab study trial --workdir=runs/trial
"""


def run(folder, measure, capsys, *options):
    draw = lambda result: make_figure()[0]  # noqa: E731
    argv = [f"--workdir={folder}", *options]
    code = outcome.run_study("trial", DOC, argv, measure, draw, lambda result: ["its own line"])
    return code, capsys.readouterr()


def test_a_part_is_computed_once_and_refused_under_other_settings(tmp_path, capsys):
    calls = []

    def measure(folder, quick, seeds=(1, 2)):
        for _ in range(2):
            value = outcome.measure_once(folder, "part", {"seeds": seeds}, lambda: calls.append(1) or {"sum": (1, 2)})
            assert value == {"sum": [1, 2]}
        raise Stopped(folder)

    assert run(tmp_path, measure, capsys)[0] == 75 and len(calls) == 1
    code, out = run(tmp_path, lambda folder, quick: measure(folder, quick, (1, 3)), capsys)
    assert code == 2 and "part.json was computed with seeds=[1, 2], not [1, 3]: name another --workdir" in out.err
    (tmp_path / "parts" / "part.json").write_text('{"settings": {"seeds": [1, 2]}}')
    code, out = run(tmp_path, measure, capsys)
    assert code == 2 and "part.json has no value; was it edited?" in out.err


def test_another_study_in_the_folder_is_refused_and_one_of_an_earlier_release_goes_on(tmp_path, capsys):
    def stop(folder, quick):
        raise Stopped(folder)

    assert run(tmp_path, stop, capsys, "--quick")[0] == 75
    code, out = run(tmp_path, stop, capsys)
    assert code == 2 and "holds a study with quick=True, not False: name another --workdir" in out.err
    (tmp_path / "study.json").unlink()  # an earlier release left seconds and parts
    assert (tmp_path / "spent.json").exists() and run(tmp_path, stop, capsys, "--quick")[0] == 75
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tuning.json").write_text("{}")
    code, out = run(tmp_path / "other", stop, capsys)
    assert code == 2 and "is not empty and holds no study" in out.err


def test_an_interrupted_study_goes_on_with_its_parts_and_counts_all_its_seconds(tmp_path, capsys):
    computed, interruptions = [], [KeyboardInterrupt()]

    def measure(folder, quick):
        for part in "ab":
            outcome.measure_once(folder, part, {}, lambda: computed.append(part) or 1)  # noqa: B023
            if interruptions:
                raise interruptions.pop()
        row = outcome.compare_with(2.0, "closed form", "twice one", 2.1, 1.9, 2.05, "nats")
        return {"finding": "One sentence.", "checks": [row], "limits": "anything."}

    assert run(tmp_path, measure, capsys)[0] == 130 and computed == ["a"]
    before = json.loads((tmp_path / "spent.json").read_text())
    pack = tmp_path / "sweep" / "packs" / "0"
    pack.mkdir(parents=True)  # as a worker that trained a pack leaves it
    (pack / "spent.jsonl").write_text(json.dumps({"start_s": 1, "compile_s": 1, "wall_s": 1, "cpu_s": 1000}) + "\n")
    assert run(tmp_path, measure, capsys)[0] == 0 and computed == ["a", "b"]
    result = json.loads((tmp_path / "trial.json").read_text())
    assert result["cpu_s"] >= before["cpu_s"] + 1000 and not result["checks"][0]["inside"]
    page = (tmp_path / "trial.md").read_text()
    assert "| twice one | 2 nats | closed form | closed form | 2.1 nats | 1.9 to 2.05 | **no** |" in page
    assert page.startswith("# Trial: a study of nothing\n") and "One sentence." in page and "its own line" in page
    assert (tmp_path / "trial.png").exists()


def test_a_study_that_a_signal_stopped_writes_no_result(tmp_path, capsys):
    def measure(folder, quick):
        raise Stopped(folder / "runs")

    code, out = run(tmp_path, measure, capsys)
    assert code == 75 and out.err.strip() == f"stopped; the same command goes on where it was ({tmp_path / 'runs'})"
    assert not (tmp_path / "trial.json").exists()


def test_a_second_owner_is_refused(tmp_path, capsys):
    with lock.hold_folder(tmp_path):
        code, out = run(tmp_path, lambda folder, quick: 1 / 0, capsys)
    assert code == 2 and f"{tmp_path} is held by" in out.err


@pytest.mark.parametrize("name", ["descent", "double_descent"])
def test_the_list_says_cost_and_finding_of_a_phenomenon(name, capsys):
    assert study.main([]) == 0
    text = capsys.readouterr().out
    assert f"\n{name}  (" in text and text.index(f"\n{name}  (") < text.index("other studies:")
    rows = {row["name"]: row for row in api.studies()}
    assert rows[name]["module"] == f"scalelab.experiments.studies.{name}" and rows[name]["cpu_s"] > 0
    assert rows["isoflop"]["module"] == "scalelab.experiments.isoflop" and rows["isoflop"]["finding"] is None


def test_an_error_is_that_of_the_mean():
    mean, error = outcome.mean_and_error([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3) and error == pytest.approx((7 / 3) ** 0.5 / 3**0.5)
