"""A run in a store that goes back by hand on another machine, and goes on on a third: the bits of a folder."""

import shutil

import pytest

from scalelab.__main__ import main
from scalelab.stores import mirror
from scalelab.stores.copies import copy_here
from scalelab.stores.urls import local_folder
from scalelab.train.checkpoints import manifest
from tests.crash import trainer
from tests.crash.trainer import overrides
from tests.train.runs import untimed

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("server", ["s3"], indirect=True)]
SAVES = {"train.steps": 6, "eval.every_steps": 6, "checkpoint.every_steps": 2, "checkpoint.keep_last": 3}
TRAIN = ["train", "--config=configs/tiny.py", "--force", *overrides(**SAVES)]
BACK = ["train", "--force", "--back-to=2", "--lr-factor=.5"]


def test_going_back_in_a_store_gives_the_bits_of_a_folder(server, url, machine, tmp_path, capsys):
    plain = tmp_path / "plain"
    assert main([*TRAIN, f"--workdir={plain}"]) == 0
    with mirror.attached(local_folder(url)):
        shutil.copytree(plain, local_folder(url))
    for workdir in (str(plain), url):
        machine(f"back {workdir[:4]}")
        assert main([*BACK, f"--workdir={workdir}"]) == 0, capsys.readouterr().err
        printed = capsys.readouterr()
        assert "by hand: back_to=2, lr_factor=0.5" in printed.out + printed.err
    for workdir in (str(plain), url):  # the plain command, on a machine that has nothing
        machine(f"on {workdir[:4]}")
        assert main([*TRAIN, f"--workdir={workdir}"]) == 0, capsys.readouterr().err
    machine("reader")
    stored = copy_here(url, checkpoints=True, fresh=True)
    assert untimed(stored) == untimed(plain)
    assert trainer.state_digest(stored / "checkpoints") == trainer.state_digest(plain / "checkpoints")
    assert manifest.list_steps(stored / "set_aside" / "1" / "checkpoints") == [4, 6]
