"""`scalelab replay`: the run's own bits, separate runs, the search for batches, and what is refused."""

import json
import math
import pathlib
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from scalelab.commands.replay import main
from scalelab.diagnose.replay import judge, search, what_ifs, window
from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.diagnose.replay.window import find_origin, replay
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.train.single import train_single
from scalelab.train.step.guard import GuardState
from tests.train.resume.test_compatibility import config

STEPS = 40


def made(**changes):
    """A run of 40 steps, all logged, with checkpoints at 10, 20, 30 and 40."""
    usual = {"train__steps": STEPS, "train__steps_per_dispatch": 7, "log__every_steps": 1}
    usual |= {"checkpoint__every_steps": 10, "checkpoint__keep_last": 9, "eval__every_steps": STEPS}
    return config(**(usual | changes))


def test_batches_that_the_guard_had_passed_over_stay_out():
    """Two batches were skipped before step 3, three are passed over at step 5, and step 7 is to be skipped."""
    empty = GuardState(*[None] * len(GuardState._fields))
    memory = empty._replace(data_shift=np.int32(2), jumps=np.array([[5, 3], [-1, 0]]))
    numbers = window._batch_numbers(SimpleNamespace(guard=memory), WhatIf("", {}, skip=frozenset({7})), 3, 8)
    assert numbers[:5] == [5, 6, 10, 12, 13]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "run"
    train_single(made(), folder)
    return folder


def losses(folder):
    return {line["step"]: line["train_loss"] for line in records.read_metrics(folder) if "train_loss" in line}


