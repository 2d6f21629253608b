"""Count documents that occur again, and validation documents that stand in training; leave copies out on request.

Equal documents are found by 64 bits of a hash (of ten million documents two different ones are equal by chance with a
probability of 3e-6), near copies by MinHash; overlaps, validation documents most of whose n-grams stand in the training
text, are counted always. Memory: 8 bytes a document, with near copies about 2 kB.
"""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.prepare import near, specs
from scalelab.data.prepare.pool import run_tasks
from scalelab.data.prepare.units import DOCUMENT_DTYPE, SCREENED, SPLITS, PrepareJob, load_job_tokenizer, read_record
from scalelab.data.tokenizers import chat
from scalelab.record import records
from scalelab.record.jsonfiles import WHOLE
from scalelab.untrusted.files import open_file

COUNTS = ("duplicates", "leaks", "overlaps", "dropped", "near_dropped", "near_leaks")
FEW_TOKENS = 2**24  # of training, that one process searches before others have started
SCREENED_SCHEMA = {"*": {"*": WHOLE}}


class Stretch(NamedTuple):
    """The documents of one split of one unit, as a range of all documents of that split."""

    unit: specs.WorkUnit
    split: str
    start: int
    stop: int


def screen_documents(
    job: PrepareJob,
    work: Mapping[str, Sequence[specs.WorkUnit]],
    dedup: str,
    workers: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, dict[str, int]]:
    """Count copies by part (COUNTS), and remove those that `dedup` ("", exact, near) leaves out from the units.

    A copy is a document that occurred before in its split, in any part; a leak is a validation document that stands in
    the training text; an overlap is one that does so for the most part (`near`). Of copies in both splits the training
    one is left out; no document of a `--val-source` is.
    """
    path = job.units / SCREENED
    if path.is_file():
        facts: dict[str, dict[str, int]] = records.read_json(path, SCREENED_SCHEMA)
        return facts
    counts = {part: dict.fromkeys(COUNTS, 0) for part in work}
    stretches = {split: _stretches(job, work, split) for split in SPLITS}
    hashes = {split: _read_column(job, stretches[split]) for split in SPLITS}
    ordered = {split: np.sort(hashes[split]) for split in SPLITS}
    firsts = {split: _first_places(hashes[split], ordered[split]) for split in SPLITS}
    leaked = _is_among(hashes["val"], ordered["train"])
    of_val = _is_among(hashes["train"], ordered["val"])
    keep = {"val": firsts["val"].copy(), "train": firsts["train"] & ~of_val}
    for each in stretches["val"]:
        if each.unit.split:
            keep["val"][each.start : each.stop] = True  # exactly the user's documents
    keep_exact = {split: mask.copy() for split, mask in keep.items()}
    matched_val = np.zeros(len(hashes["train"]), bool)
    if dedup == "near":
        matched_val = _leave_out_near(job, stretches, keep)
    overlapping = _find_overlaps(job, stretches, keep["train"] if dedup else None, workers, stop) & ~leaked
    for split in SPLITS:
        for each in stretches[split]:
            part, here = counts[_part_key(each.unit)], slice(each.start, each.stop)
            part["duplicates"] += int(np.sum(~firsts[split][here]))
            if split == "val":
                part["leaks"] += int(np.sum(leaked[here]))
                part["overlaps"] += int(np.sum(overlapping[here]))
            else:
                part["near_leaks"] += int(np.sum(matched_val[here]))
            if dedup:
                part["dropped"] += int(np.sum(~keep_exact[split][here]))
                part["near_dropped"] += int(np.sum(keep_exact[split][here] & ~keep[split][here]))
    if dedup:
        _rewrite_units(job, stretches, keep)
    records.write_json(path, counts)
    return counts


def _part_key(unit: specs.WorkUnit) -> str:
    return unit.name.rpartition("-")[0]


