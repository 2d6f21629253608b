"""Tokenizers of Hugging Face's `tokenizers`: any tokenizer.json, and byte-level BPE trained here.

Documents are plain text: a special token spelled in one is encoded letter by letter. A file's truncation, padding and
post-processing (a <s> in front) are for prompts of its own model and are left out.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.data.tokenizers import lacking, words
from scalelab.data.tokenizers.tokenizer import (
    TOKENIZER_FILES,
    Tokenizer,
    decoder_from_table,
    hashed_tokenizer_name,
)
from scalelab.errors import BadInput
from scalelab.untrusted.documents import parse_json, read_document

# End of a document in GPT-2's family, Llama 3, Llama 2 and Mistral, Gemma, T5's family; the first in the vocabulary
# counts.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
MIN_BPE_VOCAB = 257  # 256 bytes and the separator
MOST_WORD_BYTES = 1_000  # of a word in training; uncut, 80,000 equal letters take 1.7 s, and twice as many 4 times that


def train_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train byte-level BPE with GPT-2's split into words (Radford et al. 2019, 2.2); returns a tokenizer.json.

    Id 0 is <|endoftext|>. Equal texts give equal bytes, on any number of threads. Few texts may give fewer ids than
    `vocab_size`. Raises BadInput below MIN_BPE_VOCAB.

    A word of more than MOST_WORD_BYTES, such as a document of one repeated letter, is trained on in pieces of this
    size, since the library's time grows with the square of a word's length. Encoding takes words whole.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    check_bpe_vocab(vocab_size)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split, pieces = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(MOST_WORD_BYTES)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKENS[0]],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = split
    return tokenizer.to_str(pretty=False).encode()


def check_bpe_vocab(vocab_size: int) -> None:
    """Raise BadInput for a vocabulary below MIN_BPE_VOCAB."""
    if vocab_size < MIN_BPE_VOCAB:
        raise BadInput(
            f"--tokenizer=bpe:{vocab_size}: 256 bytes and a separator are {MIN_BPE_VOCAB} ids; "
            f"nearest: bpe:{MIN_BPE_VOCAB}"
        )


def load_hf_json(content: bytes, path: pathlib.Path, separator: str = "") -> Tokenizer:
    """Load the tokenizer of a tokenizer.json's `content`. BadInput if it is invalid or has no end of a document."""
    inner = _parse_tokenizer(content, path)
    vocabulary = inner.get_vocab(with_added_tokens=True)
    vocab_size = max(vocabulary.values()) + 1
    end = _separator(vocabulary, vocab_size, path, separator)

    parsed = parse_json(content)
    drops = lacking.drops_letters(parsed, vocabulary, byte_letters())
    unknown = lacking.unknown_id(parsed, vocabulary)
    by_word = None if drops else words.make_word_encoder(inner, parsed)

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        text = bytes(document).decode()
        try:
            if by_word and (ids := by_word(text)) is not None:
                return ids
            # Encoding without offsets is faster.
            batch = inner.encode_batch if drops else inner.encode_batch_fast
            (encoding,) = batch([text], add_special_tokens=False)
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(str(error)) from error
        if drops:
            lacking.check_all_covered(text, encoding.offsets)
        return np.array(encoding.ids, np.uint32)

    def count_unknown(document: bytes) -> int:
        text = document.decode()
        encoding = inner.encode(text, add_special_tokens=False)
        return lacking.count_lacking(text, encoding.ids, encoding.offsets, unknown)

    def decode_text(ids: Sequence[int] | np.ndarray) -> bytes:
        return inner.decode([i for i in np.asarray(ids).tolist() if i != end], skip_special_tokens=False).encode()

    exact = _is_byte_level(parsed)  # other decoders can't give the bytes of half a letter
    decode = decoder_from_table(_byte_table(inner, vocabulary, vocab_size), end) if exact else decode_text
    name = hashed_tokenizer_name("json", content, vocab_size, end)
    return Tokenizer(name, vocab_size, encode, decode, end, "json", content, unknown, count_unknown)


def _parse_tokenizer(content: bytes, path: pathlib.Path) -> Any:
    """Make the library's tokenizer, which neither cuts nor pads, and reads special tokens in a text as text."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers share the cores by documents, not by threads
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exceptions
        raise BadInput(f"{path} is not a tokenizer.json: {str(error).splitlines()[0]}") from error
    inner.no_truncation()
    inner.no_padding()
    inner.encode_special_tokens = True
    return inner


def _separator(vocabulary: dict[str, int], vocab_size: int, path: pathlib.Path, separator: str) -> int:
    if separator:
        # A number is an id, even if a token spells it.
        number = int(separator) if separator.isdecimal() else vocabulary.get(separator, -1)
        if not 0 <= number < vocab_size:
            raise BadInput(f"--separator={separator}: no token of {path}, and no id from 0 to {vocab_size - 1}")
        return number
    beside = path.with_name("tokenizer_config.json")
    stated = _read_eos_tokens(beside)
    for token in stated or END_TOKENS:
        if token in vocabulary:
            return vocabulary[token]
    if stated:
        raise BadInput(f"{beside}: its eos_token {stated[0]!r} is not a token of {path}: --separator=TOKEN or ID")
    raise BadInput(
        f"{path} has none of {', '.join(END_TOKENS)}: say which token ends a document, --separator=TOKEN or ID"
    )


def _read_eos_tokens(path: pathlib.Path) -> list[str]:
    """Read the eos_token of a tokenizer_config.json; empty without the file or the entry."""
    if not path.is_file():
        return []
    try:
        token = read_document(path, follow=True).get("eos_token")
        return [] if token is None else [str(token["content"] if isinstance(token, dict) else token)]
    except (ValueError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path} can't be read ({error}), so the token that ends a document is unknown: --separator=TOKEN or ID"
        ) from error


def _is_byte_level(content: dict[str, Any]) -> bool:
    decoder = content.get("decoder") or {}
    return any(part["type"] == "ByteLevel" for part in [decoder, *decoder.get("decoders", [])] if part)


def spelled_tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    """The special tokens of a tokenizer.json that a text spells."""
    added = (parse_json(tokenizer.content).get("added_tokens") or []) if tokenizer.kind == "json" else []
    special = [token["content"] for token in added if token.get("special") and token.get("content")]
    return [token for token in dict.fromkeys(special) if token in text]


def encode_spelled(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Ids of a text in which a special token is that token, not its letters, as in chats. ValueError as `encode`."""
    inner = _parse_tokenizer(tokenizer.content, pathlib.Path(TOKENIZER_FILES["json"]))
    inner.encode_special_tokens = False
    try:
        return np.array(inner.encode(text, add_special_tokens=False).ids, np.uint32)
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(str(error)) from error


def token_names(content: Mapping[str, Any]) -> dict[int, str]:
    """`{id: token}` of a tokenizer.json."""
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(json.dumps(content))
    return {number: token for token, number in inner.get_vocab(with_added_tokens=True).items()}


def byte_letters() -> dict[int, str]:
    """`{byte: letter}` of byte-level vocabularies (GPT-2's encoder.py): itself if printable, else one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


def _byte_table(inner: Any, vocabulary: dict[str, int], vocab_size: int) -> list[bytes]:
    """The bytes of every id of a byte-level vocabulary, whose letters stand for one byte each."""
    byte_of = {letter: byte for byte, letter in byte_letters().items()}
    added = set(inner.get_added_tokens_decoder())
    table = [b""] * vocab_size
    for token, number in vocabulary.items():
        whole = number not in added and all(letter in byte_of for letter in token)
        table[number] = bytes(byte_of[letter] for letter in token) if whole else token.encode()
    return table
