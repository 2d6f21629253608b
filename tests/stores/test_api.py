"""The functions of `scalelab.api` on URLs: they do what the commands do."""

import pathlib

import pytest

from scalelab import api
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.stores.urls import local_folder
from tests.crash.trainer import SETTINGS

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.parametrize("server", ["s3"], indirect=True)]
TINY = SETTINGS | {"train.steps": 2, "eval.every_steps": 2, "checkpoint.every_steps": 2}


@pytest.mark.full
def test_a_run_is_trained_in_the_store_and_read_on_another_machine(server, url, machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = api.train("tiny", url, TINY)
    assert (trained.status, trained.folder) == ("done", url)
    assert not list(pathlib.Path().glob("s3:*"))  # once a local folder of that name
    machine("second")
    assert not local_folder(url).exists()
    (row,) = api.runs(url)
    assert row["val_loss"] == trained.val_loss and len(api.metrics(url)) == 3
    again = api.train("tiny", url, TINY)
    assert (again.params_digest, again.val_loss) == (trained.params_digest, trained.val_loss)
    kinds = [event["kind"] for event in records.read_events(local_folder(url))]
    assert kinds.count("start") == 1
    local = api.train("tiny", tmp_path / "local", TINY)
    assert (local.params_digest, local.folder) == (trained.params_digest, str(tmp_path / "local"))


def test_a_sweep_and_its_answer_are_in_the_store(server, url, machine):
    grid = [{"optim.peak_lr": rate} for rate in (2e-3, 4e-3)]
    swept = api.sweep("tiny", url, TINY, grid=grid)
    assert set(swept.verdicts.values()) == {"done"} and [row["optim.peak_lr"] for row in swept.rows] == [2e-3, 4e-3]
    machine("second")
    state = api.sweep_status(url)
    assert [row["status"] for row in state.rows] == ["done", "done"]
    assert api.answer(url).best.values == state.answer.best.values
    with api.follow(url) as read:
        assert read().has_ended


def test_what_reads_no_store_says_so_and_makes_no_folder(server, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="is in an object store, which is not read here; give a local folder"):
        api.load(url)
    with pytest.raises(BadInput, match="holds nothing that scalelab wrote"):
        api.runs(url)
    with pytest.raises(BadInput, match=r"is not a folder in a bucket, e\.g\. s3://bucket/runs/mine"):
        api.train("tiny", "s3://bucket", TINY)
    with pytest.raises(BadInput, match="there is no bucket 'nobucket'"):
        api.train("tiny", "s3://nobucket/run", TINY)
    assert not list(tmp_path.glob("s3*"))
