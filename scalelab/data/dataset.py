"""Open a config's dataset: tokenize once into cached shards, split by document, and describe the data."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scalelab.data import splits as split_rules
from scalelab.data.prepare import prepared
from scalelab.data.shards import SHARD_FORMAT, Split, read_shard_folder, read_shard_index, write_shard_folder
from scalelab.data.sources.sources import DataConfig, Source, open_source
from scalelab.data.tokenizers.tokenizer import DEFAULT_SEPARATOR, Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput

OVERSHOOT = 1.25  # multiple of the wanted validation share: a document that would exceed it stays in training


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """One named source's tokens. `bytes_per_token`: text bytes over tokens (with separators) of its val split.

    Of the two splits one may be without shards: documents that are only trained on, or a validation set.
    """

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
    def val_parts(self) -> tuple[DatasetPart, ...]:
        """The parts that are scored: those with a validation split."""
        return tuple(part for part in self.parts if part.val.shards)

    @property
    def hparams(self) -> dict[str, float]:
        """Numbers of the data that the training step needs, traced like a config's: `h.dataset.separator`."""
        return {"dataset.separator": self.separator}


def open_dataset(config: DataConfig) -> Dataset:
    """Open the dataset of `config`; writes its shards to the cache first if they aren't there.

    Any number of processes may call this at once. Raises BadInput: unknown source, nothing to read, too little text for
    the split, a vocabulary larger than the model's, or shards that differ from their index.
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
    index, splits = read_shard_folder(_shard_folder(config, source, tokenizer))
    return _describe(index, splits, source, tokenizer, config.val_fraction)


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
        DatasetPart(name, part["train"], part["val"], prepared.bytes_per_token(index, name, part))
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
    } | ({"bpb_bound": "lower"} if prepared.is_lossy(index) else {})
    if "chat" in index:
        description["chat"] = index["chat"]["name"]  # only the assistant's turns are predicted
    if index.get("val_fraction") == 0:
        description["val_sources"] = True  # validation sets of the user's own
    ids = tokenizer["vocab_size"], tokenizer["separator"]
    return Dataset(parts, *ids, fingerprint, description["bytes_per_token"], None, description)


READY: dict[str, Callable[[DataConfig], Dataset]] = {"prepared": _open_prepared}  # sources that are datasets already


def _shard_folder(config: DataConfig, source: Source, tokenizer: Tokenizer) -> pathlib.Path:
    """The folder of the shards; written first if it is not there.

    Documents that are split whole and those that are cut have folders of two names: one of before documents were cut
    is left where whole documents missed the share.
    """
    whole = _cache_folder(config, source, tokenizer)
    if whole.exists() and (source.vocab_size or not _stored_share(whole, config).is_off(split_rules.FAR)):
        return whole
    pieces = _cache_folder(config, source, tokenizer, "pieces")
    return pieces if pieces.exists() else _build((whole, pieces), config, source, tokenizer)


def _cache_folder(config: DataConfig, source: Source, tokenizer: Tokenizer, *more: str) -> pathlib.Path:
    default = os.environ.get("SCALELAB_CACHE") or "~/.cache/scalelab"
    inputs = [SHARD_FORMAT, source.fingerprint, tokenizer.name, config.val_fraction, config.split_seed, *more]
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    name = f"{config.source.replace(':', '.')}-{key[:16]}"
    folder = pathlib.Path(os.path.expanduser(config.cache_dir or default)) / name
    if config.cache_is_users or folder.exists():
        return folder
    return pathlib.Path(os.path.expanduser(default)) / name


def _stored_share(folder: pathlib.Path, config: DataConfig) -> split_rules.Share:
    """The share of the bytes in stored shards; their numbers of documents, unknown here, stand for two full splits."""
    index = read_shard_index(folder)
    return split_rules.Share(index["val_text_bytes"], index["text_bytes"], 1, 2, config.val_fraction)


def _build(
    folders: tuple[pathlib.Path, pathlib.Path], config: DataConfig, source: Source, tokenizer: Tokenizer
) -> pathlib.Path:
    """Write the shards: documents whole to the first of `folders`, or pieces of them to the second."""
    sizes, held_out, share, cut_bytes = _choose_split(config, source)
    folder = folders[bool(cut_bytes)]
    facts = {"tokenizer": tokenizer.name, "val_text_bytes": share.val_bytes, "text_bytes": share.all_bytes}
    facts |= {"cut_bytes": cut_bytes} if cut_bytes else {}
    try:
        pairs = _tokenized(source, tokenizer, sizes, held_out, cut_bytes)
        write_shard_folder(folder, pairs, tokenizer.dtype, facts)
    except OSError as error:
        raise BadInput(f"data.cache_dir: can't write {folder} ({error.strerror})") from error
    return folder


def _choose_split(config: DataConfig, source: Source) -> tuple[dict[bytes, int], set[bytes], split_rules.Share, int]:
    """(bytes by digest, the digests held out, the share, size of pieces): whole documents if these come near the share.

    BadInput if no pieces do. Ids are never cut: an end inside a document would be no sample of its language.
    """
    sizes, held_out, share = _hold_out(config, source, 0)
    whole, cut_bytes = share, 0
    for attempt in range(0 if source.vocab_size else len(split_rules.PIECES)):
        if not share.is_off(split_rules.FAR):
            break
        cut_bytes = split_rules.piece_bytes(whole.all_bytes, config.val_fraction, attempt)
        sizes, held_out, share = _hold_out(config, source, cut_bytes)
    what = "n_tokens" if source.vocab_size else "text"
    split_rules.check_share(share, f"data.source={config.source!r}", f"use more {what}, or another data.val_fraction")
    return sizes, held_out, share, cut_bytes


def _hold_out(
    config: DataConfig, source: Source, cut_bytes: int
) -> tuple[dict[bytes, int], set[bytes], split_rules.Share]:
    """(bytes by digest, the digests held out, the share) of documents, or of their pieces of about `cut_bytes`."""
    sizes: dict[bytes, int] = {}  # keyed by content: equal documents fall on the same side of the split
    counts: dict[bytes, int] = {}
    for document in source.documents():
        for piece in split_rules.cut_document(document, cut_bytes):
            digest = _digest(piece)
            sizes[digest] = sizes.get(digest, 0) + len(piece)
            counts[digest] = counts.get(digest, 0) + 1
    held_out = held_out_documents(sizes, config.val_fraction, config.split_seed) if len(sizes) > 1 else set()
    held = sum(sizes[digest] for digest in held_out), sum(sizes.values())
    numbers = sum(counts[digest] for digest in held_out), sum(counts.values())
    return sizes, held_out, split_rules.Share(*held, *numbers, config.val_fraction)


def _digest(document: bytes | np.ndarray) -> bytes:
    return hashlib.sha256(document if isinstance(document, bytes) else document.tobytes()).digest()


def _tokenized(
    source: Source, tokenizer: Tokenizer, sizes: dict[bytes, int], held_out: set[bytes], cut_bytes: int
) -> Iterator[tuple[str, np.ndarray]]:
    for document in source.documents():
        for piece in split_rules.cut_document(document, cut_bytes):
            digest = _digest(piece)
            if digest not in sizes:
                raise BadInput("a document changed while the data were being prepared; run again")
            yield "val" if digest in held_out else "train", tokenizer.encode(piece)


def held_out_documents(sizes: dict[bytes, int], val_fraction: float, split_seed: int) -> set[bytes]:
    """Digests of the validation documents, from each document's digest and size in bytes.

    Documents are held out in the order of a hash of (split_seed, content) until they hold `val_fraction` of the bytes;
    one that would overshoot by a quarter is skipped. So the split depends only on contents, not on names or listing
    order. Needs two documents at least.
    """
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


def _describe(
    index: dict[str, Any], splits: dict[str, Split], source: Source, tokenizer: Tokenizer, asked: float
) -> Dataset:
    contents = json.dumps([tokenizer.name, index["splits"]], sort_keys=True)
    fingerprint = hashlib.sha256(contents.encode()).hexdigest()[:16]
    train, val = splits["train"], splits["val"]
    bytes_per_token = 1.0 if source.vocab_size else index["val_text_bytes"] / val.n_tokens
    numbers = val.n_documents, val.n_documents + train.n_documents
    share = split_rules.Share(index["val_text_bytes"], index["text_bytes"], *numbers, asked)
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
        "split": split_rules.share_facts(share, index.get("cut_bytes", 0)),
    }
    part = DatasetPart(source.description["source"], train, val, bytes_per_token)
    return Dataset(
        (part,), tokenizer.vocab_size, DEFAULT_SEPARATOR, fingerprint, bytes_per_token, source.entropy_rate, description
    )
