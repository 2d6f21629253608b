"""Who is told of an alarm: the terminal, a sink, and a command with JSON on its input."""

import json
import sys

import pytest

from scalelab import user_code
from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.run.trackers.alerts import make_filter
from tests.train.run.test_alarms import SMALL
from tests.train.run.test_metrics import event_files, tf_events

TELL = "import pathlib, sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
OWN = """
class Sink:
    def __init__(self, run): self.path = run.folder / "alerts.txt"
    def write(self, step, scalars): pass
    def alert(self, event):
        with self.path.open("a") as file: file.write(f"{event['step']} {event['signal']}\\n")
"""


def words(folder, **changes):
    keys = SMALL | {"guard.policy": "watch"} | changes
    return ["train", "--config=configs/tiny.py", f"--workdir={folder}", *(f"--config.{k}={v}" for k, v in keys.items())]


def told(events):
    is_told = make_filter()
    return [is_told(kind, {"signal": signal}) for kind, signal in events]


def test_the_first_flag_of_an_incident_is_told_and_each_shape_that_does_not_pass():
    first = [("guard", "loss"), ("guard", "grad_norm"), ("guard", "loss"), ("guard", "growing"), ("guard", "loss")]
    assert told(first) == [True, False, False, True, False]
    anew = [("guard", "loss"), ("guard", "loss"), ("guard", "new_level"), ("guard", "loss")]
    assert told(anew) == [True, False, True, True]
    passed = [("guard", "loss"), ("guard", "benign"), ("done", ""), ("guard", "loss"), ("skip", "bad")]
    assert told(passed) == [True, False, False, True, False]
    assert told([("guard", "risen"), ("guard", "climbing"), ("diverged", ""), ("warning", "")]) == [True] * 3 + [False]


@pytest.mark.full
def test_terminal_sink_and_command_get_each_alarm_and_the_terminal_one_line_each(tmp_path, monkeypatch, capsys):
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "own_sink_of_alarms.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    command = f"{sys.executable} {tmp_path / 'tell.py'} {tmp_path / 'alerts.jsonl'}"
    run = tmp_path / "run"
    mirrors = {"log.sinks": "own_sink_of_alarms:Sink", "log.tensorboard": True}
    assert main(words(run, **{"log.alert": command}, **mirrors)) == 0
    events = [event for event in records.read_events(run) if event["kind"] == "guard"]
    is_told = make_filter()
    expected = [event for event in events if is_told("guard", event)]
    assert expected and len(expected) < len(events)
    given = sorted(map(json.loads, (tmp_path / "alerts.jsonl").read_text().splitlines()), key=lambda line: line["step"])
    assert [(line["step"], line["signal"], line["text"]) for line in given] == [
        (event["step"], event["signal"], event["text"]) for event in expected
    ]
    assert {line["run"] for line in given} == {"run"} and {line["folder"] for line in given} == {str(run)}
    lines = (run / "alerts.txt").read_text().splitlines()
    assert lines == [f"{event['step']} {event['signal']}" for event in expected]
    values = [(event.step, value) for event in tf_events(event_files(run)[0]) for value in event.summary.value]
    drawn = [(step, value.tensor.string_val[0].decode()) for step, value in values if value.tag.startswith("alarms")]
    assert drawn == [(event["step"], event["text"]) for event in expected]
    shown = capsys.readouterr().err
    assert all(shown.count(f"run: step {event['step']}: {event['text']}") == 1 for event in expected)


def test_a_command_is_trusted_as_a_whole(monkeypatch):
    monkeypatch.setattr(user_code, "_trusted", set())
    user_code.apply_permissions({"names": ["command:mail a, b=c", "own:fn=2"], "folders": []})
    assert user_code.is_trusted_command("mail a, b=c") and not user_code.is_trusted_command("mail a")
    assert user_code.is_trusted("own:fn")


@pytest.mark.full
def test_a_command_that_fails_is_said_once_and_the_run_goes_on(tmp_path, capsys):
    (tmp_path / "fails.py").write_text("raise SystemExit('no such channel')")
    run = tmp_path / "run"
    assert main(words(run, **{"log.alert": f"{sys.executable} {tmp_path / 'fails.py'}"})) == 0
    warnings = [event["text"] for event in records.read_events(run) if "log.alert" in event["text"]]
    assert len(warnings) == 1 and "exit code 1: no such channel; training goes on" in warnings[0]
    assert capsys.readouterr().err.count("no such channel") == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [("no_such_program_here x", "there is no program 'no_such_program_here' here"), ("'", "No closing quotation")],
)
def test_a_command_that_can_not_be_started_is_refused_and_nothing_is_written(tmp_path, capsys, command, why):
    assert main(words(tmp_path / "run", **{"log.alert": command})) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_command_that_a_stored_config_names_is_not_run(tmp_path, capsys, monkeypatch):
    trunk = tmp_path / "trunk"
    assert main(words(trunk, **{"log.alert": f"touch {tmp_path / 'strangers'}"})) == 0
    (tmp_path / "strangers").unlink()  # the user's own run has told it
    monkeypatch.setattr("scalelab.user_code._trusted", set())
    capsys.readouterr()
    branch = ["train", f"--branch-from={trunk}@20", f"--workdir={tmp_path / 'branch'}"]
    assert main([*branch, "--config.schedule.decay_tokens=640"]) == 0
    assert any(event["kind"] == "guard" for event in records.read_events(tmp_path / "branch"))
    shown = capsys.readouterr().err
    assert "is named by a stored file alone and is not run" in shown and not (tmp_path / "strangers").exists()


@pytest.mark.full
def test_a_run_that_the_guard_ends_has_an_exit_code_of_its_own(tmp_path, capsys):
    """An LR without hope: the first steps are skipped and slowed down in vain."""
    keys = {"optim.peak_lr": 300.0, "guard.sigmas": 6.0}
    steps = {"train.steps": 160, "eval.every_steps": 160}
    arguments = words(tmp_path / "run", **keys, **steps, **{"guard.policy": "skip"})
    assert main(arguments) == 3
    assert records.read_record(tmp_path / "run")["ended_by"] == "guard"
    capsys.readouterr()
    assert main(arguments) == 3  # as often as it is asked
