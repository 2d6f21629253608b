"""The job of a preparation: the facts that all units share.

These are its tokenizer, given or a BPE trained on a sample, and the size of the pieces into which documents are cut.
"""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scalelab.data import splits
from scalelab.data.prepare import specs, units
from scalelab.data.prepare.request import Request, load_requested_template, parse_vocab_size
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.data.read.reading import Reading
from scalelab.data.tokenizers import chat, hf_json, load, ranks, roundtrip
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer
from scalelab.record import records
from scalelab.record.jsonfiles import WHOLE
from scalelab.untrusted.files import read_bytes

SAMPLE_BYTES = 2**25  # bytes of training documents, sampled from the whole corpus, that train a BPE
SAMPLED_UNITS = 256  # at most
TRIED_BYTES = 2**20  # bytes of text whose round trip is tried

Progress = Callable[[dict[str, Any]], None]
Stop = Callable[[], bool]


def make_job(
    request: Request,
    given: Tokenizer | None,
    work: Mapping[str, Sequence[specs.WorkUnit]],
    progress: Progress,
    stop: Stop,
    cuts: Mapping[str, int],
) -> PrepareJob:
    """Make the job, with the tokenizer in its folder; trains a BPE unless its file exists."""
    out = request.out
    if given is None:
        trained_on = [unit for part in work.values() for unit in part if unit.split != "val"]
        given = _trained_tokenizer(request, trained_on, progress, stop, cuts)
    elif given.content:
        if given.kind == "ranks":
            progress({"note": ranks.describe_ranks(given.content, pathlib.Path(request.tokenizer))})
        _write_file(out / given.entry["file"], given.content)
    return job_for_tokenizer(request, given, cuts)


def job_for_tokenizer(request: Request, tokenizer: Tokenizer, cuts: Mapping[str, int] | None = None) -> PrepareJob:
    """Make the job of a request without writing a file."""
    options = {key: getattr(request, key) for key in ("text_key", "skip_bad", "val_fraction", "split_seed")}
    return PrepareJob(
        request.out,
        tokenizer.entry,
        **options,
        cuts=dict(cuts or {}),
        signatures=request.dedup == "near",
        template=load_requested_template(request, tokenizer),
    )


def sample_round_trip(
    job: PrepareJob, work: Mapping[str, Sequence[specs.WorkUnit]], stop: Stop
) -> roundtrip.RoundTrip | None:
    """Try the job's tokenizer on TRIED_BYTES of text from all over the sources; None for one that loses no text."""
    tokenizer = units.load_job_tokenizer(job)
    all_units = [unit for part in work.values() for unit in part]
    is_text = not any(piece.kind in specs.TOKEN_KINDS for unit in all_units for piece in unit.pieces)
    if tokenizer.kind not in ("json", "ranks") or not is_text:
        return None
    reading = dataclasses.replace(job.reading(), skip_bad=True)
    if job.template:
        reading.render_chat = chat.message_texts
    return roundtrip.try_round_trip(tokenizer, _spread_documents(all_units, reading, stop, TRIED_BYTES))


def _spread_documents(all_units: Sequence[specs.WorkUnit], reading: Reading, stop: Stop, most: int) -> Iterator[bytes]:
    """Yield beginnings of documents, `most` bytes at most: the first ones of evenly spaced units."""
    n = min(len(all_units), SAMPLED_UNITS)
    for i in range(n):
        quota = most // n
        for document in specs.unit_documents(all_units[i * len(all_units) // n], reading):
            assert isinstance(document, bytes)
            if stop():
                raise units.Stopped
            piece = document[: min(quota, roundtrip.DOCUMENT_BYTES)]
            if len(piece) < len(document):  # half a word may be unknown
                piece = piece[: piece.rfind(b" ") + 1] or piece
            yield piece
            quota -= len(piece)
            if quota <= 0:
                break


def part_share(unit_records: Sequence[Mapping[str, Any]], asked: float) -> splits.Share:
    """The share of a part's text that its units hold out."""
    text = {split: sum(record[split]["text_bytes"] for record in unit_records) for split in SPLITS}
    n = {split: sum(record[split]["n_documents"] for record in unit_records) for split in SPLITS}
    return splits.Share(text["val"], sum(text.values()), n["val"], sum(n.values()), asked)


def read_cuts(request: Request) -> dict[str, list[int]]:
    """{part: [attempts, size of its pieces in bytes]} of an unfinished folder."""
    path = request.out / ".units" / "cuts.json"
    return records.read_json(path, {"*": [WHOLE]}) if path.is_file() else {}


def smaller_pieces(
    job: PrepareJob, work: Mapping[str, Sequence[specs.WorkUnit]], cuts: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Pieces for the parts whose split is far from the share asked; after the last attempt it stays as it is.

    A part with chats stays whole: a piece of one would be an answer without its question.
    """
    smaller = {}
    for name, part in work.items():
        attempt = cuts.get(name, [0])[0]
        if not part or part[0].split or attempt >= len(splits.PIECES) or (job.units / units.SCREENED).is_file():
            continue
        unit_records = [units.read_record(job.units / unit.name) for unit in part]
        share = part_share(unit_records, job.val_fraction)
        if share.all_bytes and share.is_off(splits.FAR) and not units.hold_chats(unit_records):
            size = splits.piece_bytes(share.all_bytes, job.val_fraction, attempt)
            if size != cuts.get(name, [0, 0])[1]:
                smaller[name] = [attempt + 1, size]
    return smaller


def begin_again(
    job: PrepareJob,
    work: Mapping[str, Sequence[specs.WorkUnit]],
    cuts: Mapping[str, Sequence[int]],
    smaller: Mapping[str, Sequence[int]],
    is_trained: bool,
) -> None:
    """Remove the units of parts that are cut anew; of all, with the tokenizer, if it was trained on another split.

    They go before the sizes are noted: what a kill leaves is then begun again.
    """
    for name in work if is_trained else smaller:
        for unit in work[name]:
            shutil.rmtree(job.units / unit.name, ignore_errors=True)
    if is_trained:
        (job.folder / load.TOKENIZER_FILES["json"]).unlink(missing_ok=True)
    records.write_json(job.units / "cuts.json", cuts)


def _trained_tokenizer(
    request: Request, all_units: Sequence[specs.WorkUnit], progress: Progress, stop: Stop, cuts: Mapping[str, int]
) -> Tokenizer:
    """Load the BPE in the folder; train it first if its file is missing."""
    path, wanted = request.out / load.TOKENIZER_FILES["json"], parse_vocab_size(request.tokenizer)
    if not path.exists():
        job = job_for_tokenizer(request, byte_tokenizer(), cuts)
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
            for split, piece, _ in units.split_document(document, unit, job, len(document)):
                if split == "train" and quota > 0:
                    yield piece[:quota].decode(errors="ignore")
                    left -= min(len(piece), quota)
                    quota -= len(piece)
            if quota <= 0:
                break
    size, total = SAMPLE_BYTES - left, sum(unit.n_bytes for unit in all_units)
    origin = f"{n} of {len(all_units)} units ({total:,} bytes)"
    progress({"note": f"the tokenizer is trained on {size:,} bytes of text, from {origin}"})
