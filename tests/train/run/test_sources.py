"""A run on two sources: losses, tokens and epochs of each, the same after a stop, on branches, and in every table."""

import json

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.train import single
from scalelab.train.checkpoints import manifest
from scalelab.train.run.run import bits_per_byte
from tests.data import corpora
from tests.data.example_sources import dataset
from tests.train.resume.test_branch import branched
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import record_rows, stopped_at, untimed

# 8 sequences of 16 tokens a step.
RUN = {
    "train__global_batch": 8, "train__steps": 12, "eval__every_steps": 4, "eval__batches": 3,
    "checkpoint__every_steps": 4,
    "checkpoint__keep_every": 4, "schedule__name": "wsd", "schedule__decay_steps": 4, "schedule__final_share": 0.5,
    "data__mixture": "web=0.75,code=0.25; 8: code=1",
    "data__unique_tokens": "web=800,code=320", "model__vocab_size": 256, "optim__peak_lr": 0.05,
}  # fmt: skip


@pytest.fixture(autouse=True)
def two_sources(monkeypatch):
    """Replaces a folder of two sources: `web` holds 5,000 tokens of the letters 1 to 40, `code` 2,000 of 41 to 80."""
    monkeypatch.setattr(single, "open_dataset", lambda _: dataset(web=5000, code=2000))


def run_of(folder, **changed):
    return single.train_single(config(**(RUN | changed)), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run and its result."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "open_dataset", lambda _: dataset(web=5000, code=2000))
        return folder, run_of(folder)


def evaluations(folder):
    return [line for line in records.read_metrics(folder) if "val_loss" in line]


@pytest.mark.full
def test_each_evaluation_says_every_source(whole):
    lines = evaluations(whole[0])
    assert [line["step"] for line in lines] == [4, 8, 12]
    parts = dataset(web=5000, code=2000).parts
    for line in lines:
        losses = {part.name: line[f"val_loss/{part.name}"] for part in parts}
        for part in parts:
            assert line[f"bpb/{part.name}"] == bits_per_byte(losses[part.name], part.bytes_per_token)
        # By the 500 and 200 tokens held out, whatever the mixture.
        assert line["val_loss"] == pytest.approx((500 * losses["web"] + 200 * losses["code"]) / 700, rel=1e-12)
        assert line["tokens/web"] + line["tokens/code"] == line["tokens"]
        assert (line["epochs/web"], line["epochs/code"]) == (line["tokens/web"] / 800, line["tokens/code"] / 320)
    assert lines[1]["tokens/web"] == lines[2]["tokens/web"] and lines[2]["tokens/code"] > lines[1]["tokens/code"]
    assert lines[1]["tokens/web"] == pytest.approx(0.75 * 8 * 128, abs=10 * 16)
    # The letters of code are learned where there is nothing else.
    assert lines[2]["val_loss/code"] < lines[1]["val_loss/code"] and lines[2]["val_loss/web"] > lines[1]["val_loss/web"]


@pytest.mark.full
def test_a_sources_loss_is_that_of_a_run_on_it_alone(tmp_path, monkeypatch, whole):
    """Scored by the one-source path: the same weights, on a dataset that holds `code` only."""
    both = dataset(web=5000, code=2000)
    alone = type(both)(
        (both.parts[1],),
        *[getattr(both, f) for f in ("vocab_size", "separator", "fingerprint")],
        1.5,
        None,
        both.description,
    )
    monkeypatch.setattr(single, "open_dataset", lambda _: alone)
    changed = {"data__mixture": "", "data__unique_tokens": "", "train__init_from": f"{whole[0]}@12"}
    run_of(tmp_path / "run", **changed)
    first = evaluations(tmp_path / "run")[0]
    assert first["step"] == 0 and first["val_loss"] == evaluations(whole[0])[2]["val_loss/code"]
    assert not any("/" in key for key in first)  # a lone source has no columns of its own


@pytest.mark.full
def test_the_record_says_the_plan_and_the_tables_what_came(whole):
    folder, result = whole
    record, last = records.read_json(folder / "record.json"), evaluations(folder)[-1]
    assert record["mixture"] == [
        {"step": 0, "shares": {"web": 0.75, "code": 0.25}},
        {"step": 8, "shares": {"code": 1.0}},
    ]
    for name, unique, val in (("web", 800, 500), ("code", 320, 200)):
        planned = record["sources"][name]
        assert (planned["unique_tokens"], planned["val_tokens"]) == (unique, val)
        assert (planned["tokens"], planned["epochs"]) == (last[f"tokens/{name}"], last[f"epochs/{name}"])
    columns = {key: value for key, value in last.items() if "/" in key}
    assert record["by_source"] == result["by_source"] == columns
    row = listing.read_run(folder)
    assert {key: row[key] for key in columns} == columns
    (output,) = [e["text"] for e in records.read_events(folder) if e["text"].startswith("sources (")]
    assert "web" in output and "epochs of 800" in output


@pytest.mark.full
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, whole):
    stops = iter([False, False, True])
    folder = tmp_path / "run"
    cut = single.train_single(config(**RUN), folder, stop=lambda: next(stops, True))
    assert records.read_json(folder / "record.json")["status"] == "stopped"
    facts = []
    again = single.train_single(config(**RUN), folder, facts.append)
    assert {"note": f"run: resumed at step {cut['final_step']}"} in facts
    assert again["params_digest"] == whole[1]["params_digest"] and again["by_source"] == whole[1]["by_source"]
    assert untimed(folder) == untimed(whole[0])
    assert run_of(folder)["by_source"] == whole[1]["by_source"]  # nothing left to do: the answer is the record's


