"""Make the index of a prepared folder from its units' records, complete it with its shards, and summarise it."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.data import splits
from scalelab.data.prepare import merge, prepared, screen, specs, units
from scalelab.data.prepare.job import Progress, part_share
from scalelab.data.prepare.request import Request
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.data.shards import Split
from scalelab.data.tokenizers import roundtrip
from scalelab.errors import BadInput
from scalelab.record import records


def plan_index(
    job: PrepareJob,
    parts: Sequence[specs.SourcePart],
    work: Mapping[str, Sequence[specs.WorkUnit]],
    request: Request,
    counts: Mapping[str, Mapping[str, int]],
    trip: roundtrip.RoundTrip | None,
) -> tuple[dict[str, Any], list[merge.PlannedShard]]:
    """Make the index with its shards still by name, and list the shards to write. All units exist.

    counts: as from `screen.screen_documents`; trip: the tokenizer's round trip.
    """
    entries: dict[str, Any] = {}
    planned: list[merge.PlannedShard] = []
    n_unknown = n_ids = 0
    for name in dict.fromkeys(part.name for part in parts):
        namesakes = [part for part in parts if part.name == name]  # a training and a validation source may be
        unit_records = [(unit.name, _unit_record(job, unit)) for part in namesakes for unit in work[part.key]]
        shards = merge.plan_shards(name, unit_records)
        contents = [record for _, record in unit_records]
        entries[name] = _part_entry(namesakes, contents, shards, request, job.cuts.get(name, 0))
        entries[name] |= {key: sum(counts[part.key][key] for part in namesakes) for key in screen.COUNTS}
        n_unknown += sum(record[split]["n_unknown"] for record in contents for split in SPLITS)
        n_ids += sum(record[split]["n_tokens"] for record in contents for split in SPLITS)
        planned += shards
    roundtrip.check_unknown_ids(n_unknown, n_ids, request.tokenizer, request.lossy)
    index = {
        "format": prepared.PREPARED_FORMAT,
        "tokenizer": job.tokenizer,
        "dtype": job.dtype(units.load_job_tokenizer(job)).str,
    }
    if job.template:
        index["chat"] = {"name": job.template.name, "template": job.template.text, "tokens": dict(job.template.tokens)}
    options = {key: getattr(request, key) for key in ("text_key", "val_fraction", "split_seed")}
    index |= options | ({"dedup": request.dedup} if request.dedup else {})
    return index | roundtrip.round_trip_facts(trip, n_unknown) | {"parts": entries}, planned


def _unit_record(job: PrepareJob, unit: specs.WorkUnit) -> dict[str, Any]:
    return units.read_record(job.units / unit.name)


def finish_index(job: PrepareJob, index: dict[str, Any]) -> None:
    """Put the entries of all shards into the index, and write it."""
    for entry in index["parts"].values():
        for split in SPLITS:
            entry["splits"][split] = [merge.find_shard_entry(job, name) for name in entry["splits"][split]]
    write_sealed(job.folder, index)


def write_sealed(folder: pathlib.Path, index: dict[str, Any]) -> None:
    """Write the index of a folder with its hash."""
    records.write_json(folder / "index.json", index | {"sha256": prepared.index_sha256(index)})
    records.sync_to_disk(folder / "index.json")


def _part_entry(
    parts: Sequence[specs.SourcePart],
    unit_records: list[dict[str, Any]],
    shards: list[merge.PlannedShard],
    request: Request,
    cut_bytes: int,
) -> dict[str, Any]:
    """Make the index entry of the sources of one name, with its shards still by name.

    Raises BadInput for a part without documents, and for a split far from the share asked.
    """
    n_bad = sum(record["n_bad"] for record in unit_records)
    bad = [place for record in unit_records for place in record["bad"]]
    if n_bad and not request.skip_bad:
        raise BadInput(
            f"{bad[0]} ({n_bad} such documents were left out under --skip-bad: say it again, or begin a new --out)"
        )
    n_filtered = sum(record.get("n_filtered", 0) for record in unit_records)
    selection = " ".join(dict.fromkeys(filter(None, (part.selection.describe() for part in parts))))
    _check_sides(parts, unit_records, request)
    entry: dict[str, Any] = {"selection": selection, "n_filtered": n_filtered} if selection else {}
    if "n_targets" in unit_records[0]["train"]:
        entry["n_targets"] = {split: sum(record[split]["n_targets"] for record in unit_records) for split in SPLITS}
    entry |= {
        "source": " ".join(part.spec for part in parts),
        "text_bytes": {split: sum(record[split]["text_bytes"] for record in unit_records) for split in SPLITS},
        "n_bad": n_bad,
        "bad": bad[:20],
        "splits": {split: [shard.name for shard in shards if shard.split == split] for split in SPLITS},
    }
    return entry | ({"cut_bytes": cut_bytes} if cut_bytes else {})


def _check_sides(
    parts: Sequence[specs.SourcePart], unit_records: Sequence[Mapping[str, Any]], request: Request
) -> None:
    """Raise BadInput for a source without documents, and for a split far from the share asked."""
    share = part_share(unit_records, request.val_fraction)
    n = {"": share.all_documents, "val": share.val_documents, "train": share.all_documents - share.val_documents}
    for part in parts:
        if not n[part.split]:
            counts = {key: sum(record.get(key, 0) for record in unit_records) for key in ("n_bad", "n_filtered")}
            why = f", {counts['n_bad']} bad" if counts["n_bad"] else ""
            why += f", {counts['n_filtered']} left out by {part.selection.describe()}" if counts["n_filtered"] else ""
            why += f", the others left out by --dedup={request.dedup}" if request.dedup else ""
            raise BadInput(f"{part.flag} is empty: no document in {len(part.paths)} files{why}")
    if not parts[0].split:
        chats = ", whose chats are never cut," if units.hold_chats(unit_records) else ""
        mend = f"use more text, another fraction or another --split-seed, and delete {request.out}"
        mend = f"name the validation set by --val-source=SPEC, or {mend}" if chats else mend
        splits.check_share(share, f"{parts[0].flag}{chats} at --val-fraction={request.val_fraction}", mend)


def summarise_index(out: pathlib.Path, index: dict[str, Any], progress: Progress = lambda _: None) -> dict[str, Any]:
    """Summarise the index as the command's JSON."""
    _, splits_by_part = prepared.read_prepared(out, hashes=False)
    parts = [_summarise_part(index, name, splits_by_part[name]) for name in index["parts"]]
    for name, part in index["parts"].items():
        if "?" in part.get("selection", ""):
            n_taken = sum(splits_by_part[name][split].n_documents for split in SPLITS)
            left_out = f"{part['n_filtered']:,} are left out"
            progress({"note": f"{name}: {n_taken:,} documents are taken by {part['selection']}, {left_out}"})
        for place in part["bad"]:
            progress({"note": f"left out: {place}"})
    tokenizer = {key: index["tokenizer"][key] for key in ("name", "vocab_size", "separator")}
    return {
        "folder": str(out),
        "fingerprint": prepared.corpus_fingerprint(index),
        "tokenizer": tokenizer,
        "round_trip": index.get("round_trip"),
        "dedup": index.get("dedup", ""),
        "parts": parts,
    }


def _summarise_part(index: Mapping[str, Any], name: str, by_split: Mapping[str, Split]) -> dict[str, Any]:
    """A part's counts; of an index from before copies were counted, None for these."""
    part = index["parts"][name]
    counts: dict[str, Any] = {f"{split}_tokens": by_split[split].n_tokens for split in SPLITS}
    counts |= {f"{split}_documents": by_split[split].n_documents for split in SPLITS}
    ratio = prepared.bytes_per_token(index, name, by_split)
    text, n = part["text_bytes"], [by_split[split].n_documents for split in SPLITS]
    share = splits.Share(text["val"], sum(text.values()), n[1], sum(n), index.get("val_fraction", 0.0))
    facts = {"name": name, "source": part["source"], **counts, "bytes_per_token": ratio, "n_bad": part["n_bad"]}
    facts |= {key: part.get(key) for key in screen.COUNTS}
    facts |= {key: part[key] for key in ("selection", "n_filtered", "n_targets") if key in part}
    return facts | {"split": splits.share_facts(share, part.get("cut_bytes", 0))}
