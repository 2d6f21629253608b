"""A prepared folder from start to end, for `scalelab prepare`: units in parallel, then shards, then the index.

    DIR/plan.json                               the options, and every source file with its size and time
    DIR/tokenizer.json or tokenizer.tiktoken    unless tokens are bytes or ids
    DIR/.units/                                 work in progress; removed at the end
    DIR/NAME-train-00000.tokens, .offsets …     as in `batches/shards.py`
    DIR/index.json                              written last: a folder without it is not finished

The bytes of shards and index don't depend on the number of workers or on interruptions.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalelab import lock, records
from scalelab.data.prepare import merge, pool, prepared, specs, units
from scalelab.data.prepare.request import (
    Request,
    check_free_folder,
    check_same_plan,
    enter_folder,
    load_requested_tokenizer,
    parse_vocab_size,
    preparation_plan,
)
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.data.read.reading import Reading
from scalelab.data.tokenizers import hf_json, load, ranks
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer
from scalelab.errors import BadInput

SAMPLE_BYTES = 2**25  # of training documents, from units all over the corpus, to train a BPE
SAMPLED_UNITS = 256  # at most
ALONE_BYTES = 2**27  # one process joins less than this in the time it takes to start others

Progress = Callable[[dict[str, Any]], None]
Stop = Callable[[], bool]


def prepare_corpus(request: Request, progress: Progress = lambda _: None, stop: Stop = lambda: False) -> dict[str, Any]:
    """Make the folder `request.out`, or continue where an earlier call stopped. Returns the command's JSON.

    `progress` gets {"phase", "done", "of", "n_bytes", "n_tokens"} and {"note": text}. Raises BadInput, WorkFailed, and
    `units.Stopped` once `stop()` is true; the same request continues the work later.
    """
    if not 0 < request.val_fraction < 1:
        raise BadInput(f"--val-fraction={request.val_fraction} is not between 0 and 1; 0.1 is usual")
    if request.workers < 1:
        raise BadInput(f"--workers={request.workers}: at least 1")
    start, out = time.perf_counter(), request.out
    parts = specs.parse_sources(request.sources)
    given = load_requested_tokenizer(request, parts)
    plan = preparation_plan(request, parts, given)
    if (out / "index.json").exists():
        return _reopen_finished(request, parts, given, plan, progress, stop)
    work = _units(request, parts, given)
    for part in parts:
        if not work[part.name]:
            raise BadInput(f"--source={part.spec} is empty: {len(part.paths)} files without a byte or a record in them")
    check_free_folder(out)
    with lock.hold_folder(out, "--out", request.take_over) as warning:
        enter_folder(out, plan)
        for note in [warning, *(note for part in parts for note in specs.part_notes(part))]:
            if note:
                progress({"note": note})
        try:
            job = _make_job(request, given, work, progress, stop)
            _write_missing_units(job, work, request.workers, progress, stop)
            check_same_plan(out, preparation_plan(request, parts, given))  # a file may have changed while it was read
            index = _join_units(job, parts, work, request, progress, stop)
        except BadInput:
            _clear(out)
            raise
    result = _summary(out, index, progress)
    return result | {"seconds": time.perf_counter() - start}


def _units(
    request: Request, parts: Sequence[specs.SourcePart], given: Tokenizer | None
) -> dict[str, list[specs.WorkUnit]]:
    """{part: its units of work}."""
    entry = (given or byte_tokenizer()).entry
    job = PrepareJob(request.out, entry, request.text_key, request.skip_bad, request.val_fraction, request.split_seed)
    reading, total = job.reading(), sum(specs.part_bytes(part) for part in parts)
    return {part.name: list(specs.split_into_units(part, total, reading)) for part in parts}


def _clear(out: pathlib.Path) -> None:
    """Remove a folder without a document in any unit: there is nothing to continue."""
    unit_records = [json.loads(path.read_text()) for path in (out / ".units").glob("*/record.json")]
    if not any(record[split]["n_documents"] for record in unit_records for split in SPLITS):
        shutil.rmtree(out)


def _reopen_finished(
    request: Request, parts: Sequence[specs.SourcePart], given: Tokenizer | None, plan: dict[str, Any],
    progress: Progress, stop: Stop,
) -> dict[str, Any]:  # fmt: skip
    """Check that a finished folder has this request's plan and is complete; restore a damaged or missing tokenizer."""
    out, mended = request.out, []
    check_same_plan(out, plan)
    shutil.rmtree(out / ".units", ignore_errors=True)
    index, _ = prepared.read_prepared(out, hashes=True, sealed=False)
    entry = index["tokenizer"]
    try:
        load.load_indexed_tokenizer(entry, out)
    except BadInput as damage:
        path = out / entry["file"]
        path.unlink(missing_ok=True)
        new = _make_job(request, given, {} if given else _units(request, parts, given), progress, stop).tokenizer
        if new != entry:
            path.unlink()
            raise BadInput(f"{damage}; made again it is {new['name']}: delete {out} and run the same command") from None
        mended.append(path.name)
    if "sha256" not in index:
        records.write_json(out / "index.json", index | {"sha256": prepared.index_sha256(index)})
        records.sync_to_disk(out / "index.json")
        mended.append("the seal of index.json")
    return _summary(out, index) | {"seconds": 0.0, "finished_before": True, "mended": mended}


