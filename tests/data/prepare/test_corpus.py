"""A prepared folder: what is in it, that workers, order and kills don't change a byte, and what is refused."""

import hashlib
import itertools
import json
import os
import pathlib

import numpy as np
import pytest

from scalelab.data import shards, splits
from scalelab.data.batches.batches import train_batches
from scalelab.data.dataset import open_dataset as open_data
from scalelab.data.prepare import corpus, specs, units
from scalelab.data.prepare.prepared import load_run_tokenizer
from scalelab.data.prepare.request import Request
from scalelab.data.read.reading import Reading
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput, WorkFailed
from tests.data import corpora

DOCUMENTS = corpora.texts(400)


@pytest.fixture
def small(monkeypatch):
    """Many units and several shards of a small corpus."""
    monkeypatch.setattr(specs, "UNIT_BYTES", (4000, 4000))
    monkeypatch.setattr(shards, "SHARD_TOKENS", 15_000)


@pytest.fixture
def source(tmp_path):
    return corpora.write(tmp_path / "web.jsonl", corpora.json_lines(DOCUMENTS))


def prepare(out, *sources, tokenizer="bytes", notes=None, stop=lambda: False, **options):
    progress = (lambda facts: notes.append(facts["note"]) if "note" in facts else None) if notes is not None else None
    return corpus.prepare_corpus(
        Request(sources, tokenizer, pathlib.Path(out), **options), progress or (lambda _: None), stop
    )


