"""Formats by the libraries that write them (tests/data/files/make.py), and which records of a source are taken."""

import bz2
import csv
import dataclasses
import json
import lzma
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from scalelab.data.prepare import corpus, specs
from scalelab.data.prepare.request import Request
from scalelab.data.read.reading import Reading
from scalelab.data.read.selection import Filter, Selection, find_field, split_spec
from scalelab.errors import BadInput
from tests.data import corpora
from tests.data.files import make

FILES = pathlib.Path(make.__file__).parent
DOCUMENTS = corpora.texts(200)
IDS = Reading(vocab_size=100, separator=0)


def read(spec, reading=None, unit_bytes=None, monkeypatch=None):
    """All documents of a spec, texts as str."""
    reading = reading or Reading(zero_ends=False)
    (part,) = specs.parse_sources([spec], reading.text_key)
    if unit_bytes:
        monkeypatch.setattr(specs, "UNIT_BYTES", (unit_bytes, unit_bytes))
    units = specs.split_into_units(part, specs.part_bytes(part), reading)
    documents = [document for unit in units for document in specs.unit_documents(unit, reading)]
    return [document.decode() if isinstance(document, bytes) else document.tolist() for document in documents]


def refused(spec, message, reading=None):
    with pytest.raises(BadInput, match=message) as refusal:
        read(spec, reading)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("unit_bytes", [None, 1])
def test_a_folder_by_save_to_disk_is_read_by_column(monkeypatch, unit_bytes):
    how = {"unit_bytes": unit_bytes, "monkeypatch": monkeypatch}
    assert read(f"{FILES}/saved/train", **how) == make.DOCUMENTS[:9]
    assert read(f"{FILES}/saved/test#meta.text", **how) == [f"nested {i}" for i in range(9, 12)]
    expected = [[1 + byte % 90 for byte in text.encode()] for text in make.DOCUMENTS[:9]]
    assert read(f"{FILES}/saved/train#ids", IDS, **how) == expected
    assert read(f"{FILES}/saved/train/*.arrow?meta.lang=de", **how) == make.DOCUMENTS[1:9:2]


def test_a_saved_folder_of_several_splits_or_without_its_files_is_refused(tmp_path):
    refused(f"{FILES}/saved", r"holds the splits train, test; name one: --source=.*/saved/train")
    shutil.copytree(FILES / "saved" / "train", tmp_path / "d")
    state = tmp_path / "d" / "state.json"
    state.write_text(state.read_text().replace("data-00000-of-00002.arrow", "../../../etc/passwd"))
    refused(f"{tmp_path}/d", r"passwd")
    for cut in (10, 700, 4000):
        shutil.copy(FILES / "saved" / "train" / "data-00000-of-00002.arrow", tmp_path / "a.arrow")
        content = (tmp_path / "a.arrow").read_bytes()
        (tmp_path / "a.arrow").write_bytes(content[:cut])
        refused(f"{tmp_path}/a.arrow", r"a.arrow is not a whole Arrow file")


DAMAGED = ("s.arrow", "a.feather", "z.feather", "p.parquet", "n.npy", "w.tar", "j.jsonl.xz", "k.jsonl.bz2")


