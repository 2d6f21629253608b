"""head.json and the index with each of their bits flipped: read as they are, or refused in one line."""

import hashlib
import json

import pytest

from scalelab.errors import BadInput, WorkFailed
from scalelab.record import owners
from scalelab.stores import formats

SHA = hashlib.sha256(b"x").hexdigest()
INDEX = json.dumps(
    {"format": 1, "files": {"metrics.jsonl": [["files/metrics.jsonl/0-ab", 1, SHA]], "a/b": []}}
).encode()
NAME = f"index/{hashlib.sha256(INDEX).hexdigest()[:32]}-0a1b2c3d"
HEAD = {
    "format": 1, "owner": str(owners.this_process()), "machine": "boot pid:[4026531836]", "index": NAME,
    "put": "0a1b.7",
}  # fmt: skip


def flips(data: bytes):
    """`data` with one bit flipped, each in turn."""
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_every_flip_of_a_head_is_one_line_or_a_head_within_its_place():
    data = json.dumps(HEAD, indent=1).encode()
    assert formats.parse_head(data, "here") == HEAD
    for flipped in flips(data):
        try:
            head = formats.parse_head(flipped, "here")
        except BadInput as refusal:
            assert str(refusal).startswith("here") and str(refusal).isprintable()
        else:
            assert head["index"].startswith("index/") and ".." not in head["index"]
            assert head["owner"] is None or owners.parse_owner(head["owner"])


def test_every_flip_of_an_index_is_damage_by_the_hash_in_its_name():
    assert formats.parse_index(INDEX, NAME, "here").keys() == {"metrics.jsonl", "a/b"}
    for flipped in flips(INDEX):
        with pytest.raises(WorkFailed, match="here is damaged: its content doesn't match the hash in its name"):
            formats.parse_index(flipped, NAME, "here")


def test_an_index_with_more_entries_than_any_has_is_not_read():
    data = b'{"format": 1, "files": {"a": [' + b"[]," * 2**20 + b"[]]}}"
    with pytest.raises(BadInput, match="here lists more than 1,048,576 files and parts"):
        formats.parse_index(data, "index/x", "here")
