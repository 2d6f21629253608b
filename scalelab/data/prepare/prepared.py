"""Read and verify a folder that `scalelab prepare` made: its index, and the splits of every part."""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.data.shards import HASHED_ON_OPEN_BYTES, Split, check_shard_entries, check_shard_files, map_split
from scalelab.data.tokenizers import load
from scalelab.data.tokenizers.load import load_indexed_tokenizer
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer
from scalelab.errors import BadInput
from scalelab.stores import copies
from scalelab.stores.urls import is_url
from scalelab.untrusted.documents import read_document

PREPARED_FORMAT = 1


def prepared_folder(path: str) -> pathlib.Path:
    """The folder of `data.path`; for one in an object store a local copy, whose files are compared by hash."""
    return copies.copy_here(path) if is_url(path) else pathlib.Path(os.path.expanduser(path))


def read_prepared_index(folder: pathlib.Path, sealed: bool = True) -> dict[str, Any]:
    """The index of a finished folder; every type and file name in it is checked before a file is opened.

    Raises BadInput for an absent index, another format, no seal (if `sealed`) or a wrong seal.
    """
    path = folder / "index.json"
    if not path.is_file():
        unfinished = "is not finished: run the same `scalelab prepare` again"
        other = "is not a folder that `scalelab prepare` made"
        why = unfinished if (folder / "plan.json").exists() else other
        raise BadInput(f"data.path={str(folder)!r} {why} (it has no index.json)")
    index, hint = _read_known_format(path), _prepare_again_hint(folder)
    if "sha256" not in index and sealed:  # a folder from before 2026-11-22
        raise BadInput(
            f"{path} has no seal (its own SHA-256), since an older version made it: "
            "run the same `scalelab prepare` again; it verifies every file and adds the seal"
        )
    if index.get("sha256", index_sha256(index)) != index_sha256(index):
        raise BadInput(f"{path} was changed after `scalelab prepare` wrote it (its own SHA-256 differs); {hint}")
    _check_index(path, index)
    return index


def _read_known_format(path: pathlib.Path) -> dict[str, Any]:
    """Read the content of an index. BadInput if it is not an index, or has another format."""
    hint = _prepare_again_hint(path.parent)
    try:
        index = read_document(path)
        known = index["format"] == PREPARED_FORMAT and index["parts"]
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}; {hint}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not an index that `scalelab prepare` wrote ({error}); {hint}") from error
    if not known:
        raise BadInput(f"{path} has format {index['format']}, this code reads {PREPARED_FORMAT}; {hint}")
    return index


def _check_index(path: pathlib.Path, index: dict[str, Any]) -> None:
    """Raise BadInput if an index, sealed or not, has parts, types or file names that our writer never produces."""
    load.check_tokenizer_entry(index.get("tokenizer"), str(path))
    parts: Any = index["parts"] if isinstance(index["parts"], dict) else {"": None}
    for name, part in parts.items():
        facts: dict[str, Any] = part if isinstance(part, dict) else {}
        splits: Any = facts.get("splits")
        sizes: Any = facts.get("text_bytes")
        by_split = all(isinstance(fact, dict) and set(fact) == {"train", "val"} for fact in (splits, sizes))
        if not (by_split and all(isinstance(shards, list) for shards in splits.values()) and any(splits.values())):
            raise BadInput(
                f"{path}: part {name!r} is not as `scalelab prepare` writes it; {_prepare_again_hint(path.parent)}"
            )
        all_shards = [shard for shards in splits.values() for shard in shards]
        check_shard_entries(path, index.get("dtype"), all_shards, index["tokenizer"]["vocab_size"])
    for split in ("train", "val"):
        if not any(part["splits"][split] for part in parts.values()):
            raise BadInput(f"{path}: no part has a {split} split; {_prepare_again_hint(path.parent)}")


def index_sha256(index: dict[str, Any]) -> str:
    """SHA-256 of an index without its own `sha256`."""
    rest = {key: value for key, value in index.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _prepare_again_hint(folder: pathlib.Path) -> str:
    return f"delete {folder} and run `scalelab prepare` again"


def read_prepared(
    folder: pathlib.Path, hashes: bool | None = None, sealed: bool = True
) -> tuple[dict[str, Any], dict[str, dict[str, Split]]]:
    """Read the index, and {part: {split: Split}}. Sizes are always checked, SHA-256 if `hashes` (None: small folders).

    Raises BadInput that names a missing, shortened or changed file. The files are mapped: if they are deleted later, a
    running process can still read them, and the next one is refused here.
    """
    index = read_prepared_index(folder, sealed)
    splits = [
        (name, split, shards) for name, part in index["parts"].items() for split, shards in part["splits"].items()
    ]
    entries = [entry for _, _, shards in splits for shard in shards for entry in shard.values()]
    if hashes is None:
        hashes = sum(entry["bytes"] for entry in entries) <= HASHED_ON_OPEN_BYTES
    check_shard_files(folder, entries, hashes)
    parts: dict[str, dict[str, Split]] = {}
    for name, split, shards in splits:
        n_targets = index["parts"][name].get("n_targets", {}).get(split)
        parts.setdefault(name, {})[split] = map_split(folder, shards, index["dtype"], n_targets)
    return index, parts


def bytes_per_token(index: Mapping[str, Any], part: str, by_split: Mapping[str, Split]) -> float:
    """Text bytes over predicted tokens of a part's validation split, or of its training split if it has no other.

    1 for ids without a tokenizer, whose text is unknown.
    """
    split = "val" if by_split["val"].shards else "train"
    sizes = index["parts"][part]["text_bytes"]
    return 1.0 if index["tokenizer"]["kind"] == "ids" else sizes[split] / max(by_split[split].n_targets, 1)


def is_lossy(index: Mapping[str, Any]) -> bool:
    """Whether the tokenizer lost text of these documents: bits per byte are then a lower bound."""
    return bool(index.get("round_trip", {}).get("lossy"))


def corpus_fingerprint(index: dict[str, Any]) -> str:
    """16 hexadecimal digits that depend on the tokenizer, the parts' names and all their tokens."""
    contents = [index["tokenizer"]["name"], {name: part["splits"] for name, part in index["parts"].items()}]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]


def load_run_tokenizer(data: Any) -> Tokenizer:
    """The tokenizer of a run, from its `data` group, to encode prompts and decode samples.

    Raises BadInput for synthetic data, which are not text, and for a prepared folder without its tokenizer.
    """
    if data.source == "prepared":
        folder = prepared_folder(data.path)
        return load_indexed_tokenizer(read_prepared_index(folder)["tokenizer"], folder)
    if data.source == "synthetic":
        raise BadInput("data.source='synthetic' is a language of numbers: there is no text to encode or decode")
    return byte_tokenizer()
