"""`log.profile`: the trace of the steps that were asked for, read by jax's own reader of XProf's files."""

import jax
import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.run.trackers.profile import Profiler
from tests.train.resume import test_compatibility

KEYS = test_compatibility.SMALL | {"train.steps": 8, "eval.every_steps": 8}  # a program that other tests have
SMALL = ["--config=configs/tiny.py", *(f"--config.{key}={value}" for key, value in KEYS.items())]


def traced_steps(folder):
    """The numbers of the steps that a trace holds a marker of."""
    (path,) = (folder / "profile").glob("plugins/profile/*/*.xplane.pb")
    events = [
        e for plane in jax.profiler.ProfileData.from_file(str(path)).planes for line in plane.lines for e in line.events
    ]
    return sorted({dict(event.stats)["step_num"] for event in events if event.name == "train"})


@pytest.mark.full
def test_the_trace_has_the_chosen_steps_and_the_run_is_the_same(tmp_path, capsys):
    assert main(["train", *SMALL, f"--workdir={tmp_path / 'a'}", "--config.log.profile=4:6"]) == 0
    assert traced_steps(tmp_path / "a") == [4, 5, 6] and (tmp_path / "a/profile/memory.prof").stat().st_size > 100
    assert f"tensorboard --logdir={tmp_path / 'a' / 'profile'}" in capsys.readouterr().err
    assert main(["train", *SMALL, f"--workdir={tmp_path / 'b'}"]) == 0
    ends = [records.read_metrics(tmp_path / name)[-1]["val_loss"] for name in "ab"]
    assert ends[0] == ends[1] and not (tmp_path / "b" / "profile").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("9:12", "nearest: 5:8"), ("6:4", "such as 100:103"), ("0:2", "from 1 on"), ("x", "100:103")]
)
def test_a_window_that_a_run_has_not_is_refused(tmp_path, capsys, text, message):
    assert main(["train", *SMALL, f"--workdir={tmp_path / 'a'}", f"--config.log.profile={text}"]) == 2
    line = capsys.readouterr().err
    assert message in line and line.count("\n") == 1 and not (tmp_path / "a").exists()


def test_a_window_that_is_over_is_said_and_dispatches_stop_at_each_step(tmp_path):
    said = []
    profiler = Profiler("4:6", tmp_path, 5, said.append)
    assert "step 5 of this run is done already" in said[0]["note"] and profiler.stop_before(5) == []
    profiler = Profiler("4:6", tmp_path, 0, said.append)
    assert [profiler.stop_before(step) for step in (0, 2, 3, 4, 5, 6)] == [[3], [3], [4], [5], [6], []]
