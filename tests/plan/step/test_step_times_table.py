"""The table of published step times is of this code: rows are planned again by its own command."""

import json
import pathlib
import statistics

import pytest

from checks.speed.step_times import __main__ as step_times
from checks.speed.step_times import tables
from checks.speed.step_times.rows import CALIBRATED_ROWS, OTHER_ROWS, OUR_ROWS, SLOWER_ROWS
from tests.tables import table_path

STORED = json.loads((pathlib.Path(__file__).parents[3] / "checks/results/step_times.json").read_text())
SAMPLE = {
    "CALIBRATED_ROWS": (CALIBRATED_ROWS, "Narayanan 24 x 2304"),
    "OTHER_ROWS": (OTHER_ROWS, "Llama 3 405B, 16384 x 131072"),
    "SLOWER_ROWS": (SLOWER_ROWS, "torchtitan Llama 3.1 8B, 8"),
    "OUR_ROWS": (OUR_ROWS, "scalelab-2026-11-27 1B bf16"),
}


@pytest.mark.full
def test_the_command_gives_the_rows_that_are_stored(monkeypatch, capsys):
    """A row of each kind: an A100's, a ring's, one with FlashAttention 2, and one of this trainer."""
    for group, (rows, name) in SAMPLE.items():
        monkeypatch.setattr(step_times, group, {name: rows[name]})
    monkeypatch.setattr(step_times, "write_step_times", lambda result: None)
    step_times.main(["--json=-"])
    rows, stored = json.loads(capsys.readouterr().out)["rows"], {row["name"]: row for row in STORED["rows"]}
    assert [row["name"] for row in rows] == [name for _, name in SAMPLE.values()]
    for row in rows:
        for key, value in stored[row["name"]].items():
            assert row[key] == (value if isinstance(value, str | bool) else pytest.approx(value, rel=1e-9)), key


def test_the_claim_is_that_of_the_rows():
    """What `test_the_table_keeps_its_claim` reads is the mean of the rows beneath it."""
    rows, claim = STORED["tables"], STORED["all"]
    assert claim["rows"] == len(rows) > 150
    assert claim["mean_absolute"] == pytest.approx(statistics.mean(abs(row["error"]) for row in rows))
    assert claim["in_range"] == pytest.approx(statistics.mean(row["in_range"] for row in rows))
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["published_s"] - 1)


def test_the_share_of_the_bandwidth_can_not_be_told_from_the_rows():
    """What docs/plan.md says of it: both ends of its range leave the rows' mean error within half a per cent."""
    means = [each["all"] for each in STORED["hbm"].values()]
    assert len(means) == 3 and max(means) - min(means) < 0.005 and max(means) < 0.15


@pytest.mark.full
def test_rows_of_the_shared_tables_are_planned_again():
    """Every thirtieth row of --data: its time by this code, with its system's traits, is the stored one."""
    published, stored = tables.read_tables(table_path("step_times")), {row["name"]: row for row in STORED["tables"]}
    names = list(published)[::30]
    assert len(names) >= 4
    for name in names:
        row = step_times.compare_step_time(name, "", published[name])
        assert row["predicted_s"] == pytest.approx(stored[name]["predicted_s"], rel=1e-9), name
        assert row["published_s"] == stored[name]["published_s"]
