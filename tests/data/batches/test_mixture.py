"""Mixtures: the shares that were asked, whole epochs of each source, and one batch whoever reads it and from
wherever."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.data.batches import mixture
from scalelab.data.batches.batches import Begin, train_batches
from scalelab.data.batches.mixture import PATTERN_BLOCK, WindowSource, WindowStream
from scalelab.errors import BadInput
from tests.data.example_sources import dataset, reordered

SEQ_LEN, BATCH = 16, 8
MIX = "web=0.7,code=0.3; 100: web=0.2,code=0.8"


@pytest.fixture(scope="module")
def data():
    return dataset(web=20_000, code=6_000)


def read(data, mixture=MIX, seed=0, accumulate=1, ramp=(), **options):
    return train_batches(data, SEQ_LEN, BATCH, seed, accumulate, ramp, mixture, **options)


def is_code(rows):
    """Of which source each row [..., S+1] is, by its tokens."""
    code = (rows > 40).sum(axis=-1)
    assert set(np.unique(code)) <= {0, 1, SEQ_LEN, SEQ_LEN + 1}  # the separator is of neither
    return code > 1


def test_the_shares_are_those_asked_from_step_to_step(data):
    code = is_code(read(data).chunk(0, 400))
    early, late = code[:100].ravel(), code[100:].ravel()
    # Exact to within two rows at the end of each block, and never further off than a draw of as many inside.
    for rows, share in ((early, 0.3), (late, 0.8)):
        off = np.cumsum(rows) - share * np.arange(1, len(rows) + 1)
        assert np.abs(off[PATTERN_BLOCK - 1 :: PATTERN_BLOCK]).max(initial=0) < 2 and np.abs(off).max() < 35
    # Shuffled inside a block: neither a pattern by place in the batch nor runs.
    by_place = code[100:].mean(axis=0)
    assert by_place.min() > 0.65 and by_place.max() < 0.95
    assert 0.5 < np.mean(late[1:] == late[:-1]) < 0.8  # of a draw: 0.8^2 + 0.2^2 = 0.68


def test_each_source_walks_its_own_epochs(data):
    rows = read(data).chunk(0, 1500).reshape(-1, SEQ_LEN + 1)
    for name, mine in (("code", rows[is_code(rows)]), ("web", rows[~is_code(rows)])):
        (part,) = (p for p in data.parts if p.name == name)
        n = (part.train.n_tokens - 1) // SEQ_LEN
        assert len(mine) > 2 * n
        seen = [tuple(row) for row in mine.tolist()]
        epochs = [seen[i : i + n] for i in range(0, len(seen) - n + 1, n)]
        assert all(len(set(epoch)) == n for epoch in epochs)
        for one, other in itertools.combinations(epochs, 2):
            assert sorted(one) == sorted(other) and one != other


def test_a_sources_order_does_not_depend_on_its_companions_or_on_the_listing(data):
    three = dataset(web=20_000, code=6_000, hq=4_000)
    np.testing.assert_array_equal(read(three).chunk(0, 200), read(data).chunk(0, 200))
    np.testing.assert_array_equal(read(reordered(three)).chunk(0, 200), read(data).chunk(0, 200))
    code = [x[is_code(x)] for x in (read(data, mixture).chunk(0, 50) for mixture in ("web=0.5,code=0.5", "code=1"))]
    np.testing.assert_array_equal(code[1][: len(code[0])], code[0])


def test_neither_sources_of_one_size_nor_blocks_go_in_step():
    twins = [WindowSource(name, 100 * i, 100, 100) for i, name in enumerate("ab")]
    stream = WindowStream(twins, [(0, [Fraction(1, 2)] * 2), (4 * PATTERN_BLOCK, [Fraction(1, 2)] * 2)], 0)
    which, _ = stream._places(np.arange(8 * PATTERN_BLOCK))
    for one, other in itertools.combinations(which.reshape(8, PATTERN_BLOCK), 2):
        assert 0.3 < np.mean(one == other) < 0.7
    windows = stream.windows(np.arange(100))
    first, second = (windows[which[:100] == i] - 100 * i for i in (0, 1))
    assert np.mean(first[:40] == second[:40]) < 0.2


def test_a_source_of_a_millionth_has_its_rows():
    """Its quota rises by one in many blocks; no block may have less than none of it."""
    tiny = Fraction(1, 1_000_003)
    stream = WindowStream([WindowSource(n, 0, 9, 9) for n in "abc"], [(0, [tiny, 1 - 2 * tiny, tiny])], 0)
    for row in (10**6, 10**7 + 13, 10**9, 10**12):
        counts = stream.before(row)
        assert sum(counts) == row and abs(counts[0] - row / 1_000_003) <= 3 and abs(counts[2] - row / 1_000_003) <= 3
    ends = np.array([stream.before(block * PATTERN_BLOCK) for block in range(0, 10_000, 7)])
    assert (np.diff(ends, axis=0) >= 0).all() and ends[-1, 0] in (10, 11)


@pytest.mark.parametrize("mixture", [MIX, ""])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_read_their_rows_of_one_batch_from_any_step(data, hosts, mixture):
    whole = read(data, mixture).chunk(0, 130)
    readers = [read(data, mixture) for _ in range(hosts)]
    share = BATCH // hosts
    for step in (129, 99, 100, 0):  # backwards: nothing is remembered
        rows = [reader.batch(step, slice(h * share, (h + 1) * share)) for h, reader in enumerate(readers)]
        np.testing.assert_array_equal(np.concatenate(rows), whole[step])
    far = [read(data, mixture).batch(10**6 + 1, slice(h * share, (h + 1) * share)) for h in range(hosts)]
    np.testing.assert_array_equal(np.concatenate(far), read(data, mixture).chunk(10**6, 2)[1])


def test_a_growing_batch_reads_the_mixture_without_a_gap(data):
    """The change at a step is one of the rows before it, few as they were while the batch grew."""
    growing = read(data, "web=1; 3: code=1", accumulate=4, ramp=(1, 1, 4)).chunk(0, 6)
    chosen = [rows[(rows >= 0).all(axis=1)] for rows in growing]
    assert [len(rows) for rows in chosen] == [2, 6, 6, 6, 8, 8]
    assert [is_code(rows).mean() for rows in chosen] == [0, 0, 0, 1, 1, 1]
    plain = train_batches(data, SEQ_LEN, 1, 0, mixture="web=1; 14: code=1").chunk(0, 36)[:, 0]
    np.testing.assert_array_equal(np.concatenate(chosen), plain)


def test_what_was_seen_is_what_was_read(data):
    reader = read(data, accumulate=4, ramp=(1, 1, 4), unique_tokens="web=4000,code=900")
    for steps in (0, 1, 99, 100, 101, 260):
        rows = reader.chunk(0, steps).reshape(-1, SEQ_LEN + 1) if steps else np.zeros((0, SEQ_LEN + 1))
        rows = rows[(rows >= 0).all(axis=1)]
        n = int(is_code(rows).sum())
        assert reader.seen(steps)["code"] == (n * SEQ_LEN, n / 56)
        assert reader.seen(steps)["web"] == ((len(rows) - n) * SEQ_LEN, (len(rows) - n) / 250)
    assert reader.unique_tokens == {"code": 896, "web": 4000}


def test_natural_proportions_see_everything_equally_often(data):
    reader = read(data, "")
    steps = 2 * (1249 + 374) // BATCH
    (tokens, epochs), (more, epochs_web) = (reader.seen(steps)[name] for name in ("code", "web"))
    assert epochs == pytest.approx(2, abs=0.03) and epochs_web == pytest.approx(2, abs=0.03)
    assert tokens + more == steps * BATCH * SEQ_LEN


any_stages = given(
    weights=st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), min_size=1, max_size=3),
    gaps=st.lists(st.integers(1, 2500), min_size=3, max_size=3),
    seed=st.integers(0, 2**31 - 1),
)


@settings(max_examples=10)
@any_stages
def test_counts_are_closed_forms_of_the_order(weights, gaps, seed):
    check_counts(weights, gaps, seed)


@pytest.mark.full
@settings(max_examples=60)
@any_stages
def test_counts_of_more_mixtures_are_closed_forms(weights, gaps, seed):
    check_counts(weights, gaps, seed)


def check_counts(weights, gaps, seed):
    """Against counting: the source of each of 5,000 rows, its place among the source's own, and the counts before any
    row."""
    starts = [0, *itertools.accumulate(gaps)]
    shares = [[Fraction(w, sum(each)) for w in each] for each in weights]
    stages = list(zip(starts, shares, strict=False))
    sources = [WindowSource(f"s{i}", 1000 * i, 1000, 1000) for i in range(4)]
    stream = WindowStream(sources, stages, seed)
    which, places = stream._places(np.arange(5000))
    counted = np.zeros(4, int)
    for row in range(5000):
        if row % 397 == 0 or row in starts:
            assert stream.before(row) == counted.tolist()
        assert places[row] == counted[which[row]]
        counted[which[row]] += 1
    for (start, share), (end, _) in itertools.pairwise([*stages, (5000, [])]):
        n = (min(end, 5000) - start) // PATTERN_BLOCK * PATTERN_BLOCK
        off = np.bincount(which[start : start + n], minlength=4) - np.array([float(n * s) for s in share])
        assert n <= 0 or np.abs(off).max() < 4
        assert all(share[i] for i in np.unique(which[start:end]))  # a source without a share has no row


def test_a_cap_keeps_whole_windows_and_a_smaller_one_is_part_of_a_larger(data):
    remaining = {}
    for cap in (640, 1280, 3200):
        rows = read(data, "web=1", unique_tokens=f"web={cap}").chunk(0, 3 * cap // SEQ_LEN // BATCH)
        seen = [tuple(row) for row in rows.reshape(-1, SEQ_LEN + 1).tolist()]
        n = cap // SEQ_LEN
        epochs = [seen[i : i + n] for i in range(0, 3 * n, n)]
        assert all(len(set(epoch)) == n and set(epoch) == set(epochs[0]) for epoch in epochs) and epochs[0] != epochs[1]
        remaining[cap] = set(epochs[0])
        other = read(data, "web=1", seed=5, unique_tokens=f"web={cap}").chunk(0, n // BATCH)
        # The choice is not the seed's.
        assert {tuple(row) for row in other.reshape(-1, SEQ_LEN + 1).tolist()} == remaining[cap]
    assert remaining[640] < remaining[1280] < remaining[3200]
    # Not the first windows of the file: spread over it.
    first = {tuple(data.parts[0].train.shards[0][16 * i : 16 * i + 17].tolist()) for i in range(200)}
    assert len(remaining[3200] & first) < 60


def test_windows_in_use_are_the_same_kept_or_computed(data, monkeypatch):
    capped = {"unique_tokens": "web=4000,code=900"}
    remaining = read(data, **capped).chunk(0, 130)
    monkeypatch.setattr(mixture, "MAX_CACHED_WINDOWS", 100)  # web's 250 are computed, code's 56 kept
    np.testing.assert_array_equal(read(data, **capped).chunk(0, 130), remaining)


def test_a_cap_of_all_of_a_lone_source_changes_nothing():
    alone = dataset(web=20_000)
    plain = read(alone, "").chunk(0, 400)
    np.testing.assert_array_equal(read(alone, "", unique_tokens=str(1249 * 16)).chunk(0, 400), plain)
    np.testing.assert_array_equal(read(alone, "web=1").chunk(0, 400), plain)
    assert (read(alone, "", unique_tokens="16000").chunk(0, 400) != plain).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": "wbe=0.5,code=0.5"}, "no source is called 'wbe'; did you mean 'web'"),
        ({"mixture": "web=1; 5: cod=1"}, "no source is called 'cod'"),
        ({"unique_tokens": "hq=100"}, "no source is called 'hq'.*there are: web, code"),
        ({"unique_tokens": "web=15"}, "web holds 1249 windows of seq_len=16, and 0 are asked; nearest: web=16"),
        (
            {"unique_tokens": "code=1e6"},
            "code holds 374 windows of seq_len=16, and 62500 are asked; nearest: code=5984",
        ),
        ({"unique_tokens": "1e6"}, "no source has as many tokens; the largest: 19984"),
    ],
)
def test_what_does_not_fit_the_sources_is_refused(data, options, message):
    with pytest.raises(BadInput, match=message):
        read(data, **{"mixture": "", **options})


def test_a_source_shorter_than_a_window_is_named():
    with pytest.raises(BadInput, match="code: the training data hold 10 tokens, a window of seq_len=16 needs 17"):
        read(dataset(web=20_000, code=10), "")


@pytest.mark.parametrize("mixture", [MIX, "web=1/2,code=1/2"])
def test_after_a_changed_batch_and_mixture_each_source_goes_on_where_it_was(data, mixture):
    """40 batches of BATCH, then of 5 under perhaps another mixture: of each source no window left out, none twice."""
    before = read(data)
    begin = Begin(40, 40, 40 * BATCH, before.rows_by_source(40), before)
    after = train_batches(data, SEQ_LEN, 5, 0, mixture=mixture, begin=begin)
    rows = np.concatenate([read(data).chunk(0, 40).reshape(-1, SEQ_LEN + 1), after.chunk(40, 900).reshape(-1, 17)])
    for name, mine in (("code", rows[is_code(rows)]), ("web", rows[~is_code(rows)])):
        (part,) = (p for p in data.parts if p.name == name)
        n = (part.train.n_tokens - 1) // SEQ_LEN
        epochs = [[tuple(row) for row in mine[i : i + n].tolist()] for i in range(0, len(mine) - n + 1, n)]
        assert epochs and all(len(set(epoch)) == n for epoch in epochs)
        assert after.seen(940)[name] == (len(mine) * SEQ_LEN, len(mine) / n)
    np.testing.assert_array_equal(after.batch(39), before.batch(39))  # of before, as they were
    assert after.seen(40) == before.seen(40) and after.at(39) is before and after.at(40) is after
    hosts = [after.chunk(40, 9, rows) for rows in (slice(0, 2), np.array([4, 2, 3]))]  # each reads its rows alone
    np.testing.assert_array_equal(np.concatenate(hosts, axis=1), after.chunk(40, 9)[:, [0, 1, 4, 2, 3]])
