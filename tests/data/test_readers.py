"""Every kind of file gives the documents that were written into it, whole or in pieces; what is damaged is named."""

import csv
import itertools
import struct
import zipfile

import numpy as np
import pytest

from scalelab.data.prepare import specs
from scalelab.data.read import text, tokenfiles
from scalelab.data.read.reading import Reading
from scalelab.errors import BadInput
from tests.data import corpora
from tests.quick import cross, others_slow

DOCUMENTS = corpora.texts(300)
IDS = corpora.ids(300)
GPT2 = Reading(vocab_size=50257, separator=corpora.END)


def read(spec, reading=None, unit_bytes=None, monkeypatch=None):
    """All documents of a spec, and of how many units."""
    reading = reading or Reading()
    (part,) = specs.parse_sources([spec])
    if unit_bytes:
        monkeypatch.setattr(specs, "UNIT_BYTES", (unit_bytes, unit_bytes))
    units = list(specs.split_into_units(part, specs.part_bytes(part), reading))
    return [document for unit in units for document in specs.unit_documents(unit, reading)], len(units)


def lines():
    return corpora.json_lines(DOCUMENTS)


MAKE = {
    "a.jsonl": lambda path: corpora.write(path, lines()),
    "a.json.gz": lambda path: corpora.write(path, lines()),
    "a.ndjson.zst": lambda path: corpora.write(path, lines()),
    "a.parquet": lambda path: corpora.write_parquet(path, DOCUMENTS),
    "a.tar": lambda path: corpora.write(path, corpora.tar([("x/a.txt", b"0"), ("x/b.jsonl", lines())])),
    "a.tgz": lambda path: corpora.write(path, corpora.tar([(f"{i}.txt", d.encode()) for i, d in enumerate(DOCUMENTS)])),
    "a.tar.zst": lambda path: corpora.write(path, corpora.tar([("b.jsonl", lines())])),
    "a.zip": lambda path: corpora.write(
        path, corpora.zipped([(f"d/{i}.txt", d.encode()) for i, d in enumerate(DOCUMENTS)])
    ),
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("unit_bytes", [None, 1500])
def test_text_comes_back_document_by_document(tmp_path, monkeypatch, name, unit_bytes):
    actual, n_units = read(MAKE[name](tmp_path / name), None, unit_bytes, monkeypatch)
    expected = [d.encode() for d in DOCUMENTS]
    assert actual == ([b"0", *expected] if name == "a.tar" else expected)
    if unit_bytes and name in ("a.jsonl", "a.parquet", "a.zip"):
        assert n_units > 3


def test_text_files_are_a_document_each_in_path_order_and_count_once(tmp_path):
    for i in (2, 0, 1):
        corpora.write(tmp_path / "in" / f"{i}.txt", DOCUMENTS[i].encode())
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "in" / "1.txt")
    everything = f"{tmp_path}/in/*.txt"
    expected = [d.encode() for d in DOCUMENTS[:3]]
    assert read(everything)[0] == expected
    assert read(f"{tmp_path}/in/2.txt,{everything},{tmp_path}/in/../in/0.txt")[0] == expected


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("newlines", [True, False])
def test_a_long_text_is_cut_at_the_same_places_however_it_is_read(tmp_path, monkeypatch, suffix, newlines):
    monkeypatch.setattr(text, "CUT_BYTES", 1000)
    whole = ("\n" if newlines else " ").join(DOCUMENTS).encode()
    actual, n_units = read(corpora.write(tmp_path / f"a.txt{suffix}", whole), None, 3000, monkeypatch)
    assert b"".join(actual) == whole and len(actual) >= len(whole) // 2000
    assert max(map(len, actual)) <= 2000 and (n_units > 3) == (suffix == "")
    assert not newlines or all(document.endswith(b"\n") for document in actual[:-1])
    again, _ = read(corpora.write(tmp_path / f"b.txt{suffix}", whole), None, 10**9, monkeypatch)
    assert again == actual


@pytest.mark.parametrize("start", range(0, 60, 7))
def test_json_lines_belong_to_the_range_in_which_they_begin(tmp_path, monkeypatch, start):
    path = corpora.write(tmp_path / "a.jsonl", b'{"text": "one"}\n\n{"text": "two"}\n{"text": "three"}')
    cuts = [0, start, start + 11, 60] if start else [0, 11, 60]
    pieces = [specs.Piece("jsonl", path, a, b) for a, b in itertools.pairwise(cuts)]
    assert [d for piece in pieces for d in text.json_documents(piece, Reading())] == [b"one", b"two", b"three"]


def equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("unit_bytes", [None, 4096])
@pytest.mark.parametrize("kind", ["nanogpt", "llmc", "llama3", "megatron", "megatron int32"])
def test_tokens_come_back_document_by_document(tmp_path, monkeypatch, kind, unit_bytes):
    monkeypatch.setattr(tokenfiles, "CUT_TOKENS", 256)
    path = {
        "nanogpt": lambda p: corpora.write_nanogpt(p, IDS),
        "llmc": lambda p: corpora.write_llmc(p, IDS),
        "llama3": lambda p: corpora.write_llmc(p, IDS, 20240801, 7, np.uint32),
        "megatron": lambda p: corpora.write_megatron(p, IDS),
        "megatron int32": lambda p: corpora.write_megatron(p, IDS, 4, np.int32, 50),
    }[kind](tmp_path / "a.bin")
    read_back, n_units = read(path, GPT2, unit_bytes, monkeypatch)
    equal(read_back, IDS)
    assert n_units > 3 or not unit_bytes


def test_an_unending_document_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenfiles, "CUT_TOKENS", 1000)
    stream = np.random.default_rng(0).integers(0, 60, 10_500).astype(np.uint16)
    stream.tofile(tmp_path / "char.bin")
    actual, _ = read(f"{tmp_path}/char.bin", Reading(vocab_size=66, separator=65))
    np.testing.assert_array_equal(np.concatenate(actual), stream)
    assert max(map(len, actual)) <= 2000 and len(actual) >= 6


def test_vocabularies_above_65536_are_four_bytes_an_id(tmp_path):
    corpora.write_nanogpt(tmp_path / "a.bin", IDS, np.uint32)
    equal(read(f"{tmp_path}/a.bin", Reading(vocab_size=70_000, separator=corpora.END))[0], IDS)


# What is wrong, and what the one line says: file, place, value.


