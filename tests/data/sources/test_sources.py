"""Sources and tokenizers: which documents, in which order, and what is refused."""

import pathlib

import numpy as np
import pytest

from scalelab.data.sources.sources import DataConfig, open_source
from scalelab.data.tokenizers.tokenizer import byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput


@pytest.fixture
def files(tmp_path):
    for name, content in {"b.txt": b"two", "a.txt": b"one", "sub/c.txt": b"three", "empty.txt": b""}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def read_text(*paths):
    return open_source(DataConfig(source="text", path=",".join(str(p) for p in paths)))


def test_stdlib_is_library_text_without_tests_or_packages():
    source = open_source(DataConfig())
    documents = list(source.documents())
    assert 400 < len(documents) < 900
    assert 8e6 < sum(map(len, documents)) < 16e6
    corpus = set(documents)
    import asyncio.base_events
    import encodings.cp1252
    import json.decoder

    assert pathlib.Path(asyncio.base_events.__file__).read_bytes() in corpus
    assert pathlib.Path(json.decoder.__file__).read_bytes() in corpus
    assert pathlib.Path(encodings.cp1252.__file__).read_bytes() not in corpus
    assert pathlib.Path(pytest.__file__).read_bytes() not in corpus
    assert source.description["python"]
    assert source.fingerprint == open_source(DataConfig()).fingerprint


def test_text_files_are_documents_in_path_order(files):
    source = read_text(files / "**/*.txt")
    assert list(source.documents()) == [b"one", b"two", b"three"]
    again = read_text(files / "sub/c.txt", files / "b.txt", files / "*.txt", files / "a.txt")
    assert again.fingerprint == source.fingerprint and list(again.documents()) == list(source.documents())


def test_fingerprint_follows_content_and_boundaries(files):
    before = read_text(files / "*.txt").fingerprint
    (files / "a.txt").write_bytes(b"onetw")
    (files / "b.txt").write_bytes(b"o")  # the same bytes in all, another boundary
    assert read_text(files / "*.txt").fingerprint != before


@pytest.mark.parametrize(
    "path, message",
    [
        ("", "needs data.path"),
        ("a.tx", "did you mean 'a.txt'"),
        ("sub", "is a folder"),
        ("*.md", "matches no file"),
        ("nowhere/x.txt", "matches no file"),
        ("empty.txt", "empty"),
    ],
)
def test_text_refuses(files, monkeypatch, path, message):
    monkeypatch.chdir(files)
    with pytest.raises(BadInput, match=message):
        read_text(path) if path else read_text()


def test_unknown_source_names_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'stdlib'"):
        open_source(DataConfig(source="stdlb"))


def test_byte_tokens_are_the_bytes():
    tokens = byte_tokenizer().encode("né".encode())
    assert tokens.tolist() == [0x6E, 0xC3, 0xA9]
    assert byte_tokenizer().dtype == np.uint8


@pytest.mark.parametrize("vocab_size, bits", [(256, 8), (257, 16), (65_536, 16), (65_537, 32)])
def test_given_tokens_take_the_smallest_type(vocab_size, bits):
    assert id_tokenizer(vocab_size).dtype.itemsize * 8 == bits


@pytest.mark.parametrize("wrong", [-1, 10, 99])
def test_given_tokens_outside_the_vocabulary_are_refused(wrong):
    with pytest.raises(BadInput, match=f"token id {wrong} .* vocabulary of 10 "):
        id_tokenizer(10).encode(np.array([0, 9, wrong]))
