"""Fill a prepared folder for `scalelab prepare`: units in parallel, then shards, then the index.

    DIR/plan.json                               the options, and every source file with its size and time
    DIR/tokenizer.json or tokenizer.tiktoken    unless tokens are bytes or ids
    DIR/.units/                                 work in progress; removed at the end
    DIR/NAME-train-00000.tokens, .offsets …     as in `data/shards.py`
    DIR/index.json                              written last: a folder without it is not finished

The bytes of shards and index don't depend on the number of workers or on interruptions.
"""

import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from scalelab.data.prepare import merge, near, pool, prepared, screen, specs, units, validation
from scalelab.data.prepare.index import finish_index, plan_index, summarise_index, write_sealed
from scalelab.data.prepare.job import (
    Progress,
    Stop,
    begin_again,
    job_for_tokenizer,
    make_job,
    read_cuts,
    sample_round_trip,
    smaller_pieces,
)
from scalelab.data.prepare.request import (
    Request,
    check_free_folder,
    check_same_plan,
    enter_folder,
    load_requested_template,
    load_requested_tokenizer,
    preparation_plan,
)
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.data.tokenizers import load, roundtrip
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer
from scalelab.errors import BadInput
from scalelab.record import lock
from scalelab.untrusted.paths import path_below

ALONE_BYTES = 2**27  # bytes that one process joins faster than others would start


def prepare_corpus(request: Request, progress: Progress = lambda _: None, stop: Stop = lambda: False) -> dict[str, Any]:
    """Make the folder `request.out`, or continue where an earlier call stopped. Returns the command's JSON.

    `progress` gets {"phase", "done", "of", "n_bytes", "n_tokens"} and {"note": text}. Raises BadInput, WorkFailed, and
    `units.Stopped` once `stop()` is true; the same request continues the work later.
    """
    _check_options(request)
    start, out = time.perf_counter(), request.out
    parts = validation.parse_parts(request.sources, request.val_sources, request.train_on_all, request.text_key)
    given = load_requested_tokenizer(request, parts)
    plan = preparation_plan(request, parts, given, load_requested_template(request, given))
    if (out / "index.json").exists():
        return _reopen_finished(request, parts, given, plan, progress, stop)
    work = _units(request, parts, given)
    _refuse_empty_parts(parts, work)
    check_free_folder(out)
    with lock.hold_folder(out, "--out", request.take_over) as warning:
        is_new = not (out / "plan.json").exists()
        enter_folder(out, plan)
        part_notes = [note for part in parts for note in specs.part_notes(part, request.text_key)]
        for note in filter(None, [warning, *part_notes]):
            progress({"note": note})
        try:
            index = _fill_folder(request, parts, given, work, progress, stop)
        except BadInput:
            _clear(out, is_new)
            raise
    return summarise_index(out, index, progress) | {"seconds": time.perf_counter() - start}


def _check_options(request: Request) -> None:
    validation.check_options(request.val_fraction, request.val_sources)
    if request.workers < 1:
        raise BadInput(f"--workers={request.workers}: at least 1")
    if request.dedup not in ("", "exact", "near"):
        raise BadInput(f"--dedup={request.dedup}: exact or near")
    if request.dedup == "near":
        near.check_library()