def refused(spec, reading=None):
    with pytest.raises(BadInput) as caught:
        read(spec, reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("damage", "name"),
    others_slow(
        lambda damage, name: (damage == "cut") == ("gz" in name), cross(["cut", "flip"], ["a.jsonl.gz", "a.jsonl.zst"])
    ),
)
def test_damaged_packing_is_named_with_its_byte(tmp_path, name, damage):
    path = corpora.write(tmp_path / name, corpora.json_lines(corpora.texts(20_000)))
    data = bytearray((tmp_path / name).read_bytes())
    if damage == "flip":
        data[len(data) // 2 : len(data) // 2 + 8] = b"\xff" * 8
    (tmp_path / name).write_bytes(data if damage == "flip" else data[: len(data) // 2])
    message = refused(path, Reading(skip_bad=True))  # of a flipped gzip, garbage comes out before the checksum tells
    assert message.startswith(path)
    if damage == "cut":
        assert f"is cut off: its {'gzip' if 'gz' in name else 'zstandard'} data end at byte {len(data) // 2}" in message
    else:
        at = int(message.partition("data at byte ")[2].split()[0])
        assert "damaged" in message and len(data) // 2 - 2**16 <= at < len(data)


LINES = b'{"text": "fine"}\n'


@pytest.mark.parametrize(
    "line, why",
    [
        (b'{"text": "no end', "line 3 (byte 34): bad JSON, Unterminated string"),
        (b'{"txt": 1}', "line 3 (byte 34): no key 'text' (--text-key); it has 'txt'"),
        (b'{"text": 7}', "line 3 (byte 34): 'text' is 7, not a text"),
        (b"[1]", "line 3 (byte 34): no key 'text' (--text-key); it is not an object"),
        (b'{"text": "a\xff"}', "line 3 (byte 34): 0xff is not valid UTF-8, 11 bytes into it"),
        (b'{"text": "\\ud800"}', "line 3 (byte 34): 'text' holds half a surrogate pair, \\ud800"),
        (b"[" * 100_000, "line 3 (byte 34): bad JSON"),
        (b'{"text": "a\\u0000b"}', "line 3, byte 1: a zero byte"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, why):
    path = corpora.write(tmp_path / "a.jsonl", LINES * 2 + line + b"\n" + LINES)
    assert refused(path).startswith(f"{path}, {why}")
    reading = Reading(skip_bad=True)
    assert read(path, reading)[0] == [b"fine"] * 3
    assert reading.n_bad == 1 and reading.named[0].startswith(f"{path}, {why}")


def test_a_bad_lines_number_counts_the_ranges_before_it(tmp_path, monkeypatch):
    path = corpora.write(tmp_path / "a.jsonl", LINES * 400 + b"{\n" + LINES)
    monkeypatch.setattr(specs, "UNIT_BYTES", (1000, 1000))
    assert f"line 401 (byte {400 * len(LINES)}): bad JSON" in refused(path)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.tar"])
def test_invalid_utf8_is_named_with_its_byte(tmp_path, name):
    content = "ä".encode() * 10 + b"\xe4bc"
    path = corpora.write(tmp_path / name, corpora.tar([("d/x.txt", content)]) if name == "a.tar" else content)
    place = f"{path}:d/x.txt" if name == "a.tar" else path
    assert refused(path).startswith(f"{place}, byte 20: 0xe4 is not valid UTF-8")


@pytest.mark.parametrize("name", ["../out.txt", "/etc/passwd", "a/../../b.txt", "C:\\x.txt", "..\\x.txt"])
@pytest.mark.parametrize("make, suffix", [(corpora.tar, "tar"), (corpora.zipped, "zip")])
def test_paths_that_escape_are_refused(tmp_path, name, make, suffix):
    path = corpora.write(tmp_path / f"a.{suffix}", make([("fine.txt", b"x"), (name, b"y")]))
    message = refused(path)
    assert message.startswith(f"{path}: the member at byte ") and repr(name) in message and "leads out" in message


def test_links_that_escape_are_refused_and_others_left_out(tmp_path):
    inside = corpora.write(tmp_path / "a.tar", corpora.tar([("d/x.txt", b"x"), ("d/l.txt", None, "x.txt")]))
    assert read(inside)[0] == [b"x"]
    outside = corpora.write(tmp_path / "b.tar", corpora.tar([("d/x.txt", b"x"), ("d/l.txt", None, "../../x.txt")]))
    assert "which leads out" in refused(outside)


MEMBERS = [(f"{i}.txt", b"x" * 600) for i in range(9)]  # a header of 512 bytes and 1024 of content each


@pytest.mark.parametrize(
    "damage, why",
    [
        (lambda tar: tar[: 3 * 1536], "empty header where a member or the end mark should be"),
        (lambda tar: tar[: 3 * 1536 + 100], "truncated header where"),
        (lambda tar: tar[: 3 * 1536] + b"\xff" * 50 + tar[3 * 1536 + 50 :], "bad checksum where"),
        (lambda tar: tar[: 3 * 1536] + bytes(512) + tar[3 * 1536 + 512 :], "its end mark at byte 4608 is followed by"),
        (lambda tar: tar + tar, "its end mark at byte 13824 is followed by more than zeros"),
        (
            lambda tar: tar[:124] + b"\xff" * 12 + tar[136:148] + _checksum(tar, b"\xff" * 12) + tar[156:],
            "a member of -1 bytes",
        ),
    ],
)  # fmt: skip
def test_a_tar_that_is_damaged_after_its_first_member_is_not_taken_for_its_end(tmp_path, damage, why):
    path = corpora.write(tmp_path / "a.tar", corpora.tar(MEMBERS))
    assert len(read(path)[0]) == 9
    corpora.write(path, damage(corpora.tar(MEMBERS)))
    assert refused(path).startswith(f"{path} is not a whole tar file: {why}")


def _checksum(tar, size):
    """Of the first header, with another size."""
    return b"%06o\0 " % sum(tar[:124] + size + tar[136:148] + b" " * 8 + tar[156:512])


def test_links_in_a_zip_are_left_out_or_refused(tmp_path):
    def made(target):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            link = zipfile.ZipInfo("d/l.txt")
            link.create_system, link.external_attr = 3, 0o120777 << 16
            archive.writestr(link, target)
            archive.writestr("d/x.txt", "x")
        return f"{tmp_path}/a.zip"

    assert read(made("x.txt"))[0] == [b"x"]
    assert "'d/../../x.txt', which leads out" in refused(made("../../x.txt"))


def test_a_zip_that_declares_more_than_a_member_has_is_refused(tmp_path):
    content = bytearray(corpora.zipped([("a.txt", b"x" * 600)]))
    at = content.rfind(b"PK\1\2") + 24
    content[at : at + 4] = struct.pack("<I", 2**31 - 1)
    path = corpora.write(tmp_path / "a.zip", bytes(content))
    assert refused(path).endswith(f"is damaged: {2**31 - 1} bytes are declared, 600 are there")


@pytest.mark.parametrize("kind", ["tar", "zip", "parquet"])
def test_cut_containers_are_named(tmp_path, kind):
    name = f"a.{kind}"
    path = MAKE[name](tmp_path / name)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:15_000])
    assert refused(path).startswith(path)


def test_a_damaged_page_of_a_parquet_file_is_named_with_its_row(tmp_path):
    path = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:400] = bytes(396)
    (tmp_path / "a.parquet").write_bytes(data)
    assert refused(path).startswith(f"{path}: damaged parquet after row 0")


def test_parquet_columns(tmp_path):
    path = corpora.write_parquet(tmp_path / "a.parquet", ["a", None, "c"], n=[1, 2, 3])
    assert refused(path, Reading("txt")) == f"{path} has no column 'txt' (--text-key); did you mean 'text'?"
    assert "column 'n' holds int64, not text" in refused(path, Reading("n"))
    assert refused(path).startswith(f"{path}, row 1: column 'text' is null")


@pytest.mark.parametrize("kind", ["large_string", "string_view", "binary", "binary_view", "dictionary"])
def test_every_kind_of_text_in_parquet(tmp_path, kind):
    import pyarrow as pa

    types = {"dictionary": pa.dictionary(pa.int32(), pa.string())}
    column = pa.array(["é", "b", "é"]).cast(types.get(kind) or getattr(pa, kind)())
    path = corpora.write_parquet(tmp_path / "a.parquet", column, **{"text.x": ["1", "2", "3"]})
    assert read(path)[0] == ["é".encode(), b"b", "é".encode()]


def test_invalid_utf8_in_parquet_is_named_or_skipped(tmp_path):
    import pyarrow as pa

    strings = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"b\xffc", b"d"]).buffers())
    path = corpora.write_parquet(tmp_path / "a.parquet", strings)
    assert refused(path).startswith(f"{path}, row 1, byte 1: 0xff is not valid UTF-8")
    assert read(path, Reading(skip_bad=True))[0] == [b"a", b"d"]


