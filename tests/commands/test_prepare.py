"""`scalelab prepare` as a user runs it: kills and signals at any moment, exit codes, and runs on its output."""

import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.data.prepare.prepared import read_prepared
from scalelab.data.tokenizers.load import load_tokenizer_file
from scalelab.record import records
from scalelab.train.single import train_single
from tests.data import corpora
from tests.train.runs import PATIENCE_S

ROOT = pathlib.Path(__file__).parents[2]

# The command, with units and shards so small that there are many moments to be killed at.
COMMAND = """
import sys
from scalelab.data.prepare import corpus, specs
from scalelab.data import shards
from scalelab.__main__ import main
corpus.ALONE_BYTES = 0
specs.UNIT_BYTES = (20_000, 20_000)
shards.SHARD_TOKENS = 100_000
if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """A script, since workers import what started them; with the folder of a corpus."""
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "prepare.py").write_text(COMMAND)
    for name, n in (("web.jsonl", 3000), ("code.jsonl.gz", 1000)):
        corpora.write(folder / name, corpora.json_lines(corpora.texts(n, seed=n)))
    return folder


def start(command, out, workers, *more):
    sources = [f"--source={command}/web.jsonl", f"--source={command}/code.jsonl.gz"]
    line = [
        sys.executable,
        f"{command}/prepare.py",
        *sources,
        "--tokenizer=bpe:300",
        f"--out={out}",
        f"--workers={workers}",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*line, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def digests(folder):
    files = [path for path in pathlib.Path(folder).iterdir() if path.name[0] != "."]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def whole(command):
    """Hashes of an uninterrupted preparation, and its seconds."""
    begun = time.monotonic()
    process = start(command, command / "whole", 2)
    output = process.communicate()
    assert process.returncode == 0, output
    return digests(command / "whole"), time.monotonic() - begun


def kill_until_done(command, out, expected, moments):
    """Start it again and again, each time killed as soon as one of `moments` has come; then let it end.

    What looks finished is: where there is an index, all the rest is there, whether the kill came before or after it.
    """
    codes = []
    for moment in moments:
        process, begun = start(command, out, 1 + len(codes) % 2), time.monotonic()
        while process.poll() is None and not moment(out, time.monotonic() - begun):
            time.sleep(0.005)
        process.kill()
        process.communicate()  # returns once the workers are gone too: they hold its ends
        codes.append(process.returncode)
        assert not (out / "index.json").exists() or digests(out) == expected
    process = start(command, out, 2)
    output = process.communicate()
    assert process.returncode == 0, output
    assert digests(out) == expected and not (out / ".units").exists()
    return codes


def there_are(n_files, pattern):
    """A moment by what the folder holds, not by the clock: it comes on a slow machine and on a busy one."""
    return lambda out, seconds: len(list(out.glob(pattern))) >= n_files


@pytest.mark.full
def test_killed_at_any_moment_it_ends_with_the_same_bytes(command, whole):
    moments = [there_are(1, "tokenizer.json"), there_are(9, ".units/*/record.json"), there_are(1, "*.tokens")]
    assert -signal.SIGKILL in kill_until_done(command, command / "killed", whole[0], moments)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_random_moments_it_ends_with_the_same_bytes(command, whole, seed):
    chance, (expected, whole_s) = random.Random(seed), whole
    ends = [chance.uniform(0.05, 1.1) * whole_s for _ in range(5)]
    kill_until_done(command, command / f"killed-{seed}", expected, [lambda _, s, end=end: s >= end for end in ends])


@pytest.mark.full
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_signal_stops_it_with_75_and_it_goes_on(command, whole, workers):
    expected, _ = whole
    out = command / f"stopped-{workers}"
    process = start(command, out, workers)
    while not list(out.glob(".units/*/record.json")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)  # its workers get it too
    stderr = process.communicate()[1]
    assert process.returncode == 75 and "the same command goes on" in stderr
    process = start(command, out, workers)
    process.communicate()
    assert process.returncode == 0 and digests(out) == expected


def test_a_second_one_in_the_same_folder_is_refused(command, tmp_path):
    out = tmp_path / "out"
    first = start(command, out, 1)
    while not (out / "plan.json").exists() or not (out / ".lock").exists() or not (out / ".lock").read_text():
        assert first.poll() is None
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)  # else it may end before the second one looks
    second = start(command, out, 1)
    stderr = second.communicate()[1]
    assert second.returncode == 2 and "is held by host" in stderr and "use another --out" in stderr
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()


def test_mistakes_are_one_line_and_exit_2(tmp_path, capsys):
    path = corpora.write(tmp_path / "a.jsonl", b'{"text": "fine"}\n{"text": \n')
    assert main(["prepare", f"--source={path}", "--tokenizer=bytes", f"--out={tmp_path}/out", "--workers=1"]) == 2
    stderr = capsys.readouterr().err
    (line,) = [line for line in stderr.splitlines() if line.startswith("scalelab:")]
    assert line.startswith(f"scalelab: {path}, line 2 (byte 17): bad JSON")
    assert main(["prepare", f"--source={path}", "--tokeniser=bytes", f"--out={tmp_path}/out"]) == 2


def test_the_result_as_json_and_as_a_table(tmp_path, capsys):
    path = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(corpora.texts(100)))
    line = ["prepare", f"--source={path}", "--tokenizer=bytes", f"--out={tmp_path}/out", "--workers=1"]
    assert main([*line, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokenizer"] == {"name": "bytes", "vocab_size": 256, "separator": 0}
    (part,) = result["parts"]
    assert part["train_documents"] + part["val_documents"] == 100 and part["n_bad"] == 0
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "web" in out and "finished before, every file unchanged" in out and 'data.source="prepared"' in out


PEAK = """
import pathlib, sys
from scalelab.data.prepare import corpus
from scalelab.data.prepare.request import Request
corpus.prepare_corpus(Request([sys.argv[1]], "bytes", pathlib.Path(sys.argv[2])))
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak.split()[1]) / 1024)  # not ru_maxrss, which begins with that of the process that started it
"""


@pytest.mark.full
def test_drafts_of_a_killed_one_are_swept(command, whole, tmp_path):
    """Killed between the draft of a file and its renaming, of any file."""
    expected, _ = whole
    out = tmp_path / "out"
    out.mkdir()
    for name in (
        ".plan.json.123.tmp",
        ".tokenizer.json.tmp-123",
        "web-train-00000.tokens.tmp-123",
        ".index.json.1.tmp",
    ):
        (out / name).write_text("half")
    process = start(command, out, 1)
    assert process.communicate() and process.returncode == 0
    assert digests(out) == expected


@pytest.mark.slow
def test_ten_times_the_documents_take_the_same_memory(tmp_path):
    """Both are past what a unit and the buffers hold; the larger one is ten times that."""
    peak_mib = []
    for n in (20_000, 200_000):
        texts = (f"{i} " + "scale " * 40 for i in range(n))
        path = corpora.write(tmp_path / f"{n}.jsonl", corpora.json_lines(texts))
        command = [sys.executable, "-c", PEAK, path, str(tmp_path / f"out-{n}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peak_mib.append(float(done.stdout))
    assert peak_mib[1] < peak_mib[0] + 8, peak_mib


def tfds_source(folder):
    return corpora.make_tfds(folder / "tfds", corpora.texts(600))


def parquet_source(folder):
    return corpora.write_parquet(folder / "web.parquet", corpora.texts(600))


def nanogpt_source(folder):
    return corpora.write_nanogpt(folder / "train.bin", corpora.ids(600, vocab_size=499), end=499)


def megatron_source(folder):
    return corpora.write_megatron(folder / "text_document.bin", corpora.ids(600, vocab_size=499), end=499)


@pytest.mark.full
@pytest.mark.parametrize(
    "source, tokenizer",
    [
        (parquet_source, ["--tokenizer=bpe:300"]),
        (tfds_source, ["--tokenizer=bytes"]),
        pytest.param(nanogpt_source, ["--tokenizer=ids:500", "--separator=499"], marks=pytest.mark.slow),
        (megatron_source, ["--tokenizer=ids:500", "--separator=499"]),
    ],
)
def test_a_run_on_each_kind_of_source(tmp_path, source, tokenizer):
    line = [f"--source=mine={source(tmp_path)}", *tokenizer, f"--out={tmp_path}/out", "--workers=1"]
    assert main(["prepare", *line]) == 0
    config = config_lib.load(ROOT / "configs" / "tiny.py", {
        "data.source": "prepared", "data.path": f"{tmp_path}/out", "model.vocab_size": 512, "model.n_layers": 1,
        "model.d_model": 16, "model.n_heads": 2, "model.seq_len": 32, "train.steps": 20, "train.global_batch": 8,
        "eval.batches": 2, "schedule.warmup_steps": 2, "log.every_steps": 1,
    })  # fmt: skip
    result = train_single(config, tmp_path / "run")
    assert result["status"] == "done" and result["final_step"] == 20
    losses = [line["train_loss"] for line in records.read_metrics(tmp_path / "run") if "train_loss" in line]
    assert losses[-1] < losses[0] - 0.01
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert record["data"]["tokenizer"] == index["tokenizer"]["name"]
    assert list(record["data"]["parts"]) == ["mine"]


@pytest.mark.full
def test_documents_of_one_repeated_letter_train_a_tokenizer_and_are_encoded_whole(tmp_path):
    """Each is a word of megabytes, on which the library trained for hours, and no signal ended it."""
    texts = ["a" * 4_000_000, "\n" * 4_000_000, *corpora.texts(40)]
    source = corpora.write(tmp_path / "mine.jsonl", corpora.json_lines(texts))
    held = corpora.write(tmp_path / "held.txt", b"a line\n")  # without it the two would be cut for the split
    line = [f"--source={source}", f"--val-source={held}", "--tokenizer=bpe:280", f"--out={tmp_path}/out", "--json"]
    command = [sys.executable, "-m", "scalelab", "prepare", "--workers=1", *line]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert answer.returncode == 0, answer.stderr
    path = tmp_path / "out" / "tokenizer.json"
    assert json.loads(path.read_bytes())["pre_tokenizer"]["type"] == "ByteLevel"  # which cuts no word
    tokenizer, (_, parts) = load_tokenizer_file(path), read_prepared(tmp_path / "out")
    assert tokenizer.vocab_size == 280 and tokenizer.encode(b"a" * 8).size == 1
    tokens = np.concatenate(parts["mine"]["train"].shards)
    documents = {tokenizer.decode(ids) for ids in np.split(tokens, np.flatnonzero(tokens == tokenizer.separator))}
    lengths = sorted(map(len, documents - {b""}))
    assert lengths == sorted(len(text.encode()) for text in texts)
    assert all(text.encode() in documents for text in texts[:2])
