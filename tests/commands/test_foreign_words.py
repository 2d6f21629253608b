"""What is said of a log whose columns have names of their own, and of a comparison with it."""

import pytest

from scalelab.__main__ import main
from scalelab.commands.compare import _split_unknown
from scalelab.evaluate.compare import first_difference

ROWS = "\n".join(f"{i},{4 - i / 100},{4.1 - i / 100 if i % 20 == 18 else ''},{1e-3}" for i in range(0, 60, 2))


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text(f"iteration,tr_obj_loss,heldout_ce,learning rate\n{ROWS}\n")
    return path


def test_columns_that_may_be_the_loss_are_named_with_the_option_that_takes_them(theirs, capsys):
    assert main(["diagnose", str(theirs), "--fast"]) == 2
    error = capsys.readouterr().err
    option = "train_loss=tr_obj_loss,val_loss=heldout_ce"
    assert f"'tr_obj_loss', 'heldout_ce' may be it; --columns='{option}'" in error
    assert "'other.csv' has no line with a step and a train_loss; --columns=train_loss=NAME" in error
    assert main(["diagnose", str(theirs), "--fast", f"--columns={option}"]) == 0
    assert "may be it" not in capsys.readouterr().err


def test_of_a_table_without_losses_the_other_columns_are_named(tmp_path, capsys):
    (tmp_path / "other.csv").write_text("step,sequence,variance\n1,2,3\n2,3,5\n")
    assert main(["diagnose", str(tmp_path / "other.csv"), "--fast"]) == 2
    assert "no training loss is taken; other columns: 'sequence', 'variance'" in capsys.readouterr().err


def test_what_a_log_does_not_say_is_counted_and_evaluations_are_named(theirs, tmp_path, capsys):
    ours = tmp_path / "ours.csv"
    ours.write_text("step,loss,val_loss,lr,seed\n" + "\n".join(f"{i},3,3,2e-3,7" for i in range(1, 40, 3)))
    assert main(["compare", str(ours), str(theirs)]) == 0
    text = capsys.readouterr().out
    assert "at steps 1, 4, 7, …, 37, B at none" in text and "| None" not in text
    assert "no train_loss that both have" in text
    unknown = {"model.d_model": [64, None], "model.n_layers": [None, 2], "train.steps": [3, 4]}
    known, words = _split_unknown(unknown, [False, True])
    assert [*known] == ["model.n_layers", "train.steps"] and words == ", as far as B says: 1 more are not known there"
    assert _split_unknown(unknown, [False, False]) == (unknown, "")


def test_a_training_loss_that_only_one_side_has_has_no_largest_difference():
    one = [{"step": 1, "train_loss": 2.0, "lr": 1.0}, {"step": 2, "train_loss": 1.0, "lr": 1.0}]
    found = first_difference(one, [{"step": 1, "lr": 2.0}, {"step": 2, "lr": 2.0}])
    assert found["largest"] is None and found["first"]["step"] == 1
    assert first_difference(one, one)["largest"] == 0.0
