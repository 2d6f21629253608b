"""A .json file of one array, as `json.dump` writes a list of records, gives each of them; any chunks, any layout."""

import gzip
import json

import pytest

from scalelab.__main__ import main
from scalelab.data.prepare import specs
from scalelab.data.read import files
from scalelab.data.read.reading import Reading
from scalelab.data.read.tables import json_array
from scalelab.data.sources.paths import file_kind
from scalelab.errors import BadInput

RECORDS = [{"text": f'record {i} \u00e9\u4e2d [1, 2] }}{{ \\ "quoted" ' + "x" * (i % 7), "n": i} for i in range(50)]
TEXTS = [record["text"].encode() for record in RECORDS]


def documents(path, **reading):
    (piece,) = [piece for piece, _ in json_array.split_json_array(str(path), 1, Reading())]
    return list(specs.DOCUMENT_READERS[file_kind(str(path))][1](piece, Reading(**reading)))


@pytest.mark.parametrize("chunk", [1, 7, 100, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
def test_records_come_whole_from_chunks_of_any_size(tmp_path, monkeypatch, chunk, indent):
    monkeypatch.setattr(json_array, "LOOKED_AT", 2**16)
    monkeypatch.setattr(files, "READ_CHUNK_BYTES", chunk)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS, indent=indent, ensure_ascii=False))
    piece = specs.Piece("json array", str(path))
    assert list(json_array.array_documents(piece, Reading())) == TEXTS


def test_the_first_lines_tell_an_array_from_json_lines_of_arrays(tmp_path):
    for text, kind in (
        ('[{"text": "a"}]', "json array"),
        ('[\n {"text": "a"}\n]\n', "json array"),
        ('\ufeff[{"text": "a"},\n{"text": "b"}]\n', "json array"),
        ('{"text": "a"}\n{"text": "b"}\n', "jsonl"),
        ('[["a", 1]]\n[["b", 2]]\n', "jsonl"),
    ):
        (tmp_path / "a.json").write_text(text)
        assert file_kind(str(tmp_path / "a.json")) == kind, text
    (tmp_path / "b.jsonl").write_text('[{"text": "a"}]')
    assert file_kind(str(tmp_path / "b.jsonl")) == "jsonl"


def test_a_packed_array_is_read(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(RECORDS).encode()))
    assert documents(tmp_path / "a.json.gz") == TEXTS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"text": "a"}, {"text": ', "record 2: bad JSON"),
        ('[{"text": "a"} {"text": oops}' + " " * 100 + "]", "record 2: bad JSON"),
        ('[{"body": "a"}]', "no key 'text'"),
        ('[\n{"text": "a"}\n]\n[\n{"text": "b"}\n]', "stands behind its array of 1 records"),
        ("[" * 3000, "nested too deep|bad JSON"),
    ],
)
def test_faults_are_one_line_with_their_record(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=said):
        documents(tmp_path / "a.json")


def test_prepare_takes_one_and_holds_a_part_out(tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps([{"output": f"{i} " * 30} for i in range(200)]))
    words = [f"--source={tmp_path}/a.json#output", "--tokenizer=bytes", f"--out={tmp_path}/out"]
    assert main(["prepare", *words]) == 0
    said = capsys.readouterr()
    assert "validation holds" in said.out + said.err and "200" in said.out + said.err


def test_an_early_fault_does_not_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "read_chunks", lambda path: iter([b'[{"text" "a"}' + b" " * 100, b"never"]))
    with pytest.raises(BadInput, match="record 1: bad JSON"):
        list(json_array.array_documents(specs.Piece("json array", "a.json"), Reading()))