def _make_job(
    request: Request, given: Tokenizer | None, work: dict[str, list[specs.WorkUnit]], progress: Progress, stop: Stop
) -> PrepareJob:
    """The job, with the tokenizer in its folder; trains a BPE unless its file exists."""
    out = request.out
    base = PrepareJob(
        out,
        byte_tokenizer().entry,
        request.text_key,
        request.skip_bad,
        request.val_fraction,
        request.split_seed,
    )
    if given is None:
        path = out / load.TOKENIZER_FILES["json"]
        if not path.exists():
            all_units = [unit for part in work.values() for unit in part]
            reading = dataclasses.replace(base.reading(), zero_ends=False)
            sample = _sample(all_units, base, reading, progress, stop)
            _write_file(path, hf_json.train_bpe(sample, parse_vocab_size(request.tokenizer)))
        given = hf_json.load_hf_json(path.read_bytes(), path)
        wanted = parse_vocab_size(request.tokenizer)
        if given.vocab_size < wanted:
            progress({"note": f"the sample gives {given.vocab_size} tokens, fewer than the {wanted} asked for"})
    elif given.content:
        if given.kind == "ranks":
            progress({"note": ranks.describe_ranks(given.content, pathlib.Path(request.tokenizer))})
        _write_file(out / given.entry["file"], given.content)
    return dataclasses.replace(base, tokenizer=given.entry)


