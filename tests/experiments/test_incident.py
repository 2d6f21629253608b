"""The study of an incident: planted documents stand in the planted batches and nowhere else; its table."""

import numpy as np
import pytest

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


def incidents(**ends):
    """Two seeds whose arms end at 2.0 and 4.0, but for those with `ends` of their own."""
    row = {"works": True, "peak": 3.0, "steps": 36, "batches": 16}
    return [
        {"arms": [{"arm": arm, "end": ends.get(arm.split()[0], (2.0, 4.0))[i], "cost": 0.5 + i} | row
                  for arm in incident.ARMS],
         "reproduced": {"equal": 9, "lines": 10}, "named_first": 5 + i, "planted": 6}
        for i in range(2)
    ]  # fmt: skip


def test_the_table_counts_cures_and_compares_within_seeds():
    both = incidents(LR=(1.9, 3.9), go=(3.0, 5.1))
    both[1]["arms"][2]["works"] = False
    assert incident._cells("LR x .7", both) == [
        "LR x .7", "1 of 2", "2.900", "1.900, 3.900", "the lowest", "3", "36", "16", "1"
    ]  # fmt: skip
    # Seeds differ by 2 nats, which is no noise; 0.05 is, and the quantile of one degree of freedom at .25 % is 127.3.
    nats, error = incident.above_lowest(both)["go on"]
    assert nats == pytest.approx(1.15) and error == pytest.approx(127.32 * 0.05, rel=1e-3)
    assert incident._cells("go on", both)[4] == "1.150 ± 6.366"
    assert incident.above_lowest(both[:1])["go on"] == (pytest.approx(1.1), None)
    text = incident.ranking(both)
    assert text.startswith("LR x .7 ends lowest") and "skip the batches (by 0.100 ± 0.000)" in text
    assert text.endswith("not told from it: go on (1.150 ± 6.366)")
    for one in both:
        one["arms"][0]["works"] = False
    assert incident.ranking(both).endswith("; in no seed works: go on") and incident._cells("go on", both)[4] == "-"


def test_the_finding_counts_arms_replays_and_documents():
    both = incidents(go=(2.5, 4.5))
    made = incident.conclude(both)
    assert [check["measured"] for check in made["checks"]] == [0.9, 11 / 12, 1.0]
    assert "3.50 (go on), 3.00 (skip the batches)" in made["finding"] and "11 of 12 planted" in made["finding"]


def test_a_missing_workdir_is_one_line(capsys):
    assert incident.main(["--quick"]) == 2
    assert "--workdir=DIR is needed" in capsys.readouterr().err
