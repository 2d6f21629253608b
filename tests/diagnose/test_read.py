"""What a run read, by `scalelab diagnose`: rows that are not those due, whether the code that did it is still there."""

import contextlib
import json
import os
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest

from checks.diagnosis.diagnose import forks
from scalelab.__main__ import main
from scalelab.data import dataset
from scalelab.data.batches import mixture
from scalelab.data.batches.batches import TrainBatches, Windows, val_batches
from scalelab.data.shards import Split
from scalelab.diagnose.checks.read import held_out, order
from scalelab.diagnose.verdict import Judged
from scalelab.train.single import train_single
from tests.quick import one_in, others_slow
from tests.train.resume.test_compatibility import config
from tests.train.runs import ROOT

STEPS, HALF = 24, 12
RUN = {"train__steps": STEPS, "train__global_batch": 4, "train__steps_per_dispatch": 4, "eval__every_steps": STEPS,
       "checkpoint__every_steps": HALF}  # fmt: skip


def diagnosed(folder, capsys):
    """Exit code and answer of the command."""
    capsys.readouterr()
    code = main(["diagnose", str(folder), "--fast", "--json=-"])
    return code, json.loads(capsys.readouterr().out)


def of_room(answer):
    """The verdicts of what was read, whatever else a run of some steps looks like."""
    return {
        verdict["cause"]: verdict
        for verdict in answer["verdicts"]
        if "read" in verdict["evidence"] or "row" in verdict["evidence"]
    }


def stop_at_half():
    asked = iter(range(4, 10**6, 4))
    return lambda: next(asked) >= HALF


def half_again(number, batch):
    return np.concatenate([batch[:2], batch[:2]])


def without_targets(number, batch):
    return np.where(np.arange(len(batch))[:, None] % 2, -1, batch)


def other_tokens(number, batch):
    return np.random.default_rng(number).permuted(batch, axis=1)