def write_whole(folder):
    """A file of each of DAMAGED."""
    rows = [
        {"text": f"doc {i} " * 5, "ids": [1, 2, 0, i + 1], "meta": {"t": f"x{i}", "l": "en"}, "n": [{"role": "user"}]}
        for i in range(40)
    ]
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(folder / "s.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    feather.write_feather(table, folder / "a.feather", compression="uncompressed")
    feather.write_feather(table, folder / "z.feather", compression="zstd")
    parquet.write_table(table, folder / "p.parquet")
    np.save(folder / "n.npy", np.array([1, 2, 3, 0] * 50))
    shutil.copy(FILES / "samples.tar", folder / "w.tar")
    lines = b'{"text": "abc"}\n' * 200
    (folder / "j.jsonl.xz").write_bytes(lzma.compress(lines))
    (folder / "k.jsonl.bz2").write_bytes(bz2.compress(lines))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line_or_read(tmp_path, name):
    write_whole(tmp_path)
    whole, random = (tmp_path / name).read_bytes(), np.random.default_rng(0)
    keys = {"s": ("", "#ids", "#meta.t?meta.l=en"), "w": ("#txt?json.lang=de",)}
    refusals = 0
    for number in range(60):
        content = bytearray(whole if random.random() > 0.2 else whole[: random.integers(len(whole))])
        for place in random.integers(len(whole), size=random.integers(1, 6)):
            content[place : place + 1] = bytes([random.integers(256)])
        (tmp_path / f"x{name}").write_bytes(content)
        key = keys.get(name[0], keys["s"] if name[0] in "azp" else ("",))
        try:
            read(f"{tmp_path}/x{name}{key[number % len(key)]}", Reading(vocab_size=100, skip_bad=number % 2 == 0))
        except BadInput as refusal:
            assert "\n" not in str(refusal)
            refusals += 1
    assert refusals


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_is_read(tmp_path, compression):
    feather.write_feather(pa.table({"text": DOCUMENTS}), tmp_path / "a.feather", compression=compression, chunksize=30)
    assert read(f"{tmp_path}/a.feather") == DOCUMENTS


def test_a_tar_of_webdataset_is_read_by_the_ending_of_its_members(tmp_path):
    tar = FILES / "samples.tar"
    assert read(f"{tar}#txt") == make.DOCUMENTS
    assert read(f"{tar}#json.caption?json.lang=de&cls=1") == [f"caption {i}" for i in range(12) if i % 2 and i % 3 == 1]
    refused(str(tar), r"holds WebDataset samples of cls, json, txt: which is the document\? --source=.*samples.tar#txt")
    for name in ("a.tar.xz", "b.txz", "c.tar.bz2"):
        pack = bz2.compress if name.endswith("bz2") else lzma.compress
        (tmp_path / name).write_bytes(pack(tar.read_bytes()))
        assert read(f"{tmp_path}/{name}#txt") == make.DOCUMENTS
    code = corpora.tar([("a.c", b"int a;"), ("a.h", b"x"), ("b.c", b"y"), ("b.h", b"z")])  # pairs, but no samples
    assert read(corpora.write(tmp_path / "code.tar", code)) == ["int a;", "x", "y", "z"]


@pytest.mark.parametrize("suffix, pack", [(".xz", lzma.compress), (".bz2", bz2.compress)])
def test_xz_and_bzip2_are_read_stream_after_stream_and_damage_is_named(tmp_path, suffix, pack):
    lines, half = corpora.json_lines(DOCUMENTS), 3000
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(lines[:half]) + pack(lines[half:]))
    assert read(str(path)) == DOCUMENTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    refused(str(path), r"is cut off: its \w+ data end at byte \d+ within a stream")
    path.write_bytes(whole[:200] + bytes(40) + whole[240:])
    refused(str(path), r"damaged \w+ data at byte 0 or up to")


@pytest.mark.parametrize("dtype", ["<u2", "<i4", ">i8", "<u4"])
def test_an_array_of_numpy_holds_documents_that_end_with_their_separator(tmp_path, dtype):
    documents = [[3, 1, 4], [1, 5], [9, 2, 6]]
    np.save(tmp_path / "a.npy", np.array([token for each in documents for token in [*each, 0]], dtype))
    assert read(f"{tmp_path}/a.npy", IDS) == documents


def test_arrays_of_another_kind_are_refused(tmp_path):
    for array, message in {
        "f": (np.zeros(4), "holds float64, not token ids"),
        "m": (np.zeros((2, 3), int), r"has the shape \(2, 3\).*reshape\(-1\)"),
        "o": (np.array([{}], object), "holds object, not token ids"),
        "w": (np.array([100]), "token id 100 is outside the vocabulary of 100"),
    }.values():
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        refused(f"{tmp_path}/a.npy", message, IDS)
    (tmp_path / "a.npy").write_bytes(b"not numpy")
    refused(f"{tmp_path}/a.npy", "is not an array by numpy.save", IDS)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 3)]
)
def test_parquet_that_is_tokenised_already_is_read(tmp_path, kind):
    rows = [[3, 1, 4], [1, 5, 0], [9, 2, 6]]
    parquet.write_table(pa.table({"t": pa.array(rows, kind), "n": [1, 2, 3]}), tmp_path / "a.parquet")
    assert read(f"{tmp_path}/a.parquet#t", IDS) == [[3, 1, 4], [1, 5], [9, 2, 6]]
    assert read(f"{tmp_path}/a.parquet#t?n>=2", IDS) == [[1, 5], [9, 2, 6]]
    with pytest.raises(BadInput, match=r"ready-made tokens, which --tokenizer=bytes did not make"):
        corpus.prepare_corpus(Request([f"{tmp_path}/a.parquet#t"], "bytes", tmp_path / "out"))


