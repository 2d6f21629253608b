"""python -m checks.speed.prepare [--rounds=N] [--memory=GB,GB] [--quick] [--json[=PATH]]

Measure how fast `scalelab prepare` makes tokens beside the library's `encode_batch_fast`, on one core: CPU seconds for
the .py files of Python's standard library (16 MB; --quick: 2 MB) as JSON lines, in turn in one process, the median of N
rounds (default 3), with BPE of 32,000 ids (--quick: 4,000) trained on them. Ours is a whole unit: reading, splitting,
hashing, encoding, writing and syncing; theirs is encoding alone, of texts that are in memory, 64 at once. Ids must be
equal. `ratio`: theirs over ours; above 1 ours is faster. Minutes.

Then the command itself prepares JSON lines of random words of the sizes of --memory (default 0.5,1,2; --quick: 0.02),
with BPE of 4,000 ids, in one process: its peak memory must not grow with the text. Ten minutes, and 7 GB in the folder
for temporary files.

    python -m checks.speed.prepare --quick
"""

import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, number_above_zero, whole_number
from scalelab.data.prepare import specs, units
from scalelab.data.read.reading import Piece
from scalelab.data.tokenizers import hf_json
from scalelab.data.tokenizers.tokenizer import TOKENIZER_FILES
from scalelab.errors import WorkFailed

TEXTS_AT_ONCE = 64
N_WORDS = 20_000  # of the random texts, by Zipf's law
WORDS_A_DOCUMENT, DOCUMENTS_AT_ONCE = 400, 2000


def read_texts(most: int) -> list[str]:
    """Texts of the standard library's files, up to so many letters, in an order that other runs have, too."""
    texts, letters = [], 0
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = path.read_text(errors="ignore")
        if text.strip() and "site-packages" not in path.parts and letters < most:
            texts.append(text)
            letters += len(text)
    return texts


def measure_cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds of this process, what it returns)."""
    before = time.process_time()
    result = work()
    return time.process_time() - before, result


def compare(texts: list[str], content: bytes, folder: pathlib.Path, rounds: int) -> dict[str, Any]:
    """CPU seconds of both ways, by round."""
    import tokenizers

    (folder / TOKENIZER_FILES["json"]).write_bytes(content)
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    theirs = tokenizers.Tokenizer.from_str(content.decode())
    theirs.encode_special_tokens = True
    rows: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(rounds):
        seconds, ids = measure_cpu(lambda: encode_theirs(theirs, texts))
        rows["theirs"].append(seconds)
        tokenizer = hf_json.load_hf_json(content, folder / TOKENIZER_FILES["json"])  # with an empty table each time
        job = units.PrepareJob(folder / str(number), tokenizer.entry, "text", False, 0.0, 0)
        unit = make_unit(source)
        seconds, record = measure_cpu(functools.partial(units.write_unit, unit, job, tokenizer))
        rows["ours"].append(seconds)
        written = np.fromfile(job.units / unit.name / "train.tokens", tokenizer.dtype)
        check_equal(ids, written[written != tokenizer.separator], record)
    return rows


def make_unit(source: pathlib.Path) -> specs.WorkUnit:
    """One unit of the whole file."""
    size = source.stat().st_size
    return specs.WorkUnit("texts", 0, (Piece("jsonl", str(source)),), size, "train")


def encode_theirs(theirs: Any, texts: list[str]) -> list[Any]:
    """The library's encodings."""
    encodings: list[Any] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        encodings += theirs.encode_batch_fast(texts[start : start + TEXTS_AT_ONCE], add_special_tokens=False)
    return encodings


def check_equal(encodings: list[Any], ids: np.ndarray, record: dict[str, Any]) -> None:
    """Raise WorkFailed unless both have the same ids."""
    expected = np.concatenate([np.array(each.ids, np.uint32) for each in encodings])
    if record["n_bad"] or not np.array_equal(expected, ids):
        raise WorkFailed("the ids of prepare and of the library differ")