def _fill_folder(
    request: Request,
    parts: Sequence[specs.SourcePart],
    given: Tokenizer | None,
    work: dict[str, list[specs.WorkUnit]],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Write tokenizer, units, shards and index; returns the index."""
    cuts = read_cuts(request)
    trip: roundtrip.RoundTrip | None = None
    while True:
        job = make_job(request, given, work, progress, stop, {name: size for name, (_, size) in cuts.items()})
        if given and trip is None:  # one trained here has a token for every byte
            trip = _try_tokenizer(request, job, work, progress, stop)
        _write_missing_units(job, work, request.workers, progress, stop)
        plan = preparation_plan(request, parts, given, job.template)
        check_same_plan(request.out, plan)  # a file may have changed meanwhile
        if not (smaller := smaller_pieces(job, work, cuts)):
            break
        cuts = cuts | smaller
        begin_again(job, work, cuts, smaller, is_trained=given is None)
    counts = screen.screen_documents(job, work, request.dedup, request.workers, stop)
    index, planned = plan_index(job, parts, work, request, counts, trip)
    _write_shards(job, planned, request.workers, progress, stop)
    finish_index(job, index)
    shutil.rmtree(job.units, ignore_errors=True)
    return index


def _try_tokenizer(
    request: Request, job: PrepareJob, work: dict[str, list[specs.WorkUnit]], progress: Progress, stop: Stop
) -> roundtrip.RoundTrip | None:
    """Try the tokenizer on a sample, and tell what came back. BadInput if too much of it is unknown."""
    trip = sample_round_trip(job, work, stop)
    if trip and trip.documents:
        progress({"note": roundtrip.describe_round_trip(trip)})
        roundtrip.check_round_trip(trip, request.tokenizer, request.lossy)
    return trip


def _units(
    request: Request, parts: Sequence[specs.SourcePart], given: Tokenizer | None
) -> dict[str, list[specs.WorkUnit]]:
    """Split each part into its units of work."""
    reading = job_for_tokenizer(request, given or byte_tokenizer()).reading()
    total = sum(specs.part_bytes(part) for part in parts)
    return {part.key: list(specs.split_into_units(part, total, reading)) for part in parts}


def _refuse_empty_parts(parts: Sequence[specs.SourcePart], work: dict[str, list[specs.WorkUnit]]) -> None:
    for part in parts:
        if not work[part.key]:
            raise BadInput(f"{part.flag} is empty: {len(part.paths)} files without a byte or a record in them")


def _clear(out: pathlib.Path, is_new: bool) -> None:
    """Empty a new folder, since its plan changes once a source is corrected; remove one without any document."""
    if is_new:
        for path in out.iterdir():
            if path.name != ".lock":  # the lock's file disappears when it is released
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    unit_records = [units.read_record(path.parent) for path in (out / ".units").glob("*/record.json")]
    if not any(record[split]["n_documents"] for record in unit_records for split in SPLITS):
        shutil.rmtree(out)


def _reopen_finished(
    request: Request,
    parts: Sequence[specs.SourcePart],
    given: Tokenizer | None,
    plan: dict[str, Any],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Check that a finished folder has this request's plan and is complete; restore a damaged or missing tokenizer."""
    out, mended = request.out, []
    check_same_plan(out, plan)
    shutil.rmtree(out / ".units", ignore_errors=True)
    index, _ = prepared.read_prepared(out, hashes=True, sealed=False)
    entry = index["tokenizer"]
    try:
        load.load_indexed_tokenizer(entry, out)
    except BadInput as damage:
        path = path_below(out, entry["file"])
        path.unlink(missing_ok=True)
        cuts = {name: part["cut_bytes"] for name, part in index["parts"].items() if "cut_bytes" in part}
        work = {} if given else _units(request, parts, given)
        new = make_job(request, given, work, progress, stop, cuts).tokenizer
        if new != entry:
            path.unlink()
            raise BadInput(f"{damage}; made again it is {new['name']}: delete {out} and run the same command") from None
        mended.append(path.name)
    if "sha256" not in index:
        write_sealed(out, index)
        mended.append("the seal of index.json")
    return summarise_index(out, index) | {"seconds": 0.0, "finished_before": True, "mended": mended}


def _write_missing_units(
    job: PrepareJob, work: dict[str, list[specs.WorkUnit]], workers: int, progress: Progress, stop: Stop
) -> None:
    """Write every unit that isn't there yet."""
    all_units = [unit for part in work.values() for unit in part]
    done = {unit.name for unit in all_units if units.is_written(job, unit)}
    facts: dict[str, Any] = {"phase": "units", "done": len(done), "of": len(all_units), "n_bytes": 0, "n_tokens": 0}
    progress(facts)
    todo = [unit for unit in all_units if unit.name not in done]
    workers = min(workers, max(len(todo), 1))
    shared = job, stop if workers == 1 else None
    for unit, record in pool.run_tasks(_write_unit, todo, _start_worker, shared, workers, stop):
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


def _write_shards(
    job: PrepareJob, planned: Sequence[merge.PlannedShard], workers: int, progress: Progress, stop: Stop
) -> None:
    """Write every shard that isn't there yet."""
    todo = [shard for shard in planned if merge.find_shard_entry(job, shard.name) is None]
    n_done = len(planned) - len(todo)
    facts: dict[str, Any] = {"phase": "shards", "done": n_done, "of": len(planned), "n_bytes": 0, "n_tokens": 0}
    progress(facts)
    n_bytes = sum(n for shard in todo for _, n, _ in shard.units)  # a lower bound: a token takes at least one byte
    workers = min(workers, max(len(todo), 1)) if n_bytes > ALONE_BYTES else 1
    shared = job, stop if workers == 1 else None
    for shard, entry in pool.run_tasks(_write_shard, todo, _start_worker, shared, workers, stop):
        facts["done"] += 1
        facts["n_tokens"] += sum(n for _, n, _ in shard.units)
        facts["n_bytes"] += entry["tokens"]["bytes"]
        progress(facts)


def _write_shard(shard: merge.PlannedShard, state: tuple[PrepareJob, Tokenizer, Stop]) -> dict[str, Any]:
    job, tokenizer, _ = state
    return merge.write_shard(shard, job, job.dtype(tokenizer))
