"""Copies are counted and left out, leaks are counted; held against sets of Python and an exact Jaccard similarity."""

import itertools

import pytest

from scalelab.data.dataset import open_dataset
from scalelab.data.prepare import corpus, merge, screen, specs, units
from scalelab.data.prepare.request import Request
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput
from tests.data import corpora
from tests.quick import one_in

TEXTS = [text + " and that is all" for text in corpora.texts(120, seed=4)]
HELD = [*TEXTS[:7], *corpora.texts(3, seed=5), *corpora.texts(1, seed=5)]  # 7 leaks, 1 copy


@pytest.fixture
def sources(tmp_path):
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines([*TEXTS, *TEXTS[:20]]))
    return web, corpora.write(tmp_path / "held.jsonl", corpora.json_lines(HELD))


def prepare(out, *sources, **options):
    options = {"val_fraction": 0.0 if options.get("val_sources") else 0.1} | options
    return {part["name"]: part for part in corpus.prepare_corpus(Request(sources, "bytes", out, **options))["parts"]}


def stored(folder):
    """{part: (training texts, validation texts)} of a prepared folder of bytes."""

    def texts(split):
        pairs = zip(split.shards, split.offsets, strict=True)
        return [bytes(t[a : b - 1]).decode() for t, o in pairs for a, b in itertools.pairwise(o.tolist())]

    return {
        part.name: (texts(part.train), texts(part.val))
        for part in open_dataset(DataConfig("prepared", str(folder))).parts
    }


def test_copies_and_leaks_are_counted_without_being_asked_for(tmp_path, sources):
    web, held = sources
    parts = prepare(tmp_path / "out", web, val_sources=[held])
    assert (parts["web"]["duplicates"], parts["held"]["duplicates"]) == (20, 1)
    assert (parts["held"]["leaks"], parts["web"]["leaks"], parts["web"]["dropped"]) == (7, 0, 0)
    assert len(stored(tmp_path / "out")["web"][0]) == 140
    split = prepare(tmp_path / "split", web)["web"]  # copies fall on one side: a split by hash has no leaks
    assert split["leaks"] == 0 and split["duplicates"] == 20


def test_dedup_keeps_the_first_of_copies_and_all_of_a_validation_set(tmp_path, sources, monkeypatch):
    web, held = sources
    monkeypatch.setattr(specs, "UNIT_BYTES", (1500, 1500))  # copies lie in other units than their first
    parts = prepare(tmp_path / "out", web, val_sources=[held], dedup="exact")
    train, val = stored(tmp_path / "out")["web"][0], stored(tmp_path / "out")["held"][1]
    assert train == TEXTS[7:] and val == HELD
    assert parts["web"]["dropped"] == 20 + 7 and parts["held"]["dropped"] == 0
    split = prepare(tmp_path / "split", web, dedup="exact")["web"]
    train, val = stored(tmp_path / "split")["web"]
    assert sorted(train + val) == sorted(TEXTS) and split["dropped"] == 20
    assert split["split"]["bytes"] == pytest.approx(len("".join(val).encode()) / len("".join(TEXTS).encode()))


# The call after which the process ends: within the first unit with copies, with this unit written, within the shards.
@pytest.mark.parametrize(
    "room, name, call", [(screen, "_filter_split", 1), (screen, "_filter_split", 3), (merge, "write_shard", 1)]
)
@pytest.mark.parametrize("dedup", one_in(2, ["near", "exact"]))
def test_stopped_anywhere_dedup_ends_with_the_same_bytes_and_counts(
    tmp_path, sources, monkeypatch, room, name, call, dedup
):
    if dedup == "near":
        pytest.importorskip("datasketch", reason="scalelab[dedup] is not installed")
    monkeypatch.setattr(specs, "UNIT_BYTES", (1500, 1500))
    web, held = sources
    whole = prepare(tmp_path / "whole", web, val_sources=[held], dedup=dedup)
    calls, work = itertools.count(), getattr(room, name)
    with monkeypatch.context() as patched:
        patched.setattr(room, name, lambda *a: 1 / 0 if next(calls) == call else work(*a))
        with pytest.raises(ZeroDivisionError):
            prepare(tmp_path / "out", web, val_sources=[held], dedup=dedup)
    assert prepare(tmp_path / "out", web, val_sources=[held], dedup=dedup) == whole
    assert stored(tmp_path / "out") == stored(tmp_path / "whole") and whole["web"]["dropped"] == 27


def test_units_of_an_older_version_are_written_again(tmp_path, sources):
    request, folder = Request([sources[0]], "bytes", tmp_path / "out"), tmp_path / "out"
    with pytest.raises(units.Stopped):  # after the units, before the shards
        corpus.prepare_corpus(request, stop=lambda: bool(list(folder.glob(".units/web-*/record.json"))))
    for path in (tmp_path / "out").glob(".units/*/*.documents"):
        path.unlink()
    assert corpus.prepare_corpus(request)["parts"][0]["duplicates"] == 20


def shingles(text):
    """The 5-grams of the bytes of a text, which are its tokens."""
    content = text.encode()
    return {content[i : i + 5] for i in range(len(content) - 4)}


def jaccard(a, b):
    return len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b))


