"""python -m checks.speed.prepare [--rounds=N] [--quick] [--json[=PATH]]

Measure how fast `scalelab prepare` makes tokens beside the library's `encode_batch_fast`, on one core: CPU seconds for
the .py files of Python's standard library (16 MB; --quick: 2 MB) as JSON lines, in turn in one process, the median of N
rounds (default 3), with BPE of 32,000 ids (--quick: 4,000) trained on them. Ours is a whole unit: reading, splitting,
hashing, encoding, writing and syncing; theirs is encoding alone, of texts that are in memory, 64 at once. Ids must be
equal. `ratio`: theirs over ours; above 1 ours is faster. Minutes.

    python -m checks.speed.prepare --quick
"""

import functools
import json
import pathlib
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, whole_number
from scalelab.data.prepare import specs, units
from scalelab.data.read.reading import Piece
from scalelab.data.tokenizers import hf_json
from scalelab.data.tokenizers.tokenizer import TOKENIZER_FILES
from scalelab.errors import WorkFailed

TEXTS_AT_ONCE = 64


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


def main(argv: list[str]) -> int:
    """Measure, print and write the result. Exit code 0, 2 for bad input."""
    return guarded("prepare", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.prepare", __doc__)
    parser.add_argument("--rounds", type=whole_number, default=3, metavar="N", help="rounds (default 3)")
    parser.add_argument("--quick", action="store_true", help="a few texts")
    options = parser.parse_args(argv)
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
    import tokenizers  # here: --help works without it

    content = result_header("speed.prepare", argv) | {"tokenizers": tokenizers.__version__, "rows": [row]}
    (RESULTS / "prepare.json").write_text(json.dumps(content, indent=1) + "\n")
    emit_json(content, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