def digests(folder):
    """{file: SHA-256} of all that is in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in pathlib.Path(folder).iterdir()}


def opened(folder, vocab_size=256):
    return open_data(DataConfig(source="prepared", path=str(folder), vocab_size=vocab_size))


def stored(split, end=0):
    """The documents of a split, cut at its offsets."""
    documents = []
    for tokens, offsets in zip(split.shards, split.offsets, strict=True):
        assert offsets[0] == 0 and offsets[-1] == len(tokens)
        for start, stop in itertools.pairwise(offsets.tolist()):
            assert tokens[stop - 1] == end
            documents.append(bytes(tokens[start : stop - 1]))
    return documents


@pytest.mark.usefixtures("small")
def test_what_is_stored_is_what_was_read(tmp_path, source):
    result = prepare(tmp_path / "out", source)
    data = opened(tmp_path / "out")
    (part,) = data.parts
    assert part.name == "web" and len(part.train.shards) > 1
    train, val = stored(part.train), stored(part.val)
    everything = [text.encode() for text in DOCUMENTS]
    held_out = [text for text in everything if splits.content_hash(text, 0) < 0.1 * 2**64]
    assert val == held_out and train == [text for text in everything if text not in set(held_out)]
    assert 0.03 < len(val) / len(everything) < 0.2
    assert data.bytes_per_token == sum(map(len, val)) / part.val.n_tokens
    assert result["fingerprint"] == data.fingerprint and data.separator == 0
    assert result["parts"][0]["train_documents"] == len(train) == data.description["train_documents"]
    assert not (tmp_path / "out" / ".units").exists()


@pytest.mark.full
@pytest.mark.usefixtures("small")
def test_workers_order_and_copies_of_names_change_nothing(tmp_path):
    for i in range(5):
        corpora.write(tmp_path / "in" / f"{i}.jsonl", corpora.json_lines(DOCUMENTS[80 * i : 80 * i + 80]))
    one, two = f"one={tmp_path}/in/[012].jsonl", f"two={tmp_path}/in/[34].jsonl"
    again = f"one={tmp_path}/in/2.jsonl,{tmp_path}/in/../in/0.jsonl,{tmp_path}/in/[10].jsonl"
    prepare(tmp_path / "a", one, two, tokenizer="bpe:300")
    prepare(tmp_path / "b", two, one, tokenizer="bpe:300", workers=2)
    prepare(tmp_path / "c", two, again, tokenizer="bpe:300")
    a, b, c = (digests(tmp_path / name) for name in "abc")
    assert a == b and len(a) > 10
    del a["index.json"], a["plan.json"], c["index.json"], c["plan.json"]  # they quote the glob
    assert a == c


def test_the_split_follows_content_seed_and_fraction(tmp_path):
    doubled = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(DOCUMENTS + DOCUMENTS[::-1]))
    held_out = {}
    for seed, fraction in [(0, 0.1), (1, 0.1), (0, 0.5)]:
        out = tmp_path / f"{seed}-{fraction}"
        prepare(out, doubled, split_seed=seed, val_fraction=fraction)
        (part,) = opened(out).parts
        train, val = stored(part.train), stored(part.val)
        assert not set(train) & set(val) and len(val) == 2 * len(set(val))  # a copy falls on the same side
        assert abs(len(val) / 800 - fraction) < 4 * (fraction * (1 - fraction) / 400) ** 0.5
        held_out[seed, fraction] = set(val)
    assert held_out[0, 0.1] < held_out[0, 0.5]
    assert len(held_out[0, 0.1] & held_out[1, 0.1]) < len(held_out[0, 0.1]) / 2


def test_a_trained_tokenizer_is_the_folders(tmp_path, source):
    notes = []
    prepare(tmp_path / "out", source, tokenizer="bpe:300", notes=notes)
    data = opened(tmp_path / "out", 300)
    assert data.parts[0].train.shards[0].dtype == np.uint16
    assert any(note.startswith("the tokenizer is trained on") for note in notes)

    tokenizer = load_run_tokenizer(DataConfig(source="prepared", path=str(tmp_path / "out")))
    assert tokenizer.name == data.description["tokenizer"] and tokenizer.vocab_size == 300
    (part,) = data.parts
    text = tokenizer.decode(np.concatenate(part.train.shards)) + tokenizer.decode(np.concatenate(part.val.shards))
    assert sorted(text) == sorted("".join(DOCUMENTS).encode())
    assert data.bytes_per_token == len(tokenizer.decode(np.concatenate(part.val.shards))) / part.val.n_tokens
    with pytest.raises(BadInput, match=r"model.vocab_size=299 is too small.* has 300 ids; nearest: 300"):
        opened(tmp_path / "out", 299)


def test_another_tokenizer_is_another_fingerprint(tmp_path, source):
    prints = {
        prepare(tmp_path / name, source, tokenizer=name.partition("-")[0])["fingerprint"]
        for name in ("bytes", "bpe:280", "bpe:290")
    }
    assert len(prints) == 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_stopped_preparation_goes_on_to_the_same_bytes(tmp_path, source, after, monkeypatch):
    prepare(tmp_path / "whole", source)
    calls = itertools.count()
    with pytest.raises(units.Stopped):
        prepare(tmp_path / "out", source, stop=lambda: next(calls) >= 10 * after)
    assert not (tmp_path / "out" / "index.json").exists()
    with pytest.raises(BadInput, match="is not finished: run the same `scalelab prepare` again"):
        opened(tmp_path / "out")
    there = len(list((tmp_path / "out" / ".units").glob("web-*")))
    (part,) = specs.parse_sources([source])
    n_units = len(list(specs.split_into_units(part, specs.part_bytes(part), Reading())))
    assert 0 <= there < n_units > 15
    written = []
    monkeypatch.setattr(
        units, "write_unit", lambda unit, *rest, write=units.write_unit: written.append(unit) or write(unit, *rest)
    )
    prepare(tmp_path / "out", source)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert len(written) == n_units - there  # those that were there are not read again


@pytest.mark.usefixtures("small")
def test_a_failure_between_shards_goes_on_to_the_same_bytes(tmp_path, source, monkeypatch):
    prepare(tmp_path / "whole", source)
    from scalelab.data.prepare import merge

    done, write = [], merge.write_shard
    monkeypatch.setattr(
        merge, "write_shard", lambda *args: done.append(write(*args)) or (1 / 0 if len(done) == 2 else done[-1])
    )
    with pytest.raises(ZeroDivisionError):
        prepare(tmp_path / "out", source)
    monkeypatch.setattr(merge, "write_shard", write)
    assert not (tmp_path / "out" / "index.json").exists()
    prepare(tmp_path / "out", source)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


@pytest.mark.usefixtures("small")
def test_a_unit_damaged_between_two_calls_is_found(tmp_path, source):
    calls = itertools.count()
    with pytest.raises(units.Stopped):
        prepare(tmp_path / "out", source, stop=lambda: next(calls) >= 100)
    assert not list((tmp_path / "out" / ".units").glob("*.tmp-*"))
    unit = sorted((tmp_path / "out" / ".units").glob("web-*/train.tokens"))[0]
    unit.write_bytes(unit.read_bytes()[:-1] + b"x")
    with pytest.raises(WorkFailed, match=r"web-000000/train.tokens was damaged"):
        prepare(tmp_path / "out", source)


def test_a_finished_folder_is_verified_and_not_written_again(tmp_path, source):
    first = prepare(tmp_path / "out", source)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = prepare(tmp_path / "out", source)
    assert again["finished_before"] and again["fingerprint"] == first["fingerprint"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    "damage, message", [("flip", "has SHA-256"), ("cut", r"has \d+ bytes, its index says"), ("gone", "is missing")]
)
@pytest.mark.parametrize("name", ["web-train-00000.tokens", "web-val-00000.offsets"])
def test_damaged_shards_are_refused_by_name(tmp_path, source, name, damage, message):
    prepare(tmp_path / "out", source)
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data if damage == "flip" else data[:-1])
    if damage == "gone":
        path.unlink()
    for call in (lambda: opened(tmp_path / "out"), lambda: prepare(tmp_path / "out", source)):
        with pytest.raises(BadInput, match=f"{name} {message}"):
            call()


def test_a_changed_index_is_refused(tmp_path, source):
    prepare(tmp_path / "out", source)
    path = tmp_path / "out" / "index.json"
    path.write_text(path.read_text().replace('"separator": 0', '"separator": 1'))
    with pytest.raises(BadInput, match=r"index.json was changed after `scalelab prepare` wrote it"):
        opened(tmp_path / "out")


def test_a_shard_deleted_under_a_reader_stays_readable(tmp_path, source):
    """The file is mapped: a run under way reads on, and whoever opens the folder next is told."""
    prepare(tmp_path / "out", source)
    batches = train_batches(opened(tmp_path / "out"), 32, 4, 0)
    expected = batches.batch(5)
    for path in (tmp_path / "out").glob("*.tokens"):
        path.unlink()
    np.testing.assert_array_equal(batches.batch(5), expected)
    with pytest.raises(BadInput, match=r"web-train-00000.tokens is missing"):
        opened(tmp_path / "out")


def test_a_changed_file_or_request_is_refused(tmp_path, source):
    with pytest.raises(units.Stopped):
        prepare(tmp_path / "out", source, stop=lambda: True)
    with pytest.raises(BadInput, match=r"begun with split_seed=0, now it is 1"):
        prepare(tmp_path / "out", source, split_seed=1)
    with pytest.raises(BadInput, match=r"begun with tokenizer='bytes', now it is 'bpe:300'"):
        prepare(tmp_path / "out", source, tokenizer="bpe:300")
    with pytest.raises(BadInput, match=r"begun with sources=\['web'\], now it is \['code'\]"):
        prepare(tmp_path / "out", f"code={source}")
    corpora.write(source, corpora.json_lines(DOCUMENTS[1:]))
    with pytest.raises(BadInput, match=r"was begun before .*web.jsonl was changed, added or gone"):
        prepare(tmp_path / "out", source)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, source):
    def change():
        os.utime(source, ns=(0, 0))
        return False

    with pytest.raises(BadInput, match=r"was begun before .*web.jsonl was changed"):
        prepare(tmp_path / "out", source, stop=change)
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_changed_megatron_index_is_refused(tmp_path):
    path = corpora.write_megatron(tmp_path / "a.bin", corpora.ids(300))
    prepare(tmp_path / "out", path, tokenizer="ids:50257")
    os.utime(tmp_path / "a.idx", ns=(0, 0))
    with pytest.raises(BadInput, match=r"was begun before .*a.bin was changed"):
        prepare(tmp_path / "out", path, tokenizer="ids:50257")


def test_a_text_that_its_tokenizer_gives_up_on_is_bad(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    texts = ["a " * n + "b" for n in range(1, 60)]
    path = corpora.write(tmp_path / "web.jsonl", corpora.json_lines([*texts, "a c"]))
    tokenizer = str(tmp_path / "tokenizer.json")
    with pytest.raises(BadInput, match=r"web.jsonl: the document of 3 bytes that begins with b'a c': WordLevel error"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer)
    (part,) = prepare(tmp_path / "out", path, tokenizer=tokenizer, skip_bad=True)["parts"]
    assert part["n_bad"] == 1 and part["train_documents"] + part["val_documents"] == len(texts)


def test_skip_bad_may_be_said_later_but_not_taken_back(tmp_path):
    path = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(DOCUMENTS) + b"{\n")
    with pytest.raises(BadInput, match=r"web.jsonl, line 401 \(byte \d+\): bad JSON"):
        prepare(tmp_path / "out", path)
    assert not (tmp_path / "out" / "index.json").exists()
    notes = []
    result = prepare(tmp_path / "out", path, skip_bad=True, notes=notes)
    assert result["parts"][0]["n_bad"] == 1 and any("line 401" in note for note in notes)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["parts"]["web"]["n_bad"] == 1


def test_separators_in_front_behind_and_in_pairs_give_the_same_tokens(tmp_path):
    documents = corpora.ids(300)
    files = {
        "nanogpt": corpora.write_nanogpt(tmp_path / "a.bin", documents),
        "llmc": corpora.write_llmc(tmp_path / "b.bin", documents),
        "megatron": corpora.write_megatron(tmp_path / "c.bin", documents),
    }
    actual = {}
    for name, path in files.items():
        result = prepare(tmp_path / name, f"gpt={path}", tokenizer="ids:50257")
        assert result["tokenizer"]["separator"] == corpora.END and result["parts"][0]["bytes_per_token"] == 1.0
        actual[name] = {k: v for k, v in digests(tmp_path / name).items() if k.endswith((".tokens", ".offsets"))}
    assert actual["nanogpt"] == actual["llmc"] == actual["megatron"]
    (part,) = opened(tmp_path / "nanogpt", 50304).parts
    tokens = np.concatenate([*part.train.shards, *part.val.shards])
    assert len(tokens) == sum(len(document) + 1 for document in documents)


def test_tfds_array_records(tmp_path):
    spec = corpora.make_tfds(tmp_path / "tfds", DOCUMENTS)
    prepare(tmp_path / "out", spec, val_fraction=0.2)
    (part,) = opened(tmp_path / "out").parts
    assert part.name == "tiny_docs"
    assert sorted(stored(part.train) + stored(part.val)) == sorted(text.encode() for text in DOCUMENTS)
    name, _, folder = spec.partition("@")
    assert prepare(tmp_path / "half", f"{name}:train[:50%]@{folder}")["parts"][0]["train_documents"] < 220
    with pytest.raises(BadInput, match=r"has no split 'trian'; did you mean 'train'"):
        prepare(tmp_path / "x", f"{name}:trian@{folder}")
    with pytest.raises(BadInput, match=r"has no feature 'txt' \(--text-key\); did you mean 'text'"):
        prepare(tmp_path / "y", spec, text_key="txt")
    with pytest.raises(BadInput, match=r"feature 'n' is int, not text"):
        prepare(tmp_path / "z", spec, text_key="n")


def test_tfds_in_another_format_or_needing_tensorflow_says_so(tmp_path, monkeypatch):
    spec = corpora.make_tfds(tmp_path / "tfds", DOCUMENTS)
    facts = tmp_path / "tfds" / "tiny_docs" / "1.2.0" / "dataset_info.json"
    facts.write_text(facts.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(BadInput, match=r"holds tfrecord files, which need TensorFlow.*file_format=array_record"):
        prepare(tmp_path / "out", spec)
    with pytest.raises(
        BadInput, match=r"tfds:no_such_set is not prepared under .*knows no such data set without TensorFlow"
    ):
        prepare(tmp_path / "out", f"tfds:no_such_set@{tmp_path}/empty")
    import tensorflow_datasets as tfds

    def builder(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'apache_beam'", name="apache_beam")

    monkeypatch.setattr(tfds, "builder", builder)
    with pytest.raises(
        BadInput, match=r"its own preparation needs apache_beam: .*pip install tensorflow-datasets apache-beam"
    ):
        prepare(tmp_path / "out", f"tfds:wiki40b/en@{tmp_path}/empty")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "files, sources, options, message",
    [
        ({"a.txt": b""}, ["a.txt"], {}, r"--source=.*a.txt is empty"),
        ({"a.jsonl": b"\n\n"}, ["a.jsonl"], {}, r"--source=.*a.jsonl is empty: no document in 1 files"),
        ({"a.txt": b"x"}, ["a.txt"], {}, r"--val-fraction=0.1: none of the 1 documents falls to the val split"),
        ({"a.txt": b"x"}, ["b.txt"], {}, r"--source=.*b.txt matches no file; did you mean 'a.txt'"),
        ({"d/a.txt": b"x"}, ["d"], {}, r"is a folder; did you mean .*d/\*\*/\*.txt"),
        ({"a.txt": b"x"}, ["x=a.txt", "x=./a.txt"], {}, r"two sources are named 'x': name them apart, --source=x1="),
        ({"a.txt": b"x"}, ["a.txt"], {"tokenizer": "ids:50257"}, r"text, and --tokenizer=ids:50257 can't encode any"),
        ({"a.txt": b"x"}, ["a.txt"], {"tokenizer": "bpe:200"}, r"bpe:200: 256 bytes .* 257 ids; nearest: bpe:257"),
        ({"a.txt": b"x"}, ["a.txt"], {"tokenizer": "bpe:x"}, r"'x' is not a vocabulary size; e.g. bpe:32768"),
        ({"a.txt": b"x"}, ["a.txt"], {"tokenizer": "byte"}, r"--tokenizer=byte: no such file"),
        ({"a.txt": b"x"}, ["a.txt"], {"separator": "5"}, r"--separator=5: bytes always uses 0"),
        ({"a.txt": b"x"}, ["a.txt"], {"separator": "5", "tokenizer": "bpe:300"}, r"separator=5: bpe:300 always uses 0"),
        ({"a.bin": b"xx"}, ["a.bin"], {}, r"holds ready-made tokens, which --tokenizer=bytes did not make"),
        ({"a.bin": b"xx"}, ["a.bin"], {"tokenizer": "ids:1000"}, r"ids:1000 needs --separator=ID"),
        ({"a.bin": b"xx"}, ["a.bin"], {"tokenizer": "ids:1000", "separator": "1000"}, r"from 0 to 999; it is '1000'"),
        ({"a.txt": b"x"}, ["a.txt"], {"val_fraction": 1.0}, r"--val-fraction=1.0 is not between 0 and 1"),
        ({"a.txt": b"x"}, ["a.txt"], {"workers": 0}, r"--workers=0: at least 1"),
        ({"a.txt": b"a\0b"}, ["a.txt"], {}, r"a.txt, byte 1: a zero byte, which ends documents"),
        ({"a.txt": b"x", "out/other": b""}, ["a.txt"], {}, r"--out=.* holds other things; name a new folder"),
        ({"a.parquet.gz": b"x"}, ["a.parquet.gz"], {}, r"unpack it first"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_and_leave_nothing_that_looks_finished(
    tmp_path, monkeypatch, files, sources, options, message
):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        prepare(tmp_path / "out", *sources, **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "out" / "index.json").exists()
    holds = "out/other" in files  # a user's own
    assert (tmp_path / "out").exists() == holds


def test_too_short_for_one_sequence(tmp_path, source):
    prepare(tmp_path / "out", source)
    with pytest.raises(
        BadInput, match=r"web: the training data hold \d+ tokens, a window of seq_len=1000000 needs 1000001"
    ):
        train_batches(opened(tmp_path / "out"), 10**6, 1, 0)


def test_a_worker_that_dies_is_said(tmp_path, source, monkeypatch):
    from scalelab.data.prepare import pool

    with pytest.raises(WorkFailed, match="a worker was killed"):
        list(pool.run_tasks(_die, [1, 2], _nothing, None, 2, lambda: False))


def _nothing(_):
    return None


def _die(task, own):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
