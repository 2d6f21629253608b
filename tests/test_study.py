"""The contract of a study's folder: killed at every write it ends as a whole one; one owner, one plan, facts once."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from scalelab import study
from scalelab.errors import BadInput
from scalelab.record import records

ROOT = pathlib.Path(__file__).parents[1]
KIND = study.Kind("test", "test.json", grow=("seeds",), settings=("base",), earlier=("spent.json",))
PLAN = {"budgets": [1, 2], "seeds": 1, "base": {"a.b": 1, "c.d": 2}}


def conduct(folder):
    """A whole study: two runs, what follows from them, a prediction, its check, and a summary."""

    def run(name, loss):
        if not (folder / "runs" / name).exists():
            records.write_json(folder / "runs" / name, loss)
        return records.read_json(folder / "runs" / name)

    with study.open_study(folder, KIND, PLAN):
        losses = [run("a", 3.0), run("b", 2.0)]
        best = study.write_once(folder / "best.json", lambda: {"loss": min(losses)})
        check = folder / "runs" / "check"
        predicted = study.write_once(folder / "parts" / "p.json", lambda: {"loss": best["loss"] / 2}, before=[check])
        records.write_json(folder / "summary.json", [predicted["loss"], run("check", 1.1)])


def in_a_child(work):
    """The exit code of `work()` in a process of its own, which is killed without a word if it says `os._exit`."""
    process = os.fork()
    if not process:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def contents(folder):
    """{file: bytes} of a folder, without locks and the drafts of killed processes."""
    names = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock" and path.suffix != ".tmp")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def kill_everywhere(place):
    """Kill the study before and after the rename of each write, and go on: prints the moments, and what differed."""
    whole = place / "whole"
    conduct(whole)
    replace, differing = os.replace, {}
    for moment in range(100):
        folder, passed = place / str(moment), [0]

        def counted(draft, path, passed=passed, moment=moment):
            for work in (lambda: replace(draft, path), lambda: None):
                if passed[0] == moment:
                    os._exit(9)
                work()
                passed[0] += 1

        def killed(folder=folder, counted=counted):
            os.replace = counted
            conduct(folder)

        if in_a_child(killed) != 9:
            break
        before = contents(folder)
        code = in_a_child(lambda folder=folder: conduct(folder))
        after = contents(folder)
        rewritten = [name for name in before if before[name] != after.get(name)]
        if code or rewritten or after != contents(whole):
            differing[moment] = [code, rewritten]
    print(json.dumps([moment, differing]))


def run_elsewhere(function, folder):
    """A function of this file called with a folder by another process, in which jax has no threads."""
    script = f"import pathlib, tests.test_study as t; t.{function}(pathlib.Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_study_that_is_killed_at_any_write_ends_with_the_same_bytes(tmp_path):
    ended = run_elsewhere("kill_everywhere", tmp_path)
    assert ended.stdout, ended.stderr
    moments, differing = json.loads(ended.stdout)
    assert moments == 14 and differing == {}


def test_a_second_owner_is_refused_and_studies_within_share_the_folder(tmp_path):
    folder = tmp_path / "study"
    with study.open_study(folder, KIND, PLAN):
        before = contents(folder)
        ended = run_elsewhere("conduct", folder)
        assert ended.returncode and f"FolderHeld: {folder} is held by" in ended.stderr and contents(folder) == before
        inner = KIND._replace(file="inner.json")
        with study.open_study(folder, inner, {"x": 1}):
            assert study.is_open(folder)
        assert study.is_open(folder) and not study.is_open(tmp_path)
    assert not study.is_open(folder)
    conduct(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": [1, 3]}, "holds a test with budgets=[1, 2], not [1, 3]: name another --workdir, or say the same"),
        ({"base": {"a.b": 1, "c.d": 5}}, "holds a test with base.c.d=2, not 5"),
        ({"base": {"a.b": 1}}, "holds a test with base.c.d=2, not None"),
    ],
)
def test_another_plan_is_refused_by_what_differs_and_leaves_no_trace(tmp_path, change, message):
    conduct(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(BadInput) as refusal, study.open_study(tmp_path, KIND, PLAN | change):
        raise AssertionError
    assert message in str(refusal.value)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_plans_may_grow_and_know_more_settings_than_an_earlier_release(tmp_path):
    conduct(tmp_path)
    with study.open_study(tmp_path, KIND, PLAN | {"seeds": 2, "base": {**PLAN["base"], "new.key": 1}}):
        pass
    assert records.read_json(tmp_path / "test.json")["seeds"] == 2


def test_a_folder_of_something_else_is_refused_and_one_of_an_earlier_release_goes_on(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not empty and holds no test"), study.open_study(tmp_path, KIND, PLAN):
        raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "spent.json").write_text("{}")
    conduct(tmp_path)


def test_after_a_refusal_within_the_folder_is_as_it_was(tmp_path):
    folder = tmp_path / "study"
    with pytest.raises(BadInput, match="no data"), study.open_study(folder, KIND, PLAN):
        raise BadInput("no data")
    assert not folder.exists()


def test_a_fact_is_computed_once_and_a_lost_prediction_comes_too_late(tmp_path):
    path, check = tmp_path / "parts" / "fact.json", tmp_path / "runs" / "check"
    values = iter([(1, 2), (3, 4)])
    assert [study.write_once(path, lambda: next(values), before=[check]) for _ in range(2)] == [[1, 2]] * 2
    check.mkdir(parents=True)
    assert study.write_once(path, lambda: next(values), before=[check]) == [1, 2]
    path.unlink()
    with pytest.raises(BadInput, match=r"fact\.json is gone and .*check has begun: a prediction would come too late"):
        study.write_once(path, lambda: next(values), before=[check])
    path.write_text("{")
    with pytest.raises(BadInput, match=r"fact\.json is not JSON"):
        study.write_once(path, lambda: next(values))