def _stretches(job: PrepareJob, work: Mapping[str, Sequence[specs.WorkUnit]], split: str) -> list[Stretch]:
    places, start = [], 0
    for unit in (unit for part in work.values() for unit in part):
        size = (job.units / unit.name / f"{split}.documents").stat().st_size // DOCUMENT_DTYPE.itemsize
        places.append(Stretch(unit, split, start, start + size))
        start += size
    return places


def _read(job: PrepareJob, unit: specs.WorkUnit, name: str, dtype: np.dtype) -> np.ndarray:
    with open_file(job.units / unit.name / name) as file:
        return np.frombuffer(file.read(), dtype)


def _read_column(job: PrepareJob, stretches: Sequence[Stretch]) -> np.ndarray:
    """Hashes of all documents of a split, in order."""
    column = np.empty(stretches[-1].stop if stretches else 0, np.uint64)
    for each in stretches:
        column[each.start : each.stop] = _read(job, each.unit, f"{each.split}.documents", DOCUMENT_DTYPE)["hash"]
    return column


def _first_places(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Whether each value has not occurred before; cheap where none occurs twice."""
    is_first = np.ones(len(values), bool)
    if (ordered[1:] == ordered[:-1]).any():
        is_first[:] = False
        is_first[np.unique(values, return_index=True)[1]] = True
    return is_first


def _is_among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Whether each value is one of `ordered`."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    is_there: np.ndarray = ordered[places] == values
    return is_there


def _leave_out_near(
    job: PrepareJob, stretches: Mapping[str, Sequence[Stretch]], keep: dict[str, np.ndarray]
) -> np.ndarray:
    """Clear `keep` where a document is nearly an earlier kept one; returns which training documents match validation.

    Validation documents come first, so that their copies in training are left out and not they.
    """
    index, matched_val = near.NearIndex(), np.zeros(len(keep["train"]), bool)
    n_val = 0
    for split in ("val", "train"):
        for each in stretches[split]:
            signatures = _read(job, each.unit, f"{split}.signatures", near.SIGNATURE_TYPE)
            rows = signatures.reshape(-1, near.PERMUTATIONS)
            for number in (np.flatnonzero(keep[split][each.start : each.stop]) + each.start).tolist():
                values = rows[number - each.start]
                earlier = index.find(values)
                if earlier is None or (split == "val" and each.unit.split):
                    index.add(values)
                    n_val += split == "val"
                    continue
                keep[split][number] = False
                matched_val[number] |= split == "train" and earlier < n_val
    return matched_val


def _find_overlaps(
    job: PrepareJob,
    stretches: Mapping[str, Sequence[Stretch]],
    keep: np.ndarray | None,
    workers: int,
    stop: Callable[[], bool],
) -> np.ndarray:
    """Whether each validation document stands in the training text for the most part; `keep`: what stays of that."""
    dtype = job.dtype(load_job_tokenizer(job))

    def size(split: str) -> int:
        places = (job.units / each.unit.name / f"{split}.tokens" for each in stretches[split])
        return sum(place.stat().st_size for place in places) // dtype.itemsize

    def held() -> Iterator[near.Text]:
        for unit in (job.units / each.unit.name for each in stretches["val"]):
            yield _read_blocks(unit / "val.tokens", dtype), np.fromfile(unit / "val.offsets", "<i8")

    sought = near.choose_ngrams(held(), size("val"), job.tokenizer["kind"] == "bytes")
    seen = np.zeros(len(sought.hashes), bool)
    tasks = [
        (job.units / each.unit.name, dtype, None if keep is None else keep[each.start : each.stop])
        for each in stretches["train"]
    ]
    n_workers = 1 if size("train") < FEW_TOKENS else min(workers, len(tasks))
    if len(seen):
        for _, found in run_tasks(_search_unit, tasks, near.make_table, sought, n_workers, stop):
            seen |= found
    return near.find_covered(sought, seen, held())


def _search_unit(task: tuple[pathlib.Path, np.dtype, np.ndarray | None], state: Any) -> np.ndarray:
    """Which n-grams stand in a unit's training text, without the documents that are left out."""
    unit, dtype, keep = task
    blocks = _read_blocks(unit / "train.tokens", dtype)
    if keep is not None and not keep.all():
        blocks = _kept_tokens(blocks, np.fromfile(unit / "train.offsets", "<i8"), keep)
    return near.find_ngrams(blocks, state)


def _read_blocks(path: pathlib.Path, dtype: np.dtype) -> Iterator[np.ndarray]:
    """A unit's tokens, `near.BLOCK` at once: a file that no unit may split is one unit of any size."""
    with open_file(path) as file:
        while content := file.read(near.BLOCK * dtype.itemsize):
            yield np.frombuffer(content, dtype)


def _kept_tokens(blocks: Iterable[np.ndarray], offsets: np.ndarray, keep: np.ndarray) -> Iterator[np.ndarray]:
    """The blocks without the tokens of documents [D] that are not kept; `offsets` [D+1] of all."""
    start = 0
    for block in blocks:
        stop = start + len(block)
        first, last = np.searchsorted(offsets, start, "right") - 1, np.searchsorted(offsets, stop, "left")
        lengths = np.diff(np.clip(offsets[first : last + 1], start, stop))
        yield block[np.repeat(keep[first:last], lengths)]
        start = stop


def _rewrite_units(job: PrepareJob, stretches: Mapping[str, Sequence[Stretch]], keep: Mapping[str, np.ndarray]) -> None:
    """Write each unit again that has documents to leave out. Another name until it is whole, as for a new unit."""
    by_unit: dict[str, list[Stretch]] = {}
    for each in (each for split in SPLITS for each in stretches[split]):
        by_unit.setdefault(each.unit.name, []).append(each)
    for name, members in by_unit.items():
        masks = {each.split: keep[each.split][each.start : each.stop] for each in members}
        if all(mask.all() for mask in masks.values()):
            continue
        final = job.units / name
        draft = final.with_name(f"{name}.tmp-{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        record = read_record(final)
        for split, mask in masks.items():
            record[split] |= _filter_split(job, name, draft, split, mask)
        (draft / "record.json").write_text(json.dumps(record, indent=1))
        records.fsync(draft / "record.json")
        (draft / SCREENED).touch()
        shutil.rmtree(final)  # a kill here loses the unit, and the same command reads it again
        os.rename(draft, final)


def _filter_split(job: PrepareJob, name: str, draft: pathlib.Path, split: str, keep: np.ndarray) -> dict[str, Any]:
    """Copy the files of one split of unit `name` with the documents of `keep` only; returns their counts and hashes."""
    unit, tokenizer = job.units / name, load_job_tokenizer(job)
    offsets = np.fromfile(unit / f"{split}.offsets", "<i8")
    documents = np.fromfile(unit / f"{split}.documents", DOCUMENT_DTYPE)
    lengths = np.diff(offsets)
    tokens = np.fromfile(unit / f"{split}.tokens", job.dtype(tokenizer))[np.repeat(keep, lengths)]
    arrays = {
        "tokens": tokens,
        "offsets": np.concatenate([[0], np.cumsum(lengths[keep])]).astype("<i8"),
        "documents": documents[keep],
    }
    digests = {}
    for kind, array in arrays.items():
        content = array.tobytes()
        (draft / f"{split}.{kind}").write_bytes(content)
        records.fsync(draft / f"{split}.{kind}")
        digests[kind] = hashlib.sha256(content).hexdigest()
    counts: dict[str, Any] = {"n_tokens": len(tokens), "n_documents": int(keep.sum()), "sha256": digests}
    counts |= {"n_unknown": chat.count_id(tokens, tokenizer.unknown)}
    counts |= {"n_targets": chat.count_targets(tokens)} if job.template else {}
    return counts | {"text_bytes": int(documents["text_bytes"][keep].sum())}
