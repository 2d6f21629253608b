"""Load tokenizers from a file or from a prepared folder's index."""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.data.tokenizers import hf_json, ranks
from scalelab.data.tokenizers.tokenizer import TOKENIZER_FILES, Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput, nearest_hint
from scalelab.untrusted.files import read_bytes
from scalelab.untrusted.paths import path_below

MOST_TOKENIZER_BYTES = 2**27  # Gemma 3's file, of 262,144 tokens, has 33 MB
TOKENIZER_KINDS = ("bytes", "ids", "json", "ranks")


def load_tokenizer_file(path: pathlib.Path, separator: str = "") -> Tokenizer:
    """Load a Hugging Face tokenizer.json or a tiktoken ranks file.

    `separator`: the token or id that ends a document; "": the file's. Raises BadInput if the file is neither, or has no
    end of a document.
    """
    if not path.is_file():
        beside = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise BadInput(
            f"--tokenizer={path}: no such file{nearest_hint(str(path), ['bytes', *beside])}; or bytes, bpe:V, ids:V"
        )
    content = read_bytes(path, MOST_TOKENIZER_BYTES, follow=True)
    if content.lstrip()[:1] == b"{":
        return hf_json.load_hf_json(content, path, separator)
    return ranks.load_ranks(content, path, separator)


def check_tokenizer_entry(entry: Any, where: str) -> None:
    """Raise BadInput if a tokenizer's entry in a file is not as `Tokenizer.entry` writes it."""
    facts = entry if isinstance(entry, Mapping) else {}
    kind, size, separator = (facts.get(key) for key in ("kind", "vocab_size", "separator"))
    if (
        kind not in TOKENIZER_KINDS
        or facts.get("file") != TOKENIZER_FILES.get(str(kind))
        or not isinstance(facts.get("name"), str)
    ):
        raise BadInput(
            f"{where}: a tokenizer of kind {kind!r} in the file {facts.get('file')!r} is not one that is stored here"
        )
    if not (type(size) is int and type(separator) is int and 0 <= separator < size <= 2**31):
        raise BadInput(
            f"{where}: a tokenizer of {size!r} ids with separator {separator!r}: not ids from 0 to its size - 1"
        )


def load_indexed_tokenizer(entry: Mapping[str, Any], folder: pathlib.Path) -> Tokenizer:
    """Load the tokenizer that a folder's index describes. Raises BadInput if its file is missing or has changed."""
    check_tokenizer_entry(entry, str(folder))
    if entry["kind"] == "bytes":
        return byte_tokenizer()
    if entry["kind"] == "ids":
        return id_tokenizer(entry["vocab_size"], entry["separator"])
    path = path_below(folder, entry["file"])
    if not path.is_file():
        raise BadInput(f"{path}, the tokenizer that the tokens were made with, is missing: put it back")
    tokenizer = load_tokenizer_file(path, str(entry["separator"]))
    if tokenizer.name != entry["name"]:
        raise BadInput(f"{path} is {tokenizer.name}, but the tokens were made with {entry['name']}")
    return tokenizer