@pytest.mark.full
def test_a_branch_may_anneal_on_another_mixture_and_is_the_run_planned_so(tmp_path, whole):
    mix = {"data.mixture": "web=3/4,code=1/4; 8: web=0.5,code=0.5", "schedule.decay_steps": 4}
    made, result = branched(whole[0], 8, tmp_path / "branch", **{k.replace(".", "__"): v for k, v in mix.items()})
    planned = single.train_single(
        config(**(RUN | {key.replace(".", "__"): v for key, v in mix.items()})),
        tmp_path / "planned",
    )
    assert config_lib.leaves(made)["data.mixture"] == mix["data.mixture"]
    assert result["params_digest"] == planned["params_digest"] != whole[1]["params_digest"]
    with pytest.raises(BadInput, match=r"data\.mixture is .* there"):
        branched(whole[0], 8, tmp_path / "other", data__mixture="web=1", schedule__decay_steps=4)


def test_what_does_not_fit_leaves_nothing_behind(tmp_path):
    with pytest.raises(BadInput, match="code holds 124 windows"):
        run_of(tmp_path / "run", data__unique_tokens="code=1e6")
    assert not list((tmp_path / "run").glob("*.json*"))


@pytest.mark.full
def test_a_lone_source_under_a_cap_says_its_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(single, "open_dataset", lambda _: dataset(web=5000))
    result = run_of(tmp_path / "run", data__mixture="", data__unique_tokens="512")
    assert result["by_source"] == {"tokens/web": 12 * 128, "epochs/web": 3.0}
    assert np.isfinite(result["val_loss"])


def test_two_prepared_sources_by_command(tmp_path, monkeypatch, capsys):
    """What a user does: prepare two files with a BPE trained here, then train on a mixture of them, documents apart."""
    monkeypatch.undo()
    sources = [
        f"--source=web={corpora.write_parquet(tmp_path / 'a.parquet', corpora.texts(400))}",
        f"--source=code={corpora.write(tmp_path / 'b.jsonl', corpora.json_lines(corpora.texts(200, seed=1)))}",
    ]
    assert main(["prepare", *sources, "--tokenizer=bpe:300", f"--out={tmp_path}/data", "--workers=1"]) == 0
    capsys.readouterr()
    keys = SMALL | {
        "data.source": "prepared", "data.path": f"{tmp_path}/data", "data.documents": "mask", "model.vocab_size": 300,
        "data.mixture": "web=0.5,code=0.5", "train.steps": 4,
    }  # fmt: skip
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    assert main(["train", "--config=configs/tiny.py", *overrides, f"--workdir={tmp_path}/run", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)["by_source"]
    assert result["tokens/web"] + result["tokens/code"] == 4 * 2 * 16
    assert f"  code: {result['val_loss/code']:.4f} nats/token, {result['bpb/code']:.4f} bits/byte; " in err
    assert "sources (web=0.5,code=0.5): code " in err
    overrides.append("--config.data.mixture=wbe=1")
    assert main(["train", "--config=configs/tiny.py", *overrides, f"--workdir={tmp_path}/other"]) == 2
    assert "no source is called 'wbe'; did you mean 'web'?" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.full
def test_after_another_batch_and_mixture_each_source_goes_on_with_its_next_window(tmp_path):
    """Steps 9 to 12 of 4 sequences, half of each source: by the rows that were really read."""
    folder, halves = tmp_path / "run", {"data__mixture": "web=1/2,code=1/2", "train__global_batch": 4}
    rows = [row for step in taken_rows(folder)[:8] for row in step]
    stopped_at(folder, 8)
    later = taken_rows(folder, allow=("data.mixture", "train.global_batch"), **halves)
    assert [len(step) for step in later] == [4] * 4
    rows = np.array(rows + [row for step in later for row in step])
    last, code = evaluations(folder)[-1], (rows > 40).any(axis=1)
    assert (last["step"], last["tokens"]) == (12, 8 * 8 * 16 + 4 * 4 * 16) and 0 < code[64:].sum() < 16
    for name, read, unique in (("web", rows[~code], 50), ("code", rows[code], 20)):
        assert last[f"tokens/{name}"] == 16 * len(read) and last[f"epochs/{name}"] == len(read) / unique
        for start in range(0, len(read), unique):  # an epoch reads no window twice
            epoch = {tuple(row) for row in read[start : start + unique].tolist()}
            assert len(epoch) == len(read[start : start + unique])
    ledger = manifest.read_manifest(folder / "checkpoints" / "12")["facts"]["run"]["ledger"]
    assert ledger["by_source"] == {"web": (~code).sum(), "code": code.sum()} and ledger["position"] == len(rows)


def taken_rows(folder, allow=(), **changed):
    """Train, and return the rows of each step that was taken."""
    with record_rows() as steps:
        single.train_single(config(**(RUN | changed)), folder, allow=allow)
    return steps