def _write_file(path: pathlib.Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    draft.write_bytes(content)
    os.replace(draft, path)


def _sample(
    all_units: Sequence[specs.WorkUnit], job: PrepareJob, reading: Reading, progress: Progress, stop: Stop
) -> Iterator[str]:
    """Training documents, at most SAMPLE_BYTES: the beginnings of evenly spaced units."""
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


def _write_missing_units(
    job: PrepareJob, work: dict[str, list[specs.WorkUnit]], workers: int, progress: Progress, stop: Stop
) -> None:
    """Write every unit that isn't there yet."""
    all_units = [unit for part in work.values() for unit in part]
    done = {unit.name for unit in all_units if (job.units / unit.name).is_dir()}
    facts: dict[str, Any] = {
        "phase": "units",
        "done": len(done),
        "of": len(all_units),
        "n_bytes": 0,
        "n_tokens": 0,
        "before": len(done),
    }
    progress(facts)
    todo = [unit for unit in all_units if unit.name not in done]
    workers = min(workers, max(len(todo), 1))
    for unit, record in pool.run_tasks(
        _write_unit, todo, _start_worker, (job, stop if workers == 1 else None), workers, stop
    ):
        facts["done"] += 1
        facts["n_bytes"] += unit.n_bytes
        facts["n_tokens"] += sum(record[split]["n_tokens"] for split in SPLITS)
        progress(facts)


def _start_worker(shared: tuple[PrepareJob, Stop | None]) -> tuple[PrepareJob, Tokenizer, Stop]:
    job, stop = shared
    return job, units.load_job_tokenizer(job), stop or _never


def _never() -> bool:
    return False


def _write_unit(unit: specs.WorkUnit, state: tuple[PrepareJob, Tokenizer, Stop]) -> dict[str, Any]:
    return units.write_unit(unit, *state)


def _join_units(
    job: PrepareJob,
    parts: Sequence[specs.SourcePart],
    work: dict[str, list[specs.WorkUnit]],
    request: Request,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Write the shards of every part and the index, once all units are there."""
    index: dict[str, Any] = {
        "format": prepared.PREPARED_FORMAT,
        "tokenizer": job.tokenizer,
        "dtype": units.load_job_tokenizer(job).dtype.str,
    }
    index |= {key: getattr(request, key) for key in ("text_key", "val_fraction", "split_seed")} | {"parts": {}}
    planned: list[merge.PlannedShard] = []
    for part in parts:
        unit_records = [
            (unit.name, json.loads((job.units / unit.name / "record.json").read_text())) for unit in work[part.name]
        ]
        shards = merge.plan_shards(part.name, unit_records)
        index["parts"][part.name] = _facts(part, [record for _, record in unit_records], shards, request)
        planned += shards
    todo = [shard for shard in planned if merge.find_shard_entry(job, shard.name) is None]
    facts: dict[str, Any] = {
        "phase": "shards",
        "done": len(planned) - len(todo),
        "of": len(planned),
        "n_bytes": 0,
        "n_tokens": 0,
    }
    progress(facts)
    n_bytes = sum(n for shard in todo for _, n, _ in shard.units)  # lower bound: a token is one byte or more
    workers = min(request.workers, max(len(todo), 1)) if n_bytes > ALONE_BYTES else 1
    for shard, entry in pool.run_tasks(
        _write_shard, todo, _start_worker, (job, stop if workers == 1 else None), workers, stop
    ):
        facts["done"] += 1
        facts["n_tokens"] += sum(n for _, n, _ in shard.units)
        facts["n_bytes"] += entry["tokens"]["bytes"]
        progress(facts)
    for entry in index["parts"].values():
        for split in SPLITS:
            entry["splits"][split] = [merge.find_shard_entry(job, name) for name in entry["splits"][split]]
    records.write_json(job.folder / "index.json", index | {"sha256": prepared.index_sha256(index)})
    records.sync_to_disk(job.folder / "index.json")
    shutil.rmtree(job.units, ignore_errors=True)
    return index


def _write_shard(shard: merge.PlannedShard, state: tuple[PrepareJob, Tokenizer, Stop]) -> dict[str, Any]:
    job, tokenizer, _ = state
    return merge.write_shard(shard, job, tokenizer.dtype)


def _facts(
    part: specs.SourcePart, unit_records: list[dict[str, Any]], shards: list[merge.PlannedShard], request: Request
) -> dict[str, Any]:
    """A part's entry in the index, with its shards still by name. Raises BadInput for an empty part or split."""
    n_bad = sum(record["n_bad"] for record in unit_records)
    bad = [place for record in unit_records for place in record["bad"]]
    if n_bad and not request.skip_bad:
        raise BadInput(
            f"{bad[0]} ({n_bad} such documents were left out under --skip-bad: say it again, or begin a new --out)"
        )
    n = {split: sum(record[split]["n_documents"] for record in unit_records) for split in SPLITS}
    if not sum(n.values()):
        raise BadInput(
            f"--source={part.spec} is empty: no document in {len(part.paths)} files"
            + (f", {n_bad} bad" if n_bad else "")
        )
    for split in SPLITS:
        if not n[split]:
            raise BadInput(
                f"none of the {sum(n.values())} documents of --source={part.spec} falls to the {split} split at "
                f"--val-fraction={request.val_fraction}: use more documents, another fraction or another --split-seed, "
                f"and delete {request.out}"
            )
    return {
        "source": part.spec,
        "text_bytes": {split: sum(record[split]["text_bytes"] for record in unit_records) for split in SPLITS},
        "n_bad": n_bad,
        "bad": bad[:20],
        "splits": {split: [shard.name for shard in shards if shard.split == split] for split in SPLITS},
    }


def _summary(out: pathlib.Path, index: dict[str, Any], progress: Progress = lambda _: None) -> dict[str, Any]:
    """The command's result as plain JSON."""
    _, splits = prepared.read_prepared(out, hashes=False)
    parts = []
    for name, part in index["parts"].items():
        counts = {f"{split}_tokens": splits[name][split].n_tokens for split in SPLITS}
        counts |= {f"{split}_documents": splits[name][split].n_documents for split in SPLITS}
        ratio = prepared.bytes_per_token(index, name, splits[name]["val"])
        parts.append(
            {"name": name, "source": part["source"], **counts, "bytes_per_token": ratio, "n_bad": part["n_bad"]}
        )
        for place in part["bad"]:
            progress({"note": f"left out: {place}"})
    tokenizer = {key: index["tokenizer"][key] for key in ("name", "vocab_size", "separator")}
    return {
        "folder": str(out),
        "fingerprint": prepared.corpus_fingerprint(index),
        "tokenizer": tokenizer,
        "parts": parts,
    }
