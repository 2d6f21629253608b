"""`scalelab replay`: the run's own bits, separate runs, the search for batches, and what is refused."""

import json
import math
import pathlib
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from scalelab import api
from scalelab.commands.replay import main
from scalelab.data.batches.batches import TrainBatches
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


NOISE = np.random.default_rng(0).normal(0, 0.1, 600)


def test_of_those_that_end_alike_the_cheapest_is_named():
    base = judge.measure_baseline(2.05 + NOISE[:128])
    spiked = np.array([2.0, 9.0, *[8.0] * 60])
    curves = {"original": spiked, "clip=1": np.full(62, 2.05), "skip=3": np.full(62, 2.04), "lr*=.7": spiked + math.inf}
    cases = [ORIGINAL, *what_ifs.parse_what_ifs(["clip=1", "skip=3", "lr*=.7"])]
    verdicts = judge.judge(cases, curves, base, 30, 0.5)
    assert [(v.name, v.works, v.steps, v.batches, v.cost) for v in verdicts][:2] == [
        ("clip=1", True, 30, 0, 15.0),
        ("skip=3", True, 30, 1, 15.0),
    ]
    assert verdicts[0].nats == pytest.approx(0.01) and verdicts[0].is_tied and verdicts[0].error > 0.01
    assert not any(v.works or v.is_tied for v in verdicts[2:])
    benign = judge.judge([ORIGINAL], {"original": np.array([2.0, 9.0, 2.3, *[2.05] * 40])}, base, 30)
    assert benign[0].works and benign[0].steps == 0


def test_an_arm_that_ends_higher_beyond_noise_comes_after_a_dearer_one():
    base = judge.measure_baseline(2.05 + NOISE[:128])
    cases = what_ifs.parse_what_ifs(["clip=1", "skip=3", "lr*=.5"])
    curves = {"clip=1": 2.0 + NOISE[:200], "skip=3": 1.8 + NOISE[200:400], "lr*=.5": 1.81 + NOISE[:200]}
    verdicts = judge.judge(cases, curves, base, 30)
    assert [(v.name, v.is_tied) for v in verdicts] == [("lr*=.5", True), ("skip=3", True), ("clip=1", False)]
    # Four orders of the batches, which move all arms together: what is common to them is not noise.
    shared = np.array([[0.0], [0.03], [-0.02], [0.01]])
    four = {name: each + shared for name, each in curves.items()}
    nats = [{v.name: v.nats for v in judge.judge(cases, each, base, 30)} for each in (curves, four)]
    assert nats[0] == pytest.approx(nats[1])
    apart = judge.judge(cases, four | {"lr*=.5": four["lr*=.5"] + 0.05}, base, 30)
    assert apart[0].name == "skip=3" and apart[0].error == 0.0 and apart[1].error < 1e-6 and not apart[1].is_tied
    few = judge.measure_baseline(2.05 + NOISE[:20])
    assert all(v.is_tied and v.error in (None, 0.0) for v in judge.judge(cases, curves, few, 30))  # nothing tells


@pytest.mark.parametrize("arms", [2, 5])
def test_arms_of_one_mean_are_told_apart_in_one_study_of_twenty(arms):
    rng, told = np.random.default_rng(1), {1: 0, 3: 0}
    cases = what_ifs.parse_what_ifs([f"clip={i + 1}" for i in range(arms)])
    for _ in range(300):
        base = judge.measure_baseline(2.05 + rng.normal(0, 0.1, 128))
        for orders in told:
            curves = {one.name: 2.0 + rng.normal(0, 0.1, (orders, 200)) for one in cases}
            told[orders] += any(not v.is_tied for v in judge.judge(cases, curves, base, 30))
    assert max(told.values()) <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95), told


@pytest.mark.parametrize("culprits", [{113}, {100}, {119}, {110, 111}, {103, 117}, {100, 119}, {105, 106, 107, 108}])
def test_bisection_finds_the_whole_stretch_and_no_more(culprits):
    asked = []

    def works(sets):
        asked.append(len(sets))
        return [culprits <= each for each in sets]

    result = search.find_culprits(range(100, 120), works)
    assert result.steps == tuple(range(min(culprits), max(culprits) + 1))
    assert result.rounds == len(asked) <= 6
    assert search.find_culprits(range(3), lambda sets: [False] * len(sets)) == ((), 1)


PLANTED = range(25, 29)  # numbers of batches that are noise: of the steps 26 to 29


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A run of words that read noise in four batches, and what its replay says of them."""
    folder = tmp_path_factory.mktemp("planted") / "run"
    read = TrainBatches.numbered

    def corrupted(self, numbers, rows=slice(None)):
        batches = read(self, numbers, rows).copy()
        for i, number in enumerate(numbers):
            if number in PLANTED:
                batches[i] = np.random.default_rng(number).integers(128, 256, batches[i].shape)
        return batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainBatches, "numbered", corrupted)
        train_single(made(data__source="stdlib", train__steps=60, optim__peak_lr=0.01, train__global_batch=8), folder)
        return folder, api.replay(f"{folder}@22..33", find_batches=True, after=10)


@pytest.mark.full
def test_four_planted_batches_are_all_named_not_the_first_alone(planted):
    _, result = planted
    assert result["batches"]["steps"] == [number + 1 for number in PLANTED], result["answer"]
    named = next(v for v in result["verdicts"] if v["name"] == "skip=26..29")
    assert named["peak"] < result["verdicts"][-1]["peak"] or named["works"]
    assert any("without those of steps 26 to 29 no peak remains" in line for line in result["answer"])
    assert named["command"].endswith("--back-to=20 --skip-batches=25..28")


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


def test_the_answer_is_the_command_that_does_it_and_orders_are_of_later_batches(run, capsys):
    options = ["--what-if=lr*=.7; clip=1; skip=26..27", "--after=9", "--orders=2", "--json"]
    assert main([f"{run}@25..27", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    commands = {one["name"]: one["command"] for one in result["verdicts"]}
    assert commands["lr*=.7 clip=1 skip=26..27"] == (
        f"scalelab train --workdir={run} --back-to=20 --lr-factor=0.7 --clip-norm=1 --skip-batches=25..26"
    )
    assert commands["original"] == "" and result["orders"] == 2
    origin = find_origin(run, 25)
    other = replay(origin, [ORIGINAL], 36, moved=(27, 9))["original"]["train_loss"]
    same = replay(origin, [ORIGINAL], 36)["original"]["train_loss"]
    np.testing.assert_array_equal(other[:7], same[:7])  # up to step 27
    assert np.all(other[7:] != same[7:])
    main([f"{run}@25..27", *options[:3]])
    printed = capsys.readouterr().out
    assert "above the best" in printed and "2 orders of the later batches" in printed