def test_the_original_has_the_bits_of_the_run_and_nothing_is_written(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    main([f"{run}@25..27", "--after=5", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["origin"]["step"] == 20 and result["end"] == 32
    assert result["reproduced"] == {"lines": 12, "equal": 12, "first_difference": None}
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "changed"),
    [("clip=0.05", {"optim__clip_norm": 0.05}), ("optim.beta2=0.5", {"optim__beta2": 0.5})],
)
def test_a_what_if_is_the_run_resumed_under_it(run, tmp_path, text, changed):
    """The oracle is the trainer: the run as it was at step 20, resumed with the number changed."""
    separate = tmp_path / "separate"
    shutil.copytree(run, separate)
    for step in (30, 40):
        shutil.rmtree(separate / "checkpoints" / str(step))
    record = records.read_json(separate / "record.json")
    records.write_json(separate / "record.json", record | {"status": "running", "steps": 20})
    train_single(made(**changed), separate)
    (one,) = what_ifs.parse_what_ifs([text])
    curves = replay(find_origin(run, 21), [ORIGINAL, one], STEPS)[one.name]["train_loss"]
    expected = losses(separate)
    assert [float(x) for x in curves] == [expected[step] for step in range(21, STEPS + 1)]
    assert expected[STEPS] != losses(run)[STEPS]  # and the number matters


def test_lr_skip_and_moments_do_what_they_say(run):
    names = "lr*=0.5", "moments=reset", "skip=22..23"
    halved, changed, skipped = what_ifs.parse_what_ifs(names)
    curves = replay(find_origin(run, 21), [ORIGINAL, halved, changed, skipped], 30)
    original = curves[ORIGINAL.name]
    np.testing.assert_array_equal(curves[halved.name]["lr"], original["lr"] * np.float32(0.5))
    warm = (np.arange(10, dtype=np.float32) + 1) / np.float32(150)  # as after the guard's third rewind
    np.testing.assert_allclose(curves[changed.name]["lr"], original["lr"] * warm, rtol=2e-7)
    assert curves[changed.name]["train_loss"][0] == original["train_loss"][0]  # the same weights and batch
    # Adam's first step with fresh moments is -lr * sign(g): larger than a step with averaged moments
    assert curves[changed.name]["update_norm"][0] > original["update_norm"][0] / 150
    assert curves[skipped.name]["train_loss"][0] == original["train_loss"][0]
    # step 22 of the what-if takes the batch of step 24, on the weights of step 21
    later = replay(find_origin(run, 21), [WhatIf("next", {}, skip=frozenset({22, 23}))], 22)["next"]
    assert later["train_loss"][1] == curves[skipped.name]["train_loss"][1] != original["train_loss"][1]


def test_products_leave_out_what_changes_nothing():
    names = [one.name for one in what_ifs.parse_what_ifs(["clip=1,2; lr*=.7,1; moments=keep,reset", "skip=5"])]
    assert names == ["clip=1 lr*=.7", "clip=1 lr*=.7 moments=reset", "clip=1", "clip=1 moments=reset", "clip=2 lr*=.7",
                     "clip=2 lr*=.7 moments=reset", "clip=2", "clip=2 moments=reset", "skip=5"]  # fmt: skip
    assert what_ifs.parse_what_ifs(["lr*=1; moments=keep"]) == []


def test_the_cheapest_that_works_is_named():
    base = judge.measure_baseline([2.0, 2.1] * 16)
    spiked = np.array([2.0, 9.0, *[8.0] * 60])
    curves = {"original": spiked, "clip=1": np.full(62, 2.05), "skip=3": np.full(62, 2.04), "lr*=.7": spiked + math.inf}
    cases = [ORIGINAL, *what_ifs.parse_what_ifs(["clip=1", "skip=3", "lr*=.7"])]
    verdicts = judge.judge(cases, curves, base, 30, 0.5)
    assert [(v.name, v.works, v.steps, v.batches, v.cost) for v in verdicts][:2] == [
        ("clip=1", True, 30, 0, 15.0), ("skip=3", True, 30, 1, 15.0)]  # fmt: skip
    assert not any(v.works for v in verdicts[2:])
    benign = judge.judge([ORIGINAL], {"original": np.array([2.0, 9.0, 2.3, *[2.05] * 40])}, base, 30)
    assert benign[0].works and benign[0].steps == 0


@pytest.mark.parametrize("culprits", [{113}, {100}, {119}, {110, 111}, {103, 117}])
def test_bisection_finds_the_batch_or_the_least_range_that_holds_several(culprits):
    asked = []

    def works(sets):
        asked.append(len(sets))
        return [culprits <= each for each in sets]

    result = search.find_culprits(range(100, 120), works)
    assert culprits <= {*result.steps} and result.rounds == len(asked) <= 6
    if len(culprits) == 1:
        assert result.steps == tuple(culprits)
    assert search.find_culprits(range(3), lambda sets: [False] * len(sets)) == ((), 1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["RUN@5..6"], "no checkpoint precedes step 5"),
        (["RUN@25..60"], "the run has 40 steps"),
        (["RUN"], "is not RUN@A..B"),
        (["RUN@9..5"], "ends before it begins"),
        (["RUN@25..26", "--what-if=model.d_model=32"], "decides the program"),
        (["RUN@25..26", "--what-if=clp=1"], "did you mean 'clip'"),
        (["RUN@25..26", "--what-if=moments=fresh"], "one of keep, reset"),
        (["RUN@25..26", "--what-if=skip=9..3"], "neither a step nor a range"),
        (["RUN@25..26", "--what-if=lr*=0"], "not a factor"),
        (["RUN@25..26", "--what-if=optim.beta2=2"], "optim.beta2"),
        (["RUN/none@25..26"], "is not a run folder"),
    ],
)
def test_mistakes_are_one_line(run, capsys, arguments, line):
    from scalelab.__main__ import guarded

    assert guarded("replay", main, [text.replace("RUN", str(run)) for text in arguments]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_missing_losses_are_refused(tmp_path):
    folder = pathlib.Path(tmp_path / "sparse")
    train_single(made(log__every_steps=20), folder)
    with pytest.raises(BadInput, match="fewer than 16 losses"):
        from scalelab.diagnose.replay.report import replay_window

        replay_window(folder, 12, 13)
