"""Make the index of a prepared folder from its units' records, complete it with its shards, and summarise it."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.data.prepare import merge, prepared, specs, units
from scalelab.data.prepare.job import Progress
from scalelab.data.prepare.request import Request
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.errors import BadInput
from scalelab.record import records


def plan_index(
    job: PrepareJob,
    parts: Sequence[specs.SourcePart],
    work: Mapping[str, Sequence[specs.WorkUnit]],
    request: Request,
) -> tuple[dict[str, Any], list[merge.PlannedShard]]:
    """Make the index with its shards still by name, and list the shards to write. All units exist."""
    entries: dict[str, Any] = {}
    planned: list[merge.PlannedShard] = []
    for part in parts:
        unit_records = [(unit.name, _unit_record(job, unit)) for unit in work[part.name]]
        shards = merge.plan_shards(part.name, unit_records)
        entries[part.name] = _part_entry(part, [record for _, record in unit_records], shards, request)
        planned += shards
    index = {
        "format": prepared.PREPARED_FORMAT,
        "tokenizer": job.tokenizer,
        "dtype": job.dtype(units.load_job_tokenizer(job)).str,
    }
    if job.template:
        index["chat"] = {"name": job.template.name, "template": job.template.text, "tokens": dict(job.template.tokens)}
    options = {key: getattr(request, key) for key in ("text_key", "val_fraction", "split_seed")}
    return index | options | {"parts": entries}, planned


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
    part: specs.SourcePart, unit_records: list[dict[str, Any]], shards: list[merge.PlannedShard], request: Request
) -> dict[str, Any]:
    """Make a part's entry in the index, with its shards still by name. Raises BadInput for an empty part or split."""
    n_bad = sum(record["n_bad"] for record in unit_records)
    bad = [place for record in unit_records for place in record["bad"]]
    if n_bad and not request.skip_bad:
        raise BadInput(
            f"{bad[0]} ({n_bad} such documents were left out under --skip-bad: say it again, or begin a new --out)"
        )
    n = {split: sum(record[split]["n_documents"] for record in unit_records) for split in SPLITS}
    n_filtered = sum(record.get("n_filtered", 0) for record in unit_records)
    _refuse_empty_splits(part, n, n_bad, n_filtered, request)
    chosen = {"selection": text, "n_filtered": n_filtered} if (text := part.selection.describe()) else {}
    if "n_targets" in unit_records[0]["train"]:
        chosen["n_targets"] = {split: sum(record[split]["n_targets"] for record in unit_records) for split in SPLITS}
    return chosen | {
        "source": part.spec,
        "text_bytes": {split: sum(record[split]["text_bytes"] for record in unit_records) for split in SPLITS},
        "n_bad": n_bad,
        "bad": bad[:20],
        "splits": {split: [shard.name for shard in shards if shard.split == split] for split in SPLITS},
    }


def _refuse_empty_splits(
    part: specs.SourcePart, n: Mapping[str, int], n_bad: int, n_filtered: int, request: Request
) -> None:
    """Raise BadInput if a part has no document for a split; `n`: its documents by split."""
    total, bad = sum(n.values()), f", {n_bad} bad" if n_bad else ""
    if n_filtered:
        bad += f", {n_filtered} left out by {part.selection.describe()}"
    if not total:
        raise BadInput(f"--source={part.spec} is empty: no document in {len(part.paths)} files{bad}")
    for split in SPLITS:
        if not n[split]:
            raise BadInput(
                f"none of the {total} documents of --source={part.spec} falls to the {split} split at "
                f"--val-fraction={request.val_fraction}: use more documents, another fraction or another --split-seed, "
                f"and delete {request.out}"
            )


def summarise_index(out: pathlib.Path, index: dict[str, Any], progress: Progress = lambda _: None) -> dict[str, Any]:
    """Summarise the index as the command's JSON."""
    _, splits = prepared.read_prepared(out, hashes=False)
    parts = []
    for name, part in index["parts"].items():
        counts = {f"{split}_tokens": splits[name][split].n_tokens for split in SPLITS}
        counts |= {f"{split}_documents": splits[name][split].n_documents for split in SPLITS}
        ratio = prepared.bytes_per_token(index, name, splits[name]["val"])
        parts.append(
            {"name": name, "source": part["source"], **counts, "bytes_per_token": ratio, "n_bad": part["n_bad"]}
        )
        if "?" in part.get("selection", ""):
            parts[-1] |= {"selection": part["selection"], "n_filtered": part["n_filtered"]}
            n_taken = counts["train_documents"] + counts["val_documents"]
            left_out = f"{part['n_filtered']:,} are left out"
            progress({"note": f"{name}: {n_taken:,} documents are taken by {part['selection']}, {left_out}"})
        for place in part["bad"]:
            progress({"note": f"left out: {place}"})
    tokenizer = {key: index["tokenizer"][key] for key in ("name", "vocab_size", "separator")}
    return {
        "folder": str(out),
        "fingerprint": prepared.corpus_fingerprint(index),
        "tokenizer": tokenizer,
        "parts": parts,
    }
