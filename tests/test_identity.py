"""A record is held to its config by identity, also where an earlier version, which counted more values, wrote both."""

import copy

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.record.identity import identity
from tests.report import synthetic

CONFIG = {
    "model": {"d_model": 8, "attention": "plain"},
    "optim": {"peak_lr": 0.01},
    "schedule": {"name": "wsd", "warmup_tokens": 64, "warmup_steps": 2},
    "data": {"source": "stdlib", "cache_dir": "/a"},
    "train": {"steps": 4, "deterministic": True, "branch_from": "runs/a@2", "steps_per_dispatch": 2},
    "parallel": {"data": 2},
    "log": {"role": "fit"},
    "checkpoint": {"keep_last": 2},
    "sweep": {"workers": 1},
}
# Results of scalelab.config.identity for CONFIG, run at these commits of 2026-11-20 to 22: the keys that count changed.
WRITTEN = {
    "de9ded6": "7b22675e724102e9", "f75ec8c": "408215804d34996f", "7ea62db": "e30ce2102ec4065f",
    "74ec5e8": "711c2da6f7e64e89", "cf3c011": "70778f22d57247c6", "388825b": "8912387c8a338263",
    "5ee5ccd": "8912387c8a338263",
}  # fmt: skip


@pytest.mark.parametrize("commit", WRITTEN)
def test_a_record_of_any_earlier_version_belongs_to_its_config_and_to_no_edited_one(tmp_path, commit):
    records.write_json(tmp_path / "config.json", CONFIG)
    records.write_json(tmp_path / "record.json", {"identity": WRITTEN[commit], "status": "done"})
    assert records.read_config(tmp_path) == CONFIG and records.read_record(tmp_path)["status"] == "done"
    for group, key, value, refused in (
        ("optim", "peak_lr", 0.05, True), ("train", "steps", 8, True), ("model", "d_model", 16, True),
        ("log", "role", "check", False), ("checkpoint", "keep_last", 9, False), ("sweep", "workers", 2, False),
    ):  # fmt: skip
        edited = copy.deepcopy(CONFIG)
        edited[group][key] = value
        records.write_json(tmp_path / "config.json", edited)
        if not refused:
            records.read_record(tmp_path)
            continue
        for read in (records.read_config, records.read_record, listing.read_run):
            with pytest.raises(BadInput, match=rf"config.json is not the config .*not {WRITTEN[commit]}") as error:
                read(tmp_path)
            assert "\n" not in str(error.value) and "record.json" in str(error.value)


def test_identity_is_that_of_today(tmp_path):
    assert identity(records.flatten_keys(CONFIG)) == WRITTEN["5ee5ccd"]


def test_a_value_that_is_not_set_counts_as_it_always_did():
    """At d05c202, before LATER_KEYS, which once dropped every None: all earlier runs were taken for edited ones."""
    assert identity({"optim.rank": None, "optim.peak_lr": 0.01}) == "3a98956724d066c1"
    assert identity({"optim.rank": None, "optim.peak_lr": 0.01, "optim.clip": "global"}) == "3a98956724d066c1"
    assert identity({"optim.rank": None, "optim.peak_lr": 0.01, "optim.clip": "spam"}) != "3a98956724d066c1"


def test_a_run_whose_config_was_edited_is_a_damaged_row_and_the_others_are_listed(tmp_path, capsys):
    for name in "ab":
        synthetic.write_run(tmp_path / "runs" / name, lines=5)
    path = tmp_path / "runs" / "b" / "config.json"
    content = records.read_json(path)
    record = records.read_json(path.with_name("record.json"))
    records.write_json(path.with_name("record.json"), record | {"identity": identity(records.flatten_keys(content))})
    assert main(["runs", str(tmp_path)]) == 0 and "damaged" not in capsys.readouterr().out
    content["optim"]["peak_lr"] *= 5
    records.write_json(path, content)
    main(["runs", str(tmp_path)])
    output = capsys.readouterr()
    rows = {line.split()[0]: line for line in output.out.splitlines() if line[:1] in "ab" and line[1:2] == " "}
    assert "damaged" in rows["b"] and "damaged" not in rows["a"]
    assert "runs/b/config.json is not the config" in output.err + output.out
    assert main(["runs", str(path.parent)]) == 2


def test_a_guard_that_changes_no_step_is_not_counted():
    values = {"model.d_model": 8, "guard.policy": "watch", "guard.window": 64}
    assert identity(values) == identity({"model.d_model": 8}) == identity(values | {"guard.window": 128})
    acting = values | {"guard.policy": "skip"}
    assert identity(acting) not in (identity(values), identity(acting | {"guard.window": 128}))