def test_near_copies_are_those_of_a_jaccard_similarity_of_eight_tenths(tmp_path):
    pytest.importorskip("datasketch", reason="scalelab[dedup] is not installed")
    originals = [f"{text} {i}" for i, text in enumerate(corpora.texts(40, seed=6)) if len(text) > 150]
    near = [text.replace(" the ", " a ", 1) + "!" for text in originals[:8]]
    far = [text[: len(text) // 2] + corpora.texts(1, seed=100 + i)[0] for i, text in enumerate(originals[8:16])]
    assert all(jaccard(a, b) > 0.9 for a, b in zip(originals, near, strict=False))
    assert all(jaccard(a, b) < 0.7 for a, b in zip(originals[8:], far, strict=False))
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines([*originals, *far, *near[2:]]))
    held = corpora.write(tmp_path / "held.jsonl", corpora.json_lines(near[:2]))
    parts = prepare(tmp_path / "out", web, val_sources=[held], dedup="near")
    assert stored(tmp_path / "out")["web"][0] == [*originals[2:], *far]
    assert (parts["web"]["near_dropped"], parts["web"]["near_leaks"], parts["web"]["dropped"]) == (8, 2, 0)
    assert stored(tmp_path / "out")["held"][1] == near[:2]


def grams(content, length=50):
    content = content.encode()
    return [content[i : i + length] for i in range(len(content) - length + 1)]


@pytest.mark.parametrize("dedup", ["", "exact"])
def test_validation_documents_that_overlap_with_training_are_counted_by_their_ngrams(tmp_path, monkeypatch, dedup):
    train = corpora.texts(150, seed=7)
    rest = [text for text in train[:30] if len(text) > 120]
    start = [text[: len(text) * share // 10] for share in range(2, 10) for text in rest[:3]]  # of several shares
    held = [rest[3], *start, *(text.replace(" the ", " a ", 1) for text in rest[4:9]), *corpora.texts(20, seed=8)]
    held = [each + f" {number} times" * (number % 3) for number, each in enumerate(held[1:])] + held[:1]
    stream = "".join(text + "\0" for text in train if not (dedup and text == rest[3]))
    there = {*grams(stream)}
    shares = [sum(each in there for each in grams(f"{text}\0")) / max(1, len(grams(f"{text}\0"))) for text in held]
    judged = [len(grams(f"{text}\0")) >= 8 for text in held]
    expected = sum(s >= 0.8 and j and text not in train for s, j, text in zip(shares, judged, held, strict=True))
    assert 5 < expected < len(held) - 5  # some do, some don't
    monkeypatch.setattr(specs, "UNIT_BYTES", (1500, 1500))
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(train))
    mine = corpora.write(tmp_path / "held.jsonl", corpora.json_lines(held))
    parts = prepare(tmp_path / "out", web, val_sources=[mine], dedup=dedup)
    assert (parts["held"]["overlaps"], parts["held"]["leaks"], parts["web"]["overlaps"]) == (expected, 1, 0)


def test_a_sample_of_ngrams_is_looked_for_across_blocks(monkeypatch):
    import numpy as np

    from scalelab.data.prepare import near

    rng = np.random.default_rng(0)
    train, offsets = rng.integers(0, 30_000, 60_000).astype(np.uint16), np.arange(0, 8001, 400)
    val = rng.integers(0, 30_000, 8000).astype(np.uint16)
    for number in range(10):  # half of the documents stand in training, the last fifth of some changed
        val[400 * number : 400 * number + 400 - 40 * (number % 2)] = train[997 + 5000 * number :][
            : 400 - 40 * (number % 2)
        ]
    monkeypatch.setattr(near, "MOST_NGRAMS", 2048)
    monkeypatch.setattr(near, "BLOCK", 100)
    sought = near.choose_ngrams([(np.split(val, [5, 17, 3000]), offsets)], len(val), False)
    assert 500 < len(sought.hashes) < 4096
    seen = near.find_ngrams(np.split(train, range(1000, 60_000, 1000)), near.make_table(sought))
    covered = near.find_covered(sought, seen, [([val[:2400]], offsets[:7]), ([val[2400:]], offsets[6:] - 2400)])
    assert covered.tolist() == [True] * 10 + [False] * 10


@pytest.mark.parametrize("dedup", ["", "exact"])
def test_overlaps_are_counted_in_memory_that_does_not_grow_with_units(tmp_path, monkeypatch, dedup):
    """Megabytes of one repeated n-gram, in units of a megabyte and in one: the table of 8 MiB and some blocks."""
    import tracemalloc

    texts = [f"{number} " + "scale " * 20_000 for number in range(20)]
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines([*texts, *texts[:2]]))
    mine = corpora.write(tmp_path / "held.jsonl", corpora.json_lines([f"more {text}" for text in texts]))
    count, peaks = screen._find_overlaps, []

    def measured(*args):
        tracemalloc.start()
        overlapping = count(*args)
        peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.stop()
        return overlapping

    monkeypatch.setattr(screen, "_find_overlaps", measured)
    monkeypatch.setattr(screen.near, "BLOCK", 2**14)
    for unit_bytes in (2**20, 2**23):
        monkeypatch.setattr(specs, "UNIT_BYTES", (unit_bytes, unit_bytes))
        parts = prepare(tmp_path / str(unit_bytes), web, val_sources=[mine], dedup=dedup)
        assert (parts["held"]["overlaps"], parts["web"]["duplicates"]) == (20, 2)
    assert max(peaks) < 12, peaks


def test_near_without_its_library_is_refused_before_any_work(tmp_path, sources, monkeypatch):
    from scalelab.data.prepare import near

    near._library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(BadInput, match=r"the package datasketch: pip install 'scalelab\[dedup\]'; nearest: --ded"):
        prepare(tmp_path / "out", sources[0], dedup="near")
    assert not (tmp_path / "out").exists()
