"""Files of a run edited by hand: a wrong type or a missing key gives one line and exit code 2, never a traceback.

In a sweep it gives one row with status damaged, and the others go on.
"""

import json
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.report import gather, pages
from scalelab.sweep import status
from scalelab.train.lineage import extend
from scalelab.train.resume import start
from tests.report import synthetic

RECORD = ("status", "steps", "tokens", "val_loss", "bpb", "identity", "params", "flops", "flops_per_token", "data",
          "versions", "params.total", "flops.exact", "data.fingerprint", "mesh", "pack")  # fmt: skip
CONFIG = ("log", "optim", "model", "log.role", "optim.peak_lr", "train.steps", "model.d_model", "schedule.name")
METRICS = ("step", "train_loss", "val_loss", "tokens", "time", "lr")
EVENTS = ("time", "step", "kind", "text")
VALUES = ("ten", [1], {"a": [1]}, True, None, "absent")
EDITS = [
    (file, key, value)
    for file, keys in (
        ("record.json", RECORD),
        ("config.json", CONFIG),
        ("metrics.jsonl", METRICS),
        ("events.jsonl", EVENTS),
    )
    for key in keys
    for value in VALUES
]


def edited(text: str, key: str, value: object) -> str:
    content = json.loads(text)
    *groups, last = key.split(".")
    place = content
    for group in groups:
        place = place[group]
    if value == "absent":
        place.pop(last, None)
    else:
        place[last] = value
    return json.dumps(content)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three finished runs with a sweep's list of them."""
    folder = tmp_path_factory.mktemp("sweep")
    for name in "abc":
        synthetic.write_run(folder / "runs" / name, lines=20)
    records.write_json(folder / "sweep.json", {"trials": dict.fromkeys("abc", 3906), "packs": {"p": list("abc")}})
    return folder


def readers(folder, name):
    """All that reads a run: each must come to its end, or raise BadInput in one line."""
    run = folder / "runs" / name
    yield lambda: listing.read_runs(run)
    yield lambda: status.read_trial_row(run, 5)
    yield lambda: gather.read_curve_rows([run]) and gather.read_step_rows(run) and gather.read_event_rows([run])
    yield lambda: gather.collect_provenance([run]) and gather.entropy_rate([run])
    yield lambda: extend.last_checkpoint_facts(run) or start.find_last_checkpoint(run)


@pytest.mark.parametrize(  # every fifth: each value, and nearly each key
    "edits", [EDITS[::5], pytest.param(EDITS, marks=pytest.mark.slow)], ids=["one in five", "all"]
)
def test_every_edit_is_one_line_and_spares_the_other_trials(sweep, tmp_path, edits):
    shutil.copytree(sweep, tmp_path / "sweep")
    sweep = tmp_path / "sweep"
    assert len(EDITS) >= 56
    refused = 0
    for file, key, value in edits:
        path = sweep / "runs" / "b" / file
        before = path.read_text()
        first, newline, rest = before.partition("\n") if file.endswith("l") else (before, "", "")
        path.write_text(edited(first, key, value) + newline + rest)
        for read in readers(sweep, "b"):
            try:
                read()
            except BadInput as error:
                refused += 1
                # an edited identity: either of the two files may be the edited one, so both are named
                both = f"{path.parent / 'config.json'} is not the config that record.json was written for"
                named = both if key == "identity" and both in str(error) else str(path)
                assert "\n" not in str(error) and named in str(error), (file, key, value)
        rows = {row["name"]: row for row in status.read_trial_rows(sweep)}
        assert rows["a"]["status"] == rows["c"]["status"] == "done", (file, key, value)
        rows = {row["name"]: row for row in listing.read_runs(sweep)}
        assert rows["a"]["status"] == rows["c"]["status"] == "done" and len(rows) == 3, (file, key, value)
        path.write_text(before)
    assert refused > len(edits)  # most edits are seen by several readers
    assert {row["status"] for row in listing.read_runs(sweep)} == {"done"}


@pytest.fixture
def damaged(sweep, tmp_path):
    """The sweep with a damaged record of b and a damaged line in the middle of c's metrics."""
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    (folder / "runs" / "b" / "record.json").write_text('{"status": "done", "ste')
    lines = (folder / "runs" / "c" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "runs" / "c" / "metrics.jsonl").write_text("".join([*lines[:3], '{"step": 3, "tr\n', *lines[3:]]))
    return folder


def test_runs_and_status_say_damaged_and_show_the_rest(damaged, capsys):
    assert main(["runs", str(damaged)]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines() if line[:1] in "abc"] == [
        ["a", "done"],
        ["b", "damaged"],
        ["c", "done"],
    ]
    assert "b is damaged" in err and "record.json is not JSON" in err and "Traceback" not in err
    assert main(["sweep", f"--workdir={damaged}", "--status", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["status"] for row in json.loads(out.splitlines()[-1])["trials"]] == ["done", "damaged", "damaged"]
    assert "c is damaged" in err and "metrics.jsonl, line 4: damaged" in err
    assert main(["runs", str(damaged / "runs" / "b")]) == 2  # asked for alone it is bad input
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.full
def test_a_report_is_of_the_others_and_names_the_damaged(damaged):
    report = pages.write_report(damaged)
    gaps = "\n".join(report["missing"])
    assert "b is damaged" in gaps and "c is damaged" in gaps and report["runs"] == 3
    html = (damaged / "report.html").read_text()
    assert "record.json is not JSON" in html and "training_loss" in report["figures"]


def test_a_study_and_a_sweep_whose_own_file_is_edited_are_one_line(sweep, tmp_path, capsys):
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    for content in ([], {"trials": []}, {"trials": {"a": "ten"}}, {"trials": None}, {}, 5):
        records.write_json(folder / "sweep.json", content)
        assert main(["sweep", f"--workdir={folder}", "--status"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "sweep.json" in line
    for content in (
        [],
        {"fit": 5},
        {"fit": {"params": {"E": "x"}}},
        {"runs": {}},
        {"held_out": "no"},
        {"wall_s": "long"},
    ):
        records.write_json(folder / "summary.json", content)
        assert main(["report", str(folder)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "summary.json" in line
