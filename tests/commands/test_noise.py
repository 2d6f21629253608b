"""`scalelab noise`: the table over saved steps, JSON, and bad input in one line."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from scalelab.__main__ import main
from scalelab.diagnose.noise import measure
from scalelab.diagnose.probes.subject import load_subject
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("noise") / "run"
    train_single(config(), folder)
    return folder


def test_each_saved_step_is_a_line_and_numbers_agree_with_the_json(run, capsys):
    assert main(["noise", str(run), "--batches=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["2", "4"] and len(lines) == 5
    assert main(["noise", str(run), "--batches=8", "--step=4", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["steps"]
    assert (row["step"], row["n"], row["batch"], row["sequence_tokens"]) == (4, 16, 2, 16.0)
    simple = row["simple"]
    assert simple["scale"] == pytest.approx(simple["trace"] / simple["signal"])
    assert simple["scale_tokens"] == pytest.approx(16 * simple["scale"])
    assert f"{simple['scale_tokens']:,.0f}" in lines[2] and f"|G|^2 = {simple['signal']:.4g}" in lines[3]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["--step=3"], "--step=3 was not saved; nearest: 2 (saved: 2, 4)"),
        (["--batches=1"], "--batches=1: 2 sequences are too few for an error; nearest: --batches=4"),
        (["--batches=none"], "'none' is not a number of batches, at least 1"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_good_value(run, capsys, arguments, error):
    assert main(["noise", str(run), *arguments]) == 2
    answer = capsys.readouterr()
    assert error in answer.err and answer.err.count("\n") == 1 and not answer.out


def test_without_checkpoints_or_a_run_nothing_is_measured(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["noise", str(tmp_path / "run")]) == 2
    assert "has no intact checkpoint" in capsys.readouterr().err
    assert main(["noise", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_step_that_has_diverged_is_left_out_and_alone_it_is_refused(run, capsys, monkeypatch):
    def spoil(evidence, step):
        subject = load_subject(evidence, step)
        bad = jax.tree.map(lambda x: x * jnp.nan, subject.state.params)
        return subject._replace(state=subject.state._replace(params=bad)) if step == 4 else subject

    monkeypatch.setattr(measure, "load_subject", spoil)
    assert main(["noise", str(run), "--step=4", "--batches=4"]) == 2
    assert "step 4: the loss or its gradient is not finite" in capsys.readouterr().err
    assert main(["noise", str(run), "--batches=4", "--json"]) == 0
    answer = capsys.readouterr()
    assert [row["step"] for row in json.loads(answer.out)["steps"]] == [2] and "not measured: step 4" in answer.err