def test_two_parquet_columns_of_one_name_are_refused(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    assert "has 2 columns 'text'" in refused(f"{tmp_path}/a.parquet")


def test_ids_outside_the_vocabulary_are_named_with_their_byte(tmp_path):
    documents = [np.array([1, 2]), np.array([3, 50257, 4])]
    path = corpora.write_nanogpt(tmp_path / "a.bin", documents)
    assert refused(path, GPT2).startswith(
        f"{path}, token 4 (byte 8): token id 50257 is outside the vocabulary of 50257"
    )
    path = corpora.write_llmc(tmp_path / "b.bin", documents)
    assert refused(path, GPT2).startswith(f"{path}, token 5 (byte 1034): token id 50257")
    path = corpora.write_megatron(tmp_path / "c.bin", documents)
    assert refused(path, GPT2).startswith(f"{path}, document 1 (byte 8): token id 50257")


@pytest.mark.parametrize("dtype, bits", [(np.int64, 64), (np.int32, 32), (np.uint32, 32)])
def test_wider_ids_are_not_read_as_uint16(tmp_path, dtype, bits):
    path = corpora.write_nanogpt(tmp_path / "a.bin", IDS, dtype)
    assert refused(path, GPT2).startswith(f"{path} holds {bits}-bit numbers, not 16-bit ones: from byte 2 on")


def test_wider_ids_behind_a_stretch_of_zeros_are_found(tmp_path):
    path = corpora.write_nanogpt(tmp_path / "a.bin", [np.zeros(2**14, int), *IDS], np.int64)
    assert "holds 64-bit numbers" in refused(path, GPT2)


def test_a_numpy_file_is_no_flat_one(tmp_path):
    np.save(tmp_path / "a.npy", np.concatenate(IDS).astype(np.uint16))
    (tmp_path / "a.npy").rename(tmp_path / "a.bin")
    assert "numpy.save wrote it" in refused(f"{tmp_path}/a.bin", GPT2)


def test_an_odd_length_is_refused(tmp_path):
    path = corpora.write_nanogpt(tmp_path / "a.bin", IDS)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-1])
    size = (tmp_path / "a.bin").stat().st_size
    assert refused(path, GPT2).startswith(f"{path} has {size} bytes, which is not a whole number of uint16 ids")


