"""Speed of data: batches read, beside a bare memmap; and the gain of a second worker in `scalelab prepare`.

Reading: sequences of 256 from 64 M uint16 tokens, shuffled, in one process; and at its dearest, in batches of 16 from a
mixture of four sources, each capped at 4 M tokens. The ceiling gathers the same number of windows by numpy from the
same mapped file, in an order drawn beforehand, without Grain, epochs or sources. Preparing: this Python's own library
as JSON lines with a BPE of 4,096 ids that is there already, one worker and all cores.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import tempfile
from typing import Any

import numpy as np

from scalelab.data.batches.batches import train_batches
from scalelab.data.dataset import open_dataset
from scalelab.data.prepare import corpus
from scalelab.data.prepare.request import Request
from scalelab.data.sources.sources import DataConfig, open_source
from scalelab.data.tokenizers import hf_json
from scalelab.experiments.timing import ratio_over_rounds, time_interleaved

SEQ_LEN, BATCH, STEPS = 256, 256, 32
SMALL_SEQ_LEN = 16  # sequence length of the mixture
TOKENS, VOCAB = 2**26, 50_257
COPIES = 4  # copies of the library: 43 MB, so that starting the workers is a small part


def measure_data(rounds: int) -> dict[str, Any]:
    """Medians: tokens/s of reading and of its ceiling, bytes/s of preparing with one worker and with one per core."""
    with tempfile.TemporaryDirectory() as folder:
        return _reading(pathlib.Path(folder), rounds) | _preparing(pathlib.Path(folder), max(1, rounds // 3))


def _reading(folder: pathlib.Path, rounds: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCAB, TOKENS, np.uint16)
    tokens[random.integers(0, TOKENS, TOKENS // 700)] = VOCAB - 1  # documents of 700 tokens
    tokens.tofile(folder / "tokens.bin")
    corpus.prepare_corpus(Request([str(folder / "tokens.bin")], f"ids:{VOCAB}", folder / "tokens", val_fraction=0.01))
    data = open_dataset(DataConfig(source="prepared", path=str(folder / "tokens"), vocab_size=VOCAB))
    batches = train_batches(data, SEQ_LEN, BATCH, seed=0)
    four = dataclasses.replace(data, parts=tuple(dataclasses.replace(data.parts[0], name=name) for name in "abcd"))
    small = train_batches(
        four, SEQ_LEN, SMALL_SEQ_LEN, seed=0, mixture="a=0.4,b=0.3,c=0.2,d=0.1", unique_tokens=str(2**22)
    )
    shard = data.parts[0].train.shards[0]
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(shard), SEQ_LEN + 1)[::SEQ_LEN]
    orders = [random.integers(0, len(windows), (STEPS, BATCH)) for _ in range(8)]
    turn = {"ours": 0, "mixed": 0, "bare": 0}

    def ours() -> None:
        turn["ours"] += 1
        batches.chunk(turn["ours"] * STEPS, STEPS)

    def mixed() -> None:
        turn["mixed"] += 1
        steps = STEPS * BATCH // SMALL_SEQ_LEN
        small.chunk(turn["mixed"] * steps, steps)

    def bare() -> None:
        turn["bare"] += 1
        order = orders[turn["bare"] % len(orders)]
        np.stack([windows[numbers].astype(np.int32) for numbers in order])

    seconds = time_interleaved({"ours": ours, "bare": bare, "mixed": mixed}, rounds)
    value, low, high = ratio_over_rounds(seconds, "bare", "ours")
    of_mixed, *range_of_mixed = ratio_over_rounds(seconds, "bare", "mixed")
    n = STEPS * BATCH * SEQ_LEN
    return {
        "read_tokens_per_s": n / float(np.median(seconds["ours"])),
        "memmap_tokens_per_s": n / float(np.median(seconds["bare"])),
        "read_ratio": value,
        "read_ratio_range": (low, high),
        "mixed_tokens_per_s": n / float(np.median(seconds["mixed"])),
        "mixed_ratio": of_mixed,
        "mixed_ratio_range": tuple(range_of_mixed),
    }


def _preparing(folder: pathlib.Path, rounds: int) -> dict[str, Any]:
    source: Any = open_source(DataConfig())
    texts = [document.decode(errors="replace") for document in source.documents()]
    with open(folder / "library.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts * COPIES)
    (folder / "tokenizer.json").write_bytes(hf_json.train_bpe(texts, 4096))
    cores = len(os.sched_getaffinity(0))
    cpu: dict[int, list[float]] = {1: [], cores: []}

    def run(workers: int) -> None:
        out, before = folder / f"prepared-{workers}-{len(cpu[workers])}", _cpu_s()
        request = Request([str(folder / "library.jsonl")], str(folder / "tokenizer.json"), out, workers=workers)
        with contextlib.redirect_stderr(None):
            corpus.prepare_corpus(request)
        cpu[workers].append(_cpu_s() - before)

    seconds = time_interleaved({"one": lambda: run(1), "all": lambda: run(cores)}, rounds, warmup=0)
    value, low, high = ratio_over_rounds(seconds, "one", "all")
    n = sum(len(text.encode()) for text in texts) * COPIES
    return {
        "cores": cores,
        "one_bytes_per_s": n / float(np.median(seconds["one"])),
        "all_bytes_per_s": n / float(np.median(seconds["all"])),
        "speedup": value,
        "speedup_range": (low, high),
        # On a machine that is busy, wall time tells little.
        "cpu_ratio": float(np.median(cpu[cores]) / np.median(cpu[1])),
    }


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)
