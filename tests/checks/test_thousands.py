"""The copies that thousands of runs are timed with are sound runs: damaged ones would be read in another time."""

import pytest

from checks.speed import thousands
from scalelab.record import listing
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config


@pytest.mark.full
def test_copies_of_a_run_are_sound(tmp_path):
    train_single(config(schedule__name="constant"), tmp_path / "trained" / "runs" / "a")
    thousands.write_copies(tmp_path / "trained", tmp_path / "copies", 100)  # the least: sizes x lengths x seeds
    rows = listing.read_runs(tmp_path / "copies")
    assert [row.get("damage") for row in rows] == [None] * 100
    assert len({row["N"] for row in rows}) == thousands.SIZES and len({row["D"] for row in rows}) == thousands.LENGTHS
