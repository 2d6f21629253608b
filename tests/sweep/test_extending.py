"""A grid that grows, shrinks or has another order: a trial is found by what it computes, and only new ones train."""

import contextlib
import itertools
import json
import os
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.cli import terminal
from scalelab.index.table import read_grid
from scalelab.record import records
from tests.sweep.here import train_packs_here
from tests.train.runs import run_here, untimed

VALUES = {
    "data.source": "synthetic", "data.n_tokens": 20_000, "model.vocab_size": 64, "model.seq_len": 16,
    "model.d_model": 16, "train.steps": 4, "train.global_batch": 2, "eval.batches": 1, "checkpoint.every_steps": 2,
    "train.steps_per_dispatch": 1, "log.every_steps": 1,
}  # fmt: skip
LR, SEED, DECAY, WIDTH = "optim.peak_lr", "train.seed", "optim.weight_decay", "model.d_model"


@pytest.fixture(autouse=True)
def in_this_process():
    with train_packs_here():
        yield


def sweep(folder, axes, *more, code=0, **run):
    """`scalelab sweep` of the product of `axes` {key: values}; its JSON."""
    file = folder.parent / "grid.py"
    grid = ", ".join(f"h.sweep({key!r}, {values!r})" for key, values in axes.items())
    file.write_text(
        f"from scalelab.configs import tiny\nget_config = tiny.get_config\ndef sweep(h): return h.product([{grid}])\n"
    )
    overrides = [f"--config.{key}={value}" for key, value in VALUES.items() if key not in axes]
    return run_here(
        f"--config={file}", f"--workdir={folder}", *overrides, "--json", *more, name="sweep", code=code, **run
    )


def times(folder):
    """{name: when its logs were last written} of all trials."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}


def trained(folder, before):
    """The trials that were trained since `before`."""
    return sorted(name for name, time in times(folder).items() if before.get(name) != time)


def answer(result):
    """What a sweep answers, without the names of runs that it leaves out."""
    leave = ("left_out", "sentences")
    return {key: value for key, value in result["answer"].items() if key not in leave}


def logs(folder):
    """{(LR, seed, decay): all that the grid's runs have logged, bit by bit}."""
    rows, _ = read_grid(folder)
    return {(row[LR], row[SEED], row[DECAY]): untimed(folder / "runs" / row["name"]) for row in rows}


GROWN = {
    "behind": ({LR: [1e-3, 2e-3, 4e-3]}, ["peak_lr=0.004"]),
    "in front": ({LR: [5e-4, 1e-3, 2e-3]}, ["peak_lr=0.0005"]),
    "a new axis": ({LR: [1e-3, 2e-3], DECAY: [0.0, 0.1]}, [f"peak_lr={lr}-weight_decay=0" for lr in (0.001, 0.002)]),
    "another order": ({LR: [2e-3, 1e-3]}, []),
}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "s"
    with train_packs_here():
        sweep(folder, {LR: [1e-3, 2e-3]})
    return folder


@pytest.mark.full
@pytest.mark.parametrize("case", GROWN)
def test_only_what_is_new_trains_and_the_answer_is_that_of_a_fresh_sweep(case, old, tmp_path):
    (axes, new), grown = GROWN[case], tmp_path / "grown"
    shutil.copytree(old, grown)
    before = times(grown)
    assert sorted(before) == ["peak_lr=0.001", "peak_lr=0.002"]
    result = sweep(grown, axes)
    assert trained(grown, before) == new
    fresh = sweep(tmp_path / "fresh", axes)
    assert answer(result) == answer(fresh) and result["answer"]["left_out"] == []
    assert [row["val_loss"] for row in result["trials"]] == [row["val_loss"] for row in fresh["trials"]]
    assert logs(grown) == logs(tmp_path / "fresh")
    before = times(grown)
    assert sweep(grown, axes) == result and trained(grown, before) == []


@pytest.mark.full
def test_trials_that_the_grid_no_longer_has_are_named_and_left_out_unless_asked_for(old, tmp_path, capsys):
    folder = tmp_path / "s"
    shutil.copytree(old, folder)
    before = times(folder)
    result = sweep(folder, {LR: [2e-3, 4e-3]})
    assert trained(folder, before) == ["peak_lr=0.004"]
    assert [row["name"] for row in result["trials"]] == ["peak_lr=0.002", "peak_lr=0.004"]
    assert result["answer"]["left_out"] == ["peak_lr=0.001"]
    assert answer(result) == answer(sweep(tmp_path / "fresh", {LR: [2e-3, 4e-3]}))
    line = "1 trial of an earlier grid is left out of the answer: peak_lr=0.001"
    for command in (["sweep", f"--workdir={folder}", "--status"], ["runs", str(folder), f"--by={LR}"]):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert line in out and out.count("0.001") == 1, out
    for command in (
        ["sweep", f"--workdir={folder}", "--status", "--all-grids"],
        ["runs", f"{folder}/runs", f"--by={LR}"],
    ):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "earlier grid" not in out and "0.001" in out, out
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert line in page and "peak_lr=0.004" in page and page.count("peak_lr=0.001") == 1
    capsys.readouterr()
    main(["fit", str(folder), "--best-of=optim.peak_lr", "--per=N"])
    printed = capsys.readouterr()
    assert line in printed.out + printed.err, printed
    manifest = json.loads((folder / "sweep.json").read_text())
    assert list(manifest["trials"]) == ["peak_lr=0.002", "peak_lr=0.004"]
    assert [list(grid["trials"]) for grid in manifest["earlier"].values()] == [["peak_lr=0.001", "peak_lr=0.002"]]
    back = sweep(folder, {LR: [1e-3, 2e-3, 4e-3]})  # asked for again, it is there
    assert {row["status"] for row in back["trials"]} == {"done"} and back["answer"]["left_out"] == []
    assert len(json.loads((folder / "sweep.json").read_text())["earlier"]) == 2


@pytest.mark.full
def test_folders_of_earlier_versions_with_an_index_in_front_are_found_and_go_on(tmp_path):
    folder = tmp_path / "s"
    sweep(folder, {LR: [1e-3, 2e-3], SEED: [0, 1]})
    for i, name in enumerate(json.loads((folder / "sweep.json").read_text())["trials"]):
        os.rename(folder / "runs" / name, folder / "runs" / f"{i:03d}-{name}")
    text = (folder / "sweep.json").read_text()
    content = json.loads(text)
    names = {name: f"{i:03d}-{name}" for i, name in enumerate(content["trials"])}
    del content["earlier"]  # as the version before wrote it
    text = json.dumps(content)
    for name, indexed in names.items():
        text = text.replace(f'"{name}"', f'"{indexed}"')
    (folder / "sweep.json").write_text(text)
    before = times(folder)
    result = sweep(folder, {LR: [5e-4, 1e-3, 2e-3], SEED: [0, 1]})
    assert trained(folder, before) == ["peak_lr=0.0005-seed=0", "peak_lr=0.0005-seed=1"]
    assert [row["name"] for row in result["trials"]][2:] == list(names.values())
    assert answer(result) == answer(sweep(tmp_path / "fresh", {LR: [5e-4, 1e-3, 2e-3], SEED: [0, 1]}))


def stopping(monkeypatch, at):
    """From now on a sweep stops by itself after so many looks for a signal."""
    calls = itertools.count()
    monkeypatch.setattr(terminal, "stop_on_signals", lambda: contextlib.nullcontext(lambda: next(calls) >= at))


@pytest.mark.full
def test_a_stopped_pack_goes_on_from_its_checkpoints_when_the_grid_grows_or_shrinks(tmp_path):
    folder = tmp_path / "s"
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, 1)
        rows = sweep(folder, {LR: [1e-3, 2e-3, 4e-3]}, code=75)["trials"]
    assert {row["status"] for row in rows} == {"stopped"} and 0 < rows[0]["step"] < 4, rows
    axes = {LR: [5e-4, 1e-3, 2e-3]}
    result = sweep(folder, axes)  # 4e-3 is gone, 5e-4 is new
    assert {row["status"] for row in result["trials"]} == {"done"} and result["answer"]["left_out"] == ["peak_lr=0.004"]
    kinds = {
        path.name: [e["kind"] for e in records.read_events(path) if e["kind"] in ("start", "resume", "done")]
        for path in sorted((folder / "runs").iterdir())
    }
    assert kinds["peak_lr=0.001"] == ["start", "resume", "done"] and kinds["peak_lr=0.0005"] == ["start", "done"]
    assert kinds["peak_lr=0.004"] == ["start"]
    assert logs(folder) == logs_of_fresh(tmp_path, axes)
    axes = {LR: [5e-4, 1e-3, 2e-3, 4e-3]}
    assert {row["status"] for row in sweep(folder, axes)["trials"]} == {"done"}
    resumed = [e for e in records.read_events(folder / "runs" / "peak_lr=0.004") if e["kind"] == "resume"]
    assert len(resumed) == 1 and resumed[0]["step"] > 0
    assert logs(folder) == logs_of_fresh(tmp_path, axes)


