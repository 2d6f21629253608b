"""Folders and files from elsewhere: an index that was edited, files that hold no text, and tables, which are read by
column."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import pickle
import random
import re
import shutil
import sys
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import feather

from scalelab.__main__ import main
from scalelab.data.prepare import prepared, specs
from scalelab.data.read import tfdsets
from scalelab.data.read.reading import Reading
from scalelab.data.sources import sources
from scalelab.data.sources.sources import DataConfig
from scalelab.data.tokenizers.load import load_indexed_tokenizer
from scalelab.errors import BadInput
from scalelab.record import records
from tests.data import corpora
from tests.data.prepare.test_corpus import DOCUMENTS, digests, opened, prepare


@pytest.fixture
def folder(tmp_path):
    path = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(DOCUMENTS[:60]))
    prepare(tmp_path / "out", path, tokenizer="bpe:300")
    return tmp_path / "out"


def edit(folder, change):
    """Change the index, and seal it as whoever edits it would."""
    index = json.loads((folder / "index.json").read_text())
    change(index)
    index["sha256"] = prepared.index_sha256(index)
    records.write_json(folder / "index.json", index)


def tokens(index):
    return index["parts"]["web"]["splits"]["train"][0]["tokens"]


EDITS = {
    "dtype='|O'": lambda index: index.update(dtype="|O"),
    "dtype='|V16'": lambda index: index.update(dtype="|V16"),
    "dtype='|u1' is not the type for 300 ids": lambda index: index.update(dtype="|u1"),
    "names a file '/etc/passwd'": lambda index: tokens(index).update(file="/etc/passwd"),
    "names a file '../web-train-00000.tokens'": lambda index: tokens(index).update(file="../web-train-00000.tokens"),
    "names a file 'index.json'": lambda index: tokens(index).update(file="index.json"),
    "names a file ['x']": lambda index: tokens(index).update(file=["x"]),
    "bytes=3, not a multiple of 2": lambda index: tokens(index).update(bytes=3),
    "bytes=-2": lambda index: tokens(index).update(bytes=-2),
    "names a file None": lambda index: index["parts"]["web"]["splits"]["train"].append({}),
    "part 'web' is not as": lambda index: index["parts"].update(web=3),
    "part '' is not as": lambda index: index.update(parts=[1]),
    "a tokenizer of kind 'pickle'": lambda index: index["tokenizer"].update(kind="pickle"),
    "the file '../../x'": lambda index: index["tokenizer"].update(file="../../x"),
    "a tokenizer of True ids": lambda index: index["tokenizer"].update(vocab_size=True),
    "with separator 300": lambda index: index["tokenizer"].update(separator=300),
}


def test_an_index_names_only_types_and_files_that_prepare_writes(folder):
    whole = (folder / "index.json").read_bytes()
    for message, change in EDITS.items():
        edit(folder, change)
        with pytest.raises(BadInput, match=re.escape(message)) as refusal:
            opened(folder, 300)
        assert "\n" not in str(refusal.value)
        (folder / "index.json").write_bytes(whole)
    assert opened(folder, 300).vocab_size == 300


def test_a_folder_without_its_seal_is_verified_and_sealed_by_the_command_that_made_it(folder, tmp_path):
    whole, path = digests(folder), str(tmp_path / "web.jsonl")
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"]
    records.write_json(folder / "index.json", index)
    with pytest.raises(BadInput, match=r"has no seal .*run the same `scalelab prepare` again"):
        opened(folder, 300)
    assert prepare(folder, path, tokenizer="bpe:300")["mended"] == ["the seal of index.json"]
    assert digests(folder) == whole and opened(folder, 300).vocab_size == 300


@pytest.mark.parametrize("trained", [True, False])
def test_prepare_again_puts_the_tokenizer_back(folder, tmp_path, capsys, trained):
    source, named = f"--source={tmp_path}/web.jsonl", tmp_path / "tokenizer.json"
    named.write_bytes((folder / "tokenizer.json").read_bytes())
    out = folder if trained else tmp_path / "other"
    command = ["prepare", source, f"--tokenizer={'bpe:300' if trained else named}", f"--out={out}", "--workers=1"]
    assert main(command) == 0
    whole = digests(out)
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])):
        damage(out / "tokenizer.json")
        with pytest.raises(BadInput):
            load_indexed_tokenizer(prepared.read_prepared_index(out)["tokenizer"], out)
        capsys.readouterr()
        assert main(command) == 0 and digests(out) == whole
        assert "restored: tokenizer.json; all else unchanged" in capsys.readouterr().out
    assert main(command) == 0 and "every file unchanged" in capsys.readouterr().out


def read(path, **reading):
    """The documents of a file."""
    given = Reading(zero_ends=False, **reading)
    (part,) = specs.parse_sources([f"x={path}"])
    return [
        document.decode()
        for unit in specs.split_into_units(part, 1, given)
        for document in specs.unit_documents(unit, given)
    ], given


def table(rows, **how):
    text = io.StringIO()
    csv.writer(text, **how).writerows(rows)
    return text.getvalue().encode()


@pytest.mark.parametrize("how", [{}, {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}])
def test_a_csv_is_its_column_as_another_reader_has_it(tmp_path, how):
    chance = random.Random(0)
    rows = [["id", "text", "label"]]
    rows += [[str(i), "".join(chance.choices('ab,"\n\r é\t', k=chance.randint(1, 40))), "x"] for i in range(300)]
    content = table(rows, **how)
    theirs = arrow_csv.read_csv(
        pyarrow.BufferReader(content),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types={"text": pyarrow.string()}),
    )["text"].to_pylist()
    assert theirs == [row[1] for row in rows[1:]]
    for name, file in {
        "a.csv": content,
        "a.CSV": b"\xef\xbb\xbf" + content,
        "a.csv.gz": content,
    }.items():
        assert read(corpora.write(tmp_path / name, file))[0] == theirs
    assert read(corpora.write(tmp_path / "a.tar", corpora.tar([("x/a.csv", content)])))[0] == theirs
    assert read(corpora.write(tmp_path / "a.tsv", table(rows, delimiter="\t", **how)))[0] == theirs


def test_what_is_wrong_with_a_csv_is_told_with_its_line(tmp_path):
    def refused(content, message, **reading):
        path = corpora.write(tmp_path / "a.csv", content)
        with pytest.raises(BadInput, match=message) as refusal:
            read(path, **reading)
        assert "\n" not in str(refusal.value)

    refused(b"id,body\n1,x\n", r"has no column 'text' \(--text-key\); known: body, id")
    refused(b"text,text\n1,x\n", "2 columns 'text'")
    refused(b'id,text\n1,"a\nb"\n2,x,y\n', "line 4: 3 cells, and the header names 2")
    refused(b'id,text\n1,"never closed\n', "line 2: not CSV: unexpected end of data")
    refused(b"id,text\n1,caf\xe9\n", "line 2, byte 3: 0xe9 is not valid UTF-8")
    content = corpora.write(tmp_path / "a.csv", b"id,text\n1,caf\xe9\n2\n\n3,\n4,fine\n")
    documents, given = read(content, skip_bad=True)
    assert documents == ["fine"] and given.n_bad == 2


def arrow(path):
    feather.write_feather(pyarrow.table({"text": ["a"]}), path)


FOREIGN = {
    "a.png": ("an image", lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n")),
    "a.flac": ("audio or video", lambda path: path.write_bytes(b"fLaC\x00\x00\x00\x22")),
    "a.so": ("a program", lambda path: shutil.copy(sys.executable, path)),
    "a.gguf": ("a model's weights", lambda path: path.write_bytes(b"GGUF\x03\x00\x00\x00")),
    "a.pkl": ("pickled", lambda path: path.write_bytes(pickle.dumps({"text": "x"}))),
    "a.xlsx": ("a zip archive or an office document", lambda path: path.write_bytes(b"PK\x03\x04rest")),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_holds_no_text_is_refused_by_what_it_is(tmp_path, name):
    what, write = FOREIGN[name]
    write(tmp_path / name)
    os.link(tmp_path / name, tmp_path / "b.txt")  # by its content where the name says nothing
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"x"))  # and by its name where it is packed
    for path in (tmp_path / name, tmp_path / "b.txt", tmp_path / f"{name}.gz"):
        for reader in (
            lambda path: specs.parse_sources([str(path)]),
            lambda path: sources.text_source(DataConfig(path=str(path))),
        ):
            with pytest.raises(BadInput, match=f"{re.escape(str(path))} is {what}.*: .+"):
                reader(path)
    packed = corpora.write(tmp_path / "x.tar", corpora.tar([("in/b", (tmp_path / name).read_bytes())]))
    with pytest.raises(BadInput, match=f"x.tar:in/b is {what}"):
        read(packed)


READ_BY_NAME = {
    "arrow": ("an Arrow table", arrow),
    "npy": ("a numpy array", lambda path: np.save(path, np.arange(9))),
    "xz": ("xz-packed", lambda path: path.write_bytes(lzma.compress(b"text"))),
    "bz2": ("bzip2-packed", lambda path: path.write_bytes(bz2.compress(b"text"))),
}


@pytest.mark.parametrize("ending", READ_BY_NAME)
def test_what_is_read_by_its_name_is_no_text_under_another(tmp_path, ending):
    what, write = READ_BY_NAME[ending]
    write(tmp_path / f"a.{ending}")
    (tmp_path / f"a.{ending}").rename(tmp_path / "b.txt")
    with pytest.raises(BadInput, match=f"b.txt is {what}, not text: name it .{ending}"):
        specs.parse_sources([f"{tmp_path}/b.txt"])


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "a.csv.gz", "a.parquet", "a.jsonl", "a.arrow", "a.npy", "a.txt.xz", "a.bz2"]
)
def test_a_table_is_no_text_for_a_config(tmp_path, name):
    corpora.write(tmp_path / name, b"id,text\n1,x\n")
    with pytest.raises(BadInput, match=r"`scalelab prepare --source=.*data.source=prepared"):
        sources.text_source(DataConfig(path=f"{tmp_path}/*"))


def test_a_data_set_of_tfds_imports_no_module_that_its_files_name(tmp_path, monkeypatch):
    spec, ran = corpora.make_tfds(tmp_path / "tfds", DOCUMENTS[:20]), tmp_path / "RAN"
    (tmp_path / "evil_features.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(specs.parse_sources([spec])) == 1
    (path,) = (tmp_path / "tfds").rglob("features.json")
    whole = path.read_text()
    assert "tensorflow_datasets.core.features.text_feature.Text" in whole
    path.write_text(whole.replace("tensorflow_datasets.core.features.text_feature.Text", "evil_features.Text"))
    tfdsets._open.cache_clear()
    with pytest.raises(BadInput, match=r"features.json names the class 'evil_features.Text'"):
        specs.parse_sources([spec])
    assert not ran.exists()


def write_packed(path, n):
    """Write a packed file of `n` texts of 1 MiB, each of one letter."""
    texts = [bytes([97 + i % 26]) * (2**20 - 1) + b"\n" for i in range(n)]
    if path.suffix == ".gz":
        path.write_bytes(b"".join(gzip.compress(content, 1) for content in texts))
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for i, content in enumerate(texts):
            archive.writestr(f"{i}.txt", content)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.zip"])
def test_a_bomb_is_refused_before_it_is_tokenized(tmp_path, name, monkeypatch, capsys):
    def refuse_training(texts, _):
        pytest.fail(f"trained on {sum(map(len, texts))} letters of a bomb")

    monkeypatch.setattr("scalelab.data.tokenizers.hf_json.train_bpe", refuse_training)
    monkeypatch.setattr("scalelab.data.read.files.LEAST_BYTES", 2**26)
    path, out = tmp_path / name, tmp_path / "out"
    write_packed(path, 65)
    line = ["prepare", f"--source={path}", "--tokenizer=bpe:280", f"--out={out}", "--workers=1", "--skip-bad"]
    assert main(line) == 2
    assert "unpacks to more than 200 times its size" in capsys.readouterr().err
    assert not list(out.glob("*"))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.zip"])
def test_a_text_that_packs_well_is_prepared(tmp_path, name, capsys):
    path = tmp_path / name
    write_packed(path, 20)
    line = ["prepare", f"--source={path}", "--tokenizer=bytes", f"--out={tmp_path / 'out'}", "--workers=1"]
    assert main([*line, "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    n_documents = part["train_documents"] + part["val_documents"]
    assert part["train_tokens"] + part["val_tokens"] == 20 * 2**20 + n_documents
