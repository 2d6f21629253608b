"""The study of an incident: planted documents stand in the planted batches and nowhere else; its table."""

import numpy as np

from scalelab import config as config_lib
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
from scalelab.experiments import incident
from scalelab.train.run.sources import make_train_batches


def test_the_planted_batches_and_no_others_hold_the_outliers(monkeypatch):
    """The oracle is the trainer's own data path, which knows nothing of the closed form that chose the documents."""
    monkeypatch.setattr(incident, "DOCUMENTS", 2500)
    base = config_lib.load(incident.ROOT / "configs" / "incident.py", {})
    trial = incident.make_trials(base, [3])["seed3"]
    assert trial.data.path == "3:64:8"
    data = open_dataset(DataConfig(source=trial.data.source, path=trial.data.path, vocab_size=256))
    batches = make_train_batches(trial, data)
    gram = np.frombuffer(incident.N_GRAM, np.uint8)
    rows = batches.chunk(200, 60)  # steps 201 to 260
    is_planted = (rows[..., 4:8] == gram).all(-1) | (rows[..., 5:9] == gram).all(-1)
    counts = dict(zip(range(201, 261), is_planted.sum(1).tolist(), strict=True))
    assert {step for step, n in counts.items() if n == 6} == {*range(incident.FIRST, incident.LAST + 1)}
    assert not is_planted[: incident.FIRST - 201].any() and not is_planted[incident.LAST - 200 :].any()


def test_the_table_counts_cures_over_seeds():
    row = {"works": True, "final": 2.0, "peak": 3.0, "steps": 36, "batches": 16, "cost": 0.5}
    incidents = [{"arms": [{"arm": arm} | row for arm in incident.ARMS]}] * 2
    incidents[1] = {"arms": [one | {"works": False, "final": 4.0, "cost": 1.5} for one in incidents[0]["arms"]]}
    assert incident._cells("LR x .7", incidents) == ["LR x .7", "1 of 2", "2.000, 4.000", "3", "36", "16", "1"]


def test_the_finding_counts_arms_replays_and_documents():
    row = {"works": True, "final": 2.0}
    arms = [{"arm": arm} | row | ({"works": False, "final": 3.0} if arm == "go on" else {}) for arm in incident.ARMS]
    one = {"arms": arms, "reproduced": {"equal": 9, "lines": 10}, "named_first": 5, "planted": 6}
    made = incident.conclude([one, one | {"named_first": 6}])
    assert [check["measured"] for check in made["checks"]] == [0.9, 11 / 12, 1.0]
    assert "3.00 (go on), 2.00 (skip the batches)" in made["finding"] and "11 of 12 planted" in made["finding"]


def test_a_missing_workdir_is_one_line(capsys):
    assert incident.main(["--quick"]) == 2
    assert "--workdir=DIR is needed" in capsys.readouterr().err