def write_words(place: pathlib.Path, n_bytes: int) -> None:
    """Write JSON lines of at least so many bytes: documents of random words, the same ones for the same size."""
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, (N_WORDS, 12)).astype(np.uint8)
    words = [bytes(row[:size]).decode() for row, size in zip(letters, rng.integers(2, 12, N_WORDS), strict=True)]
    chances = 1 / np.arange(10, N_WORDS + 10)
    limits, written = np.cumsum(chances / chances.sum()), 0
    with place.open("w") as file:
        while written < n_bytes:
            drawn = np.searchsorted(limits, rng.random((DOCUMENTS_AT_ONCE, WORDS_A_DOCUMENT)) * limits[-1]).tolist()
            written += file.write("".join(f'{{"text": "{" ".join(map(words.__getitem__, row))}"}}\n' for row in drawn))


def measure_memory(n_bytes: int) -> dict[str, float]:
    """CPU seconds and peak memory of `scalelab prepare --workers=1` on random words. WorkFailed if it fails."""
    with tempfile.TemporaryDirectory() as name:
        source = pathlib.Path(name, "words.jsonl")
        write_words(source, n_bytes)
        command = [sys.executable, "-m", "scalelab", "prepare", f"--source={source}", "--tokenizer=bpe:4000",
                   f"--out={name}/out", "--val-fraction=0.01", "--workers=1"]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak_kib, done = 0, 0
        while not done:
            peak_kib = max(peak_kib, read_peak(process.pid))
            time.sleep(0.02)
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if os.waitstatus_to_exitcode(status):
            raise WorkFailed(f"{' '.join(command)} failed")
        size = source.stat().st_size
    row = {"text_gb": round(size / 1e9, 3), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1)}
    return row | {"peak_mib": round(peak_kib / 1024)}


def read_peak(pid: int) -> int:
    """The peak memory of a process so far, KiB; ru_maxrss would count this process's before its program begins."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def main(argv: list[str]) -> int:
    """Measure, print and write the result. Exit code 0, 2 for bad input."""
    return guarded("prepare", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.prepare", __doc__)
    parser.add_argument("--rounds", type=whole_number, default=3, metavar="N", help="rounds (default 3)")
    parser.add_argument("--memory", default="0.5,1,2", metavar="GB,GB", help="sizes of texts (default 0.5,1,2)")
    parser.add_argument("--quick", action="store_true", help="a few texts")
    options = parser.parse_args(argv)
    sizes = [0.02] if options.quick else [number_above_zero(size) for size in options.memory.split(",")]
    letters, vocab_size = (2_000_000, 4_000) if options.quick else (16_000_000, 32_000)
    texts = read_texts(letters)
    with tempfile.TemporaryDirectory() as folder:
        seconds = compare(texts, hf_json.train_bpe(texts, vocab_size), pathlib.Path(folder), options.rounds)
    n_bytes = sum(len(text.encode()) for text in texts)
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
    row: dict[str, Any] = {"texts": len(texts), "text_bytes": n_bytes, "vocab_size": vocab_size}
    row |= {f"{name}_cpu_s": round(statistics.median(times), 2) for name, times in seconds.items()}
    row |= {"ratio": round(statistics.median(ratios), 2), "least": round(min(ratios), 2), "most": round(max(ratios), 2)}
    print(json.dumps(row), file=sys.stderr, flush=True)
    memory = []
    for size in sizes:
        memory.append(measure_memory(round(size * 1e9)))
        print(json.dumps(memory[-1]), file=sys.stderr, flush=True)
    import tokenizers  # here: --help works without it

    content = result_header("speed.prepare", argv) | {"tokenizers": tokenizers.__version__, "rows": [row]}
    content["memory"] = memory
    (RESULTS / "prepare.json").write_text(json.dumps(content, indent=1) + "\n")
    emit_json(content, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
