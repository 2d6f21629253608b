"""layers.jsonl of a run: written, relied on by checkpoints, cut by a resume, and drawn."""

import csv
import json
import math
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import listing, records
from scalelab.train.checkpoints import logs
from tests.train.run.test_forked_step import texts_of
from tests.train.runs import SMALL

SHORT = [
    f"--config.{key}"
    for key in ("train.steps=6", "train.steps_per_dispatch=3", "checkpoint.every_steps=4", "eval.every_steps=6")
]
FAMILIES = {"token_loss", "worst", "embedding"}
COMMAND = [
    "train",
    "--config=configs/tiny.py",
    *SMALL,
    *SHORT,
    "--config.log.layers_every=2",
    "--config.log.every_steps=3",
    "--config.model.block=docs.own:quiet",  # its sum, `size`, is logged and drawn like the others
]
LISTS = {
    "grad_norm",
    "update_norm",
    "weight_norm",
    "residual_rms",
    "attention_logit_max",
    "dead_units",
    "attention_entropy",
    "eps_share",
    "update_ratio",
    "block_size",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers") / "run"
    assert main([*COMMAND, f"--workdir={folder}"]) == 0
    return folder


def last_step(run):
    return [line for line in records.read_metrics(run) if "train_loss" in line][-1]


@pytest.mark.full
def test_a_line_every_so_many_steps_has_a_value_a_layer(run):
    lines = records.read_layers(run)
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert {key for key, value in line.items() if isinstance(value, list)} == LISTS
        assert all(len(line[key]) == 2 and all(map(math.isfinite, line[key])) for key in LISTS)
        assert {key.partition("/")[0] for key in line if "/" in key} == {
            "embed",
            "head",
            "final_norm",
            "logits",
            *FAMILIES,
        }
    assert [line["step"] for line in records.read_metrics(run) if "train_loss" in line] == [3, 6]
    size = last_step(run)["block/size"]
    assert size > 0 and size == pytest.approx(sum(lines[-1]["block_size"]), rel=1e-5)
    assert not any(LISTS & line.keys() - {"grad_norm", "update_norm"} for line in records.read_metrics(run))


@pytest.mark.full
def test_a_resumed_run_cuts_the_file_and_writes_it_again(run, tmp_path):
    """Like a crash between the checkpoint of step 4 and the end: the log has lines of steps that will run again."""
    copy = shutil.copytree(run, tmp_path / "run")
    manifest = json.loads((copy / "checkpoints" / "4" / "manifest.json").read_text())
    remaining = b"".join((run / "layers.jsonl").read_bytes().splitlines(keepends=True)[:2])
    assert manifest["logs"]["../layers.jsonl"]["bytes"] == len(remaining)
    shutil.rmtree(copy / "checkpoints" / "6")
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps(record | {"status": "running", "steps": 4}))
    with open(copy / "layers.jsonl", "a") as file:
        file.write('{"step": 8, "grad_no')  # torn
    assert main([*COMMAND, f"--workdir={copy}"]) == 0
    assert (copy / "layers.jsonl").read_bytes() == (run / "layers.jsonl").read_bytes()


@pytest.mark.full
def test_a_line_that_was_lost_is_noticed(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "layers.jsonl").write_text("")
    manifest = json.loads((copy / "checkpoints" / "6" / "manifest.json").read_text())
    ((path, text),) = logs.find_lost_logs(copy / "checkpoints", manifest)
    assert path == copy / "layers.jsonl" and "layers.jsonl was cut to 0 bytes" in text


@pytest.mark.full
def test_the_report_draws_maps_of_layer_and_step(run, capsys):
    assert main(["report", str(run)]) == 0
    words = texts_of(run / "report.html", "layers")
    titles = ("gradient norm", "update norm", "weight norm", "largest attention logit", "share of dead MLP units")
    assert [words.count(title) for title in titles] == [1] * 5 and words.count("embed") == 5
    rows = list(csv.DictReader((run / "figures" / "layers.csv").read_text().splitlines()))
    lines = records.read_layers(run)
    by_layer = [float(row["grad_norm"]) for row in rows if row["layer"] in "01"]
    assert by_layer == [value for line in lines for value in line["grad_norm"]]
    assert [float(row["weight_norm"]) for row in rows if row["layer"] == "head"] == [
        line["head/weight_norm"] for line in lines
    ]
    for line in lines:
        assert line["update_ratio"] == [u / w for u, w in zip(line["update_norm"], line["weight_norm"], strict=True)]
        assert line["head/update_ratio"] == line["head/update_norm"] / line["head/weight_norm"]
    row, last = listing.read_run(run), lines[-1]
    assert (
        row["attention_entropy"] == min(last["attention_entropy"]) and row["token_loss/p99"] == last["token_loss/p99"]
    )
    clipped = [line["clip_ratio"] < 1 for line in records.read_metrics(run) if "train_loss" in line]
    assert row["clip_share"] == sum(clipped) / len(clipped)
    assert {"p99", "loss_1", "rare", "max"} <= set(texts_of(run / "report.html", "batch"))
    assert "worst/row_1" in (run / "figures" / "batch.csv").read_text().splitlines()[0]
    assert "rms" in texts_of(run / "report.html", "batch") and not capsys.readouterr().err
    page = (run / "report.html").read_text()
    assert ">block<" in page and ">block_size<" in page  # a panel of curves, a map of layers


@pytest.mark.full
def test_a_sum_of_blocks_is_a_column_of_runs(run, capsys):
    assert main(["runs", str(run.parent), "--show=name,block/size", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["block/size"] == last_step(run)["block/size"]
