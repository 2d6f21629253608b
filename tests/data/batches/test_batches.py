"""Batches: every window once an epoch, the same global batch for any hosts, the same order after any restart."""

import hashlib
import itertools
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from scalelab.data import shards
from scalelab.data.batches.batches import train_batches, val_batches
from scalelab.data.batches.order import permute_positions, window_numbers
from scalelab.data.dataset import open_dataset
from scalelab.errors import BadInput

ROOT = pathlib.Path(__file__).parents[3]
SEQ_LEN, BATCH = 32, 6


@pytest.fixture(params=[2**26, 4000], ids=["one shard", "many shards"])
def dataset(corpus, monkeypatch, request):
    monkeypatch.setattr(shards, "SHARD_TOKENS", request.param)
    return open_dataset(corpus)


def all_windows(split):
    """Every window, cut out by hand."""
    return [
        tuple(int(t) for t in shard[start : start + SEQ_LEN + 1])
        for shard in split.shards
        for start in range(0, len(shard) - SEQ_LEN, SEQ_LEN)
    ]


def test_an_epoch_holds_every_window_exactly_once(dataset):
    expected = all_windows(dataset.parts[0].train)
    assert len(set(expected)) == len(expected) > 1000
    batches = train_batches(dataset, SEQ_LEN, BATCH, seed=0)
    n_steps = 3 * len(expected) // BATCH + 1
    rows = [tuple(r) for step in range(n_steps) for r in batches.batch(step).tolist()]
    epochs = [rows[i * len(expected) : (i + 1) * len(expected)] for i in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(expected)
    for one, other in itertools.combinations([expected, *epochs], 2):  # neither file order nor another epoch's
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_a_batch_larger_than_the_data_spans_epochs(dataset):
    n = len(all_windows(dataset.parts[0].train))
    rows = train_batches(dataset, SEQ_LEN, 2 * n, seed=0).batch(0)
    assert len(np.unique(rows[:n], axis=0)) == n and len(np.unique(rows, axis=0)) == n


@pytest.mark.parametrize("hosts", [2, 3, 6])
def test_hosts_read_their_rows_of_one_global_batch(dataset, hosts):
    whole = train_batches(dataset, SEQ_LEN, BATCH, seed=3)
    parts = [train_batches(dataset, SEQ_LEN, BATCH, seed=3) for _ in range(hosts)]
    for step in (0, 7, 10**6):
        rows = [p.batch(step, slice(h * BATCH // hosts, (h + 1) * BATCH // hosts)) for h, p in enumerate(parts)]
        np.testing.assert_array_equal(np.concatenate(rows), whole.batch(step))
    np.testing.assert_array_equal(parts[0].chunk(5, 3, slice(0, 2)), whole.chunk(5, 3)[:, :2])


def test_a_fresh_reader_continues_where_the_old_one_stopped(dataset):
    running = train_batches(dataset, SEQ_LEN, BATCH, seed=1)
    steps = [running.batch(step) for step in range(40)]
    resumed = train_batches(dataset, SEQ_LEN, BATCH, seed=1)
    for step in (39, 0, 17):
        np.testing.assert_array_equal(resumed.batch(step), steps[step])
    np.testing.assert_array_equal(resumed.chunk(11, 9), steps[11:20])
    assert resumed.chunk(0, 2).dtype == np.int32


def test_order_does_not_depend_on_the_batch_size(dataset):
    small, large = (train_batches(dataset, SEQ_LEN, b, seed=1) for b in (2, 5000))
    np.testing.assert_array_equal(small.chunk(0, 2500).reshape(5000, -1), large.batch(0))


def test_seeds_give_unrelated_orders(dataset):
    # Seed s at epoch e + 1 must not be seed s + 1 at epoch e, as it is where seeds and epochs are added.
    n = len(all_windows(dataset.parts[0].train))
    orders = {(s, e): window_numbers(np.arange(e * n, (e + 1) * n), n, s) for s in range(3) for e in range(3)}
    for one, other in itertools.combinations(orders.values(), 2):
        assert (one == other).sum() < 10


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4097])
def test_permute_is_a_permutation(n):
    for seed in range(5):
        assert sorted(permute_positions(np.arange(n), n, (seed, 0)).tolist()) == list(range(n))


def test_permute_reaches_far_into_huge_corpora():
    n = 10**15 + 7
    places = np.array([0, 1, n - 2, n - 1])
    numbers = permute_positions(places, n, (0, 0))
    assert len(set(numbers.tolist())) == 4 and (numbers >= 0).all() and (numbers < n).all()


def test_permutations_are_uniform():
    # All 24 orders of 4 windows should be equally likely over keys: chi-square with 23 degrees of freedom, mean 23, sd
    # 6.8.
    counts: dict = {}
    for seed in range(4800):
        order = tuple(permute_positions(np.arange(4), 4, (seed, 0)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((c - 200) ** 2 / 200 for c in counts.values()) < 23 + 5 * 6.8
    # Neighbours end up far apart: the mean distance of two uniform draws is n / 3.
    spread = np.abs(np.diff(permute_positions(np.arange(10_000), 10_000, (0, 0)))).mean()
    assert abs(spread / 10_000 - 1 / 3) < 0.01


def test_the_order_is_what_it_was():
    # Finished runs hang on this order. If it must change, say so in the record's format and then update these numbers.
    assert window_numbers(np.array([0, 1, 2, 999, 1000, 10**9]), 1000, 0).tolist() == [414, 540, 67, 584, 957, 520]


@pytest.mark.full
def test_another_process_reads_the_same_batches(corpus):
    program = (
        "import sys, hashlib; from scalelab.data.dataset import open_dataset\n"
        "from scalelab.data.sources.sources import DataConfig\n"
        "from scalelab.data.batches.batches import train_batches\n"
        "d = open_dataset(DataConfig(source='text', path=sys.argv[1], cache_dir=sys.argv[2]))\n"
        "print(hashlib.sha256(train_batches(d, 32, 6, 9).chunk(100, 20).tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program, corpus.path, corpus.cache_dir + "-other"]
    other = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    here = train_batches(open_dataset(corpus), SEQ_LEN, BATCH, 9).chunk(100, 20)
    assert hashlib.sha256(here.tobytes()).hexdigest() == other


def test_validation_is_fixed_and_evenly_spaced(dataset):
    windows = all_windows(dataset.parts[0].val)
    place = {w: i for i, w in enumerate(windows)}
    batches = val_batches(dataset.parts[0], SEQ_LEN, 4, 5)
    assert [b.shape for b in batches] == [(4, SEQ_LEN + 1)] * 5 and batches[0].dtype == np.int32
    places = [place[tuple(row)] for b in batches for row in b.tolist()]
    gaps = np.diff(places)
    assert gaps.min() >= len(windows) // 20 and gaps.max() <= len(windows) // 20 + 1
    assert places[0] < len(windows) / 20 and places[-1] >= len(windows) * 19 / 20
    np.testing.assert_array_equal(
        np.concatenate(batches), np.concatenate(val_batches(dataset.parts[0], SEQ_LEN, 10, 2))
    )


def test_validation_uses_all_that_fits_where_less_is_there(dataset):
    windows = all_windows(dataset.parts[0].val)
    batches = val_batches(dataset.parts[0], SEQ_LEN, 10, 10**6)
    assert len(batches) == len(windows) // 10
    assert len({tuple(row) for b in batches for row in b.tolist()}) == 10 * len(batches)
    (larger,) = val_batches(dataset.parts[0], SEQ_LEN, len(windows) + 3, 5)  # less than one batch
    assert [tuple(row) for row in larger[:-3].tolist()] == windows and (larger[-3:] == -1).all()


def test_no_training_window_holds_validation_text(dataset):
    train = b"".join(s.tobytes() for s in dataset.parts[0].train.shards)
    for row in np.concatenate(val_batches(dataset.parts[0], SEQ_LEN, 1, 50)):
        assert row.astype(np.uint8).tobytes() not in train


def test_refusals_name_both_numbers(dataset):
    with pytest.raises(BadInput, match=r"training data hold \d+ tokens, .* needs 1000001"):
        train_batches(dataset, 10**6, 1, 0)
    with pytest.raises(BadInput, match=r"text: the validation data hold \d+ tokens, .* needs 1000001"):
        val_batches(dataset.parts[0], 10**6, 1, 1)
    with pytest.raises(BadInput, match="global_batch=0"):
        train_batches(dataset, SEQ_LEN, 0, 0)
    with pytest.raises(BadInput, match="seed=-1"):
        train_batches(dataset, SEQ_LEN, 1, -1)
    with pytest.raises(BadInput, match="seq_len=0"):
        train_batches(dataset, 0, 1, 0)


RAMP = (1, 1, 4)  # of 6 rows in 6 micro-batches: three, then five from step 1 on, six from step 4 on


def test_a_growing_batch_reads_the_same_stream_without_a_gap(dataset):
    stream = train_batches(dataset, SEQ_LEN, 1, seed=2).chunk(0, 100)[:, 0]
    growing = train_batches(dataset, SEQ_LEN, 6, 2, 6, RAMP)
    batches = [growing.batch(step) for step in range(8)]
    chosen = [batch[(batch >= 0).all(axis=1)] for batch in batches]
    assert [len(rows) for rows in chosen] == [3, 5, 5, 5, 6, 6, 6, 6]
    assert all((batch[len(rows) :] == -1).all() for batch, rows in zip(batches, chosen, strict=True))
    np.testing.assert_array_equal(np.concatenate(chosen), stream[:42])
    later = train_batches(dataset, SEQ_LEN, 6, 2, 6, RAMP)  # begun anew in the middle, and as two hosts
    np.testing.assert_array_equal(later.chunk(2, 5), batches[2:7])
    parts = [later.chunk(0, 8, rows) for rows in (slice(0, 2), np.array([2, 3, 4, 5]))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), batches)
    far = 10**6  # by then 1 + 1 + 4 rows were not taken
    np.testing.assert_array_equal(
        growing.batch(far), train_batches(dataset, SEQ_LEN, 1, seed=2).chunk(6 * far - 6, 6)[:, 0]
    )


def test_its_micro_batches_are_those_of_a_batch_of_that_size(dataset):
    """Row r is of micro-batch r % accumulate, as the step cuts them."""
    growing, small = train_batches(dataset, SEQ_LEN, 6, 2, 3, (2,)), train_batches(dataset, SEQ_LEN, 4, 2, 2)
    for step in (0, 1):
        cut = growing.batch(step).reshape(2, 3, -1), small.batch(step).reshape(2, 2, -1)
        np.testing.assert_array_equal(cut[0][:, :2], cut[1])
        assert (cut[0][:, 2] == -1).all()


def test_rows_that_are_not_taken_are_not_read(dataset, monkeypatch):
    batches, seen = train_batches(dataset, SEQ_LEN, 6, 2, 6, RAMP), []
    read = type(batches.windows).__getitem__
    monkeypatch.setattr(type(batches.windows), "__getitem__", lambda self, n: seen.append(len(n)) or read(self, n))
    batches.chunk(0, 5)
    assert seen == [3 + 5 + 5 + 5 + 6]  # of 30, and those of all steps at once


@pytest.mark.parametrize("rows", [slice(None), np.array([4, 1])], ids=["all", "of one host"])
def test_batches_without_grain_are_those_of_grain(dataset, monkeypatch, rows):
    expected = [train_batches(dataset, SEQ_LEN, BATCH, seed=3).chunk(step, 2, rows) for step in (0, 7, 10**6)]
    monkeypatch.setitem(sys.modules, "grain", None)
    batches = [train_batches(dataset, SEQ_LEN, BATCH, seed=3).chunk(step, 2, rows) for step in (0, 7, 10**6)]
    assert all((a == b).all() for a, b in zip(expected, batches, strict=True))
