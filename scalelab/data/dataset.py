"""Open a config's dataset: tokenize once into cached shards, split by document, and describe the data."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scalelab.data.prepare import prepared
from scalelab.data.shards import SHARD_FORMAT, Split, read_shard_folder, write_shard_folder
from scalelab.data.sources.sources import DataConfig, Source, open_source
from scalelab.data.tokenizers.tokenizer import DEFAULT_SEPARATOR, Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput

OVERSHOOT = 1.25  # multiple of the wanted validation share: a document that would exceed it stays in training


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """One named source's tokens. `bytes_per_token`: text bytes over tokens (with separators) of its val split."""

    name: str
    train: Split
    val: Split
    bytes_per_token: float


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Tokens of one or more sources with one tokenizer, and the facts about them for a run's record.

    `separator` is the id that ends a document. `fingerprint` covers every stored token and its split. `bytes_per_token`
    is over all validation text, so bits per byte = loss / ln 2 / bytes_per_token; a synthetic token counts as one byte.
    `entropy_rate` is in nats per token, None unless synthetic. `description` is plain JSON for the run's record.
    """

    parts: tuple[DatasetPart, ...]
    vocab_size: int
    separator: int
    fingerprint: str
    bytes_per_token: float
    entropy_rate: float | None
    description: dict[str, Any]

    @property
    def hparams(self) -> dict[str, float]:
        """Numbers of the data that the training step needs, traced like a config's: `h.dataset.separator`."""
        return {"dataset.separator": self.separator}


