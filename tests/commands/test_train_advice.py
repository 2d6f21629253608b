"""What `scalelab train` says to run next, in the order in which it helps."""

import pathlib
import types

import pytest

from scalelab.commands import train


@pytest.mark.parametrize("status", ["diverged", "done"])
def test_a_run_that_blew_up_is_first_diagnosed_and_then_taken_back(capsys, status):
    trained = types.SimpleNamespace(
        name="run", folder=pathlib.Path("my runs/run"), status=status, final_step=40, by_source={},
        val_loss=48.9, bpb=70.0, bpb_bound="", to_json=dict,
    )  # fmt: skip
    train._print(trained, None)
    advice = capsys.readouterr().err.splitlines()[1:]
    if status == "done":
        assert not advice
    else:
        (line,) = advice
        assert line.index("scalelab diagnose 'my runs/run'") < line.index(
            "scalelab train --workdir='my runs/run' --back"
        )