@pytest.mark.parametrize("n_tokens", [2**31 - 1, 0, -5])
def test_a_header_that_declares_another_size_is_refused(tmp_path, n_tokens):
    path = corpora.write_llmc(tmp_path / "a.bin", IDS, n_tokens=n_tokens)
    size = (tmp_path / "a.bin").stat().st_size
    message = refused(path, GPT2)
    assert message.startswith(f"{path}: the header declares {n_tokens} tokens at byte 8") and message.endswith(
        f"has {size}"
    )


@pytest.mark.parametrize("at, value", [(18, 2**60), (26, 2**60), (9, 2), (17, 6), (0, 0)])
def test_an_absurd_megatron_header_is_refused(tmp_path, at, value):
    path = corpora.write_megatron(tmp_path / "a.bin", IDS)
    index = bytearray((tmp_path / "a.idx").read_bytes())
    index[at : at + (8 if at in (18, 26, 9) else 1)] = struct.pack("<Q" if at in (18, 26, 9) else "<B", value)
    (tmp_path / "a.idx").write_bytes(index)
    message = refused(path, GPT2)
    assert message.startswith(f"{tmp_path}/a.idx") and (str(value) in message or at == 0)


@pytest.mark.parametrize("place", [2**63 - 2, 3, -2])
def test_a_place_that_is_none_is_refused(tmp_path, place):
    path = corpora.write_megatron(tmp_path / "a.bin", IDS)
    index = bytearray((tmp_path / "a.idx").read_bytes())
    struct.pack_into("<q", index, 34 + 4 * 300 + 8 * 7, place)
    (tmp_path / "a.idx").write_bytes(index)
    assert f"a.idx: sequence 7 is said to be {len(IDS[7]) + 1} tokens of 2 bytes at byte {place} of" in refused(
        path, GPT2
    )


def test_an_index_of_other_tokens_is_refused(tmp_path):
    path = corpora.write_megatron(tmp_path / "a.bin", IDS)
    with open(path, "ab") as file:
        file.write(b"\1\0")
    size = (tmp_path / "a.bin").stat().st_size
    assert refused(path, GPT2).endswith(f"end at byte {size - 2} of {path}, which has {size} bytes: are they a pair?")


@pytest.mark.parametrize("what", ["lengths", "places", "bounds"])
def test_a_megatron_index_that_leads_out_of_its_file_is_refused(tmp_path, what):
    path = corpora.write_megatron(tmp_path / "a.bin", IDS)
    index = bytearray((tmp_path / "a.idx").read_bytes())
    at = {"lengths": 34 + 4 * 7, "places": 34 + 4 * 300 + 8 * 7, "bounds": 34 + 12 * 300 + 8 * 7}[what]
    index[at + 2 : at + 4] = b"\xff\x7f"
    (tmp_path / "a.idx").write_bytes(index)
    message = refused(path, GPT2)
    assert message.startswith(
        f"{tmp_path}/a.idx: " + ("the document bounds" if what == "bounds" else "sequence 7 is said")
    )


def test_an_index_without_its_tokens_is_refused(tmp_path):
    corpora.write_megatron(tmp_path / "a.bin", IDS)
    (tmp_path / "a.bin").unlink()
    assert "a.idx has no" in refused(f"{tmp_path}/*.idx", GPT2)


def test_a_long_cell_of_a_csv_is_read_and_the_limit_of_everyone_else_stays(tmp_path):
    (tmp_path / "long.csv").write_text("text\n" + "x" * 200_000 + "\nshort\n")
    limit = csv.field_size_limit()
    documents, _ = read(str(tmp_path / "long.csv"))
    assert [len(document) for document in documents] == [200_000, 5]
    assert csv.field_size_limit() == limit
