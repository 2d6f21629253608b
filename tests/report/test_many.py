"""The page of many runs: how runs are chosen, what is merged, and that the page stays small."""

import math
import pathlib

import pytest

from scalelab.record import listing, records
from scalelab.report import gather
from scalelab.report.pages import write_report
from tests.report import synthetic


def rows(losses):
    return [{"name": str(i), "status": "done", "val_loss": loss} for i, loss in enumerate(losses)]


def test_few_runs_are_all_chosen():
    assert gather.choose_runs(rows([3, 1, 2]), 3) == rows([3, 1, 2])


def test_of_many_the_ranks_are_even_from_the_best_to_the_lost():
    many = rows([(7 * i) % 101 for i in range(101)])  # every loss from 0 to 100 once
    many[5]["status"] = many[8]["status"] = "diverged"
    many[9]["val_loss"] = math.nan
    chosen = gather.choose_runs(many, 11)
    assert len(chosen) == 11 and [row["name"] for row in chosen] == sorted((r["name"] for r in chosen), key=int)
    finished = sorted(row["val_loss"] for row in many if gather.final_loss(row) < math.inf)
    losses = sorted(gather.final_loss(row) for row in chosen)
    assert losses[:-1] == [finished[10 * i] for i in range(10)] and losses[-1] == math.inf


def test_equal_events_are_one_row_with_the_number_of_runs():
    logged = (
        ("a", "chosen", "x"),
        ("b", "chosen", "x"),
        ("a", "skip", "y"),
        ("a", "chosen", "x"),
        ("b", "chosen", "z"),
    )
    events = [{"run": run, "kind": kind, "text": text, "time": i} for i, (run, kind, text) in enumerate(logged)]
    merged = gather.merge_events(events)
    assert [(row["run"], row["kind"], row["text"], row["runs"]) for row in merged] == [
        ("a", "chosen", "x", 2), ("a", "skip", "y", 1), ("b", "chosen", "z", 1)]  # fmt: skip


@pytest.mark.slow
def test_a_page_of_many_shows_some_curves_and_every_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "MOST_CURVES", 4)
    monkeypatch.setattr(gather, "MOST_ROWS", 8)
    for i in range(12):
        synthetic.write_run(tmp_path / "runs" / f"r{i:02}", d=1e6 * (i + 1), seed=i, lines=20)
        records.write_event(tmp_path / "runs" / f"r{i:02}", "note", 5, f"note of {i}")
    (tmp_path / "runs" / "r03" / "record.json").write_text("{")
    report = write_report(tmp_path)
    page = pathlib.Path(report["path"]).read_text()
    assert "Of 4 of 11 runs, evenly by final loss" in page and "Below: the 8 with the lowest final loss" in page
    assert any("r03 is damaged" in gap for gap in report["missing"])
    assert all(f"note of {i}" in page for i in range(12) if i != 3)
    curves = (tmp_path / "figures" / "training_loss.csv").read_text().splitlines()[1:]
    losses = {row["name"]: row["val_loss"] for row in listing.read_runs(tmp_path) if row["status"] == "done"}
    drawn = {line.split(",")[0] for line in curves}
    assert len(drawn) == 4 and {min(losses, key=losses.get), max(losses, key=losses.get)} <= drawn
