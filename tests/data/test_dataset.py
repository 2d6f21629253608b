"""Config -> dataset: what is stored is what was read, and the split is by document."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.data import shards
from scalelab.data.dataset import held_out_documents, open_dataset
from scalelab.data.sources.language import entropy_rate, make_language
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput


def documents_of(split):
    """Cut a split at its offsets; every document must end with the separator, which is dropped."""
    documents = []
    for tokens, offsets in zip(split.shards, split.offsets, strict=True):
        assert offsets[0] == 0 and offsets[-1] == len(tokens)
        for start, end in itertools.pairwise(offsets.tolist()):
            assert tokens[end - 1] == 0
            documents.append(bytes(tokens[start : end - 1]))
    return documents


def read_files(config):
    return [p.read_bytes() for p in sorted(pathlib.Path(config.path).parent.iterdir())]


@pytest.mark.parametrize("shard_tokens", [2**26, 4000])
def test_stored_documents_are_the_files_in_order(corpus, monkeypatch, shard_tokens):
    monkeypatch.setattr(shards, "SHARD_TOKENS", shard_tokens)
    dataset = open_dataset(corpus)
    train, val = documents_of(dataset.parts[0].train), documents_of(dataset.parts[0].val)
    assert (len(dataset.parts[0].train.shards) > 1) == (shard_tokens == 4000)
    files = read_files(corpus)
    assert train == [f for f in files if f in set(train)] and val == [f for f in files if f in set(val)]
    assert sorted(train + val) == sorted(files)
    assert not set(train) & set(val)
    assert dataset.description["train_documents"] == len(train) and dataset.parts[0].val.n_documents == len(val)
    assert dataset.parts[0].val.n_tokens == sum(len(v) + 1 for v in val)
    assert dataset.bytes_per_token == sum(map(len, val)) / dataset.parts[0].val.n_tokens


def test_no_stretch_of_validation_text_stands_in_training(corpus):
    dataset = open_dataset(corpus)
    train, val = (
        b"".join(s.tobytes() for s in split.shards) for split in (dataset.parts[0].train, dataset.parts[0].val)
    )
    assert len(val) > 1000
    assert all(val[i : i + 12] not in train for i in range(len(val) - 12))


def test_split_seed_changes_the_split_and_nothing_else(corpus):
    splits = [open_dataset(dataclasses.replace(corpus, split_seed=seed)) for seed in (0, 1, 2)]
    held_out = {tuple(sorted(documents_of(d.parts[0].val))) for d in splits}
    assert len(held_out) == 3 and len({d.fingerprint for d in splits}) == 3
    assert len({d.description["source_fingerprint"] for d in splits}) == 1
    for d in splits:
        share = d.parts[0].val.n_tokens / (d.parts[0].val.n_tokens + d.parts[0].train.n_tokens)
        assert 0.09 < share < 0.13


def test_renaming_files_keeps_the_split(corpus):
    before = set(documents_of(open_dataset(corpus).parts[0].val))
    for i, path in enumerate(sorted(pathlib.Path(corpus.path).parent.iterdir())):
        path.rename(path.with_name(f"z{99 - i}.txt"))
    assert set(documents_of(open_dataset(corpus).parts[0].val)) == before


def test_a_copy_of_a_document_falls_on_the_same_side(corpus):
    for path in list(pathlib.Path(corpus.path).parent.iterdir()):
        for copy in "12":
            path.with_name(f"copy{copy}-{path.name}").write_bytes(path.read_bytes())
    dataset = open_dataset(corpus)
    train, val = documents_of(dataset.parts[0].train), documents_of(dataset.parts[0].val)
    assert not set(train) & set(val) and len(train) + len(val) == 120
    assert (
        0.09 < dataset.parts[0].val.n_tokens / (dataset.parts[0].val.n_tokens + dataset.parts[0].train.n_tokens) < 0.13
    )
    assert dataset.bytes_per_token == sum(map(len, val)) / dataset.parts[0].val.n_tokens


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 10_000), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 10),
)
def test_held_out_share_is_sensible(lengths, fraction, seed):
    sizes = {i.to_bytes(4, "big"): n for i, n in enumerate(lengths)}
    held_out = held_out_documents(sizes, fraction, seed)
    assert held_out == held_out_documents(dict(reversed(sizes.items())), fraction, seed)  # listing order is no matter
    assert 0 < len(held_out) < len(sizes)
    held, wanted = sum(sizes[d] for d in held_out), fraction * sum(lengths)
    if len(held_out) > 1:
        assert held <= 1.25 * wanted
    if max(lengths) <= 0.25 * wanted and max(lengths) < sum(lengths) - wanted:
        assert wanted <= held


def test_synthetic_knows_its_floor(tmp_path):
    config = DataConfig(source="synthetic", vocab_size=300, n_tokens=50_000, language_seed=7, cache_dir=str(tmp_path))
    dataset = open_dataset(config)
    assert dataset.entropy_rate == entropy_rate(make_language(300, 7)) == dataset.description["entropy_rate"]
    assert dataset.parts[0].train.n_tokens + dataset.parts[0].val.n_tokens == 50_000
    assert dataset.parts[0].train.shards[0].dtype == np.dtype("<u2") and dataset.bytes_per_token == 1.0
    assert dataset.parts[0].train.shards[0].max() < 300
    assert open_dataset(dataclasses.replace(config, language_seed=8)).fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    "change, message",
    [
        ({"val_fraction": 0.0}, "val_fraction=0.0"),
        ({"val_fraction": 1.0}, "val_fraction=1.0"),
        ({"vocab_size": 128}, "vocab_size=128 is too small.* 256 ids"),
    ],
)
def test_refused_configs(corpus, change, message):
    with pytest.raises(BadInput, match=message):
        open_dataset(dataclasses.replace(corpus, **change))


def test_a_document_of_one_letter_cannot_be_split(corpus, tmp_path):
    (tmp_path / "one.txt").write_text("x")
    with pytest.raises(BadInput, match=r"none of the 1 documents falls to the val split .*: use more text"):
        open_dataset(dataclasses.replace(corpus, path=str(tmp_path / "one.txt")))


def test_cache_from_the_environment(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "elsewhere"))
    open_dataset(dataclasses.replace(corpus, cache_dir=""))
    assert len(list((tmp_path / "elsewhere").glob("text-*/index.json"))) == 1


def test_a_cache_that_cannot_be_written_is_named(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"data.cache_dir: can't write .*file"):
        open_dataset(dataclasses.replace(corpus, cache_dir=str(tmp_path / "file")))
