"""A run with a damaged checkpoint, or beside a broken run: commands use what is intact, and say what they pass over."""

import json
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.single import train_single
from tests.quick import one_in
from tests.train.resume.test_compatibility import config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Twenty steps with checkpoints of steps 6, 12, 18 and 20; and another seed beside."""
    folder = tmp_path_factory.mktemp("trained")
    for seed in (0, 1):
        changes = {"train__steps": 20, "checkpoint__every_steps": 6, "checkpoint__keep_last": 9, "log__every_steps": 1}
        train_single(config(**changes, eval__every_steps=20, train__seed=seed), folder / f"s{seed}")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs") / "s0"


def cut(run, step):
    """One file of a checkpoint loses its end."""
    path = max((run / "checkpoints" / str(step) / "state").rglob("*"), key=lambda each: each.stat().st_size)
    path.write_bytes(path.read_bytes()[:-7])


def flip(run, step):
    """One byte of a checkpoint's largest file is another; its size is the same."""
    files = [path for path in (run / "checkpoints" / str(step) / "state").rglob("*") if path.is_file()]
    path = max(files, key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def asked(capsys, *arguments, code=0):
    """(the JSON, the lines beside it) of a command."""
    assert main([*map(str, arguments), "--json"]) == code
    answer = capsys.readouterr()
    return json.loads(answer.out), answer.err


@pytest.mark.full
@pytest.mark.parametrize("damage", [cut, flip])
def test_three_of_four_checkpoints_do_for_noise_and_the_batch_of_a_step(run, damage, capsys):
    damage(run, 6)
    rows, lines = asked(capsys, "noise", run, "--batches=8")
    assert [row["step"] for row in rows["steps"]] == [12, 18, 20]
    assert "not measured: " in lines and "checkpoints/6/state" in lines
    batch, _ = asked(capsys, "diagnose", run, "--batch=8")  # step 6 precedes it, and the next one is intact
    assert batch["weights_step"] == 12
    assert asked(capsys, "diagnose", run, "--batch=14")[0]["weights_step"] == 12
    if damage is flip:
        assert main(["noise", str(run), "--batches=8", "--step=6"]) == 1
        line = capsys.readouterr().err
        assert "checkpoints/6/state" in line and "no intact checkpoint" not in line


@pytest.mark.full
@pytest.mark.parametrize("damage", [cut, flip])
def test_a_replay_begins_at_the_newest_intact_step_before_its_window(run, damage, capsys):
    damage(run, 18)
    result, lines = asked(capsys, "replay", f"{run}@19..19", "--after=1")
    assert result["origin"]["step"] == 12 and result["reproduced"]["equal"] == 8
    assert "step 18 is passed over: " in lines and "checkpoints/18/state" in lines
    damage(run, 12), damage(run, 6)
    assert main(["replay", f"{run}@19..19"]) == 1
    line = capsys.readouterr().err
    assert "no checkpoint before the window is intact" in line and "checkpoints/6/" in line


BROKEN = {
    "config.json cut": lambda run: (run / "config.json").write_text('{"train": '),
    "config.json of another run": lambda run: (run / "config.json").write_text(
        (run / "config.json").read_text().replace('"seed": 1', '"seed": 9')
    ),
    "a value that is not one": lambda run: (run / "config.json").write_text(
        '{"log": {"role": ""}, "train": {"seed": []}}'
    ),
    "record.json cut": lambda run: (run / "record.json").write_text("{"),
    "metrics.jsonl of bytes": lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\x00\n" * 3),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", one_in(2, BROKEN))
def test_a_broken_run_beside_does_not_stop_a_comparison(run, kind, capsys):
    shutil.copytree(run, run.parent / "s2")
    BROKEN[kind](run.parent / "s1")
    assert main(["compare", str(run), str(run.parent / "s2")]) == 0
    printed = capsys.readouterr().out
    assert "a run beside them is passed over: " in printed and "s1" in printed, printed
    result, _ = asked(capsys, "compare", run, run.parent / "s2")
    assert result["same_bits"] and len(result["passed_over"]) == 1
    records.write_json(run.parent / "s1" / "config.json", {"architectures": ["Llama"]})  # an exported model's
    (run.parent / "s1" / "record.json").unlink()
    assert asked(capsys, "compare", run, run.parent / "s2")[0]["passed_over"] == []