def logs_of_fresh(tmp_path, axes):
    folder = tmp_path / f"fresh{len(list(tmp_path.iterdir()))}"
    sweep(folder, axes)
    return logs(folder)


@pytest.mark.full
def test_equal_names_and_settings_that_decide_no_bit_are_told_apart(tmp_path):
    folder = tmp_path / "s"
    near = sweep(folder, {LR: [1.00001e-3, 1.00002e-3]})["trials"]
    assert near[0]["name"] == "peak_lr=0.001" and near[1]["name"].startswith("peak_lr=0.001-")
    before = times(folder)
    again = sweep(folder, {LR: [1.00003e-3, 1.00002e-3]})  # the first has another's name now
    assert again["trials"][1]["name"] == near[1]["name"] and again["answer"]["left_out"] == ["peak_lr=0.001"]
    assert trained(folder, before) == [again["trials"][0]["name"]]
    places = sweep(tmp_path / "t", {"log.every_steps": [1, 2]})["trials"]
    assert [row["name"] for row in places] == ["every_steps=1", "every_steps=2"]
    before = times(tmp_path / "t")
    places = sweep(tmp_path / "t", {"log.every_steps": [4, 2, 1]})["trials"]
    assert [row["name"] for row in places] == ["every_steps=4", "every_steps=2", "every_steps=1"]
    assert trained(tmp_path / "t", before) == ["every_steps=4"]


@pytest.mark.full
def test_a_run_elsewhere_that_a_link_names_is_no_trial_of_the_sweep(old, tmp_path):
    folder = shutil.copytree(old, tmp_path / "sweep")
    (folder / "runs" / "peak_lr=0.002").rename(tmp_path / "elsewhere")
    (folder / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    before = times(folder)
    sweep(folder, {LR: [1e-3, 2e-3]})
    assert trained(folder, before) == ["peak_lr=0.002"] and (folder / "runs" / "link").is_symlink()
