"""Validation sets of the user's own: exactly their documents; files whose names say val are asked about."""

import itertools

import numpy as np
import pytest

from scalelab.data.dataset import open_dataset
from scalelab.data.prepare import corpus, validation
from scalelab.data.prepare.request import Request
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput
from tests.data import corpora


def prepare(out, *sources, tokenizer="bytes", **options):
    options = {"val_fraction": 0.0 if options.get("val_sources") else 0.1} | options
    return corpus.prepare_corpus(Request(sources, tokenizer, out, **options))


def documents(split, end=0):
    """The documents of a split, cut at its offsets."""
    pairs = zip(split.shards, split.offsets, strict=True)
    return [tokens[a : b - 1].tolist() for tokens, offsets in pairs for a, b in itertools.pairwise(offsets.tolist())]


def test_nanogpts_two_files_are_training_and_validation(tmp_path):
    """As its data/shakespeare: two streams of uint16 without a separator."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 12_000).astype(np.uint16)
    tokens[:11_000].tofile(tmp_path / "train.bin")
    tokens[11_000:].tofile(tmp_path / "val.bin")
    with pytest.raises(BadInput) as asked:
        prepare(tmp_path / "out", f"{tmp_path}/*.bin", tokenizer="ids:50257")
    lines = f"--val-source={tmp_path}/val.bin --source={tmp_path}/train.bin"
    assert lines in str(asked.value) and "--train-on-all" in str(asked.value)
    prepare(tmp_path / "out", f"{tmp_path}/train.bin", tokenizer="ids:50257", val_sources=[f"{tmp_path}/val.bin"])
    data = open_dataset(DataConfig("prepared", str(tmp_path / "out"), vocab_size=50257))
    train, val = data.parts
    assert (train.name, val.name) == ("train", "val") and data.val_parts == (val,)
    assert documents(train.train) == [tokens[:11_000].tolist()] and not train.val.shards
    assert documents(val.val) == [tokens[11_000:].tolist()] and not val.train.shards
    everything = prepare(tmp_path / "all", f"{tmp_path}/*.bin", tokenizer="ids:50257", train_on_all=True)
    assert everything["parts"][0]["train_tokens"] + everything["parts"][0]["val_tokens"] >= 12_000


def test_a_set_of_a_sources_name_is_its_validation_split(tmp_path):
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(corpora.texts(30)))
    held = corpora.write(tmp_path / "held.jsonl", corpora.json_lines(corpora.texts(5, seed=9)))
    result = prepare(tmp_path / "out", web, val_sources=[f"web={held}", f"own={held}"])
    assert [part["name"] for part in result["parts"]] == ["own", "web"]
    own, web_part = open_dataset(DataConfig("prepared", str(tmp_path / "out"))).parts
    expected = [list(text.encode()) for text in corpora.texts(5, seed=9)]
    assert documents(web_part.val) == documents(own.val) == expected
    assert documents(web_part.train) == [list(text.encode()) for text in corpora.texts(30)]
    again = prepare(tmp_path / "out", web, val_sources=[f"own={held}", f"web={held}"])
    assert again["finished_before"]
    with pytest.raises(BadInput, match=r"begun with val_sources=\['own', 'web'\], now it is \['own'\]"):
        prepare(tmp_path / "out", web, val_sources=[f"own={held}"])


def test_options_that_contradict_each_other_are_refused(tmp_path):
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(corpora.texts(30)))
    cases = [
        ({"val_sources": [web]}, r"web.jsonl is in --source=.* and in --val-source="),
        ({"val_sources": ["x"], "val_fraction": 0.1}, r"--val-fraction=0.1 holds documents out beside --val-source=x"),
        ({"val_fraction": 0.0}, r"not between 0 and 1; 0.1 is usual; 0 needs --val-source=SPEC"),
        ({"val_sources": [f"{tmp_path}/non*"]}, r"matches no file"),
        ({"dedup": "some"}, r"--dedup=some: exact or near"),
    ]
    for options, message in cases:
        with pytest.raises(BadInput, match=message):
            prepare(tmp_path / "out", web, **options)
    assert not (tmp_path / "out").exists()


# Names of published corpora: wikitext, C4, FineWeb and OpenWebText's exports, GPT-2's, Penn Treebank.
@pytest.mark.parametrize(
    "name, says",
    [
        ("wiki.test.tokens", True), ("c4-validation.00000-of-00008.json.gz", True), ("valid.jsonl", True),
        ("webtext.valid.jsonl", True), ("ptb.dev.txt", True), ("shakespeare_val.bin", True), ("val/000.txt", True),
        ("wiki.train.tokens", False), ("c4-train.00000-of-01024.json.gz", False), ("latest.txt", False),
        ("test_walls.py", False), ("evaluation.md", False), ("valley.txt", False), ("device.txt", False),
    ],
)  # fmt: skip
def test_names_that_say_held_out(name, says):
    assert validation.says_held_out(f"/data/{name}", "/data") == says


def test_a_file_that_is_named_alone_is_not_asked_about(tmp_path):
    path = corpora.write(tmp_path / "test" / "test.jsonl", corpora.json_lines(corpora.texts(60)))
    assert prepare(tmp_path / "out", path)["parts"][0]["train_documents"] > 40
    assert prepare(tmp_path / "b", f"{tmp_path}/test/[a-t]est.jsonl", train_on_all=True)["parts"][0]["val_documents"]