def open_dataset(config: DataConfig) -> Dataset:
    """Open the dataset of `config`; writes its shards to the cache first if they aren't there.

    Any number of processes may call this at once. Raises BadInput: unknown source, nothing to read, a single document
    (the split is by document), a vocabulary larger than the model's, or shards that differ from their index.
    """
    if not 0 < config.val_fraction < 1:
        raise BadInput(f"data.val_fraction={config.val_fraction} is not between 0 and 1; 0.1 is usual")
    if config.source in READY:
        return READY[config.source](config)
    source = open_source(config)
    tokenizer = byte_tokenizer() if source.vocab_size is None else id_tokenizer(source.vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        raise BadInput(
            f"vocab_size={config.vocab_size} is too small: the {tokenizer.name} tokenizer of data.source="
            f"{config.source!r} has {tokenizer.vocab_size} ids"
        )
    folder = _cache_folder(config, source, tokenizer)
    if not folder.exists():
        _build(folder, config, source, tokenizer)
    index, splits = read_shard_folder(folder)
    return _describe(index, splits, source, tokenizer)


def _open_prepared(config: DataConfig) -> Dataset:
    """Open a folder of `scalelab prepare`, which has its own split, tokenizer and parts."""
    folder = prepared.prepared_folder(config.path)
    index, splits = prepared.read_prepared(folder)
    tokenizer, fingerprint = index["tokenizer"], prepared.corpus_fingerprint(index)
    if tokenizer["vocab_size"] > config.vocab_size:
        raise BadInput(
            f"model.vocab_size={config.vocab_size} is too small: the tokenizer of {folder} ({tokenizer['name']}) has "
            f"{tokenizer['vocab_size']} ids; nearest: {tokenizer['vocab_size']}"
        )
    parts = tuple(
        DatasetPart(name, part["train"], part["val"], prepared.bytes_per_token(index, name, part["val"]))
        for name, part in splits.items()
    )
    counts = {
        f"{split}_{what}": sum(getattr(getattr(part, split), f"n_{what}") for part in parts)
        for split in ("train", "val")
        for what in ("tokens", "documents")
    }
    n_bytes = sum(part.bytes_per_token * part.val.n_targets for part in parts)
    description = {
        "source": "prepared",
        "path": config.path,
        "fingerprint": fingerprint,
        "tokenizer": tokenizer["name"],
        "parts": {name: part["source"] for name, part in index["parts"].items()},
        **counts,
        "bytes_per_token": n_bytes / sum(part.val.n_targets for part in parts),
        "entropy_rate": None,
    }
    if "chat" in index:
        description["chat"] = index["chat"]["name"]  # only the assistant's turns are predicted
    ids = tokenizer["vocab_size"], tokenizer["separator"]
    return Dataset(parts, *ids, fingerprint, description["bytes_per_token"], None, description)


READY: dict[str, Callable[[DataConfig], Dataset]] = {"prepared": _open_prepared}  # sources that are datasets already


def _cache_folder(config: DataConfig, source: Source, tokenizer: Tokenizer) -> pathlib.Path:
    default = os.environ.get("SCALELAB_CACHE") or "~/.cache/scalelab"
    inputs = [SHARD_FORMAT, source.fingerprint, tokenizer.name, config.val_fraction, config.split_seed]
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    name = f"{config.source.replace(':', '.')}-{key[:16]}"
    folder = pathlib.Path(os.path.expanduser(config.cache_dir or default)) / name
    if config.cache_is_users or folder.exists():
        return folder
    return pathlib.Path(os.path.expanduser(default)) / name


def _build(folder: pathlib.Path, config: DataConfig, source: Source, tokenizer: Tokenizer) -> None:
    sizes: dict[bytes, int] = {}  # keyed by content: equal documents fall on the same side of the split
    for document in source.documents():
        digest = _digest(document)
        sizes[digest] = sizes.get(digest, 0) + len(document)
    held_out = held_out_documents(sizes, config.val_fraction, config.split_seed)
    facts = {
        "tokenizer": tokenizer.name,
        "val_text_bytes": sum(sizes[digest] for digest in held_out),
        "text_bytes": sum(sizes.values()),
    }
    try:
        write_shard_folder(folder, _tokenized(source, tokenizer, sizes, held_out), tokenizer.dtype, facts)
    except OSError as error:
        raise BadInput(f"data.cache_dir: can't write {folder} ({error.strerror})") from error


def _digest(document: bytes | np.ndarray) -> bytes:
    return hashlib.sha256(document if isinstance(document, bytes) else document.tobytes()).digest()


def _tokenized(
    source: Source, tokenizer: Tokenizer, sizes: dict[bytes, int], held_out: set[bytes]
) -> Iterator[tuple[str, np.ndarray]]:
    for document in source.documents():
        digest = _digest(document)
        if digest not in sizes:
            raise BadInput("a document changed while the data were being prepared; run again")
        yield "val" if digest in held_out else "train", tokenizer.encode(document)


def held_out_documents(sizes: dict[bytes, int], val_fraction: float, split_seed: int) -> set[bytes]:
    """Digests of the validation documents, from each document's digest and size in bytes.

    Documents are held out in the order of a hash of (split_seed, content) until they hold `val_fraction` of the bytes;
    one that would overshoot by a quarter is skipped. So the split depends only on contents, not on names or listing
    order. Raises BadInput if there is only one document.
    """
    if len(sizes) < 2:
        raise BadInput(
            "the validation split is by document and there is only one: use several files (or more n_tokens)"
        )
    total = sum(sizes.values())
    wanted = val_fraction * total
    seed = str(split_seed).encode() + b":"
    order = sorted(sizes, key=lambda digest: hashlib.sha256(seed + digest).digest())
    held_out: set[bytes] = set()
    n_bytes = 0
    for digest in order:
        if n_bytes + sizes[digest] <= min(OVERSHOOT * wanted, total - 1):  # one document is left for training
            held_out.add(digest)
            n_bytes += sizes[digest]
        if n_bytes >= wanted:
            break
    return held_out or {min(order, key=lambda digest: sizes[digest])}


def _describe(index: dict[str, Any], splits: dict[str, Split], source: Source, tokenizer: Tokenizer) -> Dataset:
    contents = json.dumps([tokenizer.name, index["splits"]], sort_keys=True)
    fingerprint = hashlib.sha256(contents.encode()).hexdigest()[:16]
    train, val = splits["train"], splits["val"]
    bytes_per_token = 1.0 if source.vocab_size else index["val_text_bytes"] / val.n_tokens
    description = source.description | {
        "fingerprint": fingerprint,
        "source_fingerprint": source.fingerprint[:16],
        "tokenizer": tokenizer.name,
        "train_tokens": train.n_tokens,
        "val_tokens": val.n_tokens,
        "train_documents": train.n_documents,
        "val_documents": val.n_documents,
        "bytes_per_token": bytes_per_token,
        "entropy_rate": source.entropy_rate,
    }
    part = DatasetPart(source.description["source"], train, val, bytes_per_token)
    return Dataset(
        (part,), tokenizer.vocab_size, DEFAULT_SEPARATOR, fingerprint, bytes_per_token, source.entropy_rate, description
    )
