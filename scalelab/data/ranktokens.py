"""tiktoken's ranks files: a line a token, base64 and its rank. They lack the split into words and the special tokens.

So both are known by the number of ranks, for the vocabularies that are published in this form; another file takes GPT-4's
split, and an <|endoftext|> of its own after the last rank.
"""

import base64
import binascii
import dataclasses
import pathlib

import numpy as np

from scalelab.data.tokenizers import Tokenizer, from_table, hashed_name
from scalelab.errors import BadInput

# Splits into words, from tiktoken_ext/openai_public.py (0.14.0); Llama 3's is another spelling of cl100k's.
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
O200K = "|".join(
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


@dataclasses.dataclass(frozen=True)
class Published:
    """A vocabulary: its split into words, the id that ends a document, and how many ids there are with special tokens."""

    name: str
    split: str
    end: int
    vocab_size: int


PUBLISHED = {  # by the number of ranks
    50_256: Published("r50k_base (GPT-2)", GPT2, 50_256, 50_257),
    50_280: Published("p50k_base", GPT2, 50_256, 50_281),
    100_256: Published("cl100k_base (GPT-4)", CL100K, 100_257, 100_277),
    128_000: Published("Llama 3", CL100K, 128_001, 128_256),
    199_998: Published("o200k_base (GPT-4o)", O200K, 199_999, 200_019),
}


def published(n_ranks: int) -> Published:
    """What is known of a file with so many ranks."""
    return PUBLISHED.get(n_ranks) or Published(
        "none that is known, so with GPT-4's split into words", CL100K, n_ranks, n_ranks + 1
    )


def note(content: bytes, path: pathlib.Path) -> str:
    """What such a file was taken for, to be said to the user."""
    n = len(parse(content, path))
    return f"{path.name}: {n:,} ranks, taken for {published(n).name}"


def load(content: bytes, path: pathlib.Path, separator: str = "") -> Tokenizer:
    """The tokenizer of a ranks file. `separator`: the id that ends a document; "": the published one's."""
    import tiktoken

    ranks = parse(content, path)
    known = published(len(ranks))
    end = _separator(known, separator)
    inner = tiktoken.Encoding(path.name, pat_str=known.split, mergeable_ranks=ranks, special_tokens={})
    table = [b""] * known.vocab_size
    for token, rank in ranks.items():
        table[rank] = token

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        return inner.encode_to_numpy(bytes(document).decode(), disallowed_special=())

    name = hashed_name("ranks", content, known.vocab_size, end)
    return Tokenizer(name, known.vocab_size, encode, from_table(table, end), end, "ranks", content)


def parse(content: bytes, path: pathlib.Path) -> dict[bytes, int]:
    """`{token: rank}`. Raises BadInput that names the line."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise BadInput(
                f"{path}, line {number}: {line[:40]!r} is neither a tiktoken rank (base64 and a number) nor a tokenizer.json"
            ) from None
    missing = {bytes([byte]) for byte in range(256)} - ranks.keys()
    if missing or max(ranks.values()) > len(ranks):
        what = f"lacks byte {min(missing)!r}" if missing else f"has {len(ranks)} tokens and rank {max(ranks.values())}"
        raise BadInput(f"{path} is no whole tiktoken ranks file: it {what}")
    return ranks


def _separator(known: Published, said: str) -> int:
    if said and not (said.isdigit() and int(said) < known.vocab_size):
        raise BadInput(
            f"--separator={said}: a ranks file names no special tokens; an id from 0 to {known.vocab_size - 1}"
        )
    return int(said) if said else known.end
