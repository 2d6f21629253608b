"""The job of a preparation: the facts that all units share, and its tokenizer, given or a BPE trained on a sample."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalelab.data.prepare import specs, units
from scalelab.data.prepare.request import Request, load_requested_template, parse_vocab_size
from scalelab.data.prepare.units import PrepareJob
from scalelab.data.read.reading import Reading
from scalelab.data.tokenizers import hf_json, load, ranks
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer
from scalelab.untrusted.files import read_bytes

SAMPLE_BYTES = 2**25  # bytes of training documents, sampled from the whole corpus, that train a BPE
SAMPLED_UNITS = 256  # at most

Progress = Callable[[dict[str, Any]], None]
Stop = Callable[[], bool]


def make_job(
    request: Request, given: Tokenizer | None, work: dict[str, list[specs.WorkUnit]], progress: Progress, stop: Stop
) -> PrepareJob:
    """Make the job, with the tokenizer in its folder; trains a BPE unless its file exists."""
    out = request.out
    if given is None:
        given = _trained_tokenizer(request, [unit for part in work.values() for unit in part], progress, stop)
    elif given.content:
        if given.kind == "ranks":
            progress({"note": ranks.describe_ranks(given.content, pathlib.Path(request.tokenizer))})
        _write_file(out / given.entry["file"], given.content)
    return job_for_tokenizer(request, given)


def job_for_tokenizer(request: Request, tokenizer: Tokenizer) -> PrepareJob:
    """Make the job of a request without writing a file."""
    options = request.text_key, request.skip_bad, request.val_fraction, request.split_seed
    template = load_requested_template(request, tokenizer)
    return PrepareJob(request.out, tokenizer.entry, *options, template)


def _trained_tokenizer(
    request: Request, all_units: Sequence[specs.WorkUnit], progress: Progress, stop: Stop
) -> Tokenizer:
    """Load the BPE in the folder; train it first if its file is missing."""
    path, wanted = request.out / load.TOKENIZER_FILES["json"], parse_vocab_size(request.tokenizer)
    if not path.exists():
        job = job_for_tokenizer(request, byte_tokenizer())
        reading = dataclasses.replace(job.reading(), zero_ends=False)
        _write_file(path, hf_json.train_bpe(_sample(all_units, job, reading, progress, stop), wanted))
    tokenizer = hf_json.load_hf_json(read_bytes(path, load.MOST_TOKENIZER_BYTES), path)
    if tokenizer.vocab_size < wanted:
        progress({"note": f"the sample gives {tokenizer.vocab_size} tokens, fewer than the {wanted} asked for"})
    return tokenizer


def _write_file(path: pathlib.Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    draft.write_bytes(content)
    os.replace(draft, path)


def _sample(
    all_units: Sequence[specs.WorkUnit], job: PrepareJob, reading: Reading, progress: Progress, stop: Stop
) -> Iterator[str]:
    """Sample training documents, at most SAMPLE_BYTES: the beginnings of evenly spaced units."""
    n = min(len(all_units), SAMPLED_UNITS)
    chosen = [all_units[i * len(all_units) // n] for i in range(n)]
    left = SAMPLE_BYTES
    for i, unit in enumerate(chosen):
        quota = left // (n - i)
        for document in specs.unit_documents(unit, reading):
            assert isinstance(document, bytes)
            if stop():
                raise units.Stopped
            if not units.is_held_out(document, job.val_fraction, job.split_seed):
                yield document[:quota].decode(errors="ignore")
                left -= min(len(document), quota)
                quota -= len(document)
            if quota <= 0:
                break
    size, total = SAMPLE_BYTES - left, sum(unit.n_bytes for unit in all_units)
    origin = f"{n} of {len(all_units)} units ({total:,} bytes)"
    progress({"note": f"the tokenizer is trained on {size:,} bytes of text, from {origin}"})
