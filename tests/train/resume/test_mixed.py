"""Runs that change on the way: another LR or optimizer from a step on, recorded for good; and runs that go on."""

import shutil

import pytest

from scalelab.errors import BadInput
from scalelab.laws.fits.study import select_rows
from scalelab.record import listing, records
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage import mixed
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config, contents

CONSTANT = {"schedule__name": "constant", "train__steps": 6, "checkpoint__keep_last": 9}


def constant(**changes):
    return config(**{**CONSTANT, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Six steps of AdamW under one LR, with checkpoints of steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_single(constant(), folder)
    return folder


@pytest.fixture
def half(tmp_path, whole):
    """That run when it had taken four steps."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "6")
    records.rewind_metrics(folder, 4)
    records.write_json(folder / "record.json", records.read_record(folder) | {"status": "stopped", "steps": 4})
    return folder


def losses(folder):
    return {line["step"]: line["train_loss"] for line in records.read_metrics(folder) if "train_loss" in line}


@pytest.mark.full
def test_another_lr_on_the_way_is_on_record_for_good_and_no_law_is_fitted_to_it(half):
    before = records.read_record(half)["identity"]
    train_single(constant(optim__peak_lr=0.05), half)
    record = records.read_record(half)
    assert record["identity"] != before and record["mixed"]["1"]["step"] == 4
    row = listing.read_run(half)
    assert row["mixed"] == "optim.peak_lr 0.01 -> 0.05 at step 4" and row["optim.peak_lr"] == 0.05
    stored, left_out = select_rows([row], ["N", "D"], "val_loss")
    assert not stored and left_out[0]["reason"] == "mixed: optim.peak_lr 0.01 -> 0.05 at step 4"
    train_single(constant(train__steps=8), half)  # back to where it began: that is a second change
    assert listing.read_run(half)["mixed"].endswith("at step 4; optim.peak_lr 0.05 -> 0.01 at step 6")
    assert (
        manifest.read_manifest(half / "checkpoints" / "8")["facts"]["run"]["mixed"]
        == records.read_record(half)["mixed"]
    )


@pytest.mark.full
def test_steps_that_were_thrown_away_mix_nothing(half):
    """A change is counted from the checkpoint that is gone on from, not from what config.json said meanwhile."""
    changed = records.read_json(half / "config.json")
    changed["optim"]["peak_lr"] = 0.05
    record = records.read_record(half) | {"next_identity": records_identity(changed)}
    records.write_json(half / "config.json", changed)
    records.write_json(half / "record.json", record)  # as one killed under 0.05 before it saved left them
    train_single(constant(), half)
    assert "mixed" not in records.read_record(half) and "next_identity" not in records.read_record(half)
    assert listing.read_run(half)["optim.peak_lr"] == 0.01


def records_identity(content):
    from scalelab.record.identity import identity

    return identity(records.flatten_keys(content))


@pytest.mark.full
@pytest.mark.parametrize("plan, mixes", [
    ({"train__steps": 8}, False), ({"schedule__name": "wsd", "schedule__decay_steps": 1}, False),
    ({"eval__every_steps": 3}, False),
    ({"checkpoint__every_steps": 1, "data__cache_dir": "elsewhere"}, False),
    ({"schedule__name": "wsd", "schedule__decay_steps": 5}, True),
    ({"schedule__warmup_steps": 3}, True), ({"eval__batches": 2}, True), ({"optim__weight_decay": 0.3}, True),
])  # fmt: skip
def test_what_leaves_the_steps_taken_as_they_were_mixes_nothing(whole, plan, mixes):
    saved = manifest.read_manifest(whole / "checkpoints" / "4")["facts"]["run"]
    changed = constant(**plan)
    known = mixed.merge_change_entries(4, saved, saved | {"config": changed.to_dict()}, changed, [])
    assert bool(known) == mixes and (not mixes or known["1"]["changes"].keys() <= {k.replace("__", ".") for k in plan})


@pytest.mark.full
def test_another_optimizer_goes_on_with_weights_step_and_data_and_a_fresh_state(half, whole):
    train_single(constant(optim__name="lion", optim__peak_lr=1e-3), half, allow=["optim.name"])
    assert losses(half)[5] == losses(whole)[5]  # before its first update: the very weights, on the very batch
    assert losses(half)[6] != losses(whole)[6]
    counters = lion_counters(half / "checkpoints")
    assert counters and set(counters) == {2}  # its own steps, not the run's six
    entry = records.read_record(half)["mixed"]["1"]
    assert (entry["step"], entry["fresh"], entry["changes"]["optim.name"]) == (4, "opt_state", "adamw -> lion")
    changed = [event for event in records.read_events(half) if event["kind"] == "config_change"]
    assert len(changed) == 1 and "optim.name: adamw -> lion" in changed[0]["text"]
    again = constant(optim__name="lion", optim__peak_lr=1e-3, train__steps=8)
    assert train_single(again, half)["resumed_from"] == 6  # Lion's own state is then resumed as ever
    assert set(lion_counters(half / "checkpoints", 8)) == {4}


def lion_counters(folder, step=6):
    from scalelab import config as config_lib
    from scalelab.train.step import state

    like = state.state_shapes(config_lib.static(constant(optim__name="lion")))
    saved = Checkpoints(folder).restore(step, {"run": like})["run"]
    assert int(saved.step) == step
    import jax

    return [int(leaf) for leaf in jax.tree.leaves(saved.opt_state) if leaf.dtype == "int32"]


@pytest.mark.slow
def test_a_schedule_free_run_hands_its_average_on_to_another_optimizer(tmp_path):
    """As `--init-from` does: the weights are those whose loss was measured."""
    free = {"optim__name": "schedule_free_adamw", "eval__every_steps": 2}
    train_single(constant(**free, train__steps=4), tmp_path / "run")
    measured = [line["val_loss"] for line in records.read_metrics(tmp_path / "run") if "val_loss" in line][-1]
    still = constant(optim__name="sgd", optim__peak_lr=0.0, eval__every_steps=2)
    result = train_single(still, tmp_path / "run", allow=["optim.name"])
    assert result["val_loss"] == measured and result["resumed_from"] == 4


@pytest.mark.full
@pytest.mark.parametrize("refused", ["another shape", "no such optimizer's option"])
def test_nothing_is_written_before_all_is_accepted(half, refused):
    before = contents(half)
    wide = (
        constant(optim__name="lion", model__d_ff=32)
        if refused == "another shape"
        else constant(optim__rank=4, optim__name="galore")
    )
    with pytest.raises(BadInput):
        train_single(wide, half, allow=["optim.name", "model"] if refused == "another shape" else [])
    assert contents(half) == before
    assert train_single(constant(), half)["resumed_from"] == 4  # the original command, as ever


@pytest.mark.full
def test_trials_of_a_pack_change_their_optimizer_together(tmp_path):
    seeds = {"a": {}, "b": {"train__seed": 3}}
    run_sweep(tmp_path, {name: constant(**seed, train__steps=4) for name, seed in seeds.items()})
    longer = {name: constant(**seed, optim__name="lion") for name, seed in seeds.items()}
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=r"(?s)optim.name='adamw', now it is 'lion'.*--allow-change=optim.name$"):
        run_sweep(tmp_path, longer)
    assert contents(tmp_path) == before
    assert run_sweep(tmp_path, longer, allow=["optim.name"]) == {"a": "done", "b": "done"}
    for name in seeds:
        assert records.read_record(tmp_path / "runs" / name)["mixed"]["1"]["fresh"] == "opt_state"
    relabelled = {name: constant(**seed, optim__name="lion", optim__peak_lr=0.5) for name, seed in seeds.items()}
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=r"runs/a has no step left and was trained with optim.peak_lr"):
        run_sweep(tmp_path, relabelled)
    assert contents(tmp_path) == before