def test_a_null_or_a_foreign_id_in_a_list_is_named_by_its_row(tmp_path):
    parquet.write_table(pa.table({"t": [[3], None, [1, None], [5]]}), tmp_path / "a.parquet")
    refused(f"{tmp_path}/a.parquet#t", "row 1: column 't' is null, or holds a null", IDS)
    reading = Reading(vocab_size=100, skip_bad=True)
    assert read(f"{tmp_path}/a.parquet#t", reading) == [[3], [5]] and reading.n_bad == 2
    refused(f"{tmp_path}/a.parquet#t", "row 0, token 0: token id 3 is outside", Reading(vocab_size=3))


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_cells_between_other_signs_are_read_and_it_is_told(tmp_path, sign):
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.writer(file, delimiter=sign)
        writer.writerows([["price", "text"], *([f"{i},5", text] for i, text in enumerate(DOCUMENTS))])
    assert read(f"{tmp_path}/a.csv") == DOCUMENTS
    notes = []
    corpus.prepare_corpus(Request([f"{tmp_path}/a.csv"], "bytes", tmp_path / "out"), lambda facts: notes.append(facts))
    assert any(f"its cells stand between {sign!r}" in fact.get("note", "") for fact in notes)


def nested(path):
    rows = [{"id": i, "meta": {"lang": "de" if i % 3 else "en", "body": text}} for i, text in enumerate(DOCUMENTS)]
    return corpora.write(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def test_a_nested_key_and_filters_give_the_same_documents_from_every_kind_of_file(tmp_path):
    rows = [{"id": i, "meta": {"lang": "de" if i % 3 else "en", "body": text}} for i, text in enumerate(DOCUMENTS)]
    nested(tmp_path / "a.jsonl.gz")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet", row_group_size=17)
    feather.write_feather(pa.Table.from_pylist(rows), tmp_path / "c.arrow")
    expected = [text for i, text in enumerate(DOCUMENTS) if not i % 3 and i < 100]
    for name in ("a.jsonl.gz", "b.parquet", "c.arrow"):
        assert read(f"{tmp_path}/{name}#meta.body?meta.lang=en&id<100") == expected
        assert read(f"{tmp_path}/{name}?meta.lang=en&id<100", Reading("meta.body")) == expected
    flat = corpora.write(tmp_path / "d.csv", b"lang,text\nen,a\nde,b\n")
    assert read(f"{flat}?lang!=en") == ["b"]
    refused(f"{tmp_path}/b.parquet#meta.bdy", r"no column 'meta.bdy' \(#KEY of the source\); did you mean 'meta.body'")
    refused(f"{tmp_path}/b.parquet#meta.body?lng=en", r"no column 'lng' \(of the filter lng=en\)")
    refused(f"{tmp_path}/a.jsonl.gz#meta.body?lng=en", r"line 1: no field 'lng', by which the source is filtered")
    refused(corpora.write(tmp_path / "e.txt", b"x") + "#text", "e.txt has no fields, so #text says nothing about it")


@pytest.mark.parametrize(
    "text, value, passes",
    [
        ("a=1", 1, True), ("a=1", 1.5, False), ("a=1|2", 2, True), ("a!=1|2", 2, False), ("a=true", True, True),
        ("a=1", True, False), ("a=null", None, True), ("a!=null", "x", True), ("a>=2", 2, True), ("a>2", "3", True),
        ("a<2.5", 2.5, False), ("a>=2024-05-01", "2024-11-30", True), ("a<2024-05-01", "2024-11-30", False),
    ],
)  # fmt: skip
def test_filters_compare_as_they_read(text, value, passes):
    _, selection = split_spec(f"x.jsonl?{text}")
    (one,) = selection.filters
    assert str(one) == text and one.holds(value) is passes


def test_an_order_of_a_number_and_a_word_is_no_comparison():
    for one, value in (
        (Filter("a", "<", ("2",)), "x"),
        (Filter("a", "<", ("2",)), None),
        (Filter("a", "<", ("b",)), 3),
    ):
        with pytest.raises(ValueError, match="it is not a"):
            one.holds(value)


def test_paths_keys_and_filters_are_told_apart():
    assert split_spec("a?.jsonl") == ("a?.jsonl", Selection())
    assert split_spec("a?.jsonl,b.jsonl#meta.text") == ("a?.jsonl,b.jsonl", Selection("meta.text"))
    assert split_spec("dir#1/a.jsonl?lang=en")[0] == "dir#1/a.jsonl"
    assert split_spec("https://h/a.jsonl?download=true") == ("https://h/a.jsonl?download=true", Selection())
    assert split_spec("https://h/a.jsonl?x=1#?lang=en")[1] == Selection("", (Filter("lang", "=", ("en",)),))
    assert split_spec("a.jsonl?sample=0.25:7")[1] == Selection(sample=0.25, seed=7)
    with pytest.raises(BadInput, match=r"'b' is not KEY=VALUE .*; 'sample=2' is not a share between 0 and 1"):
        split_spec("a.jsonl?a=1&b&sample=2")
    with pytest.raises(BadInput, match="sample= stands there 2 times: which share"):
        split_spec("a.jsonl?sample=0.5&sample=0.1")
    assert split_spec("a.jsonl?sample=0.1234567")[1].describe() == "?sample=0.1234567:0"  # in the plan, to be compared
    record = {"a.b": 1, "a": {"b": 2, "c": [{"d": 3}]}}
    assert find_field(record, "a.b") == 1 and find_field(record, "a.c.0.d") == 3
    with pytest.raises(KeyError):
        find_field(record, "a.c.1.d")


def test_a_sample_stays_when_files_are_added_and_grows_with_its_share(tmp_path):
    corpora.write(tmp_path / "a.jsonl", corpora.json_lines(DOCUMENTS))
    tenth, third = (set(read(f"{tmp_path}/*.jsonl?sample={share}")) for share in (0.1, 0.3))
    assert tenth < third and abs(len(third) / 200 - 0.3) < 4 * (0.3 * 0.7 / 200) ** 0.5
    assert set(read(f"{tmp_path}/*.jsonl?sample=0.3:1")) != third
    more = [f"{text} more" for text in DOCUMENTS]
    corpora.write(tmp_path / "0.jsonl", corpora.json_lines(more))
    assert set(read(f"{tmp_path}/*.jsonl?sample=0.3")) & set(DOCUMENTS) == third
    np.save(tmp_path / "t.npy", np.array([5, 0] * 50 + [7, 8, 0]))
    assert len(read(f"{tmp_path}/t.npy?sample=0.5", IDS)) in (1, 50, 51)  # equal documents are taken together


def test_a_changed_filter_is_noticed_by_a_folder_and_counted_in_its_index(tmp_path):
    nested(tmp_path / "a.jsonl")
    spec, notes = f"n={tmp_path}/a.jsonl#meta.body", []

    def prepare(chosen):
        return corpus.prepare_corpus(
            Request([f"{spec}{chosen}"], "bytes", tmp_path / "out"), lambda facts: notes.append(facts.get("note"))
        )

    (part,) = prepare("?meta.lang=en")["parts"]
    assert part["n_filtered"] == 133 and part["train_documents"] + part["val_documents"] == 67
    assert "n: 67 documents are taken by #meta.body?meta.lang=en, 133 are left out" in notes
    assert prepare("?meta.lang=en")["finished_before"]
    for other in ("?meta.lang=de", "?meta.lang=en&sample=0.5", ""):
        with pytest.raises(BadInput, match=r"was begun with '#meta.body\?meta.lang=en' of the source n, now it is"):
            prepare(other)
    entry = json.loads((tmp_path / "out" / "index.json").read_text())["parts"]["n"]
    assert entry["selection"] == "#meta.body?meta.lang=en" and entry["n_filtered"] == 133
    with pytest.raises(BadInput, match=r"no document in 1 files, 200 left out by #meta.body\?meta.lang=fr"):
        corpus.prepare_corpus(Request([f"{spec}?meta.lang=fr"], "bytes", tmp_path / "none"))


def test_one_file_is_training_and_validation_by_filters_that_differ(tmp_path):
    path = nested(tmp_path / "a.jsonl")
    request = Request(
        [f"n={path}#meta.body?meta.lang=de"],
        "bytes",
        tmp_path / "out",
        val_fraction=0.0,
        val_sources=[f"n={path}#meta.body?meta.lang=en"],
    )
    (part,) = corpus.prepare_corpus(request)["parts"]
    assert (part["train_documents"], part["val_documents"], part["leaks"]) == (133, 67, 0)
    with pytest.raises(BadInput, match=r"a.jsonl is in --source=.* and in --val-source"):
        corpus.prepare_corpus(dataclasses.replace(request, sources=[f"{path}#meta.body"], out=tmp_path / "b"))


def test_all_faults_of_the_sources_are_listed_at_once(tmp_path):
    sources = [f"{tmp_path}/no.txt", f"b={tmp_path}/x.parquet?a", f"c={tmp_path}/*.jsonl?a=1&sample=9"]
    with pytest.raises(BadInput, match=r"3 faults: .*no.txt matches no file.*; .*x.parquet\?a matches.*; .*'sample=9'"):
        specs.parse_sources(sources)
