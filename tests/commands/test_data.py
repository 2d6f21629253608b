"""`scalelab data show` and `data stats`: held against the folder's own files and the batches that a run read."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.data.prepare.prepared import read_prepared
from tests.data import corpora

TEXTS = [*corpora.texts(80, seed=1), *corpora.texts(4, seed=1)]
SMALL = {"model.seq_len": 48, "train.global_batch": 6, "train.steps": 50, "data.documents": "mask"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sources and a validation set of which three documents stand in training."""
    place = tmp_path_factory.mktemp("data")
    web = corpora.write(place / "web.jsonl", corpora.json_lines(TEXTS))
    code = corpora.write(place / "code.jsonl", corpora.json_lines(corpora.texts(40, seed=2)))
    held = corpora.write(place / "held.jsonl", corpora.json_lines([*TEXTS[:3], *corpora.texts(9, seed=3)]))
    api.prepare([web, code], "bytes", place / "out", val_source=held, workers=1)
    return place / "out"


def command(*line):
    return main(["data", *map(str, line)])


def test_stats_are_those_of_the_stored_documents(folder, capsys):
    assert command("stats", folder, "--config.model.seq_len=48", "--json") == 0
    stats = json.loads(capsys.readouterr().out)
    rows = {(row["source"], row["split"]): row for row in stats["splits"]}
    assert set(rows) == {("code", "train"), ("web", "train"), ("held", "val")}
    lengths = np.array([len(text.encode()) + 1 for text in TEXTS])  # with the separator
    web = rows["web", "train"]
    assert (web["documents"], web["tokens"], web["copies"], web["leaks"]) == (84, lengths.sum(), 4, None)
    assert web["lengths"][0] == lengths.min() and web["lengths"][4] == lengths.max()
    assert web["longer"] == np.mean(lengths > 49) and web["windows"] == (lengths.sum() - 1) // 48
    assert web["bytes_per_token"] == pytest.approx((lengths.sum() - 84) / lengths.sum())
    assert rows["held", "val"]["leaks"] == 3 and not stats["lossy"]


def test_epochs_are_those_of_the_planned_mixture(folder, capsys):
    options = [f"--config.{key}={value}" for key, value in (SMALL | {"train.steps": 512}).items()]
    assert command("stats", folder, *options, "--config.data.mixture=web=0.75,code=0.25") == 0
    lines = capsys.readouterr().out.splitlines()
    total = 512 * 6 * 48  # three blocks of 1,024 rows, in each of which the shares hold
    counts = {
        name: int(next(line for line in lines if line.startswith(f"{name}: ")).split()[1].replace(",", ""))
        for name in ("web", "code")
    }
    assert sum(counts.values()) == total and abs(counts["web"] - 0.75 * total) <= 2 * 48
    assert not api.data_stats(folder).epochs


@pytest.mark.full
def test_a_runs_rows_are_those_of_its_plan(folder, tmp_path):
    config = {"data.source": "prepared", "data.path": str(folder), "model.d_model": 16, "model.n_heads": 2}
    small = SMALL | {"train.steps": 4, "model.n_layers": 1, "eval.batches": 1, "schedule.warmup_steps": 1}
    api.train("tiny", tmp_path / "run", config | small)
    shown = api.data_show(f"{tmp_path / 'run'}@3")
    planned = api.data_show(folder, config="tiny", overrides={**small, "model.d_model": 16, "model.n_heads": 2}, step=3)
    assert shown.rows == planned.rows and len(shown.rows) == 6


def test_borders_and_masked_targets_are_those_of_the_stored_documents(folder):
    """Borders from the folder's offsets; masked targets by the rule written out here."""
    shown = api.data_show(folder, overrides=SMALL, step=3)
    assert len(shown.rows) == 6
    _, parts = read_prepared(folder)
    for row in shown.rows:
        split = parts[row.source]["train"]
        names = [pathlib.Path(tokens.filename).name for tokens in split.shards]
        tokens, offsets = split.shards[names.index(row.shard)], split.offsets[names.index(row.shard)]
        window = np.asarray(tokens[row.token : row.token + 49])
        ends = np.flatnonzero(window == 0)
        assert row.masked == [int(i) for i in ends if i < 48]  # the target after a separator is another document's
        stretches = list(itertools.pairwise([0, *(int(i) + 1 for i in ends if i + 1 < 49), 49]))
        assert [(each.start, each.stop) for each in row.documents] == stretches
        for each in row.documents:
            assert offsets[each.document] == row.token + each.start - each.offset
            text = bytes(tokens[offsets[each.document] : offsets[each.document + 1] - 1]).decode()
            assert text in TEXTS + corpora.texts(40, seed=2)
            assert each.ends == bool(window[each.stop - 1] == 0)


def test_pages_are_written(folder, tmp_path, capsys):
    assert command("show", folder, "--config.model.seq_len=32", f"--out={tmp_path}/rows.html") == 0
    assert command("stats", folder, f"--out={tmp_path}/stats.html") == 0
    assert "documents" in capsys.readouterr().out
    rows, stats = ((tmp_path / name).read_text() for name in ("rows.html", "stats.html"))
    assert "masked targets" in rows and "web-train-00000.tokens@" in rows
    assert "held" in stats and "in training" in stats


@pytest.mark.parametrize(
    "line, message",
    [
        (["show", "OUT", "--step=60", "--config.train.steps=50"], "step 60: the run has steps 1 to 50; nearest: 50"),
        (["stats", "OUT", "--step=2"], "--step goes with `data show`"),
        (["stats", "nowhere"], "is not a folder that `scalelab prepare` made"),
        (["stats", "OUT", "--out=page.txt"], "the page is a file that ends in .html"),
        (["stats", "OUT", "--config.data.path=other"], "--config.data.path names other data than"),
        (["show", "OUT", "--config.model.seq_len=100000"], "a window of seq_len=100000 needs 100001"),
    ],
)
def test_mistakes_are_one_line(folder, line, message, capsys):
    assert command(*(str(folder) if word == "OUT" else word for word in line)) == 2
    assert message in capsys.readouterr().err


def test_ids_without_a_tokenizer_are_shown_as_numbers(tmp_path, capsys):
    path = corpora.write_nanogpt(tmp_path / "train.bin", corpora.ids(60, vocab_size=499), end=499)
    api.prepare(path, "ids:500", tmp_path / "out", separator="499", workers=1)
    assert command("show", tmp_path / "out", "--config.model.seq_len=16", "--config.train.global_batch=2") == 0
    assert "train/train-train-00000.tokens@" in capsys.readouterr().out