FAULTS = {  # a fork, whether from a restart on: the cause, and words of its evidence
    "equal rows": (lambda: forks.batches_edited(half_again), False, "equal_rows", "2 of 4 equal an earlier one"),
    "empty rows": (lambda: forks.batches_edited(without_targets), False, "no_targets", "lost all their targets"),
    "unshuffled": (forks.unshuffled, False, "not_shuffled", "order of the corpus"),
    "scrambled": (lambda: forks.batches_edited(other_tokens), False, "other_rows", "read other rows than those due"),
    "a cursor back": (lambda: forks.cursor_back(8, HALF), True, "bad_resume", "step 13 reads what was due at step 5"),
    "a cursor ahead": (lambda: forks.cursor_back(-5, HALF), True, "bad_resume", "what was due at step 18, ahead"),
    "a loop": (lambda: forks.cursor_back(6, 6), False, "repeated_batches", "step 7 reads what was due at step 1"),
    "one batch": (lambda: forks.phrase_at(9), False, "data_outlier", "1 of 24 steps compared, from 10 to 10"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("fault", one_in(8, FAULTS))
def test_rows_that_are_not_due_are_a_cause(fault, tmp_path, capsys):
    fork, restarts, cause, words = FAULTS[fault]
    with contextlib.nullcontext() if restarts else fork():
        train_single(config(**RUN), tmp_path / "run", stop=stop_at_half() if restarts else lambda: False)
    if restarts:
        with fork():
            train_single(config(**RUN), tmp_path / "run")
    code, answer = diagnosed(tmp_path / "run", capsys)  # the fault is gone: the step's own count convicts it
    assert code == 1 and words in of_room(answer)[cause]["evidence"], answer["verdicts"]
    with fork():
        _, answer = diagnosed(tmp_path / "run", capsys)  # and while it is there
    assert cause in [verdict["cause"] for verdict in answer["verdicts"]]


SOUND = {
    "plain": {}, "documents masked": {"data__documents": "mask"}, "accumulated": {"train__accumulate": 2},
    "a ramp": {"train__accumulate": 4, "schedule__batch_start": 1, "schedule__batch_warmup_tokens": 400},
    "sequences ramp": {"schedule__seq_start": 4, "schedule__seq_warmup_tokens": 600},
    "three epochs of few tokens": {"data__unique_tokens": "400"}, "few lines": {"log__every_steps": 7},
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", others_slow(lambda case: case not in ("plain", "accumulated"), SOUND))
def test_a_sound_run_has_no_cause_in_what_it_read(case, tmp_path, capsys):
    train_single(config(**RUN | SOUND[case]), tmp_path / "run", stop=stop_at_half())
    train_single(config(**RUN | SOUND[case]), tmp_path / "run")
    _, answer = diagnosed(tmp_path / "run", capsys)
    assert of_room(answer) == {} and "rows of a batch differ" in answer["judged"], answer["verdicts"]


def texts(n=240, words=90, seed=3):
    """Documents of a language of bytes: each of 40 words is followed by one of eight others."""
    rng = np.random.default_rng(seed)
    vocabulary = [bytes(rng.integers(97, 123, 3 + i % 5, np.uint8)) for i in range(40)]
    follows = rng.integers(0, 40, (40, 8))
    documents = []
    for _ in range(n):
        word, chosen = int(rng.integers(40)), []
        for choice in rng.integers(0, 8, words):
            chosen.append(vocabulary[word])
            word = int(follows[word, choice])
        documents.append(b" ".join(chosen))
    return documents


def sound(path):
    return texts()


def near_copies(path):
    """Every fourth document once more, with a line before it and a word changed."""
    documents = texts()
    again = [b"copied from elsewhere\n" + text.replace(text.split()[9], b"changed", 1) for text in documents[::4]]
    return documents + again


def line_ends(path):
    """Every document twice, with the ends of lines of two systems."""
    lines = [text.replace(b" ", b"\n") for text in texts()]
    return [end for text in lines for end in (text, text.replace(b"\n", b"\r\n"))]


def one_long_document(path):
    return [b" ".join(texts(200, seed=5)), texts(1, 200, seed=6)[0]]


def kinds(path):
    """Two kinds of documents, a third of them of letters of another case."""
    return [text.upper() if i % 3 == 0 else text for i, text in enumerate(texts())]


def split_by(choose):
    """A split that holds out the documents that `choose` takes of their digests and sizes."""
    return mock.patch.object(dataset, "held_out_documents", lambda sizes, *_: set(choose(list(sizes))))


CORPORA = {  # a source, a split: the cause, and words of its evidence
    "near copies": ("near_copies", None, "near_duplicates", "are nearly another one"),
    "ends of lines": ("line_ends", None, "near_duplicates", "are nearly another one"),
    "validation in training": ("near_copies", lambda found: found[240:], "val_in_train", "60 of 60 validation"),
    "another kind": ("kinds", lambda found: found[0:90:3], "val_of_another_kind", "standard deviations above"),
    "sound": ("sound", None, "", ""),
    "kinds, split at random": ("kinds", None, "", ""),
    "one long document": ("one_long_document", None, "", ""),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", one_in(7, CORPORA))
def test_documents_of_both_sides_are_compared(case, tmp_path, capsys):
    source, choose, cause, words = CORPORA[case]
    changed = RUN | {"data__source": f"{__name__}:{source}", "data__cache_dir": str(tmp_path / "cache")}
    changed |= {"data__val_fraction": 0.15} if choose else {}  # near those chosen, or it is refused
    with split_by(choose) if choose else contextlib.nullcontext():
        train_single(config(**changed | {"model__vocab_size": 256}), tmp_path / "run")
    capsys.readouterr()
    main(["diagnose", str(tmp_path / "run"), "--fast", "--json=-", f"--trust={__name__}:{source}"])
    answer = json.loads(capsys.readouterr().out)
    causes = {verdict["cause"]: verdict for verdict in answer["verdicts"]}
    wanted = ("near_duplicates", "val_in_train", "val_of_another_kind", "not_shuffled", "duplicated_documents")
    assert [name for name in causes if name in wanted][:1] == [cause] * bool(cause), answer["verdicts"]
    assert not cause or words in causes[cause]["evidence"]


CALLS = []


def drawn(path):
    """Documents that change with every third time that they are asked for: preparing them takes three."""
    CALLS.append(path)
    return texts(seed=(len(CALLS) - 1) // 3)


@pytest.mark.full
def test_a_source_that_gives_other_documents_each_time_is_a_cause(tmp_path, capsys):
    changed = RUN | {"data__source": f"{__name__}:drawn", "data__cache_dir": str(tmp_path / "cache")}
    train_single(config(**changed | {"model__vocab_size": 256}), tmp_path / "run")
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path / "run"), "--fast", "--json=-", f"--trust={__name__}:drawn"]) == 1
    first = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert first["cause"] == "unstable_source" and "other documents each time" in first["evidence"]


def drawn_anew(share=1.0):
    """Windows drawn anew at every place instead of permuted, of the first ones alone or of all."""

    def draw(positions, n, *_):
        return np.random.default_rng(3).integers(0, int(share * n), 10**5)[positions]

    return mock.patch.object(mixture, "window_numbers", draw)


def twice_in_an_epoch():
    return drawn_anew(0.02)


def each_pass_alike():
    """One permutation for all epochs: the seed of the shuffle has no epoch."""
    right = mixture.window_numbers
    return mock.patch.object(mixture, "window_numbers", lambda positions, n, *key: right(positions % n, n, *key))


def by_length(seed=0):
    """The run's rows, sorted by their number of words."""
    right = TrainBatches.numbered

    def numbered(self, numbers, *rows):
        batches = right(self, numbers, *rows)
        due = self.windows[np.concatenate([self.window_numbers(n) for n in range(48)])]
        ordered = due[np.argsort((due == 32).sum(axis=1), kind="stable")].reshape(-1, *batches.shape[1:])
        return np.stack([ordered[n % 48] for n in numbers])

    return mock.patch.object(TrainBatches, "numbered", numbered)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fork", "cause", "words"),
    one_in(
        3,
        [
            (twice_in_an_epoch, "repeated_batches", "in the same epoch"),
            (each_pass_alike, "repeated_batches", "each pass reads the same batches in the same order"),
            (by_length, "not_shuffled", "follows the place in the stream"),
        ],
    ),
)
def test_an_order_that_is_not_a_shuffle_is_a_cause(fork, cause, words, tmp_path, capsys):
    changed = RUN | {"data__source": f"{__name__}:sound", "model__vocab_size": 256, "train__steps": 48}
    changed |= {"data__unique_tokens": "400"} if fork is each_pass_alike else {}
    with fork():
        train_single(config(**changed | {"data__cache_dir": str(tmp_path / "cache")}), tmp_path / "run")
        capsys.readouterr()
        main(["diagnose", str(tmp_path / "run"), "--fast", "--json=-", f"--trust={__name__}:sound"])
    causes = {verdict["cause"]: verdict for verdict in json.loads(capsys.readouterr().out)["verdicts"]}
    assert words in causes.get(cause, {"evidence": ""})["evidence"], causes


def places(numbers, n_windows, epoch=None):
    numbers = np.asarray(numbers)
    return order.Places(
        np.zeros(len(numbers), int) if epoch is None else epoch, np.arange(len(numbers)), numbers, n_windows
    )


def test_windows_drawn_with_replacement_repeat_as_often_as_chance_has_it_and_others_are_named():
    """The mean and spread of repeats are those of draws; a part of the windows, or a few twice, is none of these."""
    rng, n, size = np.random.default_rng(0), 1280, 4000
    draws = [places(rng.integers(0, size, n), size) for _ in range(400)]
    repeats, (mean, variance) = np.array([each.count_repeats() for each in draws]), draws[0].expected_repeats()
    assert abs(repeats.mean() - mean) < 4 * (variance / 400) ** 0.5 and repeats.var() == pytest.approx(
        variance, rel=0.3
    )
    epochs = np.arange(3 * size) // size
    permuted = np.concatenate([rng.permutation(size) for _ in range(3)])
    for sound in (draws[0], places(permuted, size, epochs), places(rng.integers(0, size, 3 * size), size, epochs)):
        assert all(isinstance(each, Judged) for each in order.judge_repeats([sound]))
    eighth, few = rng.integers(0, size // 8, n), np.concatenate([permuted[: n - 8], permuted[:8]])
    for fault in (eighth, few):
        (verdict,) = order.judge_repeats([places(fault, size)])
        assert verdict.cause == "repeated_batches" and f"of {n} windows read" in verdict.evidence


@pytest.mark.parametrize(("step", "cause"), [(8, None), (4, "repeated_batches"), (16, "tokens_lost")])
def test_windows_of_an_epoch_lie_end_to_end(step, cause):
    """Those that begin at each half read each token twice, those at each second one leave half of them out."""
    shards = (np.arange(100), np.arange(43))
    windows = Windows({"a": Split(shards, ())}, 8, "training")
    windows.views = [np.lib.stride_tricks.sliding_window_view(shard, 9)[::step] for shard in shards]
    windows.sizes = {"a": sum(map(len, windows.views))}
    part = types.SimpleNamespace(name="a", train=types.SimpleNamespace(shards=shards, n_tokens=143))
    evidence = types.SimpleNamespace(data=types.SimpleNamespace(dataset=types.SimpleNamespace(parts=[part])))
    stretch = order.Stretch(types.SimpleNamespace(windows=windows), None, None, np.zeros((1, 1, 9)), None)
    found = [getattr(each, "cause", None) for each in order.judge_windows(evidence, stretch)]
    assert found == [None, cause] if cause else found == [None]


def other_letters(*arguments):
    """Validation windows whose letters a to e are made upper-case, as by an evaluation of other code."""
    rows = val_batches(*arguments)
    return np.where((rows >= 97) & (rows <= 101), rows - 32, rows)


@pytest.mark.full
def test_validation_text_that_is_changed_before_the_loss_is_of_another_kind(tmp_path, capsys):
    changed = RUN | {"data__source": f"{__name__}:sound", "model__vocab_size": 256, "model__seq_len": 64}
    train_single(config(**changed | {"data__cache_dir": str(tmp_path / "cache")}), tmp_path / "run")
    for read, known in ((other_letters, False), (val_batches, True)):
        capsys.readouterr()
        with mock.patch.object(held_out, "val_batches", read):
            main(["diagnose", str(tmp_path / "run"), "--fast", "--json=-", f"--trust={__name__}:sound"])
        answer = json.loads(capsys.readouterr().out)
        causes = {verdict["cause"]: verdict["evidence"] for verdict in answer["verdicts"]}
        assert ("stand in no document" in causes.get("val_of_another_kind", "")) != known, causes
        assert held_out.EVALUATED in answer["judged"]


RANKS = """
import pathlib
import sys
import types
from unittest import mock
from scalelab.train.single import train_single
from scalelab.train.step import program
from tests.diagnose.test_read import RUN, config
whole = program.rows.assemble_global_array
def of_one_rank(sharding, rows, *arguments, **more):
    half = rows.shape[1] // 2
    rows = rows.copy()
    rows[:, half:] = rows[:, :half]
    return whole(sharding, rows, *arguments, **more)
changed = RUN | {"parallel__data": 2, "train__steps": 12}
train_single(config(**changed), pathlib.Path(sys.argv[1]))
with mock.patch.object(program.rows, "assemble_global_array", of_one_rank):
    train_single(config(**changed), pathlib.Path(sys.argv[2]))
"""


@pytest.mark.full
def test_data_ranks_that_read_the_same_rows_are_a_cause(tmp_path, capsys):
    """On two devices the step's own count tells ranks that read the rows of one; a sound mesh has no cause."""
    sound, planted = tmp_path / "sound", tmp_path / "planted"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", RANKS, sound, planted], cwd=ROOT, env=env, check=True, capture_output=True)
    assert of_room(diagnosed(sound, capsys)[1]) == {}
    verdict = of_room(diagnosed(planted, capsys)[1])["equal_rows"]
    assert "2 of 4 equal an earlier one" in verdict["evidence"] and "all 2 data ranks" in verdict["evidence"]
